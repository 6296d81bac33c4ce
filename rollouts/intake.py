"""What every job does with its input before it starts: name the bad rows, keep the rest."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from autoj_reward.errors import InputError
from autoj_reward.rows import Rows


def require_usable(rows: Rows[Any], source: str) -> None:
    """Name every bad row on the terminal; InputError if no row is left."""
    for bad in rows.bad:
        tqdm.write(f"left out {bad}")
    if not rows.rows:
        raise InputError(f"{source}: no usable row; {len(rows.bad)} left out, each named above")
