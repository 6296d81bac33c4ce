"""The Trainer's checkpoints, of which only whole ones count.

A kill cuts a checkpoint off wherever the Trainer was in writing it, and its last file may be there
empty. So every checkpoint gets a list of its files with their sizes, written when all processes
have saved their part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from autoj_reward.io.files import write_json

LIST = "whole.json"
PREFIX = "checkpoint-"


def train_on(trainer: Any, output: Path) -> None:
    """Train to the end by a Trainer that saves to `output`, from its last whole checkpoint."""
    trainer.add_callback(_Listing())
    trainer.train(resume_from_checkpoint=last_checkpoint(output))


def last_checkpoint(output: Path) -> str | None:
    """The newest whole checkpoint of a run that was cut short; those that are not are named."""
    found = [path for path in output.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdigit()]
    for folder in sorted(found, key=lambda path: int(path.name[len(PREFIX) :]), reverse=True):
        if _is_whole(folder):
            print(f"goes on from {folder}", file=sys.stderr)
            return str(folder)
        print(f"left out: {folder}: cut off while it was written", file=sys.stderr)
        # Once the Trainer writes there again, an old list would vouch for half of its work.
        (folder / LIST).unlink(missing_ok=True)
    return None


class _Listing(TrainerCallback):
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """List the checkpoint's files, once on each node."""
        PartialState().wait_for_everyone()
        folder = Path(args.output_dir) / f"{PREFIX}{state.global_step}"
        if state.is_local_process_zero:
            write_json(folder / LIST, _sizes(folder))


def _is_whole(folder: Path) -> bool:
    try:
        listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(listed) and isinstance(listed, dict) and listed.items() <= _sizes(folder).items()


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LIST)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
