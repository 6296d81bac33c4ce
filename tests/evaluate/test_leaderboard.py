"""The leaderboard: what the page holds, that nothing written by others becomes markup, and its
behaviour in a real browser."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.evaluate.leaderboard import items_of
from autoj_reward.evaluate.results import load_result
from autoj_reward.io.markup import data_block
from tests.browser import Page, chromium
from tests.evaluate_rows import pair, write

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eabc"
FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=20"]


def evaluate(*arguments: str) -> int:
    return cli.main(["evaluate", *arguments])


def eval_p(folder: Path, name: str, data: str, *sets: str) -> str:
    out = str(folder / f"{name}.json")
    flags = [text for item in sets for text in ("--set", item)]
    assert evaluate("eval-p", "--data", data, "--json", out, *FAKE, *flags) == 0
    return out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three judges on the same twelve pairs, one of them hostile."""
    folder = tmp_path_factory.mktemp("board")
    rows = [pair("planning", n, n % 3) for n in range(8)]
    rows += [pair("code_generation", n, 1) for n in range(3)]
    rows.append(pair("chitchat", 0) | {"prompt": HOSTILE, "response 2": HOSTILE})
    data = write(folder / "pairs.jsonl", rows)
    results = [
        eval_p(folder, "longer", data),
        eval_p(folder, "swayed", data, "judge.script={verdicts: first}"),
        eval_p(folder, "hostile", data, "judge.script={fail: {'short 1': unparsable}}"),
    ]
    hostile_result = load_result(results[2]) | {"name": HOSTILE, "judge": HOSTILE}
    Path(results[2]).write_text(json.dumps(hostile_result))
    out = folder / "board.html"
    assert evaluate("leaderboard", "--results", *results, "--output", str(out)) == 0
    return out


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else_and_escapes_everything(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    names = [name for name, _ in tags.seen]
    assert names.count("script") == 2
    assert not {"img", "link", "iframe", "object"} & set(names)
    for _, attributes in tags.seen:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "href")]
    assert "<script>document" not in text
    assert "\u202e" not in text


