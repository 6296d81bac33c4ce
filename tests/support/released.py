"""Folder of published data under the names of the authors' release, made of links.

    python -m tests.support.released ../shared/data ~/data

The folder that is given may hold, in place of the authors' files, the parts of them that are used
here. Splits of run files take all rows of such a part.
"""

from __future__ import annotations

import sys
from pathlib import Path

PARTS = {
    "autoj/single_traindata.jsonl": "autoj/single_train.jsonl",
    "autoj/testdata_pairwise.jsonl": "autoj/eval_p_dev.jsonl",
    "autoj/testdata_critique.jsonl": "autoj/eval_c_dev.jsonl",
}
"""Files of the release, each with the name of its part."""


def link_release(data: Path, folder: Path) -> None:
    """Fill a folder with links to all data, and to the parts where a file of the release is
    missing."""
    data = data.resolve()
    (folder / "autoj").mkdir(parents=True)
    for path in (*data.glob("*"), *data.glob("autoj/*")):
        if path.name != "autoj":
            (folder / path.relative_to(data)).symlink_to(path)
    for name, part in PARTS.items():
        if not (folder / name).exists() and (data / part).is_file():
            (folder / name).symlink_to(data / part)


if __name__ == "__main__":
    link_release(Path(sys.argv[1]), Path(sys.argv[2]).expanduser())
