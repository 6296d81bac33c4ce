"""Verifiers as rewards: P(right) by a reference, and a judge that waits for a cheaper part."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from autoj_reward import Candidate, Judgement, Outcome, RewardConfig, RewardModel
from autoj_reward.config import check
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.service.trainers import add_routes
from autoj_reward.trainer.trl import GRPOReward

QUESTION = "What is 1/4 + 1/4?"
OUTPUTS = {
    "compassverifier": ("A", "B", "C"),
    "compassverifier-cot": tuple(
        f"Final Judgment: \\boxed{{{letter}}} - {word}"
        for letter, word in (("A", "CORRECT"), ("B", "INCORRECT"), ("C", "INVALID"))
    ),
    "general-verifier": ("Final Decision: Yes", "Final Decision: No"),
    "tinyv": ("True", "False"),
    "tinyv-qwen3": ("True", "False"),
    "tinyv-think": ("Answer: True", "Answer: False"),
    "equivalence": ("Equal.\n\nVerdict: correct", "Verdict: incorrect"),
}
"""What each verifier writes of a right response, a wrong one, and one that it calls invalid."""
RESPONSES = ("one half", "one third", "I cannot")


def write_rows(fmt: str, **script: Any) -> dict[str, Any]:
    """Return the config of a scripted verifier that knows the responses."""
    outputs = dict(zip(RESPONSES, OUTPUTS[fmt], strict=False))
    return {"kind": "fake", "format": fmt, "script": {"ratings": outputs} | script}


def ask_as_trl(config: RewardConfig, responses: Any, **columns: Any) -> list[float | None]:
    prompts = [[{"role": "user", "content": QUESTION}]] * len(responses)
    completions = [[{"role": "assistant", "content": response}] for response in responses]
    with RewardModel(config) as model:
        return asyncio.run(GRPOReward(model).judge(prompts, completions, **columns))


@pytest.mark.parametrize("fmt", OUTPUTS)
@pytest.mark.parametrize("column", ["reference", "solution", "answer"])
def test_trl_rewards_by_the_probability_that_the_answer_is_right(fmt: str, column: str) -> None:
    responses = RESPONSES[: len(OUTPUTS[fmt])]
    data: dict[str, Any] = {"judge": write_rows(fmt)}
    if column != "reference":
        data["columns"] = {"reference": column}
    rewards = ask_as_trl(
        check(RewardConfig, data, "test"), responses, **{column: ["1/2"] * len(responses)}
    )
    # The script gives the written label 0.9 and each label an equal share of 0.1 besides.
    right, *others = rewards
    assert right is not None and 0.9 < right < 1
    for other in others:
        assert other is not None and 0 < other < 0.1


def test_without_log_probabilities_the_reward_is_the_written_verdict() -> None:
    config = check(RewardConfig, {"judge": write_rows("compassverifier", logprobs=False)}, "test")
    assert ask_as_trl(config, RESPONSES, reference=["1/2"] * 3) == [1.0, 0.0, 0.0]


def test_a_row_without_its_reference_has_no_reward() -> None:
    data = {"judge": write_rows("tinyv"), "failures": {"budget": 1.0}}
    config = check(RewardConfig, data, "test")
    found = ask_as_trl(config, RESPONSES[:2], reference=["1/2", ""])
    assert found[0] is not None and found[1] is None
    with pytest.raises(ConfigError, match=r"needs 'reference'.*no column 'solution'"):
        ask_as_trl(
            check(RewardConfig, data | {"columns": {"reference": "solution"}}, "test"),
            RESPONSES[:2],
            answer=["1/2"] * 2,
        )


# A judge that is asked where a cheaper part has no number


def match(candidate: Candidate) -> float | None:
    """Return 1 for the reference's own spelling and 0 for a refusal; None where it cannot tell."""
    response = candidate.response.text
    if response == "bug":
        raise KeyError("no such field")
    if response == "nothing":
        return math.nan
    if response == candidate.context["reference"]:
        return 1.0
    return 0.0 if response == "No." else None


MATCH = {"function": f"{__name__}:match", "failures": {"budget": 1.0}}


def make_waiting(log: Path | None = None, **more: Any) -> RewardConfig:
    script: dict[str, Any] = {"fail": {"lost": "truncated"}, "logprobs": False}
    if log:
        script["log"] = str(log)
    data = {
        "judge": write_rows("compassverifier", **script),
        "when": "match",
        "parts": {"match": MATCH},
        "failures": {"budget": 1.0},
    }
    return check(RewardConfig, data | more, "test")


def ask(config: RewardConfig, *responses: str) -> list[Any]:
    with RewardModel(config) as model:
        return model.rewards_now(
            [Candidate(QUESTION, response, context={"reference": "1/2"}) for response in responses]
        )


def read_asked(log: Path) -> list[str]:
    return sorted(json.loads(line)[0] for line in log.read_text().splitlines())


