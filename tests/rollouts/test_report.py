"""`report.html`: what a job embeds in the page, and the page in a browser from its file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoj_reward.conversation import Prompt
from autoj_reward.io.chart import curves, ticks
from autoj_reward.io.markup import data_block, esc, num, plural
from autoj_reward.io.rows import BadRows, QueryRow
from autoj_reward.questions.choose import Shortlist
from autoj_reward.questions.rank import Order, PairScore, Ranking
from autoj_reward.types import BadRow, Candidate, Judgement, Outcome, Selection, Verdict
from rollouts.best_of_n.report import Gathered, reason_in_words, render_report
from rollouts.best_of_n.results import GroupResult
from tests.browser import Page, chromium
from tests.judgements import rated
from tests.watch.conftest import wait_for


class Parsed(HTMLParser):
    """The tags of a page, and its embedded data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data: dict[str, Any] = {}
        self._in_data = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data = json.loads(data)
            self._in_data = False


def make_failure(reason: str = "no slot") -> Judgement:
    return Judgement(Outcome.UNPARSABLE, reason=reason)


def make_group(
    *judgements: Judgement, query: str = "q", response: str = "r", line: int = 1, **selection: Any
) -> GroupResult:
    candidates = tuple(Candidate(query, f"{response}{n}") for n in range(len(judgements)))
    chosen = replace(Selection(0, "rating"), **selection)
    return GroupResult(QueryRow(line, Prompt(query)), candidates, judgements, chosen)


def render(
    groups: list[GroupResult],
    bad_rows: tuple[BadRow, ...] = (),
    view: str = "rating",
    title: str = "Best of N",
    config: str = "input: a",
    scored_by: str | None = None,
) -> str:
    results = Gathered(view, scored_by)
    for result in groups:
        results.add(result)
    left_out = BadRows(len(bad_rows), list(bad_rows))
    summary = results.statistics.summary(left_out, {"judge": 2.0})
    return render_report(summary, results, title=title, config_text=config)


def render_data(groups: list[GroupResult], **options: Any) -> dict[str, Any]:
    return Parsed(render(groups, **options)).data


def test_a_group_that_was_judged_together_has_its_evidence() -> None:
    order = Order((1, 0), (0.75, 0.25), (False, True))
    ranking = Ranking((0.25, 0.75), (0.1, 0.1), ("", ""), (), orders=(order,))
    plain_group = make_group(rated(0.25), rated(0.75), index=1, rule="relative")
    ranked_group = replace(plain_group, ranking=ranking)
    [query] = render_data([ranked_group])["queries"]
    assert query["relative"]["unit"] == "share of the scale"
    assert [score["name"] for score in query["relative"]["scores"]] == ["1", "0"]
    assert query["relative"]["orders"][0][1] == {"name": "0", "score": 0.25, "forced": True}
    assert "It has the highest score beside the others" in query["choice"]["why"]
    assert render_data([plain_group])["queries"][0]["relative"] is None


@pytest.mark.parametrize(("spread", "warned"), [(0.001, True), (0.06, False)])
def test_scores_from_0_to_1_are_no_points(spread: float, warned: bool) -> None:
    groups = [make_group(rated(0.5 - spread), rated(0.5 + spread), index=1, rule="relative")]
    run = render_data(groups, scored_by="comparisons")["run"]
    assert any("of a score from 0 to 1 on average" in notice for notice in run["notices"]) is warned
    assert run["summary"]["scored_by"] == "comparisons"


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "escaped"),
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
def test_esc(text: str, escaped: str) -> None:
    assert esc(text) == escaped


@given(st.text(st.characters(), max_size=60))
def test_esc_leaves_no_markup_and_can_be_encoded(text: str) -> None:
    assert not re.search("[<>\"'\x00-\x08\x0b-\x1f]", esc(text))
    esc(text).encode("utf-8")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (num(None), "\u2013"),
        (num(-0.001), "0"),
        (num(5.50), "5.5"),
        (num(100.0), "100"),
        (plural(1, "query"), "1 query"),
        (plural(2, "query"), "2 queries"),
    ],
)
def test_numbers(number: str, expected: str) -> None:
    assert number == expected


