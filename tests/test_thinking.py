"""A policy's thinking, and responses without an answer, at every door: Python, the command line,
best-of-N, groups, pairs and trainers' rewards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoj_reward import Candidate, Judge, JudgeConfig, Pair, RewardModel, Verdict
from autoj_reward.cli import main as cli
from autoj_reward.client.backend import LocalBackend
from autoj_reward.config import (
    FailureConfig,
    PartConfig,
    RelativeConfig,
    RewardConfig,
    ShapingConfig,
    check,
)
from autoj_reward.conversation import Prompt, Response
from autoj_reward.errors import BudgetExceeded, ConfigError
from autoj_reward.models.facts import Asks
from autoj_reward.models.spec import judge_spec
from autoj_reward.thinking import KNOWN_MARKS, Marks, find_block
from autoj_reward.trainer.stats import batch_metrics, row_figures
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward, PartRewards
from autoj_reward.types import Outcome
from tests.growth import require_linear
from tests.judge.test_thinking import SPELLED
from tests.service.test_api import HEADERS, make_service, serving

THOUGHT = "<think>I could say poor.</think>\n\ngood"
RATINGS = {"good": 9, "fair": 5, "poor": 2, THOUGHT: 4}
UNFINISHED = "<think>I could say good"
LEFT = {"role": "assistant", "content": "good", "reasoning_content": "I could say poor."}
CALL = {
    "role": "assistant",
    "content": "<think>Let me look.</think>",
    "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}],
}


def make_judge(tmp_path: Path | None = None, **more: Any) -> JudgeConfig:
    """Return a scripted judge. It logs the responses that it is shown to tmp_path/seen."""
    script: dict[str, Any] = {"ratings": RATINGS}
    script |= {"log": str(tmp_path / "seen")} if tmp_path else {}
    return JudgeConfig(**({"kind": "fake", "script": script} | more))


def make_config(**more: Any) -> RewardConfig:
    return RewardConfig(**({"judge": make_judge(), "view": "rating"} | more))


def show(response: Any, query: str = "Why?", **asks: Any) -> Response:
    return Candidate(query, Response.of(response)).for_judge(Asks(**asks)).response


# --- What a judge is shown


@pytest.mark.parametrize("marks", SPELLED, ids=lambda marks: marks.open)
def test_a_leading_block_of_any_known_marks_is_cut(marks: Marks) -> None:
    response = f"{marks.open}\nbad\n{marks.close}\n\ngood, not {marks.close}"
    shown = show(response)
    assert shown.text == f"good, not {marks.close}" and "bad" in shown.thinking
    assert shown.thinking + shown.text == response
    shown = show(f"{marks.open}\nbad")
    assert shown.text == "" and shown.unanswered.startswith("the response holds thinking")
    # Where the prompt opened the block, a lone closing mark ends it, and only there.
    lone = f"bad\n{marks.close}\ngood"
    assert show(lone, f"<|user|>Why?<|assistant|>\n{marks.open}\n").text == "good"
    assert show(lone).text == lone
    assert show("bad", f"<|user|>Why?<|assistant|>\n{marks.open}\n").unanswered


@pytest.mark.parametrize(
    "text",
    [
        "bad </think> good",
        "It is <think>.</think>",
        "good\n<think>late</think>",
        "<thinker>x</thinker>",
        "[1] think",
    ],
)
def test_other_marks_are_text(text: str) -> None:
    assert show(text).text == text and not show(text).thinking


def test_the_key_names_other_marks() -> None:
    own = (Marks("<<", ">>"),)
    assert show("<< a >> b", thinking_marks=own).text == "b"
    assert show(THOUGHT, thinking_marks=own).text == THOUGHT
    opened = (Marks("", "</think>"),)
    assert show("bad </think> good", thinking_marks=opened).text == "good"
    assert show("still thinking", thinking_marks=opened).unanswered
    config = make_judge(thinking_marks={"": "</think>"})
    assert Asks.of(config).thinking_marks == opened
    with pytest.raises(ConfigError, match="mark no block"):
        check(JudgeConfig, {"kind": "fake", "thinking_marks": {"<a>": " "}}, "test")


def test_thinking_that_stands_apart_is_cut_or_shown_like_a_block() -> None:
    parts = [
        {"type": "thinking", "thinking": "I could say poor."},
        {"type": "text", "text": "good"},
    ]
    for message in (LEFT, {"role": "assistant", "content": parts}):
        assert show([message]).text == "good" == show([message]).record()
        assert show([message]).thinking == "I could say poor."
        shown = show([message], shows_thinking=True)
        assert shown.text == "<think>\nI could say poor.\n</think>\n\ngood"
    assert show(THOUGHT, shows_thinking=True).text == THOUGHT
    assert show([LEFT | {"content": None}]).unanswered


def test_turns_come_before_thinking_and_thinking_before_the_answer() -> None:
    turns = [CALL, {"role": "tool", "content": "blue"}, LEFT | {"content": THOUGHT}]
    shown = show(turns, shows="trajectory")
    assert shown.text == "Assistant: [calls look {}]\n\nTool: blue\n\nAssistant: good"
    assert [turn.text for turn in shown.turns] == ["[calls look {}]", "blue", "good"]
    assert show(turns, shows="assistant").text == "[calls look {}]\n\ngood"
    assert show(turns, shows="final").text == "good"
    messages: Any = turns
    last = Candidate("Why?", Response.of(messages, "final"))  # as a source reads it
    assert last.for_judge(Asks()).response.text == "good"
    whole = show(turns, shows="trajectory", shows_thinking=True)
    assert "<think>Let me look.</think>\n[calls look {}]" in whole.text
    # An answer that the prompt begins is continued by the response.
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}]
    begun = Prompt.of([*asked, {"role": "assistant", "content": "<think>\n"}])
    assert Candidate(begun, "bad</think>good").for_judge(Asks()).response.text == "good"


def test_a_call_of_a_tool_is_an_answer() -> None:
    assert not show([CALL]).unanswered
    assert show([CALL | {"tool_calls": []}]).unanswered


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "<|im_end|>", "</s>", "<think></think>\n"])
def test_nothing_is_no_answer(text: str) -> None:
    assert show(text).unanswered


def test_cutting_takes_time_linear_in_the_text() -> None:
    for piece in ("<think>", "</think>", "\u200b", "< ", "<|x|>", "<|channel|>analysis", "\n<"):
        for prompt in ("Why?", "<think>"):
            require_linear(
                lambda text, prompt=prompt: show(text, prompt + text + prompt),  # type: ignore[misc]
                lambda size, piece=piece: piece * (size // len(piece)),  # type: ignore[misc]
                2**17,
            )


def test_the_table_has_no_mark_that_another_one_hides_and_the_page_has_all() -> None:
    page = (Path(__file__).parents[1] / "docs/rewards/thinking.md").read_text(encoding="utf-8")
    for marks in KNOWN_MARKS:
        assert f"`{marks.open.removeprefix('<|start|>assistant')}`" in page
        block = find_block(f"{marks.open}a{marks.close}b")
        assert block is not None and (block.marks.close, block.closed) == (marks.close, True)


# --- Python and commands


def test_a_judge_reads_the_answer_alone(tmp_path: Path) -> None:
    with Judge(make_judge(tmp_path)) as judge:
        assert judge.rate("Why?", THOUGHT).rating == 9
        lost = judge.rate("Why?", UNFINISHED)
        assert (lost.outcome, lost.rating) == (Outcome.NO_ANSWER, None)
        assert lost.reason == "the response holds thinking and no answer after it"
        assert judge.choose("Why?", ["", UNFINISHED, "poor"]).selection.index == 2
        none = judge.choose("Why?", ["", UNFINISHED])
        assert none.selection.rule == "all_failed"
        assert {judgement.outcome for judgement in none.judgements} == {Outcome.NO_ANSWER}
    seen = (tmp_path / "seen").read_text()
    assert "think" not in seen and "could say" not in seen
    with Judge(make_judge(shows_thinking=True)) as judge:
        assert judge.rate("Why?", THOUGHT).rating == 4
        assert judge.rate("Why?", UNFINISHED).ok


def test_an_answer_wins_against_none() -> None:
    with Judge(make_judge()) as judge:
        for first, second, verdict in (
            ("poor", UNFINISHED, Verdict.FIRST),
            ("", "poor", Verdict.SECOND),
            ("", UNFINISHED, Verdict.FAILED),
        ):
            comparison = judge.compare("Why?", first, second)
            assert comparison.verdict is verdict and len(comparison.orders) == 2
        assert {order.outcome for order in comparison.orders} == {Outcome.NO_ANSWER}


@pytest.mark.parametrize("relative", ["listwise", "comparisons"])
def test_a_group_is_judged_without_those_that_hold_no_answer(relative: Any, tmp_path: Path) -> None:
    fmt = "listwise" if relative == "listwise" else "general"
    with Judge(make_judge(tmp_path, format=fmt)) as judge:
        how = RelativeConfig(by=relative)
        ranking = judge.rank("Why?", ["poor", UNFINISHED, THOUGHT, "", "good"], relative=how)
        poor, unfinished, good, empty, again = ranking.scores
        assert unfinished == empty == 0.0 and good == again and poor is not None
        assert ranking.unanswered == (1, 3) and not ranking.rejected
        judged = judge.rank("Why?", ["poor", "good", "good"], relative=how)
        assert (poor, good, again) == judged.scores
        outcomes = [judgement.outcome.value for judgement in ranking.as_judgements()]
        assert outcomes == ["ok", "no_answer", "ok", "no_answer", "ok"]
        lone = judge.rank("Why?", ["", "good", UNFINISHED], relative=how)
        assert lone.scores == (0.0, 0.5, 0.0) and "0.5 without a judgement" in lone.critiques[1]
        assert judge.rank("Why?", ["", UNFINISHED], relative=how).scores == (0.0, 0.0)


def test_commands_count_it_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"query": "Why?", "response": response} for response in (THOUGHT, UNFINISHED, "")]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fake = ["--set", "judge.kind=fake", "--set", f"judge.script.ratings={json.dumps(RATINGS)}"]
    assert cli.main(["score", "--input", str(source), "--output", str(output), *fake]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["outcome"] for row in found] == ["ok", "no_answer", "no_answer"]
    assert "2 no_answer" in capsys.readouterr().out
    pair = {"query": "Why?", "response_1": UNFINISHED, "response_2": "poor"}
    source.write_text(json.dumps(pair) + "\n")
    output = tmp_path / "compared.jsonl"
    assert cli.main(["compare", "--input", str(source), "--output", str(output), *fake]) == 0
    assert json.loads(output.read_text())["verdict"] == "second"


# --- Rewards


RESPONSES = ["poor", UNFINISHED, THOUGHT, ""]


def rate(config: RewardConfig, responses: list[str] = RESPONSES) -> list[Any]:
    with RewardModel(config) as model:
        return model.rewards_now([Candidate("Why?", response) for response in responses])


def values_of(config: RewardConfig, responses: list[str] = RESPONSES) -> list[float | None]:
    return [reward.value for reward in rate(config, responses)]


def test_no_answer_earns_the_lowest_of_the_scale_unless_told_otherwise() -> None:
    assert values_of(make_config()) == [2.0, 1.0, 9.0, 1.0]
    assert values_of(make_config(no_answer="abstain")) == [2.0, None, 9.0, None]
    judged = rate(make_config(no_answer="judge"))
    assert all(reward.judgement.ok for reward in judged)


@pytest.mark.parametrize(
    "shaping",
    [
        {"length_penalty": 4000.0},
        {"length_penalty": 4000.0, "penalty_by": "group"},
        {"whiten": "group", "length_penalty": 900.0},
        {"shift": 3.0, "clip": (0.0, 1.0)},
        {"scale": -1.0},
    ],
    ids=str,
)
def test_no_answer_is_never_above_a_judged_response_of_its_group(shaping: dict[str, Any]) -> None:
    values = values_of(make_config(shaping=ShapingConfig(**shaping)))
    poor, unfinished, good, empty = (value for value in values if value is not None)
    assert unfinished == empty and empty <= min(poor, good)


def test_a_scale_without_bounds_has_the_lowest_of_the_group() -> None:
    ratings = {"good": 3.5, "poor": -7.25}
    judge = JudgeConfig(kind="fake", format="scalar", script={"ratings": ratings})
    assert values_of(RewardConfig(judge=judge)) == [-7.25, -7.25, 3.5, -7.25]
    assert values_of(RewardConfig(judge=judge), [""]) == [None]


def test_a_group_that_is_judged_together_gives_none_the_score_0() -> None:
    config = RewardConfig(
        judge=make_judge(format="listwise"), relative=RelativeConfig(by="listwise")
    )
    poor, unfinished, good, empty = values_of(config)
    assert unfinished == empty == 0.0 and poor is not None and good is not None and 0 < poor < good


def test_parts_do_not_reward_a_response_without_an_answer() -> None:
    config = make_config(parts={"length": PartConfig(function="tests.test_thinking:give_one")})
    rewards = rate(config)
    assert [reward.value for reward in rewards][1::2] == [0.0, 0.0]
    assert rewards[1].parts == {"judge": 1.0, "length": 1.0}
    with RewardModel(config) as model:
        judge, _ = PartRewards(model).functions()

        async def ask() -> list[float | None]:
            return await judge(["Why?", "Why?"], ["poor", UNFINISHED])

        poor, unfinished = asyncio.run(ask())
    assert unfinished == 0.0 and poor and poor > 0


def give_one(candidate: Candidate) -> float:
    return 1.0


def test_penalties_count_the_answer_or_the_whole_response() -> None:
    lengths = {}
    for of in ("answer", "response"):
        shaping = ShapingConfig.model_validate({"length_of": of, "length_penalty": 1000.0})
        [value] = values_of(make_config(shaping=shaping), [THOUGHT])
        lengths[of] = round(9 - (value or 0.0))
    assert lengths == {"answer": len("good"), "response": len(THOUGHT)}


def test_responses_without_an_answer_spend_a_budget_of_their_own() -> None:
    failures = FailureConfig(budget=0.0, window=20)
    config = make_config(failures=failures)
    with RewardModel(config) as model:
        for _ in range(3):
            model.rewards_now([Candidate("Why?", r) for r in ("good", *[""] * 8, UNFINISHED)])
        with pytest.raises(BudgetExceeded, match="19 of the last 20 responses hold no answer") as e:
            model.rewards_now([Candidate("Why?", "")] * 9)
        assert "judge.thinking_marks" in str(e.value)
    with RewardModel(make_config(failures=failures, no_answer_budget=1.0)) as model:
        model.rewards_now([Candidate("Why?", "")] * 40)


def test_the_rate_and_the_thinking_stand_beside_every_mean() -> None:
    config = make_config()
    with RewardModel(config) as model:
        candidates = [Candidate("Why?", response) for response in RESPONSES]
        rewards = model.rewards_now(candidates)
        figures = batch_metrics(rewards, candidates, config)
        assert (figures["judge/no_answer"], figures["judge/thinking"]) == (0.5, 0.5)
        cut = len(UNFINISHED) + len(THOUGHT) - len("good")
        assert figures["judge/thinking_characters"] == cut / 4
        assert figures.keys() == batch_metrics([], [], config).keys()
        rows = [row_figures(reward, model.parts) for reward in rewards]
        assert [row["judge_no_answer"] for row in rows] == [0.0, 1.0, 0.0, 1.0]
        assert model.health.figures()["failure_rate"] == 0


def test_trl_trains_on_the_answer() -> None:
    with RewardModel(make_config()) as model:
        completions = [[{"role": "assistant", "content": text}] for text in RESPONSES]
        prompts = [[{"role": "user", "content": "Why?"}]] * 4
        logged: dict[str, float] = {}
        found = asyncio.run(
            GRPOReward(model).judge(prompts, completions, log_metric=logged.__setitem__)
        )
        assert found == [2.0, 1.0, 9.0, 1.0] and logged["judge/no_answer"] == 0.5
        pairs = OnlineDPOReward(model).compare(
            ["Why?"] * 4, ["poor", "", UNFINISHED, ""], ties_left_out=True
        )
        assert pairs == [1.0, None, 0.0, None]


def test_pairs_count_in_the_same_budget() -> None:
    failures = FailureConfig(budget=0.0, window=20)
    with RewardModel(make_config(failures=failures)) as model:
        assert model.compare_now([Pair("Why?", "", "")] * 5)[0].verdict is Verdict.FAILED
        with pytest.raises(BudgetExceeded, match="hold no answer"):
            model.compare_now([Pair("Why?", "", "")] * 10)


def test_a_service_gathers_a_group_without_those_that_hold_no_answer() -> None:
    config = make_judge(format="listwise")
    texts = ["poor", UNFINISHED, THOUGHT, ""]

    async def ask(port: int) -> list[Any]:
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"http://127.0.0.1:{port}/v1/score"

            async def send(text: str) -> Any:
                item = {"query": "Why?", "response": text}
                body = {"candidates": [item], "group_id": "a", "group_size": len(texts)}
                answer = await client.post(url, json=body, headers=HEADERS)
                return answer.json()["judgements"][0]

            members = await asyncio.gather(*map(send, texts))
            return [*members, await send("<think>late")]

    with serving(make_service(LocalBackend(judge_spec(config)))) as port:
        found = asyncio.run(ask(port))
    outcomes = [judgement["outcome"] for judgement in found]
    assert outcomes == ["ok", "no_answer", "ok", "no_answer", "no_answer"]
