"""Fixtures that several test files share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def released() -> Callable[[str], list[dict[str, Any]]]:
    """Rows of a JSONL file of the authors' release, under $AUTOJ_DATA; skips without it."""
    folder = Path(os.environ.get("AUTOJ_DATA", ROOT / "../shared/data"))

    def rows(name: str) -> list[dict[str, Any]]:
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no {path}: set AUTOJ_DATA to the folder of the released data")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return rows
