"""The study of ways to rank a group, on few and small groups."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.compare import groups


def test_the_study_ranks_known_strengths_and_counts_prompts(tmp_path: Path) -> None:
    sets = ["sizes=[4, 8]", "groups=6", "bootstrap=50", f"output={tmp_path}"]
    config = "configs/experiments/groups.yaml"
    arguments = ["--config", config, *(part for setting in sets for part in ("--set", setting))]
    assert groups.main(arguments) == 0
    steps = json.loads((tmp_path / "groups.json").read_text())["steps"]
    rows = {(row["judge"], row["size"], row["by"]): row for row in steps["recovery"]}
    assert len(rows) == 3 * 2 * len(groups.make_rankers())
    noisy = rows["noise 1", 8, "all pairs"]
    assert noisy["calls"] == 56 and noisy["spearman"]["value"] > 0.7
    for name in ("all pairs", "circular, 4 neighbours"):
        assert rows["always says first", 8, name]["spread"] < 1e-9
    cost = {(row["size"], row["by"]): row for row in steps["cost"]}
    assert cost[8, "listwise, 2 orders"]["calls"] == 2
    all_pairs = cost[8, "all pairs"]
    assert all_pairs["computed"] < all_pairs["tokens"] / 2  # one response leads seven prompts
    assert "| noise 1 | 8 | all pairs | 56 |" in (tmp_path / "groups.md").read_text()
