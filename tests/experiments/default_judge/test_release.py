"""The run files of the default judge read the parts of the authors' files that made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoj_reward.config import load_config
from autoj_reward.data.labelled import excluded_queries, rated_files
from autoj_reward.formats.schema import load_format
from autoj_reward.training.judge.recipe import TrainJudgeConfig
from experiments.default_judge.__main__ import DefaultJudgeConfig
from experiments.default_judge.scenarios import load_scenario_rows
from tests.io.test_splits import CONFIGS, ODD, PAIRS

FORMAT = load_format("autoj-en")


def write_whole(folder: Path, name: str, part: list[dict[str, Any]], more: dict[str, Any]) -> None:
    """Write a file of the release: the rows of its part between made rows that are in no part."""
    rows = [row for real in part for row in (real, more)]
    (folder / "autoj" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_splits_of_the_run_files_take_the_known_parts_of_the_release(
    release_folder: Path, released: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    rated = released("autoj/single_traindata.jsonl")
    compared = released("autoj/testdata_pairwise.jsonl")
    whole = tmp_path / "whole"
    (whole / "autoj").mkdir(parents=True)
    (whole / "autoj/scenario_train.jsonl").symlink_to(release_folder / "autoj/scenario_train.jsonl")
    # These rows' hashes are even, and a multiple of 8.
    even = next(row for row in PAIRS if row["prompt"] not in ODD)
    texts = (f"x{n}" for n in range(99))
    eighth = next(text for text in texts if hashlib.sha1(text.encode()).digest()[-1] % 8 == 0)
    write_whole(whole, "testdata_pairwise.jsonl", compared, even)
    write_whole(whole, "testdata_critique.jsonl", released("autoj/testdata_critique.jsonl"), even)
    write_whole(whole, "single_traindata.jsonl", rated, rated[0] | {"usrmsg": eighth})
    study = load_config(DefaultJudgeConfig, CONFIGS / "experiments/default_judge.yaml")
    for folder in (release_folder, whole):
        assert study.scenarios is not None
        data = study.data.model_copy(update={"folder": folder})
        [(_, rows)] = rated_files(data, FORMAT)
        assert (len(rows.rows), len(rows.bad)) == (838, 0)
        measured = load_scenario_rows(study.scenarios.rows, data).measured
        assert [row.query for row in measured] == [row["prompt"].strip() for row in compared]
        judge = load_config(TrainJudgeConfig, CONFIGS / "judges/default_judge.yaml").data
        barred = excluded_queries(judge.model_copy(update={"folder": folder}), FORMAT)
        assert len(barred) == 631 + (folder == whole)
