"""Verdicts in the judge's own output: which slot counts, and what is a failure. No text raises an
error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoj_reward.formats.fold import fold
from autoj_reward.formats.read import ParseFailure, WrittenVerdict
from autoj_reward.formats.schema import (
    JudgeFormat,
    format_names,
    load_any_format,
    load_format,
    parse_comparison,
    parse_rating,
)
from autoj_reward.types import Verdict
from tests.growth import require_linear

FRAGMENTS = st.sampled_from(
    [
        *("Rating: [[", "rating: [[", "评分: [[", "打分：[[", "[[", "]]", "[RESULT] ", "[", "]"),
        *("So, the final decision is ", "final decision is", "最终决定是", "回应1", "平局"),
        *("Response 1", "Response 2", "Response 10", "Tie", "tied", "A", "B", "C", " / ", "\n"),
        *("5", "10", "0", "11", "5.5", "5.3", "-3", "٣", "５", ".", "1e3", "999999999", "nan"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(FRAGMENTS, st.text(max_size=5))).map("".join))


GENERATIVE = [name for name in format_names() if isinstance(load_any_format(name), JudgeFormat)]


@pytest.mark.parametrize("name", GENERATIVE)
@settings(max_examples=50)
@given(text=TEXTS)
@example(text="A")
@example(text="1")
@example(text="\x08A:")
def test_parsers_are_total(name: str, text: str) -> None:
    fmt = load_format(name)
    bare = fmt.single is not None and fmt.single.comes_first
    if bare:
        assert parse_rating(text, fmt, [text]) == parse_rating(text, fmt)
    else:
        assert isinstance(parse_rating(text, fmt, [text]), ParseFailure)
    matches = list(fmt.slots("pairwise")[0].open_re.finditer(text)) if fmt.pairwise else []
    opened = max(matches, key=re.Match.start, default=None)
    # A label without words or brackets before it is never taken for a quote.
    if opened and fold(opened.group()).strip(" .-"):
        assert isinstance(parse_comparison(text, fmt, [text]), ParseFailure)
    else:
        assert parse_comparison(text, fmt, [text]) == parse_comparison(text, fmt)
    rating = parse_rating(text, fmt)
    if isinstance(rating, ParseFailure):
        assert rating.reason and 0 <= rating.end <= len(text)
    else:
        assert fmt.scale.admits(rating.rating)
        assert 0 <= rating.opened < rating.start + bare <= len(text)
        written = re.match(r"[0-9０-９.．]+", text[rating.start :])
        if not fmt.scale.words:
            assert (
                written and float(written.group().rstrip(".．").replace("．", ".")) == rating.value
            )
    verdict = parse_comparison(text, fmt)
    if isinstance(verdict, ParseFailure):
        assert verdict.reason and 0 <= verdict.end <= len(text)
    else:
        assert verdict.verdict in (Verdict.FIRST, Verdict.SECOND, Verdict.TIE)
        assert fmt.pairwise is not None
        if fmt.pairwise.scores:
            return
        rest = text[verdict.start :].lower()
        spellings = {str(name): texts for name, texts in fmt.pairwise.labels.items()}[
            verdict.verdict
        ]
        assert rest.startswith(tuple(s.lower() for s in spellings))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        pytest.param("autoj-en", "Good.\n\nRating: [[5]]", 5, id="plain"),
        pytest.param("autoj-en", "Rating: [[10]]", 10, id="ten"),
        pytest.param("autoj-en", "Rating: [[1]]", 1, id="one"),
        pytest.param("autoj-en", "Rating:[[5]]", 5, id="no-space"),
        pytest.param("autoj-en", "Rating: [[ 6 ]] ", 6, id="spaces-inside"),
        pytest.param("autoj-en", "Rating:\n[[6]]", 6, id="line-break"),
        pytest.param("autoj-en", "Rating: [[5.5]]", 5.5, id="half"),
        pytest.param("autoj-en", "Rating: [[5.0]]", 5, id="decimal-whole"),
        pytest.param("autoj-en", "Rating: [[3]], no: Rating: [[8]]", 8, id="last-wins"),
        pytest.param("autoj-en", "Rating: [[rating]]. Rating: [[4]]", 4, id="echo-then-rating"),
        pytest.param("autoj-en", "Rating: [[4]] [[9]]", 4, id="bare-slot-is-no-slot"),
        pytest.param("autoj-zh", "很好。\n评分: [[5]]", 5, id="zh-space"),
        pytest.param("autoj-zh", "很好。评分:[[5]]", 5, id="zh-no-space"),
        pytest.param("autoj-zh", "打分: [[7.5]]", 7.5, id="zh-other-word"),
        pytest.param("autoj-zh", "打分：[[7]]", 7, id="zh-full-width-colon"),
        pytest.param("autoj-zh", "评分： [[10]]", 10, id="zh-full-width-and-space"),
        pytest.param("autoj-zh", "评分: [[3]]，打分: [[8]]", 8, id="zh-last-of-both-words"),
        pytest.param("general", "Good. [[7]]", 7, id="general"),
        pytest.param("general", "Rating: [[7]]", 7, id="general-with-word"),
        pytest.param("prometheus2", "Feedback: fine. [RESULT] 4", 4, id="prometheus"),
        pytest.param("prometheus2", "fine [RESULT]\n5.", 5, id="prometheus-full-stop"),
    ],
)
def test_ratings(name: str, text: str, value: float) -> None:
    outcome = parse_rating(text, load_format(name))
    assert not isinstance(outcome, ParseFailure), outcome.reason
    assert outcome.value == value
    assert text[outcome.start].isdigit()
    assert not text[outcome.start - 1].isdigit()


@pytest.mark.parametrize(
    ("name", "text", "reason", "prefix"),
    [
        pytest.param("autoj-en", "", "no rating slot", "", id="empty"),
        pytest.param("autoj-en", "Good: 5 of 10", "no rating slot", "Good: 5 of 10", id="none"),
        pytest.param("autoj-en", "评分: [[5]]", "no rating slot", "评分: [[5]]", id="chinese"),
        pytest.param("autoj-en", "x Rating: [[0]]", "0 is not on the scale 1", "x ", id="zero"),
        pytest.param("autoj-en", "x Rating: [[11]]", "11 is not on the scale", "x ", id="eleven"),
        pytest.param("autoj-en", "x Rating: [[10.5]]", "10.5 is not on", "x ", id="ten-and-half"),
        pytest.param("autoj-en", "x Rating: [[5.3]]", "5.3 is not on", "x ", id="off-step"),
        pytest.param("autoj-en", "x Rating: [[-3]]", "not a number", "x ", id="negative"),
        pytest.param("autoj-en", "x Rating: [[٣]]", "not a number", "x ", id="arabic-digit"),
        pytest.param("autoj-en", "x Rating: [[rating]]", "not a number", "x ", id="echo"),
        pytest.param("autoj-en", "x Rating: [[]]", "not a number", "x ", id="empty-slot"),
        pytest.param("autoj-en", "x Rating: [[", "not a number", "x ", id="cut-at-slot"),
        pytest.param("autoj-en", "x Rating: [[5]/10]", "not closed", "x ", id="fraction"),
        pytest.param("autoj-en", "x Rating: [[5/100]]", "not closed", "x ", id="other-fraction"),
        pytest.param("autoj-en", "x Rating: [[5", "not closed", "x ", id="unclosed"),
        pytest.param("autoj-en", "x Rating: [[5]", "not closed", "x ", id="half-closed"),
        pytest.param("autoj-en", "x Rating: [[1", "not closed", "x ", id="ten-cut-after-1"),
        pytest.param("autoj-en", "x Rating: [[5.]]", "not closed", "x ", id="bare-point"),
        pytest.param("autoj-en", "x Rating: [[5000]]", "not a number", "x ", id="four-digits"),
        pytest.param(
            "autoj-en", "x Rating: [[" + "9" * 5000 + "]]", "not a number", "x ", id="too-long"
        ),
        pytest.param("autoj-en", "x Rating: [[5.55555]]", "not", "x ", id="many-decimals"),
        pytest.param(
            "autoj-en", "Rating: [[7]] or Rating: [[x]]", "not a number", "Rating: [[7]] or ",
            id="earlier-valid-slot-is-not-used",
        ),
        pytest.param("prometheus2", "ok [RESULT] 6", "6 is not on the scale 1", "ok ", id="prom-6"),
        pytest.param("prometheus2", "ok [RESULT] 4.5", "4.5 is not on", "ok ", id="prom-no-halves"),
    ],
)  # fmt: skip
def test_rating_failures(name: str, text: str, reason: str, prefix: str) -> None:
    outcome = parse_rating(text, load_format(name))
    assert isinstance(outcome, ParseFailure)
    assert reason in outcome.reason
    assert text[: outcome.end] == prefix
    assert len(outcome.reason) < 100


@pytest.mark.parametrize(
    ("name", "text", "verdict"),
    [
        pytest.param("autoj-en", "So, the final decision is Response 1.", "first", id="first"),
        pytest.param("autoj-en", "So, the final decision is Response 2", "second", id="second"),
        pytest.param("autoj-en", "So, the final decision is Tie.", "tie", id="tie"),
        pytest.param("autoj-en", "so, the final decision is tied", "tie", id="tied"),
        pytest.param("autoj-en", "the final decision is RESPONSE 2!", "second", id="upper-case"),
        pytest.param("autoj-en", "the final decision is\nresponse 1", "first", id="line-break"),
        pytest.param(
            "autoj-en",
            "The final decision is Response 1. On reflection, the final decision is Response 2.",
            "second",
            id="last-counts",
        ),
        pytest.param(
            "autoj-en",
            "Final decision is Response 1 / Response 2 / Tie? So, the final decision is Tie",
            "tie",
            id="echo-then-decision",
        ),
        pytest.param("autoj-zh", "所以，最终决定是回应1。", "first", id="zh-first"),
        pytest.param("autoj-zh", "所以，最终决定是 回应 2", "second", id="zh-spaces"),
        pytest.param("autoj-zh", "最终决定是：平局", "tie", id="zh-tie-colon"),
        pytest.param("autoj-zh", "最终决定是回应1。不，最终决定是回应2", "second", id="zh-last"),
        pytest.param("general", "Verdict: [[A]]", "first", id="general-a"),
        pytest.param("general", "Not [[A]] but [[B]]", "second", id="general-last"),
        pytest.param("general", "[[C]]", "tie", id="general-tie"),
        pytest.param("general", "[[a]]", "first", id="general-lower"),
        pytest.param("prometheus2", "A is worse. [RESULT] B", "second", id="prometheus-b"),
        pytest.param("prometheus2", "ok [RESULT] A\n", "first", id="prometheus-a"),
    ],
)
def test_comparisons(name: str, text: str, verdict: str) -> None:
    outcome = parse_comparison(text, load_format(name))
    assert isinstance(outcome, WrittenVerdict), outcome.reason
    assert (outcome.verdict, outcome.value) == (Verdict(verdict), None)


ECHO = "So, the final decision is Response 1 / Response 2 / Tie"


@pytest.mark.parametrize(
    ("name", "text", "reason", "prefix"),
    [
        pytest.param("autoj-en", "Both good.", "no final decision", "Both good.", id="none"),
        pytest.param("autoj-en", ECHO, "repeats the list", "So, the ", id="echo"),
        pytest.param("autoj-en", "final decision is Tie/Response 1", "repeats", "", id="tight"),
        pytest.param("autoj-zh", "最终决定是回应1/回应2/平局", "repeats", "", id="zh-echo"),
        pytest.param("autoj-zh", "最终决定是回应12", "not a verdict", "", id="zh-response-12"),
        pytest.param("autoj-en", "final decision is Response 10", "not a verdict", "", id="ten"),
        pytest.param("autoj-en", "final decision is Response 3", "not a verdict", "", id="three"),
        pytest.param("autoj-en", "final decision is Tiebreak", "not a verdict", "", id="tie-word"),
        pytest.param("autoj-en", "final decision is ", "not a verdict", "", id="cut"),
        pytest.param(
            "autoj-en",
            "final decision is Tie. The final decision is unclear",
            "not a verdict",
            "final decision is Tie. The ",
            id="earlier-verdict-is-not-used",
        ),
        pytest.param("general", "x [[A", "not closed", "x ", id="general-unclosed"),
        pytest.param("general", "x [[A/B]]", "repeats", "x ", id="general-echo"),
        pytest.param("general", "x [[D]]", "not a verdict", "x ", id="general-d"),
        pytest.param("general", "x [[A]] [[", "not a verdict", "x [[A]] ", id="general-last"),
        pytest.param("prometheus2", "ok [RESULT] C", "not a verdict", "ok ", id="prometheus-c"),
        pytest.param("prometheus2", "ok [RESULT] Both", "not a verdict", "ok ", id="prom-word"),
    ],
)  # fmt: skip
def test_comparison_failures(name: str, text: str, reason: str, prefix: str) -> None:
    outcome = parse_comparison(text, load_format(name))
    assert isinstance(outcome, ParseFailure)
    assert reason in outcome.reason
    assert text[: outcome.end] == prefix


@pytest.mark.parametrize(
    "unit",
    [
        *("[[", "Rating: [[", "Rating:" + " " * 50, " ", "Rating: [[1", "9", "9.", "最终决定是 "),
        *("final decision is ", "Response 1 / ", "[RESULT] ", "评分: [["),
    ],
    ids=repr,
)
@pytest.mark.parametrize("head", ["", "Rating: [[", "final decision is ", "[RESULT] "])
def test_long_adversarial_text_takes_linear_time(unit: str, head: str) -> None:
    def parse(text: str) -> None:
        for name in GENERATIVE:
            parse_rating(text, load_format(name), [text])
            parse_comparison(text, load_format(name), [text])

    require_linear(parse, lambda size: head + unit * (size // len(unit)), 2_500)


Released = Callable[[str], list[dict[str, Any]]]


def test_released_judgements_parse_as_the_authors_read_them(released: Released) -> None:
    fmt = load_format("autoj-en")
    texts = [row["critiques"]["autoj"] for row in released("autoj/testdata_critique.jsonl")]
    assert len(texts) == 113
    for text in texts:
        outcome = parse_rating(text, fmt)
        assert not isinstance(outcome, ParseFailure), outcome.reason
        assert outcome.value == float(text.rpartition("Rating: [[")[2].partition("]]")[0])


def test_released_training_targets_parse_to_their_score(released: Released) -> None:
    fmt = load_format("autoj-en")
    rows = released("autoj/single_traindata.jsonl")
    assert len(rows) == 838
    for row in rows:
        outcome = parse_rating(row["target_output"], fmt)
        assert not isinstance(outcome, ParseFailure), outcome.reason
        assert outcome.value == row["pred_score"]