def test_data_cannot_leave_its_block() -> None:
    text = data_block({"x": "</script><!--&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": "</script><!--&\u2028"}


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("no Chromium or Chrome on this machine")
    opened = Page(page, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def read_column(browser: Page, number: int) -> list[str]:
    values = browser.run(
        "[...document.querySelectorAll('table')[0].tBodies[0].rows].map("
        f"row => row.children[{number}].dataset.value)"
    )
    assert isinstance(values, list)
    return values


def read_cards(browser: Page) -> list[str]:
    texts = browser.run("[...document.querySelectorAll('.card')].map(card => card.textContent)")
    assert isinstance(texts, list)
    return texts


def test_columns_sort_in_a_browser(browser: Page) -> None:
    heads = browser.run(
        "[...document.querySelectorAll('table')[0].querySelectorAll('th')].map(h => h.textContent)"
    )
    assert heads[:4] == ["judge", "n", "agreement", "consistency"]
    button = "table th:nth-child(3) button"
    browser.click(button)
    values = [float(value) for value in read_column(browser, 2)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1
    sort = "document.querySelector('table th:nth-child(3)').getAttribute('aria-sort')"
    assert browser.run(sort) == "descending"
    browser.click(button)
    assert [float(value) for value in read_column(browser, 2)] == sorted(values)
    assert browser.run(sort) == "ascending"
    browser.click("table th:nth-child(1) button")
    names = read_column(browser, 0)
    assert len(names) == 3
    assert names[0] > names[-1]


def test_the_heat_follows_the_figures(browser: Page) -> None:
    cells = browser.run(
        "[...document.querySelectorAll('.heat td[data-heat]')].map(cell => [Number("
        "cell.dataset.value), getComputedStyle(cell).backgroundColor])"
    )
    alpha = {value: float(colour.rstrip(")").split(",")[-1]) for value, colour in cells}
    assert len(cells) == 6  # three judges, two groups
    assert [alpha[v] for v in sorted(alpha)] == sorted(alpha.values())
    assert min(alpha.values()) < 0.1 < 0.5 < max(alpha.values())


def test_judgements_are_filtered_in_a_browser(browser: Page) -> None:
    browser.choose("#result", "0")
    assert browser.run("document.querySelector('#count').textContent") == (
        "1 to 10 of 12 judgements"
    )
    browser.click("#next")
    assert len(read_cards(browser)) == 2
    browser.choose("#tag", "disagreement")
    assert all("disagreement" in text for text in read_cards(browser))
    everything = "document.querySelector('#count').textContent.split(' of ')[1]"
    assert browser.run(everything) == "9 judgements"
    browser.choose("#group", "Code")
    assert len(read_cards(browser)) == 3
    browser.choose("#search", "Generation 2")
    assert len(read_cards(browser)) == 1
    assert "final decision is Response 1" in read_cards(browser)[0]
    assert "response 2 shown first: response 1" in read_cards(browser)[0]
    browser.choose("#search", "nowhere")
    assert browser.run("document.querySelector('#count').textContent") == "0 judgements"
    browser.choose("#search", "")
    browser.choose("#result", "1")
    browser.choose("#tag", "inconsistent")
    assert browser.run(everything) == "12 judgements"
    browser.choose("#result", "2")
    browser.choose("#tag", "failed")
    assert "without an end" in read_cards(browser)[0]


def test_hostile_text_stays_text_in_a_browser(browser: Page) -> None:
    browser.choose("#result", "0")
    browser.choose("#search", "onerror")
    assert "<img src=x onerror=alert(1)>" in read_cards(browser)[0]
    assert browser.run("document.title") == "Judge leaderboard"
    assert browser.run("document.querySelectorAll('img, script').length") == 2


def test_the_page_loads_nothing_and_breaks_nowhere(browser: Page, page: Path) -> None:
    assert browser.problems == []
    assert set(browser.requests) <= {page.as_uri()}


def test_items_of_every_task() -> None:
    row: dict[str, Any] = {"line": 1, "group": "g", "query": "q"}
    candidates = row | {
        "base": "llama",
        "responses": ["a", "b"],
        "ratings": [3, 5],
        "grades": [None, 7],
        "critiques": ["", "good"],
        "chosen": {"configured": {"2": 1}, "first": {"2": 0}},
    }
    items = items_of("eval-r", candidates)
    assert items.responses == (("best of 2: candidate 1, rating 5, grade 7", "b"),)
    assert (items.judgements, items.tags) == (
        (("critique of candidate 1", "good"),),
        ("tie-break matters",),
    )
    choice = row | {"responses": ["a", "b"], "correct": 1, "ratings": [4, 4]}
    assert items_of("best-of-four", choice).tags == ("disagreement",)


RESULT: dict[str, Any] = {"task": "eval-p", "judge": "j", "name": "n", "overall": {"n": 1}}
ROW = {"line": 1, "group": "g", "query": "q"}
HUGE = 10**400


def make_result(**metrics: Any) -> dict[str, Any]:
    return RESULT | {"overall": RESULT["overall"] | metrics}


@pytest.mark.parametrize(
    ("result", "rows", "message"),
    [
        pytest.param(None, "", "cannot be read as a result file", id="no file"),
        pytest.param({}, "", "no result of `autoj evaluate`", id="no result"),
        pytest.param(RESULT | {"overall": 3}, "", "no overall figures", id="no figures"),
        pytest.param(RESULT | {"overall": {"accuracy": "<b>"}}, "", "as its accuracy", id="text"),
        pytest.param(
            make_result(accuracy=HUGE, accuracy_95=[1, 2]), "", "as its accuracy", id="huge number"
        ),
        pytest.param(make_result(accuracy=math.nan), "", "as its accuracy", id="no number"),
        pytest.param(
            make_result(accuracy=1, accuracy_95=5), "", "not as `autoj evaluate`", id="no interval"
        ),
        pytest.param(
            RESULT | {"task": "best-of-four"},
            json.dumps(ROW | {"responses": ["a"], "correct": 1, "ratings": [HUGE]}),
            "not those of `autoj evaluate`",
            id="huge rating",
        ),
        pytest.param(RESULT, '{"line": 1}\n', "not those of `autoj evaluate`", id="rows"),
        pytest.param(RESULT, "{", "not JSON lines", id="broken rows"),
    ],
)
def test_broken_results_are_named(
    result: dict[str, Any] | None, rows: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    if result is not None:
        (tmp_path / "r.json").write_text(json.dumps(result))
    if rows:
        (tmp_path / "r.rows.jsonl").write_text(rows)
    page = str(tmp_path / "b.html")
    assert evaluate("leaderboard", "--results", str(tmp_path / "r.json"), "--output", page) == 1
    assert message in capsys.readouterr().err
