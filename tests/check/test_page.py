"""The page of a check in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from tests.browser import Page, chromium


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
def test_a_narrow_screen_shows_the_result_and_bar_of_every_probe(tmp_path: Path) -> None:
    arguments = ["--output", str(tmp_path / "out"), "--sample", "4", "--set", "judge.kind=fake"]
    assert cli.main(["check", *arguments]) == 0
    page = Page(tmp_path / "out" / "check.html", tmp_path / "profile")
    try:
        metrics = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page._call("Emulation.setDeviceMetricsOverride", **metrics)
        chips = "[...document.querySelectorAll('.probes .chip')]"
        results = page.run(f"{chips}.map((e) => [e.textContent, e.getBoundingClientRect().right])")
        assert len(results) > 10
        assert all(text and right <= 400 for text, right in results)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        # A bar's point has the colour of its result, which the list of reasons explains.
        points = page.run("document.querySelectorAll('.probes .outside').length")
        outside = [text for text, _ in results if text not in ("met", "not measured")]
        assert points == len(outside) > 0
        misses = sum(text in ("missed", "unclear") for text in outside)
        assert page.run("document.querySelectorAll('.reasons .remedy').length") == misses
    finally:
        page.close()
