"""`autoj judge new`: a judge format of your own, to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path

from autoj_reward.cli.flags import command, flag

HEAD = """\
# Yours to change; docs/formats.md explains every line. What the judge is shown, and what is read in
# its answer: autoj parse --input {folder}/sample.jsonl --format {folder} --show
#
"""


@command(
    flag("folder", metavar="FOLDER", help="where to write it; nothing may be there yet"),
    flag("--like", default="rubric", metavar="NAME", help="the format to start from"),
)
def new(folder: str, like: str) -> int:
    """Write a judge format's files, and rows to try it on."""
    start(Path(folder), like)
    print(f"wrote {folder}/format.yaml, its templates and {folder}/sample.jsonl; see it at work:")
    print(f"  autoj parse --input {folder}/sample.jsonl --format {folder} --show")
    print(f"and judge with it: judge: {{model: ..., format: {folder}}}")
    return 0


def start(folder: Path, like: str) -> None:
    """Copy a format of the package to a new folder, whose name it takes, with `sample.jsonl`.

    Raises FormatError if the folder exists, or for a format that is none of the package.
    """
    import shutil

    from autoj_reward.errors import FormatError, did_you_mean
    from autoj_reward.formats.sample import samples
    from autoj_reward.formats.schema import FORMATS, available, load_any_format

    if folder.exists():
        raise FormatError(f"{folder} exists: name a folder that does not")
    if like not in available():
        raise FormatError(
            f"{like!r} is no format of the package{did_you_mean(like, available())} (known: "
            f"{', '.join(available())})"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(FORMATS / like, folder)
    path = folder / "format.yaml"
    text, name = path.read_text(encoding="utf-8"), f"name: {json.dumps(folder.name)}"
    text = re.sub(r"(?m)^name: .*$", lambda _: name, text, count=1)
    path.write_text(HEAD.format(folder=folder) + text, encoding="utf-8")
    rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in samples(load_any_format(like))]
    (folder / "sample.jsonl").write_text("".join(rows), encoding="utf-8")
