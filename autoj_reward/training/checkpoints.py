"""Checkpoints that a run can go on from."""

from __future__ import annotations

import sys
from pathlib import Path


def last_checkpoint(output: Path) -> str | None:
    """The newest checkpoint of a run that was cut short."""
    from transformers.trainer_utils import get_last_checkpoint

    found: str | None = get_last_checkpoint(str(output))
    if found:
        print(f"goes on from {found}", file=sys.stderr)
    return found
