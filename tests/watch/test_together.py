"""Groups that were judged together, on the page: scores, orders and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.questions.rank import PairScore, Ranking
from autoj_reward.questions.tournament import Tournament
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Verdict
from autoj_reward.watch.answers import Answers
from autoj_reward.watch.relative import MOST, REFERENCE, ranking_data
from tests.browser import Page, chromium
from tests.judgements import compared, texts_of
from tests.watch.conftest import JUDGE, ReadAnswers, Record, wait_for
from tests.watch.test_answers import find_query_id
from tests.watch.test_service import Watch, read_texts

TEXTS = ["worst", "middle", "best", ""]


def open_group(answers: Answers, query: str = "Why?") -> dict[str, Any]:
    """Return the page's answer for a query, with the texts of candidates in place of names."""
    reply = answers.answer("query", {"id": find_query_id(answers, query)})
    texts = {candidate["name"]: candidate["text"] for candidate in reply["candidates"]}
    group = reply["relative"]
    for entry in (*group["scores"], *(cell for order in group["orders"] for cell in order)):
        entry["name"] = texts[entry["name"]]
    for match in group["matches"]:
        match["one"], match["two"] = texts[match["one"]], texts[match["two"]]
    return reply


def test_a_listwise_group_has_scores_and_orders(record: Record, read_answers: ReadAnswers) -> None:
    record.judge_together("Why?", {"worst": 2, "middle": 6, "best": 9, "": 1}, "middle")
    record.judge_together("Why?", {"": 2, "best": 10, "worst": 1, "middle": 5})
    reply = open_group(read_answers(record.folder))
    assert [candidate["text"] for candidate in reply["candidates"]] == [
        "best",
        "middle",
        "worst",
        "",
    ]
    assert [candidate["values"]["rating"] for candidate in reply["candidates"]] == [
        9.5,
        5.5,
        1.5,
        1.5,
    ]
    group = reply["relative"]
    assert [entry["score"] for entry in group["scores"]] == [9.5, 5.5, 1.5, 1.5]
    assert all(0 < entry["error"] < 1 for entry in group["scores"])
    first, second = group["orders"]
    assert first[1] == {"name": "middle", "score": 6, "forced": True}
    assert [cell["name"] for cell in second] == ["", "best", "worst", "middle"]
    assert group["order_spread"] == 1 and group["matches"] == []


def test_the_list_has_the_scores_of_a_group(record: Record, read_answers: ReadAnswers) -> None:
    record.judge_together("Why?", {"worst": 2, "best": 9})
    answers = read_answers(record.folder)
    [row] = answers.answer("queries", {"order": "spread"})["rows"]
    assert (row["values"], row["best"], row["worst"]) == ([2, 9], 9, 2)
    assert answers.answer("run", {})["statistics"]["candidates"] == 0  # scores are no ratings


async def test_comparisons_are_fitted_as_the_job_fits_them(
    record: Record, read_answers: ReadAnswers
) -> None:
    async def ask(items: Any, *_: Any) -> list[Judgement]:
        judgements = []
        for item in items:
            first, second = map(TEXTS.index, texts_of(item))
            judgement = compared(Verdict.FIRST if first > second else Verdict.SECOND, judge=JUDGE)
            if {"", "best"} <= set(texts_of(item)):
                judgement = Judgement(Outcome.UNPARSABLE, "no verdict", judge=JUDGE)
            record.journal.put(JUDGE, item, judgement)
            judgements.append(judgement)
        return judgements

    candidates = tuple(Candidate("Why?", text) for text in TEXTS)
    ranking = await Tournament(candidates, "all").answer(ask)
    group = open_group(read_answers(record.folder))["relative"]
    fitted = {entry["name"]: (entry["score"], entry["error"]) for entry in group["scores"]}
    for text, score, error in zip(TEXTS, ranking.scores, ranking.errors, strict=True):
        assert fitted[text] == pytest.approx((score, error))
    won = {(match["one"], match["two"]): match["won"] for match in group["matches"]}
    assert len(won) == 6
    assert won.get(("best", ""), won.get(("", "best"), "none")) is None
    assert won.get(("best", "worst"), 1 - won.get(("worst", "best"), 1)) == 1


def test_a_response_beside_its_copy_or_a_failed_group_has_no_score(
    record: Record, read_answers: ReadAnswers
) -> None:
    record.compare("Copies?", "same", "same", Verdict.TIE)
    failed = Judgement(Outcome.TRUNCATED, "no rating slot", judge=JUDGE)
    record.journal.put(JUDGE, JudgeInput("group", "Why?", ("a", "b")), failed)
    answers = read_answers(record.folder)
    copies = answers.answer("query", {"id": find_query_id(answers, "Copies?")})
    assert copies["relative"] is None
    group = open_group(read_answers(record.folder))["relative"]
    assert [entry["score"] for entry in group["scores"]] == [None, None]
    assert [cell["score"] for cell in group["orders"][0]] == [None, None]


def test_a_large_group_shows_its_best_and_worst() -> None:
    count = 3 * MOST
    scores = tuple(n / count for n in range(count))
    matches = (PairScore(0, count - 1, 0.25), PairScore(1, -1, 0.5), PairScore(MOST, MOST + 1, 1.0))
    ranking = Ranking(scores, scores, ("",) * count, (), matches=matches)
    data = ranking_data(ranking, [str(n) for n in range(count)])
    numbers = [*range(count - 1, count - 1 - MOST // 2, -1), *range(MOST // 2 - 1, -1, -1)]
    assert [entry["name"] for entry in data["scores"]] == list(map(str, numbers))
    assert data["matches"] == [
        {"one": "0", "two": str(count - 1), "won": 0.25},
        {"one": "1", "two": REFERENCE, "won": 0.5},
    ]


@pytest.fixture
def page(record: Record, tmp_path: Path) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    record.judge_together("Why?", {"worst": 2, "<b>best": 9, "middle": 6}, "middle")
    record.compare("Who?", "worst", "best", Verdict.SECOND)
    record.compare("Who?", "best", "middle", Verdict.FIRST)
    watch = Watch(record.folder)
    new_page = Page(watch.address, tmp_path / "profile")
    yield new_page
    new_page.close()
    watch.end()


def test_a_group_in_a_browser(page: Page) -> None:
    wait_for(lambda: read_texts(page, ".query .asked"))  # the page listens from then on
    page.choose("#order", "oldest")
    wait_for(lambda: read_texts(page, ".query .asked") == ["Why?", "Who?"])
    page.click(".query")
    wait_for(lambda: read_texts(page, ".relative h3") == ["Judged together", "Scores", "Orders"])
    assert read_texts(page, ".scores .said") == ["<b>best", "middle", "worst"]
    assert read_texts(page, ".scores .value") == ["9.00", "6.00", "2.00"]
    assert read_texts(page, ".heat td") == ["32.00", "19.00", "26.00"]
    assert read_texts(page, ".heat td.forced") == ["26.00"]
    page.click("#following")
    wait_for(
        lambda: read_texts(page, ".relative h3") == ["Judged together", "Scores", "Comparisons"]
    )
    assert read_texts(page, ".heat tbody td") == ["", "100", "100", "0", "", "", "0", "", ""]
    assert page.problems == []
