"""The tables of how raters order the outputs of many systems, in Markdown."""

from __future__ import annotations

from typing import Any

from autoj_reward.evaluate.metrics import estimate_text
from autoj_reward.io.markdown import Table, section
from experiments.compare.judge_quality.ordered import SIZES, TEN

RATERS = {
    "judge": "judge, without critique",
    "probe": "ridge probe on the base's hidden states",
    "tfidf": "TF-IDF of the response, ridge",
    "length": "length of the response",
}
NOTE = (
    "Means over instructions of Spearman's correlation with the graded preference, and of the same "
    "with length held fixed (partial, of ranks), [95 % interval over instructions]. Recovered: "
    "what the best of N drawn outputs gains over a random one, as a share of what an oracle gains. "
    "Unseen: the outputs of systems that are in no training. The rivals fit scores less their "
    "instruction's mean."
)
DIFFERENCES = "The judge less each rival on the same instructions, from paired resamples."


def ordered_sections(quality: dict[str, Any]) -> list[list[str]]:
    """The tables of the parts `ordered` and `ordered_rivals`, as far as they are measured."""
    found = quality["parts"].get("ordered_rivals", {}).get("rated", {})
    if judge := quality["parts"].get("ordered"):
        found = {"judge": judge} | found
    names = [name for name in RATERS if name in found]
    order: Table = [("rater", "systems", "Spearman", "partial, given length", f"best of {TEN}")]
    curve: Table = [("recovered by the best of", *map(str, SIZES))]
    for name in names:
        for systems in ("all", "unseen"):
            figures = found[name][systems]
            columns = (figures.get(key) for key in ("order", "order_given_length", str(TEN)))
            order.append((RATERS[name], systems, *map(estimate_text, columns)))
        line = (found[name]["all"].get(str(n)) for n in SIZES)
        curve.append((RATERS[name], *map(estimate_text, line)))
    less: Table = [("the judge less", "Spearman", "partial, given length", f"best of {TEN}")]
    for name, figures in quality.get("ordered", {}).items():
        columns = (figures.get(key) for key in ("order", "order_given_length", str(TEN)))
        less.append((RATERS[name], *map(estimate_text, columns)))
    return [
        section("Ordering the outputs of many systems to one instruction", order, NOTE),
        section("Best of N outputs of different systems", curve),
        section("The judge and its rivals, ordering", less, DIFFERENCES),
    ]
