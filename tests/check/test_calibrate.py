"""`autoj calibrate` on scripted judges that are off by a known map, and its use in a reward."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoj_reward.check.abstain import doubt_limits, loosest_limit
from autoj_reward.cli import main as cli
from autoj_reward.config import RewardConfig, check
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.models.calibration import load_calibration
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate, Outcome
from tests.test_relative import write
from tests.trainer.test_audit import settle

NOISE = 0.5


def map_to_label(rating: float) -> float:
    """Return what a rating of the scripted judge means on the labels' scale."""
    return 2 + 7 * ((rating - 1) / 9) ** 2


def make_rows(queries: int, label: Callable[[int, int], float]) -> list[dict[str, Any]]:
    """Return ten responses to each query, which the judge rates 1 to 10, with their labels.

    label: returns the label, by query and the judge's rating.
    """
    return [
        {"query": f"q{n}?", "response": f"{n}: {r}", "rating": label(n, r)}
        for n in range(queries)
        for r in range(1, 11)
    ]


def make_judge_config(labelled: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the config of a judge that rates each response by the number at its end."""
    texts = [row["response"] for row in labelled if "response" in row]
    ratings = {text: int(text.split()[1]) for text in texts}
    return {"kind": "fake", "script": {"ratings": ratings | more.pop("ratings", {})} | more}


def run(
    folder: Path,
    labelled: list[Any],
    judge_config: dict[str, Any],
    view: str = "rating",
    *flags: str,
) -> int:
    config = folder / "judge.json"
    config.write_text(json.dumps({"judge": judge_config, "view": view}))
    labels = write(folder / "labels.jsonl", labelled)
    files = ["--labels", labels, "--output", str(folder / "map.json"), "--config", str(config)]
    return cli.main(["calibrate", *files, *flags])


def label_with_noise(n: int, r: int) -> float:
    return map_to_label(r) + (NOISE if n % 2 else -NOISE)


def test_many_labels_recover_a_map_of_any_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = make_rows(40, label_with_noise)
    assert run(tmp_path, labelled, make_judge_config(labelled)) == 0
    content = json.loads((tmp_path / "map.json").read_text())
    assert (content["method"], content["n"], content["queries"]) == ("isotonic", 400, 40)
    assert content["scale"] == [1.5, 9.5]
    assert [x for x, _ in content["knots"]] == list(range(1, 11))
    assert [y for _, y in content["knots"]] == pytest.approx(
        [map_to_label(r) for r in range(1, 11)]
    )
    calibration = load_calibration(tmp_path / "map.json")
    assert calibration.label(3.5) == pytest.approx((map_to_label(3) + map_to_label(4)) / 2)
    assert [calibration.label(x) for x in (-5, 50)] == pytest.approx(
        [map_to_label(1), map_to_label(10)]
    )
    bias = sum((r - map_to_label(r)) ** 2 for r in range(1, 11)) / 10
    raw, calibrated, mean = (content["error"][k] for k in ("raw", "calibrated", "mean_label"))
    assert raw["value"] == pytest.approx(math.sqrt(bias + NOISE**2), abs=1e-6)
    assert calibrated["value"] == pytest.approx(NOISE, rel=0.05)
    assert calibrated["high"] < raw["low"] and raw["high"] < mean["low"]
    printed = capsys.readouterr().out
    assert "isotonic map of rating to labels of 1.5 to 9.5, 400 labels" in printed
    assert f"error of the mapped number: {calibrated['value']:.3f} [" in printed


def test_ratings_that_labels_do_not_tell_apart_keep_their_order(tmp_path: Path) -> None:
    labelled = make_rows(40, lambda n, r: 11 - r if r in (5, 6) else r)
    assert run(tmp_path, labelled, make_judge_config(labelled)) == 0
    calibration = load_calibration(tmp_path / "map.json")
    assert [x for x, _ in calibration.knots] == [1, 2, 3, 4, 5.5, 7, 8, 9, 10]
    assert [calibration.label(x) for x in (5, 6)] == pytest.approx([5, 6])


def test_few_labels_fit_a_line_within_the_labels_scale(tmp_path: Path) -> None:
    labelled = make_rows(10, lambda n, r: min(6.0, 0.5 * r + 2))
    labelled = [row for row in labelled if not row["response"].endswith((" 9", " 10"))]
    assert run(tmp_path, labelled, make_judge_config(labelled, ratings={"better": 10})) == 0
    content = json.loads((tmp_path / "map.json").read_text())
    assert (content["method"], content["n"]) == ("linear", 80)
    calibration = load_calibration(tmp_path / "map.json")
    assert [calibration.label(x) for x in (1, 4, 8, 10)] == pytest.approx([2.5, 4, 6, 6])
    assert content["error"]["calibrated"]["value"] == pytest.approx(0, abs=1e-9)


def test_a_run_resumes_and_leaves_failures_out(tmp_path: Path) -> None:
    labelled, log = make_rows(12, label_with_noise), tmp_path / "log"
    judge_config = make_judge_config(labelled, fail={"3: 7": "unparsable"}, log=str(log))
    assert run(tmp_path, labelled, judge_config) == 0
    first, first_log = json.loads((tmp_path / "map.json").read_text()), log.read_text()
    assert (first["n"], first["failed"]) == (119, 1)
    assert run(tmp_path, labelled, judge_config) == 0
    second = json.loads((tmp_path / "map.json").read_text())
    assert second["knots"] == first["knots"]
    assert log.read_text().count("3: 8") == first_log.count("3: 8") == 1


@pytest.mark.parametrize(
    ("labelled", "why"),
    [
        (make_rows(2, label_with_noise),
         "20 labels of 2 queries: a calibration needs at least 30 of 10"),
        (make_rows(12, lambda n, r: 4), "every label is 4: label responses that differ"),
        (make_rows(12, lambda n, r: 10 - r), "the labels do not rise with its numbers"),
        (make_rows(30, lambda n, r: 10 - r), "the labels do not rise with its numbers"),
        ([row | {"response": f"{n}: 5"} for n, row in enumerate(make_rows(12, label_with_noise))],
         "it gave every response the number 5"),
        ([{"query": f"q{n}", "response_1": "a 1", "response_2": "b 2", "label": 1}
          for n in range(40)], "labels of pairs order two responses"),
    ],
)  # fmt: skip
def test_labels_that_no_map_fits_are_refused(
    labelled: list[Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, labelled, make_judge_config(labelled)) == 1
    assert why in capsys.readouterr().err and not (tmp_path / "map.json").exists()


def test_the_reward_is_the_calibrated_number(tmp_path: Path) -> None:
    labelled = make_rows(40, label_with_noise)
    judge_config = make_judge_config(
        labelled, fail={"lost": "truncated"}, ratings={"planted": "So [[9]] [[10]]"}
    )
    run(tmp_path, labelled, judge_config)
    data = {"judge": judge_config, "view": "rating", "calibration": str(tmp_path / "map.json")}
    data["failures"] = {"budget": 1.0}
    with RewardModel(check(RewardConfig, data, "test")) as model:
        candidates = [Candidate("q1?", text) for text in ("1: 4", "1: 10", "lost")]
        rewards = model.rewards_now(candidates)
        assert model.numbers(rewards, candidates)[2] == (1.5 + 9.5) / 2
    assert [reward.raw for reward in rewards] == [
        pytest.approx(map_to_label(4)),
        pytest.approx(map_to_label(10)),
        None,
    ]
    part = {name: data[name] for name in ("judge", "view", "calibration")}
    both = {"judge": judge_config, "view": "rating", "parts": {"second": part}}
    with RewardModel(check(RewardConfig, both, "test")) as model:
        [joint_reward] = model.rewards_now([Candidate("q1?", "1: 4")])
    assert joint_reward.parts == {"judge": 4, "second": pytest.approx(map_to_label(4))}
    assert joint_reward.raw == pytest.approx(((4 - 1) / 9 + (map_to_label(4) - 1.5) / 8) / 2)
    audited = {
        "judge": judge_config,
        "view": "rating",
        "audit": part | {"share": 1, "canaries_every": 0},
    }
    with RewardModel(check(RewardConfig, audited, "test")) as model:
        model.rewards_now([Candidate("q1?", "1: 4")])
        settle(model)
        assert model.audit
        gap = model.audit.figures["audit/gap"]
    assert gap == pytest.approx((4 - 1) / 9 - (map_to_label(4) - 1.5) / 8)


def label_wrong_where_unsure(n: int, r: int) -> float:
    """Return labels that are 3 points from the ratings 1 and 10, where the scripted judge's
    distribution is widest: it gives 90 % to the rating and the rest to all others."""
    return float(r) if 1 < r < 10 else r + [-3.0, 3.0][n % 2]


ABSTAIN = ("--abstain", "0.1", "1.5")


def test_a_judge_abstains_where_it_is_unsure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = make_rows(60, label_wrong_where_unsure)
    judge_config = make_judge_config(labelled)
    assert run(tmp_path, labelled, judge_config, "expected", *ABSTAIN) == 0
    rule = json.loads((tmp_path / "map.json").read_text())["abstain"]
    assert rule["abstains"] == pytest.approx(0.2) and rule["queries"] == 60
    assert rule["wrong"] == 0 and 0 < rule["bound"] <= 0.1
    assert "abstains on 20.0% of the labels" in capsys.readouterr().out
    data = {"judge": judge_config, "view": "expected", "calibration": str(tmp_path / "map.json")}
    with pytest.raises(ConfigError, match=r"abstains on 20% .*budget is 0.05"):
        RewardModel(check(RewardConfig, data, "test"))
    data["failures"] = {"budget": 0.5}
    with RewardModel(check(RewardConfig, data, "test")) as model:
        rewards = model.rewards_now([Candidate("q1?", text) for text in ("1: 1", "1: 5", "1: 10")])
        with pytest.raises(BudgetExceeded, match="no narrower than its calibration asks for"):
            model.rewards_now([Candidate("q1?", "1: 10")] * 20)
    unsure = Outcome.UNSURE
    assert [reward.judgement.outcome for reward in rewards] == [unsure, Outcome.OK, unsure]
    assert [reward.raw is None for reward in rewards] == [True, False, True]
    audit = {**data, "share": 1, "canaries_every": 0}
    del audit["failures"]
    audited = {"judge": judge_config, "view": "rating", "audit": audit}
    with RewardModel(check(RewardConfig, audited, "test")) as model:
        model.rewards_now([Candidate("q1?", text) for text in ("1: 1", "1: 5", "1: 9")])
        settle(model)
        assert model.audit and model.audit.figures["audit/failures"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("flags", "more", "why"),
    [
        (("--abstain", "2", "1"), {}, "--abstain is 2 1: give a share between 0 and 1"),
        (("--abstain", "0.1", "0.1"), {}, "no limit of doubt keeps at most 10.0%"),
        (ABSTAIN, {"script": {"logprobs": False}}, "the judge gave no distribution"),
    ],
)
def test_an_abstention_that_cannot_be_had_is_refused(
    flags: tuple[str, ...],
    more: dict[str, Any],
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labelled = make_rows(20, label_with_noise)
    judge_config = make_judge_config(labelled)
    judge_config["script"] |= more.get("script", {})
    assert run(tmp_path, labelled, judge_config, "rating", *flags) == 1
    assert why in capsys.readouterr().err and not (tmp_path / "map.json").exists()


@pytest.mark.parametrize("responses", [1, 4])
def test_the_stated_share_of_wrong_numbers_holds_on_other_queries(responses: int) -> None:
    """A number is wrong with a probability of spread / 2; all those of a query are wrong together.

    The share that is really wrong within a limit L is then L / 4 for spreads of 0 to 1.
    """
    rng, real = np.random.default_rng(0), []
    queries = [str(n) for n in np.repeat(np.arange(600), responses)]
    for _ in range(300):
        spreads = rng.random(600)
        wrong = rng.random(600) < spreads / 2
        limits = doubt_limits(spreads.repeat(responses), wrong.repeat(responses), queries)
        limit = loosest_limit(limits, 0.15)
        real.append(limit.max_spread / 4 if limit else 0.0)
    assert np.mean(np.array(real) > 0.15) <= 0.05
    assert np.mean(real) > 0.06  # it does not abstain out of mere caution


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"view": "expected"}, "reward.calibration is of view rating, and here it is expected"),
        ({"judge": {"kind": "fake"}}, "reward.calibration is of judge default:autoj-en:"),
        ({"critiques": 2}, "reward.calibration is of critiques 1, and here it is 2"),
        ({"calibration": "labels.jsonl"}, "cannot be read"),
        ({"calibration": "judge.json"}, "no file of `autoj calibrate`"),
        ({"relative": {"by": "listwise"}, "view": "auto"}, "calibration maps a rating, and"),
        (
            {"calibration": None, "audit": {"view": "expected", "calibration": "map.json"}},
            "reward.audit.calibration is of view rating, and here it is expected",
        ),
        ({"knots": [[1, 2]]}, "knots"),
        ({"knots": [[1, 2], [3, 2]]}, "do not rise"),
    ],
)
def test_a_calibration_of_other_judgements_is_refused(
    changed: dict[str, Any], why: str, tmp_path: Path
) -> None:
    labelled = make_rows(12, label_with_noise)
    judge_config = make_judge_config(labelled) | {"temperature": 0.7}
    run(tmp_path, labelled, judge_config)
    file = tmp_path / "map.json"
    if "knots" in changed:
        content = json.loads(file.read_text()) | {"knots": changed.pop("knots")}
        file.write_text(json.dumps(content))
    if "critiques" in changed:
        judge_config = judge_config | {"critiques": changed.pop("critiques")}
    data = {"judge": judge_config, "view": "rating", "calibration": "map.json"} | changed
    if "audit" in data:
        data["audit"] |= {"judge": judge_config, "calibration": str(file)}
    if data["calibration"]:
        data["calibration"] = str(tmp_path / data["calibration"])
    with pytest.raises(ConfigError, match=why):
        RewardModel(check(RewardConfig, data, "test")).open()
