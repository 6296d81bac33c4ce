"""What tells one model from another: every byte of a folder, the commit of a name on the hub."""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from autoj_reward.errors import ModelError, OutputError
from autoj_reward.io.files import write_json
from autoj_reward.models.built_in import cache_folder

LARGE = 1 << 20
"""Bytes from which a file's digest is kept: a smaller one is read again as quickly."""
SETTLED_NS = 2 * 10**9
"""Age from which a file's times tell it from its next version, whatever the file system's clock."""
COMMIT = re.compile("[0-9a-f]{40}")


def folder_identity(folder: Path) -> str:
    """Name and digest of a folder: all files in it that a model or tokenizer could be loaded from,
    and the templates and code below it, whole. Large files are read once until they change."""
    inside = [*folder.iterdir(), *folder.rglob("*/*.jinja"), *folder.rglob("*/*.py")]
    named = {
        path.relative_to(folder).as_posix(): path
        for path in inside
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".md"
    }
    listed = {name: _file_digest(path) for name, path in sorted(named.items())}
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
    return f"{folder.name}-{digest}"


@cache
def hub_commit(name: str, revision: str | None, file: str = "config.json") -> str:
    """The commit that a revision (default: main) of a hub name stands for, for as long as this
    process lives. Raises ModelError if neither the hub nor its cache knows."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(name, file, revision=revision)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name}: neither the model hub nor its cache on this machine has {file} of revision "
            f"{revision or 'main'}: {error}; check the name and the network, or name a folder"
        ) from error
    return Path(found).parent.name


def _file_digest(path: Path) -> str:
    """SHA-256 of a whole file."""
    before = _version(path)
    if path.stat().st_size < LARGE:
        return _sha256(path)
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = cache_folder() / "digests" / f"{place}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # no note yet, or none that is whole
        kept = json.loads(note.read_text(encoding="utf-8"))
        if kept["version"] == before:
            return str(kept["sha256"])
    digest = _sha256(path)
    if _version(path) == before and time.time_ns() - max(before[1:3]) > SETTLED_NS:
        with suppress(OutputError):  # without a cache it is read again
            write_json(note, {"version": before, "sha256": digest})
    return digest


def _version(path: Path) -> list[int]:
    """What changes when a file does. A copy may bring its size and its time of modification."""
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