HOSTILE = (
    "</title></style></svg></pre></script><!--<script>alert(1)</script>\"'>"
    "<img src=x onerror=alert(1)> \x00\x1b]0;x\x07 \ud800 \u202e $config ${title} $data {x}"
)


def render_hostile_page(text: str) -> str:
    judgements = [
        rated(5, expected=5.5, critique=text, flags=(text,), judge=text),
        make_failure(text),
        rated(5, critique=text, thinking=text),
    ]
    groups = [
        make_group(*judgements, query=text, response=text, index=2, rule=text, tied=(0, 2)),
        make_group(make_failure(text), query=text, response=text, rule="all_failed"),
    ]
    return render(groups, (BadRow(text, 1, text, text),), title=text, config=text)


def iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from iterate_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from iterate_texts(item)
    elif isinstance(value, str):
        yield value


def test_hostile_text_stays_text() -> None:
    page = render_hostile_page(HOSTILE)
    parser = Parsed(page)
    assert parser.tags == Parsed(render_hostile_page("x" * len(HOSTILE))).tags
    assert parser.data["queries"][0]["text"].startswith("</title></style>")
    texts = "".join(iterate_texts(parser.data))
    assert "<script>alert(1)</script>" in texts and "$config ${title} $data {x}" in texts
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff\u202e]", texts)
    block = data_block(parser.data)
    assert not re.search("[<>&]", block) and block.isascii()


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(), min_size=1, max_size=40).filter(lambda text: text.strip()))
def test_any_text_leaves_the_structure_alone(text: str) -> None:
    page = render_hostile_page(text)
    page.encode("utf-8")
    assert Parsed(page).tags == Parsed(render_hostile_page("x")).tags


# --- what the page is given ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "view", "sentence"),
    [
        pytest.param(
            make_group(rated(5), rule="only"), "rating", "It is the only candidate.", id="only"
        ),
        pytest.param(
            make_group(rated(5), make_failure(), rule="only"),
            "rating",
            "It is the only candidate that was rated.",
            id="only-rated",
        ),
        pytest.param(
            make_group(rated(5, expected=5.2), rated(5, expected=5.1), rule="expected"),
            "expected",
            "It has the highest expected rating, and no other candidate shares it.",
            id="expected",
        ),
        pytest.param(
            make_group(rated(5.5), rated(5.5), rule="policy_logprob", tied=(0, 1)),
            "rating",
            "2 candidates share the best rating, 5.5; "
            "the policy found this one the most probable of them.",
            id="tie-break",
        ),
        pytest.param(
            make_group(make_failure(), rule="all_failed"),
            "rating",
            "Every judgement failed, so this choice says nothing about quality.",
            id="all-failed",
        ),
        pytest.param(
            make_group(rated(5), rule="<b>"), "rating", "Decided by the rule <b>.", id="unknown"
        ),
    ],
)
def test_rule_in_words(result: GroupResult, view: str, sentence: str) -> None:
    assert reason_in_words(result, view) == sentence


def test_a_large_job_is_shown_by_a_sample() -> None:
    ratings = [5.0 + (n % 4) for n in range(1000)]
    ratings[400:404] = [1.0, 2.0, 3.0, 4.0]
    groups = [make_group(rated(value), query=f"query {n}") for n, value in enumerate(ratings)]
    groups[500] = make_group(make_failure(), query="query 500", rule="all_failed")
    report_data = render_data(groups)
    numbers = [query["id"] for query in report_data["queries"]]
    # 50 of the lowest are among the first, last and drawn ones in part.
    assert 150 < len(numbers) <= 200
    assert numbers == sorted(set(numbers))
    assert {*range(1, 51), *range(976, 1001), 401, 402, 403, 404, 501} <= set(numbers)
    [sampling_notice] = [
        notice for notice in report_data["run"]["notices"] if "shown in detail" in notice
    ]
    assert (
        f"{len(numbers)} of 1,000 queries are shown in detail: 50 that came first"
        in sampling_notice
    )
    assert "25 that came last" in sampling_notice and "drawn at random" in sampling_notice
    assert render(groups) == render(groups)
    small = render_data(groups[:200])
    assert len(small["queries"]) == 200 and small["run"]["statistics"]["queries"] == 200
    assert not any("shown in detail" in notice for notice in small["run"]["notices"])


