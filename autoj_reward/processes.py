"""How many processes work on one run, and so divide what the run may use of others."""

from __future__ import annotations

import os

VARIABLE = "AUTOJ_PROCESSES"
"""Set in the workers of a job; a launcher such as torchrun sets WORLD_SIZE in those of a
training."""


def processes() -> int:
    """Return how many processes this run has; 1 if nothing started several."""
    return int(os.environ.get(VARIABLE) or os.environ.get("WORLD_SIZE") or 1)
