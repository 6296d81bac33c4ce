"""The report of the ablation: tables in Markdown, and plots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoj_reward.io.chart import curves
from autoj_reward.io.markup import Table
from experiments.compare.ablation.rewards import TITLES
from experiments.tables import Section, report, tabled

SETS = {"all": "all candidates", "costly": "candidates that every reward scores"}
PROXY = {
    "direct": "judge",
    "scalar": "scalar",
    "panel_mean": "panel, mean",
    "panel_min": "panel, least",
}
BEST_NOTE = (
    "Mean gold of the chosen candidate, over all subsets of N of the sampled candidates, equal "
    "rewards decided by a fair draw. Recovered: share of the oracle's gain over a random candidate "
    "at the largest N."
)
CORRELATION_NOTE = (
    "Correlation of reward and gold over all candidates (intervals by query), and the mean of the "
    "correlations inside the queries where both vary (n of them). Ties: share of the candidate "
    "pairs of a query with equal reward."
)
DIFFERENCE_NOTE = (
    "The reward less the reference on the same queries and candidates, resampled together."
)
PAIRS_NOTE = (
    "Agreement of responses scored alone with the human labels. Ties are up to a threshold of 0, "
    "0.01 .. 2.0 in the reward's own units (rating points, scores, log characters), the rule for "
    "reward models. Validation pairs choose it. Order plays no role, so consistency is not "
    "applicable."
)
COST_NOTE = (
    "Means a judgement of a candidate. Seconds are from request to answer inside the replica, "
    "waiting beside the others of its batch included. New: judgements that this run asked for, and "
    "its own seconds for each; the others came from the journal."
)
OVER_NOTE = (
    "Gains over a random candidate against KL = log N - (N - 1) / N, in standard deviations over "
    "all candidates (gold also as graded). Solid and filled: gold; dashed and hollow: the proxy."
)
BIAS_NOTE = (
    "Slope inside queries, in standard deviations of the reward, on the natural logarithm of "
    "characters plus one: alone, and with gold in the same regression. Confident disagreement: of "
    "the pairs of a query with equal gold, the share with rewards more than one standard deviation "
    "apart."
)
CORRELATIONS = {
    "Pearson": "{pearson}",
    "Spearman": "{spearman}",
    "Pearson in a query": "{within_pearson}",
    "Spearman in a query": "{within_spearman}",
    "n": "{within_spearman[n]}",
}
BIAS = {
    "reward": "{title}",
    "length": "{slopes[alone]}",
    "length, gold fixed": "{slopes[gold_fixed]}",
    "confident disagreement": "{confident_disagreement[rate]}",
    "pairs of equal gold": "{confident_disagreement[pairs]}",
}
PAIRS = {
    "reward": "{title}",
    "agreement": "{agreement}",
    "threshold": "{threshold:.2f}",
    "less reference": "{less_reference}",
    "searched": "{searched_rows}",
    "abstained": "{abstained}",
}
OVER = {
    "chosen by": "{by}",
    "KL, nats": "{kl}",
    "gold": "{gold}",
    "gold, sd": "{gold_sd}",
    "proxy, sd": "{proxy}",
    "queries": "{queries}",
}
COST = {
    "part": "{part}",
    "tokens read": "{tokens_in:.1f}",
    "of these cached": "{tokens_cached:.1f}",
    "tokens written": "{tokens_out:.1f}",
    "seconds": "{seconds:.2f}",
    "judgements": "{judgements}",
}


def render(found: Mapping[str, Any]) -> str:
    """All tables in Markdown."""
    gold, everything = found["gold_figures"], found["sets"]["all"]
    judges = ", ".join(f"{name} {judge}" for name, judge in found["judges"].items())
    return report(
        "Ablation of rewards",
        found,
        _sections(found),
        f"Judges: {judges}. Gold: {found['gold']}. Parts: {', '.join(found['parts'])}.",
        f"{everything['queries']} queries, {everything['candidates']} candidates. Gold has mean "
        f"{gold['mean']:.3f} and standard deviation {gold['sd']:.3f}, and varies inside "
        f"{gold['queries_that_vary']} of the queries. Left out: {len(found['left_out'])} rows, "
        f"{gold['ungraded']} candidates without gold.",
        f"Brackets hold 95 % intervals from {found['config']['bootstrap']} resamples of whole "
        "queries.",
    )


def _sections(found: Mapping[str, Any]) -> Iterator[Section]:
    for key, own in found["sets"].items():
        size = f"{SETS[key]} ({own['queries']} queries, {own['candidates']} candidates)"
        rewards = _titled(own["rewards"])
        head = {"reward": "{title}"}
        more = {"ties": "{tie_rate}", "abstained": "{abstained}"}
        yield f"Best of N: {size}", _best(own), BEST_NOTE
        table = tabled(rewards, head | CORRELATIONS | more)
        yield f"Correlation with gold: {size}", table, CORRELATION_NOTE
        if reference := own["reference"]:
            gaps = [
                row["less_reference"] | {"title": row["title"]}
                for row in rewards
                if "less_reference" in row
            ]
            columns = head | {f"best of {own['sizes'][-1]}": "{best_of}"} | CORRELATIONS
            title = f"Differences to {TITLES[reference]}: {size}"
            yield title, tabled(gaps, columns), DIFFERENCE_NOTE
        yield f"What moves the reward: {size}", tabled(rewards, BIAS), BIAS_NOTE
    if own := found.get("eval_p"):
        size = f"{own['pairs']} test pairs, {own['validation']} for validation"
        rows = [{"less_reference": None} | row for row in _titled(own["rewards"])]
        yield f"Eval-P agreement ({size})", tabled(rows, PAIRS), PAIRS_NOTE
    yield "Over-optimization", tabled(_over(found), OVER), OVER_NOTE
    yield "Cost", _cost(found), COST_NOTE


def _titled(rewards: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [own | {"title": TITLES[name]} for name, own in rewards.items()]


def _best(own: Mapping[str, Any]) -> Table:
    sizes = [str(size) for size in own["sizes"]]

    def row(title: str, best: Mapping[str, Any], recovered: Any) -> dict[str, Any]:
        return {"title": title, "recovered": recovered} | {f"of_{n}": best[n] for n in sizes}

    rows = [
        row(TITLES[name], figures["best_of"], figures["recovered"][sizes[-1]])
        for name, figures in own["rewards"].items()
    ]
    rows.append(row("oracle", own["oracle"], 1))
    rows.append(row("any candidate (N = 1)", dict.fromkeys(sizes, own["mean"]), 0))
    best = {f"N = {n}": f"{{of_{n}}}" for n in sizes}
    return tabled(rows, {"reward": "{title}", **best, "recovered": "{recovered}"})


def _over(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    shown = (1, *found["sets"]["all"]["sizes"])
    for name, own in found["over_optimization"].items():
        for point in own["points"]:
            if point["n"] in shown:
                by = f"{PROXY[name]}, best of {point['n']}"
                kl = f"{point['kl']:.3f}"
                yield point | {"by": by, "kl": kl, "queries": own["queries"]}


def _cost(found: Mapping[str, Any]) -> Table:
    table = tabled([own | {"part": part} for part, own in found["cost"].items()], COST)
    for judge, own in found["asked"].items():
        if own["new"]:
            each = f"{own['seconds'] / own['new']:.3f}"
            table.append((f"judge {judge}, this run", "", "", "", each, f"{own['new']} new"))
    return table


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