def test_the_texts_of_the_chosen_the_best_and_the_worst_are_whole() -> None:
    judgements = [rated(value, critique="c" * 3000) for value in (5, 9, 7, 2)]
    [query] = render_data([make_group(*judgements, index=1)])["queries"]
    lengths = [len(detail["judgements"][0]["critique"]) for detail in query["details"]]
    assert lengths[1] == lengths[3] == 3000
    assert lengths[0] == lengths[2] < 600


@pytest.mark.parametrize("view", ["rating", "expected"])
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="no-query"),
        pytest.param([make_group(rated(5), rule="only")], id="one-candidate"),
        pytest.param(
            [make_group(make_failure(), make_failure(), rule="all_failed")], id="no-rating"
        ),
        pytest.param([make_group(*[rated(5)] * 300)], id="many-candidates"),
        pytest.param(
            [make_group(rated(0), rated(100), rated(-3.5, expected=-3))], id="another-scale"
        ),
        pytest.param([make_group(rated(5), query="", response=" \n")], id="empty-texts"),
    ],
)
def test_a_report_of_any_job(groups: list[GroupResult], view: str) -> None:
    report_data = render_data(groups, view=view)
    assert [query["total"] for query in report_data["queries"]] == [
        len(g.candidates) for g in groups
    ]
    assert report_data["run"]["statistics"]["candidates"] == sum(len(g.candidates) for g in groups)


# --- drawings -----------------------------------------------------------------------------------


def test_a_curve_of_sizes_spaces_them_by_their_logarithm() -> None:
    svg = curves({"best": [(1, 5.0), (2, 6.0), (4, 7.0)]}, "N", "best", log_x=True)
    [points] = re.findall(r' points="([^"]+)"', svg)
    places = [float(point.partition(",")[0]) for point in points.split()]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.11)


@given(st.floats(-1e6, 1e6), st.floats(0.5, 1e6))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    assert 2 <= len(marks) <= 7
    assert all(low - span * 1e-6 <= tick <= low + span * 1.000001 for tick in marks)


# --- in a browser -------------------------------------------------------------------------------


def make_job() -> list[GroupResult]:
    tied = make_group(
        rated(7, expected=6.8, direct=6.0),
        rated(7, expected=7.1, critique="It won.", direct=6.5),
        rated(3, expected=3.2, direct=3.0),
        make_failure("cut off"),
        index=1,
        rule="pairwise",
        tied=(0, 1),
        comparisons=((0, 1, Verdict.SECOND),),
        query=HOSTILE,
        response=f"{HOSTILE} response ",
        line=7,
    )
    plain = make_group(
        rated(8, expected=7.6, critique="Clear and short."),
        rated(2, expected=2.4),
        query="Why is it blue?",
    )
    flagged = make_group(
        rated(5, expected=5.5, flags=("planted_verdict",)), rated(4), query="Which one?"
    )
    return [tied, plain, flagged]


def open_report(folder: Path, page: str) -> Page:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    (folder / "report.html").write_text(page, encoding="utf-8")
    return Page(folder / "report.html", folder / "profile")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    bad = (BadRow("in.jsonl", 4, "query", HOSTILE),)
    page = open_report(tmp_path_factory.mktemp("report"), render(make_job(), bad, config=HOSTILE))
    yield page
    page.close()


@pytest.fixture
def loaded_page(report: Page) -> Page:
    report._call("Page.reload")
    wait_for(lambda: len(read_texts(report, ".query")) == 3)
    return report


def read_text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)})?.textContent"))


