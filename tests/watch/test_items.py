"""Rubric items on the live page, from the journals of trainers and of running jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import Candidate, JudgeConfig, RewardConfig, RewardModel
from autoj_reward.config import RubricConfig
from autoj_reward.conversation import Context
from autoj_reward.io.claims import judged_by
from autoj_reward.questions.rubric import RubricScore, ScoreRubric
from autoj_reward.rubric_items import RubricItem, read_items
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading
from tests.browser import Page, chromium
from tests.watch.conftest import JUDGE, Record, wait_for
from tests.watch.test_answers import answers
from tests.watch.test_service import Watch, all_of, text

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

    async def ask(asked: Any, view: Any = None) -> list[Judgement]:
        found = [said(own) for own in asked]
        for own, judgement in zip(asked, found, strict=True):
            record.journal.put(JUDGE, own, judgement)
        return found

    def said(own: JudgeInput) -> Judgement:
        readings = []
        for place, item in enumerate(own.items, 1):
            n = next(n for n, other in enumerate(ITEMS) if other.criterion == item.criterion)
            if (share := shares[n]) is not None:
                label, value = min(item.choices, key=lambda pair: abs(pair[1] - share))
                readings.append(Reading(f"item_{place}", label, value, expected=share))
        if not readings:
            return Judgement(Outcome.TRUNCATED, "no answer", judge=JUDGE)
        return Judgement(Outcome.OK, "", "A reason.", tuple(readings), judge=JUDGE)

    question = ScoreRubric(Candidate(QUERY, response), ITEMS, RubricConfig(by=by), max_items=40)
    return await question.answer(ask)


def open_candidates(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the page's candidates of the first query in full, by their texts."""
    asked = answers(folder)
    [row] = asked.answer("queries", {})["rows"]
    found = asked.answer("query", {"id": str(row["id"])})["candidates"]
    told = [
        asked.answer("pair", {"id": str(row["id"]), "one": own["name"]})["candidates"][0]
        for own in found
    ]
    return {own["text"]: own | detail for own, detail in zip(found, told, strict=True)}


@pytest.mark.parametrize("by", ["items", "checklist"])
async def test_items_are_shown_as_the_reward_counts_them(record: Record, by: str) -> None:
    scores = {
        GOOD: await score(record, GOOD, {0: 0.9, 1: 0.05, 2: 0.6}, by),
        BAD: await score(record, BAD, {0: 0.1, 1: None, 2: 0.0}, by),
    }
    found = open_candidates(record.folder)
    for response, scored in scores.items():
        expected = {
            (own.item.criterion, own.item.points): (own.answer, own.share, own.reason)
            for own in scored.verdicts
        }
        shown = {
            (own["criterion"], own["points"]): (own["answer"], own["share"], own["reason"])
            for own in found[response]["rubric"]
        }
        assert shown == expected
        assert [own["points"] for own in found[response]["rubric"]] == [5, 2, -4]


async def test_a_response_judged_by_items_is_a_candidate(record: Record) -> None:
    await score(record, GOOD, {0: 0.9, 1: None, 2: 0.6})
    await score(record, BAD, {0: None, 1: None, 2: 0.0})
    asked = answers(record.folder)
    told = asked.answer("run", {})["statistics"]
    assert (told["queries"], told["candidates"], told["mean_rating"]) == (1, 2, None)
    assert (told["outcomes"]["ok"], told["outcomes"]["truncated"]) == (1, 1)
    assert told["reasons"] == {"no answer": 1}
    found = open_candidates(record.folder)
    assert (found[GOOD]["outcome"], found[BAD]["outcome"]) == ("ok", "truncated")
    criteria = [own["about"] for own in found[GOOD]["judgements"]]
    assert sorted(criteria) == sorted(item.criterion for item in ITEMS)


def test_all_items_of_a_long_rubric_are_shown_and_each_once(record: Record) -> None:
    for n in range(40):
        own = JudgeInput(
            "checklist",
            QUERY,
            (GOOD,),
            context=Context(rubric=(RubricItem(f"Criterion {n:02}"),)),
            points=(2.0,) if n else (),
        )
        said = Judgement(Outcome.OK, readings=(Reading("item_1", "Yes", 1.0),), judge=JUDGE)
        record.journal.put(JUDGE, own, said)
        record.journal.put(JUDGE, replace(own, sample=1), said)
    [found] = open_candidates(record.folder).values()
    rubric = found["rubric"]
    assert [own["criterion"] for own in rubric[:-1]] == [f"Criterion {n:02}" for n in range(1, 40)]
    assert rubric[-1]["points"] is None  # recorded without points: they are not made up
    assert len(found["judgements"]) == 16


def test_points_are_no_part_of_what_is_judged() -> None:
    one = JudgeInput("checklist", "q", ("r",), points=(1.0,))
    assert one == replace(one, points=(2.0,)) and len({one, replace(one, points=())}) == 1


def test_the_journal_of_a_trainer_shows_its_items(tmp_path: Path) -> None:
    config = RewardConfig(
        judge=JudgeConfig(kind="fake", format="rubric-item"),
        rubric=RubricConfig(by="items"),
        journal=tmp_path / "journal.sqlite",
    )
    context = Context(rubric=ITEMS)
    with RewardModel(config) as model:
        model.rewards_now([Candidate(QUERY, own, context=context) for own in (GOOD, BAD)])
    found = open_candidates(tmp_path)
    shown = {
        name: [(own["points"], own["answer"]) for own in told["rubric"]]
        for name, told in found.items()
    }
    assert shown == {
        GOOD: [(5, "by name"), (2, "Yes"), (-4, "No")],
        BAD: [(5, "no"), (2, "No"), (-4, "Yes")],
    }
    assert all(0 < own["share"] < 1 for own in found[GOOD]["rubric"])


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
async def test_items_and_progress_in_a_browser(record: Record, tmp_path: Path) -> None:
    await score(record, GOOD, {0: 0.9, 1: 0.05, 2: 0.6})
    await score(record, BAD, {0: 0.1, 1: None, 2: 0.0})
    result = record.folder / "summary.json"
    with judged_by("judge", record.folder, result, total=40, scored_by="items"):
        watch = Watch(record.folder)
        page = Page(watch.address, tmp_path / "profile")
        try:
            wait_for(lambda: all_of(page, ".query") != [])
            wait_for(lambda: text(page, "#progress-text").startswith("6 of 40 judgements"))
            page.click(".query")
            wait_for(lambda: len(all_of(page, ".column .rubric")) == 2)
            rows = all_of(page, ".column.A .rubric tbody tr")
            assert rows == [
                '+5partly60 %Names "Rayleigh"',
                '+2Yes90 %Names "scattering"',
                '-4No5 %Says "painted" <b>',
            ]
            assert (
                all_of(page, ".column.B .rubric tbody tr")[2] == '-4no verdict–Says "painted" <b>'
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
