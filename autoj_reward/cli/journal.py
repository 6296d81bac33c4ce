"""`autoj journal`: what a journal holds, its judgements as JSON lines, and a smaller file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from autoj_reward.cli.flags import command, flag

if TYPE_CHECKING:
    from autoj_reward.journal import Journal

FILE = flag("path", metavar="FILE", help="journal.sqlite of a job, or OUTPUT.journal.sqlite")
OUTPUT = flag("--output", required=True, metavar="FILE", help="JSON lines, oldest first")


@command(FILE)
def stats(path: str) -> int:
    """What a journal holds, as JSON."""
    import json

    with _opened(path) as journal:
        print(json.dumps(journal.statistics(), indent=2))
    return 0


@command(FILE, OUTPUT)
def export(path: str, output: str) -> int:
    """Every judgement of a journal as a JSON line, however many there are."""
    from autoj_reward.io.files import require_apart, write_jsonl

    require_apart([path], [output])
    with _opened(path) as journal:
        write_jsonl(output, journal.export())
    return 0


@command(FILE)
def compact(path: str) -> int:
    """Make a journal's file as small as it can be; everything in it stays."""
    with _opened(path) as journal:
        before = Path(path).stat().st_size
        journal.compact()
    print(f"{path}: {before:,} bytes before, {Path(path).stat().st_size:,} now")
    return 0


def _opened(path: str) -> closing[Journal]:
    from autoj_reward.errors import JournalError
    from autoj_reward.journal import Journal

    if not Path(path).is_file():
        raise JournalError(f"no journal at {path}: name the file that a job has written")
    return closing(Journal(Path(path)))
