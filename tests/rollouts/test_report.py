from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.io.chart import ticks
from autoj_reward.io.page import clip, count, counts, esc, num, percent, plural
from autoj_reward.io.rows import QueryRow
from autoj_reward.types import (
    BadRow,
    Candidate,
    Judgement,
    Outcome,
    Selection,
    Usage,
)
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import bar_plot, dot_plot, line_plot
from rollouts.best_of_n.report import render_report
from rollouts.best_of_n.report_query import reason_in_words
from rollouts.best_of_n.sample import Sample
from tests.judgements import rated
from tests.rollouts.figures import summarise

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; `open` is empty at the end if tags are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def failed(reason: str = "no slot") -> Judgement:
    return Judgement(Outcome.UNPARSABLE, reason=reason)


def group(
    *judgements: Judgement, query: str = "q", response: str = "r", **selection: Any
) -> GroupResult:
    candidates = tuple(Candidate(query, response) for _ in judgements)
    chosen = replace(Selection(0, "rating"), **selection)
    return GroupResult(QueryRow(1, query), candidates, judgements, chosen)


def render(
    groups: list[GroupResult],
    bad_rows: tuple[BadRow, ...] = (),
    view: str = "rating",
    judge: str = "j@1",
    title: str = "Best of N",
    config: str = "input: a",
) -> str:
    summary = summarise(groups, bad_rows, view=view, seconds={"judge": 2.0})
    sample = Sample(view)
    for own in groups:
        sample.add(own)
    summary = replace(summary, judge=judge)
    return render_report(summary, sample.shown(), title=title, config_text=config)


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;", id="markup"),
        pytest.param("a\x00\x1b[31m\x7f", "a␀␛[31m␡", id="control-characters"),
        pytest.param("a\tb\nc", "a\tb\nc", id="tab-and-newline-stay"),
        pytest.param("a\r\nb\rc", "a\nb␍c", id="carriage-return"),
        pytest.param("a\x85\ud800\udfff", "a\ufffd\ufffd\ufffd", id="lone-surrogates"),
        pytest.param("\u202eevil\u2066", "\ufffdevil\ufffd", id="bidirectional-override"),
        pytest.param("שלום 😀", "שלום 😀", id="other-scripts-stay"),
    ],
)
def test_esc(text: str, shown: str) -> None:
    assert esc(text) == shown


@given(st.text(st.characters(), max_size=60))
def test_esc_leaves_no_markup_and_can_be_encoded(text: str) -> None:
    assert not re.search("[<>\"'\x00-\x08\x0b-\x1f]", esc(text))
    esc(text).encode("utf-8")


def test_clip_counts_what_is_missing() -> None:
    assert clip("<" * 5, 5) == "&lt;" * 5
    assert clip("<" * 7, 5) == "&lt;" * 5 + '<span class="muted"> … 2 more characters</span>'


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (num(None), "\u2013"),
        (num(-0.001), "0"),
        (num(5.50), "5.5"),
        (num(100.0), "100"),
        (percent(None), "\u2013"),
        (percent(0.0), "0 %"),
        (percent(0.0002), "&lt;0.1 %"),
        (percent(0.9999), "&gt;99.9 %"),
        (percent(1.0), "100 %"),
        (percent(0.125), "12.5 %"),
        (count(99_999), "99,999"),
        (count(1_234_567), "1.23 M"),
        (plural(1, "query"), "1 query"),
        (plural(2, "query"), "2 queries"),
    ],
)
def test_figures(found: str, shown: str) -> None:
    assert found == shown


def test_counts_say_how_many_kinds_are_left_out() -> None:
    page = Page(counts({f"reason {i}": 2 for i in range(25)}, "none"))
    assert page.tags["tr"] == 21
    assert page.text.endswith("5 more kinds10")


# --- hostile text -------------------------------------------------------------------------------

HOSTILE = (
    "</title></style></svg></pre><script>alert(1)</script>\"'><img src=x onerror=alert(1)> "
    "\x00\x1b]0;x\x07 \ud800 \u202e $config ${title} {x}"
)


def hostile_page(text: str) -> str:
    judged = [
        rated(5, expected=5.5, critique=text, flags=(text,), judge=text),
        failed(text),
        rated(5, critique=text),
    ]
    groups = [
        group(*judged, query=text, response=text, index=1, rule=text, tied=(0, 2)),
        group(failed(text), query=text, response=text, rule="all_failed"),
    ]
    return render(groups, (BadRow(text, 1, text, text),), judge=text, title=text, config=text)


