"""The plots of the ablation: gold of the best of N, and gold against the divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autoj_reward.io.chart import curves
from experiments.compare.ablation.report import PROXY


def plots(found: Mapping[str, Any]) -> dict[str, str]:
    """SVG by name."""
    shown = {}
    for key, own in found["sets"].items():
        start = (0.0, own["mean"]["value"])
        lines = {
            name: [start, *_by_size(own["sizes"], figures["best_of"])]
            for name, figures in own["rewards"].items()
        }
        lines["oracle"] = [start, *_by_size(own["sizes"], own["oracle"])]
        shown[f"best_of_n-{key}"] = curves(lines, "log2 N", "gold", dashed=("oracle",))
    over, dashed = _over_lines(found)
    if over:
        axes = ("KL from the policy, nats", "gain, standard deviations")
        shown["over_optimization"] = curves(over, *axes, dashed)
    return shown


def _by_size(sizes: Sequence[int], figures: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(math.log2(size), figures[str(size)]["value"]) for size in sizes]


def _over_lines(
    found: Mapping[str, Any],
) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Lines and points by name, and the names of those that show a proxy."""
    lines: dict[str, list[tuple[float, float]]] = {}
    proxies = []
    for name, own in found["over_optimization"].items():
        for kind, key in (("gold", "gold_sd"), ("proxy", "proxy")):
            points = [(p["kl"], p[key]["value"]) for p in own["points"] if p[key]]
            if points:
                lines[f"{PROXY[name]} {kind}"] = points
                proxies += [f"{PROXY[name]} {kind}"] * (kind == "proxy")
    return lines, proxies