def read_texts(page: Page, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    texts: list[str] = page.run(script)
    return texts


def test_a_file_shows_the_job_and_asks_nobody(loaded_page: Page) -> None:
    tiles = dict(
        zip(
            read_texts(loaded_page, ".tile dt"),
            read_texts(loaded_page, ".tile dd:first-of-type"),
            strict=True,
        )
    )
    assert (tiles["candidates"], tiles["pairs tied"], tiles["failed"]) == ("8", "20 %", "12.5 %")
    heads = read_texts(loaded_page, "#plots h3")
    assert {"What N bought", "Ratings", "Outcomes", "Choices by deciding rule"} <= set(heads)
    assert {"Failures by reason", "Flags", "Time"} <= set(heads)
    assert read_text(loaded_page, "#state") == "finished"
    assert "in.jsonl:4" in read_text(loaded_page, "#left-out")
    assert loaded_page.problems == []
    assert [r for r in loaded_page.requests if not r.startswith(("file:", "data:"))] == []


def test_a_narrow_screen_shows_charts_first_and_whole_queries(loaded_page: Page) -> None:
    metrics = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    loaded_page._call("Emulation.setDeviceMetricsOverride", width=400, **metrics)
    try:
        top = "(s) => document.querySelector(s).getBoundingClientRect().top"
        tops = [loaded_page.run(f"({top})({s!r})") for s in (".card:has(svg)", ".tile", ".query")]
        assert tops == sorted(tops)
        width = "(s) => document.querySelector(s).getBoundingClientRect().width"
        asked, notes = (
            loaded_page.run(f"({width})('.query {name}')") for name in (".asked", ".notes")
        )
        assert asked == notes > 300
        assert loaded_page.run("document.documentElement.scrollWidth <= innerWidth")
    finally:
        loaded_page._call("Emulation.clearDeviceMetricsOverride")


def test_a_report_of_scores_names_them(tmp_path: Path) -> None:
    groups = [make_group(rated(0.25), rated(0.75), index=1, rule="relative")]
    page = open_report(tmp_path, render(groups, scored_by="comparisons"))
    try:
        wait_for(lambda: read_texts(page, ".tile dt"))
        assert {"mean score", "scores forced"} <= set(read_texts(page, ".tile dt"))
        assert {"What N bought", "Scores"} <= set(read_texts(page, "#plots h3"))
        wait_for(lambda: read_texts(page, ".query"))
        page.click(".query")
        wait_for(lambda: "score" in read_texts(page, ".candidates th"))
        assert read_text(page, ".column.A .facts").startswith("okscore 0.75")
        assert "rating" not in page.run("document.querySelector('main').innerText").lower()
    finally:
        page.close()


def make_ranked_groups() -> list[GroupResult]:
    """Two queries whose best responses are the third and the first."""
    groups = []
    for scores, won in (((0.2, 0.5, 0.8), 0.1), ((0.7, 0.4, None), 0.7)):
        ranking = Ranking(
            scores, (0.1,) * 3, ("",) * 3, (), matches=(PairScore(0, 1, won), PairScore(1, 2, None))
        )
        group = make_group(*[rated(score or 0) for score in scores], rule="relative")
        groups.append(replace(group, ranking=ranking))
    return groups


def test_a_job_of_comparisons_has_its_scores_and_its_matrix_by_rank() -> None:
    ranks = render_data(make_ranked_groups(), scored_by="comparisons")["run"]["ranks"]
    assert (ranks["queries"], ranks["unit"], ranks["total"]) == (2, "win rate", 3)
    assert [own["name"] for own in ranks["scores"]] == ["1", "2", "3"]
    assert [own["score"] for own in ranks["scores"]] == pytest.approx([0.75, 0.45, 0.2])
    # The standard error of (0.8, 0.7); one query alone has a third response with a score.
    assert [own["error"] for own in ranks["scores"]] == [
        pytest.approx(0.05),
        pytest.approx(0.05),
        None,
    ]
    # Ranks 3 and 2 of the first query, 1 and 2 of the second one. A failed comparison has no share.
    assert ranks["matches"] == [
        {"one": "1", "two": "2", "won": 0.7},
        {"one": "2", "two": "3", "won": 0.9},
    ]
    assert render_data(make_job())["run"]["ranks"] is None


def test_a_job_of_comparisons_shows_its_matrix_at_the_width_of_a_phone(tmp_path: Path) -> None:
    page = open_report(tmp_path, render(make_ranked_groups(), scored_by="comparisons"))
    try:
        wait_for(lambda: read_texts(page, ".tile dt"))
        assert {"Scores by rank", "Comparisons by rank"} <= set(read_texts(page, "#plots h3"))
        assert read_texts(page, "#plots .scores .value") == ["0.75 ± 0.05", "0.45 ± 0.05", "0.20"]
        cells = ["", "70", "", "30", "", "90", "", "10", ""]
        assert read_texts(page, "#plots .heat tbody td") == cells
        metrics = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
        page._call("Emulation.setDeviceMetricsOverride", width=400, **metrics)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        # The matrix stands among the charts, and a card is no taller than what is in it.
        card = "document.querySelector('#plots > .card:has(.heat)')"
        assert page.run(f"getComputedStyle({card}).order") == "-1"
        assert page.run(f"{card}.getBoundingClientRect().height") < 300
        assert page.problems == []
    finally:
        page.close()


def test_hostile_texts_of_a_report_stay_texts(loaded_page: Page) -> None:
    loaded_page.click(".query")
    wait_for(lambda: len(read_texts(loaded_page, ".column")) == 2)
    assert "<img src=x onerror=alert(1)>" in read_text(loaded_page, ".column.A")
    assert "<img src=x onerror=alert(1)>" in read_text(loaded_page, "#config")
    assert loaded_page.run("document.querySelectorAll('img').length") == 0
    assert loaded_page.run("document.querySelectorAll('script').length") == 2


def test_the_chosen_candidate_beside_the_worst_and_any_other(loaded_page: Page) -> None:
    loaded_page.click(".query")
    wait_for(lambda: len(read_texts(loaded_page, ".column")) == 2)
    assert read_text(loaded_page, ".why").startswith(
        "Line 7, candidate 1: 2 candidates share the best rating"
    )
    assert read_texts(loaded_page, ".column header b") == ["7", "3"]
    assert read_texts(loaded_page, ".column header .muted") == ["chosen · best", "worst"]
    assert "It won." in read_text(loaded_page, ".column.A")
    facts = read_text(loaded_page, ".column.A .facts")
    assert "expected 7.1" in facts and "direct 6.5" in facts
    assert loaded_page.run("document.querySelectorAll('.bought svg').length") == 1
    assert len(read_texts(loaded_page, ".candidates tbody tr")) == 4
    loaded_page.click(".candidates tbody tr:nth-child(2) input[name=two]")
    wait_for(lambda: read_texts(loaded_page, ".column header .muted") == ["chosen · best", "best"])
    assert "A wins" in read_text(loaded_page, "#pair")


def test_search_sort_and_filters_of_a_report(loaded_page: Page) -> None:
    for field, value, count in (
        ("#search", "CLEAR AND", 1),
        ("#search", "nowhere", 0),
        ("#search", "", 3),
        ("#outcome", "unparsable", 1),
        ("#outcome", "", 3),
        ("#flag", "planted_verdict", 1),
        ("#flag", "", 3),
    ):
        loaded_page.choose(field, value)
        wait_for(lambda count=count: len(read_texts(loaded_page, ".query")) == count)
    loaded_page.choose("#order", "spread")
    wait_for(lambda: read_texts(loaded_page, ".query .asked")[0] == "Why is it blue?")
    loaded_page.choose("#order", "lowest")
    wait_for(lambda: [v[:1] for v in read_texts(loaded_page, ".query .value")] == ["2", "3", "4"])


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(
            [make_group(make_failure(), make_failure(), rule="all_failed")], id="no-rating"
        ),
        pytest.param(
            [
                replace(
                    make_group(rated(8), Judgement(Outcome.ABANDONED, reason="not listed")),
                    shortlist=Shortlist((0,), (7.5, 2.0)),
                )
            ],
            id="shortlist",
        ),
        pytest.param([make_group(rated(-0.31), rated(0.27), index=1)], id="scores"),
    ],
)
def test_odd_jobs_in_a_browser(tmp_path: Path, groups: list[GroupResult]) -> None:
    page = open_report(tmp_path, render(groups))
    wait_for(lambda: len(read_texts(page, ".query")) == 1)
    page.click(".query")
    wait_for(lambda: len(read_texts(page, ".column")) == 2)
    assert page.problems == [] and "NaN" not in read_text(page, "body")
    page.close()
