"""Rubric items on the live page, from the journals of trainers and of running jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import Candidate, JudgeConfig, RewardConfig, RewardModel
from autoj_reward.config import RubricConfig
from autoj_reward.io.claims import judged_by
from autoj_reward.questions.rubric import RubricScore, ScoreRubric
from autoj_reward.rubric_items import RubricItem, read_items
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading
from autoj_reward.watch.answers import Answers
from tests.browser import Page, chromium
from tests.watch.conftest import JUDGE, ReadAnswers, Record, wait_for
from tests.watch.test_service import Watch, read_text, read_texts

QUERY, GOOD, BAD = "Why is the sky blue?", "Rayleigh scattering.", "It is painted."
RUBRIC = [
    {"criterion": 'Names "scattering"', "points": 2},
    {"criterion": 'Says "painted" <b>', "points": -4, "kind": "pitfall"},
    {
        "criterion": 'Names "Rayleigh"',
        "points": 5,
        "choices": {"by name": 1, "partly": 0.5, "no": 0},
    },
]
ITEMS = read_items(RUBRIC)


async def score(
    record: Record, response: str, shares: dict[int, float | None], by: Any = "items"
) -> RubricScore:
    """Score a response, and record each judgement. shares: by the item's number; None fails."""

    async def ask(inputs: Any, view: Any = None) -> list[Judgement]:
        judgements = [judge(judge_input) for judge_input in inputs]
        for judge_input, judgement in zip(inputs, judgements, strict=True):
            record.journal.put(JUDGE, judge_input, judgement)
        return judgements

    def judge(judge_input: JudgeInput) -> Judgement:
        readings = []
        for place, item in enumerate(judge_input.items, 1):
            n = next(n for n, other in enumerate(ITEMS) if other.criterion == item.criterion)
            if (share := shares[n]) is not None:
                label, value = min(item.choices, key=lambda pair: abs(pair[1] - share))
                readings.append(Reading(f"item_{place}", label, value, expected=share))
        if not readings:
            return Judgement(Outcome.TRUNCATED, "no answer", judge=JUDGE)
        return Judgement(Outcome.OK, "", "A reason.", tuple(readings), judge=JUDGE)

    question = ScoreRubric(Candidate(QUERY, response), ITEMS, RubricConfig(by=by), max_items=40)
    return await question.answer(ask)


def list_candidates(answers: Answers) -> dict[str, dict[str, Any]]:
    """Return the page's candidates of the first query in full, by their texts."""
    [row] = answers.answer("queries", {})["rows"]
    candidates = answers.answer("query", {"id": str(row["id"])})["candidates"]
    details = [
        answers.answer("pair", {"id": str(row["id"]), "one": candidate["name"]})["candidates"][0]
        for candidate in candidates
    ]
    return {
        candidate["text"]: candidate | detail
        for candidate, detail in zip(candidates, details, strict=True)
    }


@pytest.mark.parametrize("by", ["items", "checklist"])
async def test_items_are_shown_as_the_reward_counts_them(
    record: Record, by: str, read_answers: ReadAnswers
) -> None:
    scores = {
        GOOD: await score(record, GOOD, {0: 0.9, 1: 0.05, 2: 0.6}, by),
        BAD: await score(record, BAD, {0: 0.1, 1: None, 2: 0.0}, by),
    }
    candidates = list_candidates(read_answers(record.folder))
    for response, scored in scores.items():
        expected = {
            (verdict.item.criterion, verdict.item.points): (
                verdict.answer,
                verdict.share,
                verdict.reason,
            )
            for verdict in scored.verdicts
        }
        items = {
            (item["criterion"], item["points"]): (item["answer"], item["share"], item["reason"])
            for item in candidates[response]["rubric"]
        }
        assert items == expected
        assert [item["points"] for item in candidates[response]["rubric"]] == [5, 2, -4]