def test_hostile_text_stays_text() -> None:
    plain, hostile = Page(hostile_page("x" * len(HOSTILE))), Page(hostile_page(HOSTILE))
    assert hostile.tags == plain.tags
    assert hostile.open == []
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    assert "<script>alert(1)</script>" in hostile.text
    assert "$config ${title} {x}" in hostile.text
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff\u202e]", hostile_page(HOSTILE))


@settings(max_examples=25)
@given(st.text(st.characters(), min_size=1, max_size=40).filter(lambda text: text.strip()))
def test_any_text_leaves_the_structure_alone(text: str) -> None:
    page = hostile_page(text)
    page.encode("utf-8")
    assert Page(page).tags == Page(hostile_page("x")).tags


def test_page_needs_nothing_else() -> None:
    text = hostile_page("x")
    page = Page(text)
    assert page.tags["script"] == 1  # its own, allowed by its hash
    assert not {"link", "img", "iframe", "object", "form"} & set(page.tags)
    assert not {"src", "srcset", "onclick", "onload"} & {name for name, _ in page.attributes}
    assert "url(" not in text
    assert "@import" not in text
    policy = next(value for name, value in page.attributes if name == "content" and value)
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri"
    )
    assert "prefers-color-scheme: dark" in text


# --- what the page says -------------------------------------------------------------------------


def test_a_direct_rating_is_shown_where_there_is_one() -> None:
    two = [rated(8, expected=7.6, direct=direct) for direct in (5.5, 6.5)]
    text = Page(render([group(*two, index=1, rule="direct")], view="direct")).text
    assert "rating 8expected rating 7.6direct rating 6.5" in text
    assert "It has the highest direct rating" in text
    assert "candidate 1: rating 8, direct 6.5, chosen" in text
    assert "direct" not in Page(render([group(rated(8, expected=7.6))])).text


def test_page_tells_the_choice() -> None:
    judged = rated(8, expected=7.6, critique="Clear and short.")
    text = Page(render([group(rated(5), judged, failed(), index=1, response="An answer")])).text
    assert "Chosen response · candidate 1" in text
    assert "rating 8expected rating 7.6" in text
    assert "It has the highest rating, and no other candidate shares it." in text
    assert "Clear and short." in text
    assert "3 candidates, 1 without a rating" in text


@pytest.mark.parametrize(
    ("found", "view", "sentence"),
    [
        pytest.param(
            group(rated(5), rule="only"), "rating", "It is the only candidate.", id="only"
        ),
        pytest.param(
            group(rated(5), failed(), rule="only"),
            "rating",
            "It is the only candidate that was rated.",
            id="only-rated",
        ),
        pytest.param(
            group(rated(5, expected=5.2), rated(5, expected=5.1), rule="expected"),
            "expected",
            "It has the highest expected rating, and no other candidate shares it.",
            id="expected",
        ),
        pytest.param(
            group(rated(5.5), rated(5.5), rule="policy_logprob", tied=(0, 1)),
            "rating",
            "2 candidates share the best rating, 5.5; "
            "the policy found this one the most probable of them.",
            id="tie-break",
        ),
        pytest.param(
            group(failed(), rule="all_failed"),
            "rating",
            "Every judgement failed, so this choice says nothing about quality.",
            id="all-failed",
        ),
        pytest.param(
            group(rated(5), rule="<b>"), "rating", "Decided by the rule &lt;b&gt;.", id="unknown"
        ),
    ],
)
def test_rule_in_words(found: GroupResult, view: str, sentence: str) -> None:
    assert reason_in_words(found, view) == sentence


FORCED, FLAT, TIES, FAILED, NONE = (
    "of the ratings were forced",
    "hardly tells the candidates of a query apart",
    "the tie-break decides most choices",
    "of the judgements failed",
    "every choice below is arbitrary",
)


@pytest.mark.parametrize(
    ("judgements", "said"),
    [
        pytest.param([rated(v) for v in (2, 5, 8)], set(), id="healthy"),
        pytest.param([rated(v, forced=True) for v in (2, 5, 8)], {FORCED}, id="forced"),
        pytest.param([rated(5)] * 4, {FLAT}, id="no-spread"),
        pytest.param([rated(5)] * 9 + [rated(9)], {TIES}, id="mostly-ties"),
        pytest.param([rated(2), rated(8), failed()], {FAILED}, id="some-failed"),
        pytest.param([failed(), failed()], {NONE}, id="none-rated"),
    ],
)
def test_warnings(judgements: list[Judgement], said: set[str]) -> None:
    text = Page(render([group(*judgements)])).text
    assert {phrase for phrase in (FORCED, FLAT, TIES, FAILED, NONE) if phrase in text} == said


