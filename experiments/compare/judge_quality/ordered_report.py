"""The tables of how raters order the outputs of many systems, in Markdown."""

from __future__ import annotations

from typing import Any

from autoj_reward.io.chart import curves
from experiments.compare.judge_quality.ordered import SIZES, TEN
from experiments.tables import Section, tabled

RATERS = {
    "judge": "judge, without critique",
    "critique": "judge, after a critique",
    "scalar": "scalar reward model",
    "probe": "ridge probe on the base's hidden states",
    "tfidf": "TF-IDF of the response, ridge",
    "length": "length of the response",
}
HEAD = {"rater": "{rater}", "systems": "{systems}"}
COLUMNS = {
    "Spearman": "{order}",
    "partial, given length": "{order_given_length}",
    f"best of {TEN}": "{ten}",
}
NOTE = (
    "Means over instructions of Spearman's correlation with the graded preference, and of the same "
    "with length held fixed (partial, of ranks), [95 % interval over instructions]. Recovered: "
    "what the best of N drawn outputs gains over a random one, as a share of what an oracle gains. "
    "Unseen: the outputs of systems that are in no training. The rivals fit scores less their "
    "instruction's mean."
)
LESS = "The judge less each rival on the same instructions, from paired resamples."


def ordered_sections(found: dict[str, Any]) -> list[Section]:
    """The tables of the part `ordered`, if it was measured."""
    own = found["parts"].get("ordered")
    if not own:
        return []
    rated = [(RATERS[name], own["rated"][name]) for name in RATERS if name in own["rated"]]
    orders = [
        _ten(figures[systems]) | {"rater": rater, "systems": systems}
        for rater, figures in rated
        for systems in ("all", "unseen")
    ]
    curve = [
        {"rater": rater, "n": {n: figures["all"].get(str(n)) for n in SIZES}}
        for rater, figures in rated
    ]
    less = [_ten(gap) | {"rater": RATERS[name]} for name, gap in own["less"].items()]
    note = f"{NOTE} Not measured: {own['missing']}." if own["missing"] else NOTE
    return [
        ("Ordering the outputs of many systems", tabled(orders, HEAD | COLUMNS), note),
        (
            "Share recovered by the best of N outputs of different systems",
            tabled(curve, {"rater": "{rater}"} | {str(n): f"{{n[{n}]}}" for n in SIZES}),
            "",
        ),
        ("The judge less its rivals, ordering", tabled(less, {"rival": "{rater}"} | COLUMNS), LESS),
    ]


def ordered_plots(found: dict[str, Any]) -> dict[str, str]:
    """What the best of N outputs recovers by each rater, of random (0) and oracle (1), as SVG."""
    own = found["parts"].get("ordered")
    if not own:
        return {}
    lines = {
        name: [(n, share["value"]) for n in SIZES if (share := figures["all"].get(str(n)))]
        for name, figures in own["rated"].items()
    }
    last = max((n for line in lines.values() for n, _ in line), default=SIZES[-1])
    lines |= {"oracle": [(SIZES[0], 1), (last, 1)], "random": [(SIZES[0], 0), (last, 0)]}
    shown = curves(lines, "N", "share of the oracle's gain", {"oracle", "random"})
    return {"best-of-n": shown}


def _ten(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of a line; a format cannot reach a field that is named by a number."""
    return {"ten": figures.get(str(TEN))} | figures