def test_the_verifier_is_asked_only_where_the_first_part_is_unsure(tmp_path: Path) -> None:
    log = tmp_path / "asked.jsonl"
    found = ask(make_waiting(log), "1/2", "No.", "one half", "one third", "lost")
    assert [reward.value for reward in found] == [1.0, 0.0, 1.0, 0.0, None]
    assert read_asked(log) == ["one half", "one third"]  # the lost one writes no log
    assert [dict(reward.parts) for reward in found] == [
        {"judge": None, "match": 1.0},
        {"judge": None, "match": 0.0},
        {"judge": 1.0, "match": None},
        {"judge": 0.0, "match": None},
        {"judge": None, "match": None},
    ]
    # What decided says how the reward ended: the function, the verifier, or its failure.
    outcomes = [reward.judgement.outcome for reward in found]
    assert outcomes == [Outcome.OK] * 4 + [Outcome.TRUNCATED]
    assert [reward.asked for reward in found] == [False, False, True, True, True]


def test_where_the_first_part_fails_the_verifier_is_asked_and_the_failure_counts(
    tmp_path: Path,
) -> None:
    log = tmp_path / "asked.jsonl"
    script = {"ratings": {"bug": "A", "nothing": "B"}, "logprobs": False, "log": str(log)}
    judge = {"kind": "fake", "format": "compassverifier", "script": script}
    found = ask(make_waiting(judge=judge), "bug", "nothing")
    assert [reward.value for reward in found] == [1.0, 0.0]
    assert read_asked(log) == ["bug", "nothing"]
    strict = MATCH | {"failures": {"budget": 0.05}}
    with pytest.raises(BudgetExceeded, match="Mend the part match"):
        ask(make_waiting(judge=judge, parts={"match": strict}), *["bug"] * 8)


def test_a_response_that_was_not_asked_about_spends_no_budget_of_the_judge() -> None:
    found = ask(make_waiting(failures={"budget": 0.0}), *["1/2"] * 20)
    assert [reward.value for reward in found] == [1.0] * 20


def certain(candidate: Candidate) -> float:
    return 1.0


def test_a_response_without_an_answer_gets_the_lowest_reward_whatever_the_first_part_says() -> None:
    parts = {"match": {"function": f"{__name__}:certain"}}
    empty, thinking, right = ask(make_waiting(parts=parts), "", "<think>1/2</think>", "1/2")
    assert (empty.value, thinking.value, right.value) == (0.0, 0.0, 1.0)
    assert empty.judgement.outcome is thinking.judgement.outcome is Outcome.NO_ANSWER


def test_a_part_waits_for_the_judge_or_for_another_part(tmp_path: Path) -> None:
    """A second judge decides where the first one fails; other parts are asked as ever."""
    log = tmp_path / "asked.jsonl"
    second = write_rows("tinyv", log=str(log), logprobs=False)
    second["script"]["ratings"]["lost"] = "True"
    parts = {
        "second": {"judge": second, "when": "judge"},
        "sure": {"function": f"{__name__}:certain", "weight": 0.5},
    }
    found = ask(make_waiting(when=None, parts=parts), "one third", "lost")
    assert read_asked(log) == ["lost"]
    assert found[0].value == pytest.approx(0.5 / 1.5)
    assert found[1].value == 1.0
    assert found[1].parts == {"judge": None, "second": 1.0, "sure": 1.0}


def test_names_of_metrics_do_not_depend_on_who_was_asked() -> None:
    names = []
    for response in ("1/2", "one half"):
        logged: dict[str, Any] = {}
        with RewardModel(make_waiting()) as model:
            asyncio.run(
                GRPOReward(model).judge(
                    [QUESTION],
                    [response],
                    reference=["1/2"],
                    log_metric=logged.__setitem__,
                    log_extra=logged.__setitem__,
                )
            )
        names.append(sorted(logged))
        assert logged["parts/judge_abstains"] == float(response == "1/2")
        # What the judge did is measured where it was asked.
        assert str(logged["judge/ok"]) == ("nan" if response == "1/2" else "1.0")
    assert names[0] == names[1]


def test_a_service_counts_the_judgements_of_its_judge_alone() -> None:
    counted: list[Judgement] = []
    app = FastAPI()
    with RewardModel(make_waiting()) as model, TestClient(app) as http:
        add_routes(app, model, lambda found: counted.extend(judgement for judgement, _ in found))
        for response in ("1/2", "one half"):
            body = {"prompt": QUESTION, "response": response, "label": "1/2"}
            assert http.post("/reward", json=body).json() == 1.0
    assert [judgement.rating for judgement in counted] == [1.0] and counted[0].judge


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such part": ({"when": "rule"}, r"when is rule: name another part .*\(match\)"),
    "no parts": ({"when": "match", "parts": {}}, "none yet"),
    "itself": ({"when": "judge"}, "when is judge: name another"),
    "one that waits": (
        {"parts": {"match": MATCH | {"when": "judge"}}},
        "when is match: name another part that waits for none",
    ),
    "whole groups": (
        {"judge": {"kind": "fake", "format": "listwise"}, "relative": {"by": "listwise"}},
        "relative judges whole groups",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_when_is_named(case: str) -> None:
    more, words = WRONG[case]
    with pytest.raises(ConfigError, match=words):
        make_waiting(**more)


def test_parts_that_wait_are_combined_here_and_not_by_the_trainer() -> None:
    with pytest.raises(ConfigError, match=r"reward\.when applies to the combined reward"):
        RewardModel(make_waiting()).trl(parts=True)
