"""Labels of the page's axes, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from autoj_reward.watch.page import document
from tests.browser import Page, chromium

UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
RANGES = [
    (6.5e-5, 7.5e-5), (0.0, 7e-5), (1e-12, 3e-12), (-4e-7, 0.0), (-1e-3, 2e-3), (0.0, 1.0),
    (0.998, 1.001), (9.95, 10.05), (1.0, 10.0), (-12.0, 3.0), (0.0, 99_999.0),
    (99_990.0, 100_010.0), (0.0, 999_999.0), (1.2e6, 1.3e6), (0.0, 2.5e9), (9.99e8, 1.001e9),
    (0.0, 3e12), (0.0, 1e13), (0.0, 4e20), (-2e9, 1e9), (1_000_000.0, 1_000_004.0),
    (1e308 / 2, 1e308),
]  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    folder = tmp_path_factory.mktemp("axes")
    (folder / "page.html").write_text(document(), encoding="utf-8")
    new_page = Page(folder / "page.html", folder / "profile")
    yield new_page
    new_page.close()


def parse_label(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * UNITS.get(unit, 1.0)


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_labels_tell_neighbours_apart(page: Page, low: float, high: float, count: int) -> None:
    script = (
        f"(() => {{ const v = ticks({low!r}, {high!r}, {count}); return [v, axisLabels(v)]; }})()"
    )
    values, texts = page.run(script)
    assert len(values) >= 2
    numbers = list(map(parse_label, texts))
    assert numbers == pytest.approx(values, rel=1e-9, abs=1e-9 * (high - low))
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) <= 10


def draw(page: Page, drawing: str) -> list[dict[str, Any]]:
    """Draw a chart on the page, and return its texts with their places in the picture."""
    script = f"""(() => {{
        const svg = {drawing};
        document.body.replaceChildren(svg);
        return [...svg.querySelectorAll("text")].map((e) => {{
            const {{ x, width, y }} = e.getBBox();
            return {{ text: e.textContent, x, y, right: x + width }};
        }});
    }})()"""
    texts: list[dict[str, Any]] = page.run(script)
    return texts


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_labels_stay_within_the_picture(page: Page, low: float, high: float) -> None:
    points = json.dumps([[1, low], [50_000, high], [123_456, (low / 2 + high / 2)]])
    slots = json.dumps([{"at": 0, "judged": high, "failed": 0, "mean": high, "spread": 0.0}])
    bars = json.dumps([[low, 3], [high, 2_000_000]])
    drawings = [f"curve({points}, '')", f"throughput({slots}, 1)", f"ratingsOverTime({slots}, 1)"]
    for drawing in [*drawings, f"histogram({bars}, {high - low})"]:
        texts = draw(page, drawing)
        assert texts
        for label in texts:
            assert label["x"] >= 0 and label["right"] <= 420.5, (drawing, label)


def test_a_half_point_stands_between_the_whole_ones(page: Page) -> None:
    pairs = json.dumps([[str(n), 0.1] for n in range(1, 11)] + [["5.5", 0.2]])
    shown = [label["text"] for label in draw(page, f"distribution({pairs}, 5.5)")]
    assert shown == ["1", "2", "3", "4", "5", "5.5", "6", "7", "8", "9", "10"]
    words = json.dumps([["good", 0.4], ["bad", 0.6]])
    assert [label["text"] for label in draw(page, f"distribution({words}, 1)")] == ["good", "bad"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (99_999, "99,999"),
        (999_499, "999 k"),
        (999_950, "1.00 M"),
        (2.5e9, "2.50 B"),
        (1e12, "1.00 T"),
        (4e15, "4,000 T"),
    ],
)
def test_large_counts(page: Page, value: float, text: str) -> None:
    assert page.run(f"count({value!r})") == text


@pytest.mark.parametrize(("value", "text"), [(6e-5, "6.00e-5"), (0, "0"), (0.25, "0.25")])
def test_a_small_figure_keeps_its_digits(page: Page, value: float, text: str) -> None:
    assert page.run(f"exact({value!r})") == text
