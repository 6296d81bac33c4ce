"""Lines of result files: what JSON lacks is written as what it stands for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.io.files import write_jsonl
from autoj_reward.types import Outcome, Usage


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param({"a": (1, "é\ud800")}, r'{"a": [1, "\u00e9\ud800"]}', id="as_it_stands"),
        pytest.param({"a": [math.nan, {"b": -math.inf}]}, '{"a": [null, {"b": null}]}', id="nan"),
        pytest.param({"a": Outcome.OK}, '{"a": "ok"}', id="enum"),
        pytest.param({Outcome.OK: 1}, '{"ok": 1}', id="enum_key"),
        pytest.param({("x", 1): 2}, "{\"['x', 1]\": 2}", id="key_that_is_no_text"),
        pytest.param(
            {"a": Usage(1, 0, 2, math.nan)},
            '{"a": {"tokens_in": 1, "tokens_cached": 0, "tokens_out": 2, "latency_s": null, '
            '"queued_s": 0.0}}',
            id="record_within",
        ),
        pytest.param(
            Usage(1),
            '{"tokens_in": 1, "tokens_cached": 0, "tokens_out": 0, "latency_s": 0.0, '
            '"queued_s": 0.0}',
            id="record",
        ),
    ],
)
def test_line(tmp_path: Path, record: Any, line: str) -> None:
    write_jsonl(tmp_path / "out.jsonl", [record])
    assert (tmp_path / "out.jsonl").read_text() == f"{line}\n"


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="list is not a record"):
        write_jsonl(tmp_path / "out.jsonl", [[1]])
