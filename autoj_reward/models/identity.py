"""Model identity: a digest of a folder's files, or the commit of a hub name."""

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
"""Size in bytes from which a file's digest is cached. Smaller files are read again as fast."""
SETTLED_NS = 2 * 10**9
"""Age in nanoseconds from which a file's times identify its version on any file system."""
COMMIT = re.compile("[0-9a-f]{40}")
"""Pattern of a full commit hash."""


def folder_identity(folder: Path) -> str:
    """Return a folder's name with a digest of its contents.

    The digest covers the files from which a model or tokenizer can be loaded, and the templates and
    code below. Digests of large files are cached until the files change.
    """
    paths = [*folder.iterdir(), *folder.rglob("*/*.jinja"), *folder.rglob("*/*.py")]
    files_by_name = {
        path.relative_to(folder).as_posix(): path
        for path in paths
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".md"
    }
    digests = {name: _digest_file(path) for name, path in sorted(files_by_name.items())}
    digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
    return f"{folder.name}-{digest}"


@cache
def hub_commit(name: str, revision: str | None, file: str = "config.json") -> str:
    """Return the commit of a hub name's revision (default: main), fixed for this process.

    Raises ModelError if neither the hub nor its local cache knows it.
    """
    if revision and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import hf_hub_download

    try:
        file_path = hf_hub_download(name, file, revision=revision)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name}: neither the model hub nor its cache on this machine has {file} of revision "
            f"{revision or 'main'}: {error}; check the name and the network, or name a folder"
        ) from error
    return Path(file_path).parent.name


def _digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, from the cache if a large file did not change."""
    before = _read_version(path)
    if path.stat().st_size < LARGE:
        return _hash_file(path)
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    cache_file = cache_folder() / "digests" / f"{place}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # no cache entry, or a damaged one
        cached = json.loads(cache_file.read_text(encoding="utf-8"))
        if cached["version"] == before:
            return str(cached["sha256"])
    digest = _hash_file(path)
    if _read_version(path) == before and time.time_ns() - max(before[1:3]) > SETTLED_NS:
        with suppress(OutputError):  # without a cache, the file is read again next time
            write_json(cache_file, {"version": before, "sha256": digest})
    return digest


def _read_version(path: Path) -> list[int]:
    """Return file facts that change when a file does.

    Copying may preserve size and modification time.
    """
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
