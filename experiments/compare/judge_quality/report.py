"""The tables of `judge_quality`, in Markdown for a model card, and its plot."""

from __future__ import annotations

from typing import Any

from autoj_reward.io.chart import curves
from autoj_reward.io.markup import Table
from experiments.compare.judge_quality.ordered import SIZES, TEN
from experiments.tables import Section, report, tabled

PUBLISHED = {
    "pearson": 0.57,
    "spearman": 0.55,
}
"""Auto-J 13B (arXiv 2310.05470, Table 2): correlations with GPT-4's ratings of best-of-N
responses."""
RATED = {
    "single": "judge, with critique",
    "single_direct": "judge, without critique",
    "base": "untuned base, with critique",
}
RIVALS = {
    "tfidf": "TF-IDF of the response, ridge",
    "probe": "ridge probe on the base's hidden states",
    "length": "length of the response",
    "constant": "constant (mean training rating)",
}
RATINGS_NOTE = (
    "Correlation with the reference rating on held-out rows, [95 % interval], n rows; MAE is the "
    "mean absolute error in rating points. Rows where a judge abstained are left out of its line "
    "and counted as abstained. A constant has no correlation. Published figures are on other rows."
)
DIFFERENCES_NOTE = (
    "First less second on the same rows, from paired resamples. The judge's view is the one with "
    "the highest Spearman correlation on these rows, which flatters it."
)
HEALTH_NOTE = (
    "Repetition: share of 4-grams that occurred before in the critique. Loops: a unit of at most "
    "60 words three times in a row, or cut off with most 8-grams repeated. Copies: 40 words in a "
    "row from the prompt, or half of the critique."
)


def render_quality(found: dict[str, Any]) -> str:
    """All tables of a `quality.json`; parts that were not measured are left out."""
    rows = found["rows"]
    about = (
        f"Judges: {', '.join(found['judges'].values())}. Rows: {rows['rated']} rated held out, "
        f"{rows['training']} rated for the rivals to fit; {len(rows['left_out'])} malformed rows "
        "left out."
    )
    missing = found["parts"].get("rivals", {}).get("missing")
    note = f"{RATINGS_NOTE} Not measured: {missing}." if missing else RATINGS_NOTE
    sections = [
        ("Ratings of single responses", _ratings(found), note),
        ("Own text parses, without forcing", _parsed(found), ""),
        ("Paired differences", _differences(found), DIFFERENCES_NOTE),
        ("Critique health", _health(found), HEALTH_NOTE),
    ]
    return report("Judge quality", found, [*sections, *ordered_sections(found)], about)


def _measured(found: dict[str, Any], names: dict[str, str]) -> list[dict[str, Any]]:
    """The figures of the named parts that were measured, with their names in words."""
    parts = found["parts"]
    return [{"name": name} | parts[part] for part, name in names.items() if part in parts]


def _ratings(found: dict[str, Any]) -> Table:
    rows = [
        {"rater": own["name"], "view": view, "abstained": own["abstained"]} | own[view]
        for own in _measured(found, RATED)
        for view in ("rating", "expected")
    ]
    rivals = found["parts"].get("rivals", {}).get("rated", {})
    for key, name in RIVALS.items():
        if key in rivals:
            layer = rivals[key]["layer"]
            view = None if layer is None else f"layer {layer}"
            rows.append({"rater": name, "view": view, "abstained": None, "mae": None} | rivals[key])
    columns = {
        "rater": "{rater}",
        "view": "{view}",
        "Spearman": "{spearman}",
        "Pearson": "{pearson}",
        "MAE": "{mae}",
        "n": "{spearman[n]}",
        "abstained": "{abstained}",
    }
    table = tabled(rows, columns)
    published = (f"{PUBLISHED['spearman']}", f"{PUBLISHED['pearson']}")
    line = ("Auto-J 13B, published (other rows)", "rating", *published, "", "", "")
    return [*table, line] if rows else table


def _parsed(found: dict[str, Any]) -> Table:
    columns = {
        "text": "{name}",
        "parses": "{parsed}",
        "judgements": "{parsed[n]}",
        "outcomes": "{counts}",
    }
    rows = [
        own | {"counts": _counts(own["outcomes"])}
        for own in _measured(found, RATED)
        if "parsed" in own
    ]
    return tabled(rows, columns)


def _differences(found: dict[str, Any]) -> Table:
    own = found["comparisons"]
    best = f"judge: {own['best_view']}"
    rows = [{"first": best, "second": name} | gap for name, gap in own["against"].items()]
    columns = {
        "first": "{first}",
        "second": "{second}",
        "Spearman": "{spearman}",
        "Pearson": "{pearson}",
        "n": "{spearman[n]}",
    }
    return tabled(rows, columns)


def _health(found: dict[str, Any]) -> Table:
    parts = _measured(found, RATED)
    rows = [own["health"] | {"name": own["name"]} for own in parts if "health" in own]
    references = [own["reference_health"] for own in parts if "reference_health" in own]
    rows += [own | {"name": "reference critiques"} for own in references[:1]]
    columns = {
        "text": "{name}",
        "n": "{n}",
        "words, mean": "{words_mean:.0f}",
        "median": "{words_median:.0f}",
        "repetition": "{repetition:.3f}",
        "loops": "{loops:.3f}",
        "copies": "{copies:.3f}",
        "cut off": "{hit_limit:.3f}",
        "empty": "{empty:.3f}",
    }
    return tabled([row for row in rows if row["n"]], columns)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


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
