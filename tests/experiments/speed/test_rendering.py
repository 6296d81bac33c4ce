from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoj_reward.formats.render import render
from autoj_reward.formats.schema import available, load_format
from experiments.speed.rendering import KNOWN, TALK, item_of, main


@pytest.mark.parametrize("turns", [(), TALK], ids=["query", "talk"])
def test_a_row_has_all_that_the_format_shows(turns: tuple[object, ...]) -> None:
    item = item_of("prometheus2", turns)  # type: ignore[arg-type]
    shown = render(item, load_format("prometheus2"))[-1].text
    assert shown.count(KNOWN) == 2 and item.query in shown and item.responses[0] in shown


def test_the_whole_command(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"output": str(tmp_path / "out"), "rows": 2}))
    assert main(["--config", str(config)]) == 0
    found = json.loads((tmp_path / "out/rendering.json").read_text())
    assert [row["format"] for row in found["figures"]] == list(available())
    assert "Processor time of 2 rows" in (tmp_path / "out/rendering.md").read_text()
