"""SVG curves: shared axes, colours and line styles."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from autoj_reward.io.chart import curves


def find_points(svg: str) -> list[Any]:
    root = ElementTree.fromstring(svg)
    return [e.attrib for e in root.iter() if e.tag.endswith("polyline")]


def test_curves_share_axes_and_colours_by_first_word() -> None:
    svg = curves(
        {"grpo 0": [(1, 2.0), (2, 4.0)], "grpo 1": [(1, 3.0)], "ppo <0>": [(2, 4.0)]}, "step", "y"
    )
    first, second, third = find_points(svg)
    assert first["stroke"] == second["stroke"] != third["stroke"]
    assert first["points"].split()[1] == third["points"]
    assert "<0>" not in svg
    with pytest.raises(ValueError, match="no series"):
        curves({}, "x", "y")


def test_dashed_lines_and_dots() -> None:
    lines = {"a gold": [(0.0, 0.0), (1.0, 1.0)], "a proxy": [(0.0, 0.0), (1.0, 2.0)]}
    dots = {"b gold": [(0.5, 1.0)], "b proxy": [(0.5, 2.0)]}
    svg = curves(lines | dots, "x", "y", dashed=("a proxy", "b proxy"))
    assert svg.count("stroke-dasharray") == 2
    assert (svg.count("<circle"), svg.count('fill="#fff" stroke=')) == (2, 1)