async def test_a_response_judged_by_items_is_a_candidate(
    record: Record, read_answers: ReadAnswers
) -> None:
    await score(record, GOOD, {0: 0.9, 1: None, 2: 0.6})
    await score(record, BAD, {0: None, 1: None, 2: 0.0})
    answers = read_answers(record.folder)
    statistics = answers.answer("run", {})["statistics"]
    assert (statistics["queries"], statistics["candidates"], statistics["mean_rating"]) == (
        1,
        2,
        None,
    )
    assert (statistics["outcomes"]["ok"], statistics["outcomes"]["truncated"]) == (1, 1)
    assert statistics["reasons"] == {"no answer": 1}
    candidates = list_candidates(read_answers(record.folder))
    assert (candidates[GOOD]["outcome"], candidates[BAD]["outcome"]) == ("ok", "truncated")
    criteria = [judgement["about"] for judgement in candidates[GOOD]["judgements"]]
    assert sorted(criteria) == sorted(item.criterion for item in ITEMS)


def test_all_items_of_a_long_rubric_are_shown_and_each_once(
    record: Record, read_answers: ReadAnswers
) -> None:
    for n in range(40):
        judge_input = JudgeInput(
            "checklist",
            QUERY,
            (GOOD,),
            items=(RubricItem(f"Criterion {n:02}"),),
            points=(2.0,) if n else (),
        )
        judgement = Judgement(Outcome.OK, readings=(Reading("item_1", "Yes", 1.0),), judge=JUDGE)
        record.journal.put(JUDGE, judge_input, judgement)
        record.journal.put(JUDGE, replace(judge_input, sample=1), judgement)
    [candidate] = list_candidates(read_answers(record.folder)).values()
    rubric = candidate["rubric"]
    assert [item["criterion"] for item in rubric[:-1]] == [
        f"Criterion {n:02}" for n in range(1, 40)
    ]
    assert rubric[-1]["points"] is None  # recorded without points: they are not made up
    assert len(candidate["judgements"]) == 16


def test_points_are_no_part_of_what_is_judged() -> None:
    judge_input = JudgeInput("checklist", "q", ("r",), points=(1.0,))
    assert (
        judge_input == replace(judge_input, points=(2.0,))
        and len({judge_input, replace(judge_input, points=())}) == 1
    )


def test_the_journal_of_a_trainer_shows_its_items(
    tmp_path: Path, read_answers: ReadAnswers
) -> None:
    config = RewardConfig(
        judge=JudgeConfig(kind="fake", format="rubric-item"),
        rubric=RubricConfig(by="items"),
        journal=tmp_path / "journal.sqlite",
    )
    with RewardModel(config) as model:
        model.rewards_now([Candidate(QUERY, response, rubric=ITEMS) for response in (GOOD, BAD)])
    candidates = list_candidates(read_answers(tmp_path))
    items = {
        name: [(item["points"], item["answer"]) for item in candidate["rubric"]]
        for name, candidate in candidates.items()
    }
    assert items == {
        GOOD: [(5, "by name"), (2, "Yes"), (-4, "No")],
        BAD: [(5, "no"), (2, "No"), (-4, "Yes")],
    }
    assert all(0 < item["share"] < 1 for item in candidates[GOOD]["rubric"])


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
async def test_items_and_progress_in_a_browser(record: Record, tmp_path: Path) -> None:
    await score(record, GOOD, {0: 0.9, 1: 0.05, 2: 0.6})
    await score(record, BAD, {0: 0.1, 1: None, 2: 0.0})
    result = record.folder / "summary.json"
    with judged_by(
        "judge", record.folder, result, command="autoj score", total=40, scored_by="items"
    ):
        watch = Watch(record.folder)
        page = Page(watch.address, tmp_path / "profile")
        try:
            wait_for(lambda: read_texts(page, ".query") != [])
            wait_for(lambda: read_text(page, "#progress-text").startswith("6 of 40 judgements"))
            page.click(".query")
            wait_for(lambda: len(read_texts(page, ".column .rubric")) == 2)
            rows = read_texts(page, ".column.A .rubric tbody tr")
            assert rows == [
                '+5partly60 %Names "Rayleigh"',
                '+2Yes90 %Names "scattering"',
                '-4No5 %Says "painted" <b>',
            ]
            assert (
                read_texts(page, ".column.B .rubric tbody tr")[2]
                == '-4no verdict–Says "painted" <b>'
            )
            for width in (400, 1280):
                metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                page._call("Emulation.setDeviceMetricsOverride", **metrics)
                assert page.run("document.documentElement.scrollWidth <= innerWidth")
                assert page.run(
                    "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('#detail'))"
                )
            assert page.problems == []
        finally:
            page.close()
            watch.end()