def test_a_large_job_is_shown_by_a_sample() -> None:
    ratings = [5.0 + (n % 4) for n in range(1000)]
    ratings[400:404] = [1.0, 2.0, 3.0, 4.0]
    groups = [group(rated(value), query=f"query {n}") for n, value in enumerate(ratings)]
    groups[500] = group(failed(), query="query 500", rule="all_failed")
    page = Page(render(groups))
    # 50 of the lowest are among the first, last and drawn ones in part.
    assert 150 < page.tags["article"] <= 200
    numbers = [int(n) for n in re.findall(r"Query (\d+)line", page.text)]
    assert numbers == sorted(set(numbers))
    assert {*range(1, 51), *range(976, 1001), 401, 402, 403, 404, 501} <= set(numbers)
    assert f"{len(numbers)} of 1,000 queries are shown in detail: 50 that came first" in page.text
    assert "25 that came last" in page.text and "drawn at random" in page.text
    assert render(groups) == render(groups)
    small = Page(render(groups[:200]))
    assert small.tags["article"] == 200 and "shown in detail" not in small.text


@pytest.mark.parametrize("view", ["rating", "expected"])
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="no-query"),
        pytest.param([group(rated(5), rule="only")], id="one-candidate"),
        pytest.param([group(failed(), failed(), rule="all_failed")], id="no-rating"),
        pytest.param([group(*[rated(5)] * 300)], id="many-candidates"),
        pytest.param([group(rated(0), rated(100), rated(-3.5, expected=-3))], id="another-scale"),
        pytest.param([group(rated(5), query="", response=" \n")], id="empty-texts"),
    ],
)
def test_page_is_whole(groups: list[GroupResult], view: str) -> None:
    page = Page(render(groups, view=view))
    assert page.open == []
    assert page.tags["article"] == len(groups)
    assert "nan" not in {value for _, value in page.attributes}


def test_tokens_and_rates_are_shown() -> None:
    judged = rated(5, usage=Usage(1000, 600, 50, 0.5))
    text = Page(render([group(judged, judged)])).text
    phrases = ("tokens read2,000", "prefix cache1,200", "hit rate60 %", "written per second50")
    for phrase in phrases:
        assert phrase in text


# --- plots --------------------------------------------------------------------------------------


def classes(svg: str) -> Counter[str]:
    found = (value for name, value in Page(svg).attributes if name == "class" and value)
    return Counter(name for value in found for name in value.split())


def test_dot_plot_marks_chosen_tied_and_failed() -> None:
    found = group(
        rated(7, expected=6.8),
        failed("a<b"),
        rated(7, expected=7.1),
        rated(3),
        index=2,
        tied=(0, 2),
    )
    svg = dot_plot(found, "rating", (600, 240))
    assert classes(svg) & Counter(("ring", "mean", "dot", "chosen", "hollow")) == Counter(
        ("ring", "mean", "dot", "chosen", "hollow")
    )
    seen = classes(svg)
    assert (seen["ring"], seen["mean"], seen["chosen"], seen["hollow"]) == (2, 2, 1, 1)
    text = Page(svg).text
    assert "candidate 1: unparsable, a<b" in text
    assert "candidate 2: rating 7, expected 7.1, tied for best, chosen" in text


def test_line_plot_spaces_the_sizes_by_their_logarithm() -> None:
    svg = line_plot([(1, 5.0), (2, 6.0), (4, 7.0)], "best rating", (420, 250))
    places = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', svg)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.11)
    assert Page(svg).text.count("best of") == 3


def test_line_plot_leaves_out_a_label_that_would_overlap() -> None:
    points = [(n, 5.0) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 257)]
    labels = re.findall(r'text-anchor="middle">(\d+)</text>', line_plot(points, "y", (420, 250)))
    assert "257" in labels
    assert "256" not in labels


def test_bar_plot_bins_by_half_points_where_there_are_some() -> None:
    whole = Page(bar_plot([(4, 2), (5, 9)], (420, 250))).text
    halves = Page(bar_plot([(4.5, 2), (4.4, 1), (5, 9)], (420, 250))).text
    assert "rating 4: 2rating 5: 9" in whole
    assert "rating 4.5: 3rating 5: 9" in halves


@given(st.floats(-1e6, 1e6), st.floats(0.5, 1e6))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 7
    assert all(low - span * 1e-6 <= tick <= low + span * 1.000001 for tick in found)


def test_plots_of_scores_span_the_scores_and_not_the_scale() -> None:
    scores = Page(bar_plot([(-0.31, 1), (-0.3, 2), (0.27, 1)], (420, 250))).text
    assert "0.2" in scores and "10" not in scores.split()
    found = group(rated(-0.31), rated(0.27))
    marks = Page(dot_plot(found, "rating", (600, 240))).text
    assert "-0.2" in marks and "8" not in marks.split()
