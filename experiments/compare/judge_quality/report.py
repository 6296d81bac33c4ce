"""The tables of `judge_quality`, in Markdown for a model card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autoj_reward.evaluate.metrics import estimate_text
from autoj_reward.io.markdown import Table, section

GROUPS = (
    "Summarization", "Exam Questions", "Code", "Rewriting", "Creative Writing",
    "Functional Writing", "General Communication", "NLP Tasks", "Overall",
)  # fmt: skip
PUBLISHED = {
    "agreement": 0.5496,
    "consistency": 0.8341,
    "groups": (0.458, 0.389, 0.475, 0.492, 0.597, 0.617, 0.552, 0.576, 0.550),
    "pearson": 0.57,
    "spearman": 0.55,
}
"""Auto-J 13B (arXiv 2310.05470): agreement and consistency on all 1,392 rows of Eval-P as released
with the model, Table 1, and Table 2 (correlations with GPT-4's ratings of best-of-N responses)."""
RATED = {
    "single": "judge, with critique",
    "single_direct": "judge, without critique",
    "single_k": "judge, {k} sampled critiques",
    "base": "untuned base, with critique",
}
RIVALS = {
    "tfidf": "TF-IDF of the response, ridge",
    "probe": "ridge probe on the base's hidden states",
    "length": "length of the response",
    "constant": "constant (mean training rating)",
}


def render_quality(quality: dict[str, Any]) -> str:
    """All tables of a `quality.json`; parts that were not measured are left out."""
    sections = [
        ["# Judge quality", "", *_about(quality)],
        section("Ratings of single responses", _ratings(quality), _ratings_note(quality)),
        section("Own text parses, without forcing", _parsed(quality)),
        section("Comparing two responses", _pairs(quality), PAIRS_NOTE),
        section("Published agreement of Auto-J 13B by group (Table 1)", _groups(quality)),
        section("Paired differences", _differences(quality), DIFFERENCES_NOTE),
        section("Critique health", _health(quality), HEALTH_NOTE),
    ]
    return "\n".join(line for section in sections for line in section).rstrip() + "\n"


RATINGS_NOTE = (
    "Correlation with the reference rating on held-out rows, [95 % interval], n rows; MAE is the "
    "mean absolute error in rating points. Rows where a judge abstained are left out of its line "
    "and counted as abstained. A constant has no correlation. Published figures are on other rows."
)
PAIRS_NOTE = (
    "Agreement by the strict rule: both orders give the same verdict and it is the human label; "
    "failed comparisons count against it. Lines that look at each response alone have no order. "
    "First shown: share of the verdicts, ties aside, that name the response shown first (0.5 is no "
    "preference). Published figures are for all 1,392 rows of Eval-P."
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


def _about(quality: dict[str, Any]) -> list[str]:
    machine, rows = quality["machine"], quality["rows"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    models = ", ".join(f"{name} {key}" for name, key in quality["identity"]["models"].items())
    versions = ", ".join(f"{name} {number}" for name, number in quality["versions"].items())
    return [
        f"`{quality['command']}`",
        "",
        f"{quality['at']}; {', '.join([where, *machine['gpus']])}; {versions}. Models: {models}.",
        f"Rows: {rows['rated']} rated held out, {rows['training']} rated for the rivals to fit, "
        f"{rows['pairs']} test pairs, {rows['validation']} validation pairs; "
        f"{len(rows['left_out'])} malformed rows left out.",
        "",
    ]


def _ratings(quality: dict[str, Any]) -> Table:
    table: Table = [("rater", "view", "Spearman", "Pearson", "MAE", "n", "abstained")]
    for part, name in _measured(quality, RATED):
        figures = quality["parts"][part]
        for view in ("rating", "expected"):
            table.append(_rated_line(name, view, figures[view], str(figures["abstained"])))
    rivals = quality["parts"].get("rivals", {}).get("rated", {})
    for key, name in RIVALS.items():
        if key in rivals:
            layer = rivals[key]["layer"]
            table.append(_rated_line(name, "" if layer is None else f"layer {layer}", rivals[key]))
    if len(table) > 1:
        published = (f"{PUBLISHED['spearman']}", f"{PUBLISHED['pearson']}")
        table.append(("Auto-J 13B, published (other rows)", "rating", *published, "", "", ""))
    return table


def _ratings_note(quality: dict[str, Any]) -> str:
    missing = quality["parts"].get("rivals", {}).get("missing")
    return f"{RATINGS_NOTE} Not measured: {missing}." if missing else RATINGS_NOTE


def _rated_line(name: str, view: str, figures: dict[str, Any], abstained: str = "") -> list[str]:
    numbers = [estimate_text(figures.get(key)) for key in ("spearman", "pearson", "mae")]
    return [name, view, *numbers, str(figures["spearman"]["n"]), abstained]


def _parsed(quality: dict[str, Any]) -> Table:
    table: Table = [("text", "parses", "judgements", "outcomes")]
    for part, name in _measured(quality, RATED | {"pairwise": "judge, comparing"}):
        figures = quality["parts"][part]
        if "parsed" in figures:
            share = figures["parsed"]
            table.append(
                (name, estimate_text(share), str(share["n"]), _counts(figures["outcomes"]))
            )
    return table


def _pairs(quality: dict[str, Any]) -> Table:
    head = ("rater", "agreement", "consistency", "first shown", "n", "failed", "verdicts")
    table: Table = [head]
    parts = quality["parts"]
    if both := parts.get("pairwise"):
        place = both["position"]["first_share"]
        shown = "undefined" if place is None else f"{place:.3f}"
        name, consistency = "judge, comparing, both orders", estimate_text(both["consistency"])
        table.append(_pair_line(name, both, consistency, shown, str(both["abstained"])))
    if alone := parts.get("pointwise"):
        name = (
            f"judge, each rated alone (expected rating, tie up to {alone['threshold']:.2f}, "
            f"searched on {alone['searched_rows']} validation pairs)"
        )
        table.append(_pair_line(name, alone, failed=str(alone["abstained"])))
    if rivals := parts.get("rivals", {}).get("pairs"):
        table.append(_pair_line("longer response", rivals["longer"]))
        if fixed := rivals.get("constant"):
            always = f"constant ({fixed['label']}, the most frequent on validation)"
            table.append(_pair_line(f"{always}, one order", fixed))
            table.append(_pair_line(f"{always}, as shown in both orders", fixed["strict"]))
        chance = {key: f"{share:.3f}" for key, share in rivals["random"].items()}
        both_orders = (chance["strict"], chance["consistency"], "0.500")
        table.append(("random, one order (computed)", chance["agreement"], *[""] * 5))
        table.append(("random, both orders (computed)", *both_orders, "", "", ""))
    if len(table) > 1:
        figures = (f"{PUBLISHED['agreement']:.4f}", f"{PUBLISHED['consistency']:.4f}")
        table.append(("Auto-J 13B, published", *figures, "", "1392", "", ""))
    return table


def _pair_line(
    name: str, figures: dict[str, Any], consistency: str = "", shown: str = "", failed: str = ""
) -> list[str]:
    agreement = figures["agreement"]
    counts = _counts(figures["verdicts"])
    return [name, estimate_text(agreement), consistency, shown, str(agreement["n"]), failed, counts]


def _groups(quality: dict[str, Any]) -> Table:
    if not {"pairwise", "pointwise"} & quality["parts"].keys():
        return []
    groups = PUBLISHED["groups"]
    assert isinstance(groups, tuple)
    return [GROUPS, [f"{share:.3f}" for share in groups]]


def _differences(quality: dict[str, Any]) -> Table:
    table: Table = [("first", "second", "Spearman", "Pearson", "n")]
    found = quality.get("comparisons", {})
    lines = [
        (f"judge: {found.get('best_view')}", k, v) for k, v in found.get("against", {}).items()
    ]
    lines += [
        (f"single_k {view}", f"single {view}", figures)
        for view, figures in found.get("sampled", {}).items()
    ]
    for first, second, figures in lines:
        numbers = [estimate_text(figures[key]) for key in ("spearman", "pearson")]
        table.append((first, second, *numbers, str(figures["spearman"]["n"])))
    return table


def _health(quality: dict[str, Any]) -> Table:
    head = ("text", "n", "words, mean", "median", "repetition", "loops", "copies", "cut off")
    table: Table = [(*head, "empty")]
    parts = quality["parts"]
    named = RATED | {"pairwise": "judge, comparing"}
    found = [(name, parts[part].get("health")) for part, name in _measured(quality, named)]
    references = (parts[part].get("reference_health") for part, _ in _measured(quality, named))
    found.append(("reference critiques", next((r for r in references if r and r["n"]), None)))
    for name, health in found:
        if health and health["n"]:
            words = (f"{health['words_mean']:.0f}", f"{health['words_median']:.0f}")
            keys = ("repetition", "loops", "copies", "hit_limit", "empty")
            shares = [f"{health[key]:.3f}" for key in keys]
            table.append((name, str(health["n"]), *words, *shares))
    return table


def _measured(quality: dict[str, Any], names: dict[str, str]) -> Iterable[tuple[str, str]]:
    k = quality["identity"]["critiques"][0]
    return [(p, name.format(k=k)) for p, name in names.items() if p in quality["parts"]]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
