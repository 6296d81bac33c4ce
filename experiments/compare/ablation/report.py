"""The report of the ablation: the same tables in Markdown and, with plots, as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from autoj_reward.evaluate.metrics import estimate_text
from autoj_reward.io.chart import curves
from autoj_reward.io.markdown import Table, section
from autoj_reward.io.page import esc, table
from experiments.compare.ablation.rewards import TITLES

SETS = {"all": "all candidates", "costly": "candidates that every reward scores"}
PROXY = {"direct": "judge", "scalar": "scalar"}
BEST_NOTE = (
    "Mean gold of the chosen candidate, over all subsets of N of the sampled candidates, equal "
    "rewards decided by a fair draw; knock-outs over 500 random orders of all their matches. "
    "Recovered: share of the oracle's gain over a random candidate at the largest N."
)
CORRELATION_NOTE = (
    "Correlation of reward and gold over all candidates (intervals by query), and the mean of the "
    "correlations inside the queries where both vary (n of them). Ties: share of the candidate "
    "pairs of a query with equal reward. The knock-out's reward is the share of matches won."
)
DIFFERENCE_NOTE = (
    "The reward less the reference on the same queries and candidates, resampled together."
)
PAIRS_NOTE = (
    "Agreement of responses scored alone with the human labels. Raw: ties up to a threshold of 0, "
    "0.01 .. 2.0 in the reward's own units (rating points, scores, log characters), the rule for "
    "reward models; scaled: in standard deviations of the reward over the validation responses. "
    "Validation pairs choose the threshold. Order plays no role, so consistency is not applicable."
)
COST_NOTE = (
    "Means a judgement of a candidate (for the knock-out: of a pair in one order; N candidates "
    "take 2 (N - 1)). Seconds are from request to answer inside the replica, waiting beside the "
    "others of its batch included. New: judgements that this run asked for, and its own seconds "
    "for each; the others came from the journal."
)
OVER_NOTE = (
    "Gains over a random candidate against KL = log N - (N - 1) / N, in standard deviations over "
    "all candidates (gold also as graded). Trained policies: measured KL(policy || base) a "
    "response, on their own samples. Solid and filled: gold; dashed and hollow: the proxy."
)
BIAS_NOTE = (
    "Slope inside queries, in standard deviations of the reward, on the natural logarithm of "
    "characters and of markdown marks (bullets, numbered items, headings, bold, fences; plus one): "
    "alone, and with gold in the same regression. Confident disagreement: of the pairs of a query "
    "with equal gold, the share with rewards more than one standard deviation apart."
)
POSITION_NOTE = (
    "Share of the verdicts, ties aside, that name the response shown first. Every pair is shown in "
    "both orders, so 0.5 is no preference."
)
Section = tuple[str, Table, str]


def render_text(found: Mapping[str, Any]) -> str:
    """All tables in Markdown."""
    lines = ["# Ablation of rewards", "", *(line for text in _about(found) for line in (text, ""))]
    for own in _sections(found):
        lines += section(*own)
    return "\n".join(lines).rstrip() + "\n"


def render_page(found: Mapping[str, Any], config_text: str) -> str:
    """The tables and plots as one page that needs nothing but itself; all text is escaped."""
    page = Template(files("rollouts.best_of_n").joinpath("report.html").read_text("utf-8"))
    about = "".join(f"<p>{esc(text.replace('`', ''))}</p>" for text in _about(found))
    tables = "".join(
        f"<h2>{esc(title)}</h2>"
        + table([esc(cell) for cell in rows[0]], [[esc(c) for c in row] for row in rows[1:]])
        + f'<p class="muted small">{esc(note)}</p>'
        for title, rows, note in _sections(found)
        if len(rows) > 1
    )
    plots = "".join(
        f'<h2>{esc(title)}</h2><div class="card wide">{svg}</div>' for title, svg in _plots(found)
    )
    return page.substitute(
        title="Ablation of rewards",
        subtitle=esc(f"{found['at']} · gold: {found['gold']}"),
        notices="",
        tiles="",
        overview=f'<div class="card">{about}</div>{plots}{tables}',
        queries="",
        config=esc(config_text),
    )


def _about(found: Mapping[str, Any]) -> list[str]:
    machine, gold = found["machine"], found["gold_figures"]
    everything = found["sets"]["all"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    judges = ", ".join(f"{name} {judge}" for name, judge in found["judges"].items())
    return [
        f"`{found['command']}`",
        f"{found['at']}; {', '.join([where, *machine['gpus']])}; {versions}.",
        f"Judges: {judges}. Gold: {found['gold']}. Parts: {', '.join(found['parts'])}.",
        f"{everything['queries']} queries, {everything['candidates']} candidates. Gold has mean "
        f"{gold['mean']:.3f} and standard deviation {gold['sd']:.3f}, and varies inside "
        f"{gold['queries_that_vary']} of the queries. Left out: {len(found['left_out'])} rows, "
        f"{gold['ungraded']} candidates without gold.",
        f"Brackets hold 95 % intervals from {found['bootstrap']} resamples of whole queries.",
    ]


def _sections(found: Mapping[str, Any]) -> Iterator[Section]:
    for key, own in found["sets"].items():
        size = f"{SETS[key]} ({own['queries']} queries, {own['candidates']} candidates)"
        yield f"Best of N: {size}", _best(own), BEST_NOTE
        yield f"Correlation with gold: {size}", _correlations(own), CORRELATION_NOTE
        reference = own["reference"]
        if reference:
            title = f"Differences to {TITLES[reference]}: {size}"
            yield title, _differences(own), DIFFERENCE_NOTE
        yield f"What moves the reward: {size}", _bias(own), BIAS_NOTE
    if "position" in found:
        yield "Position in comparisons", _position(found["position"]), POSITION_NOTE
    for key, own in found.get("eval_p", {}).items():
        size = f"{own['pairs']} test pairs, {own['validation']} for validation"
        title = "all pairs" if key == "all" else "pairs that every reward scores"
        yield f"Eval-P agreement: {title} ({size})", _pairs(own), PAIRS_NOTE
    yield "Over-optimization", _over(found), OVER_NOTE
    yield "Cost", _cost(found), COST_NOTE


def _best(own: Mapping[str, Any]) -> Table:
    sizes = [str(size) for size in own["sizes"]]
    rows: Table = [("reward", *(f"N = {size}" for size in sizes), "recovered")]
    for name, figures in own["rewards"].items():
        best = [estimate_text(figures["best_of"][size]) for size in sizes]
        rows.append((TITLES[name], *best, estimate_text(figures["recovered"][sizes[-1]])))
    rows.append(("oracle", *(estimate_text(own["oracle"][size]) for size in sizes), "1"))
    rows.append(("any candidate (N = 1)", *[estimate_text(own["mean"])] * len(sizes), "0"))
    return rows


def _correlations(own: Mapping[str, Any]) -> Table:
    head = ("Pearson", "Spearman", "Pearson in a query", "Spearman in a query")
    rows: Table = [("reward", *head, "n", "ties", "abstained")]
    keys = ("pearson", "spearman", "within_pearson", "within_spearman")
    for name, figures in own["rewards"].items():
        numbers = [estimate_text(figures[key]) for key in keys]
        n = str(figures["within_spearman"]["n"])
        ties = estimate_text(figures["tie_rate"])
        rows.append((TITLES[name], *numbers, n, ties, str(figures["abstained"])))
    return rows


def _differences(own: Mapping[str, Any]) -> Table:
    size = own["sizes"][-1]
    keys = ("best_of", "pearson", "spearman", "within_pearson", "within_spearman")
    head = ("Pearson", "Spearman", "Pearson in a query", "Spearman in a query", "n")
    rows: Table = [("reward", f"best of {size}", *head)]
    for name, figures in own["rewards"].items():
        if less := figures.get("less_reference"):
            numbers = [estimate_text(less[key]) for key in keys]
            rows.append((TITLES[name], *numbers, str(less["within_spearman"]["n"])))
    return rows


def _bias(own: Mapping[str, Any]) -> Table:
    head = ("length", "length, gold fixed", "formatting", "formatting, gold fixed")
    rows: Table = [("reward", *head, "confident disagreement", "pairs of equal gold")]
    for name, figures in own["rewards"].items():
        numbers = [
            estimate_text(figures["slopes"][feature][how])
            for feature in ("length", "formatting")
            for how in ("alone", "gold_fixed")
        ]
        apart = figures["confident_disagreement"]
        rows.append((TITLES[name], *numbers, estimate_text(apart["rate"]), str(apart["pairs"])))
    return rows


def _position(own: Mapping[str, Any]) -> Table:
    rows: Table = [
        ("pairs", "first shown", "verdicts", "orders agree", "pairs with both", "failed")
    ]
    counts = (estimate_text(own["consistency"]), str(own["pairs"]), str(own["failed"]))
    for title, key, more in (
        ("all", "first_share", counts),
        ("of equal gold", "equal_gold", ("", "", "")),
    ):
        rows.append((title, estimate_text(own[key]), str(own[f"{key}_verdicts"]), *more))
    return rows


def _pairs(own: Mapping[str, Any]) -> Table:
    head = ("agreement, raw", "threshold", "agreement, scaled", "threshold")
    rows: Table = [("reward", *head, "raw less reference", "unit", "searched", "abstained")]
    for name, figures in own["rewards"].items():
        cells: list[str] = []
        for how in ("raw", "scaled"):
            one = figures.get(how)
            cells += (
                [estimate_text(one["agreement"]), f"{one['threshold']:.2f}"] if one else ["", ""]
            )
        raw = figures["raw"]
        less = estimate_text(raw.get("less_reference"))
        counts = (str(raw["searched_rows"]), str(raw["abstained"]))
        rows.append((TITLES[name], *cells, less, f"{figures['unit']:.3g}", *counts))
    return rows


def _over(found: Mapping[str, Any]) -> Table:
    rows: Table = [("chosen by", "KL, nats", "gold", "gold, sd", "proxy, sd", "queries")]
    shown = [str(size) for size in (1, *found["sets"]["all"]["sizes"])]
    for name, own in found["over_optimization"].items():
        for point in own["points"]:
            if str(point["n"]) in shown:
                numbers = [estimate_text(point[key]) for key in ("gold", "gold_sd", "proxy")]
                title = f"{PROXY[name]}, best of {point['n']}"
                rows.append((title, f"{point['kl']:.3f}", *numbers, str(own["queries"])))
    for name, own in found.get("policies", {}).items():
        proxies = "; ".join(f"{PROXY[k]} {estimate_text(v)}" for k, v in own["proxies"].items())
        kl, gold = estimate_text(own["kl"]), estimate_text(own["gold"])
        rows.append((f"policy {name}", kl, gold, "", proxies, str(own["queries"])))
    return rows


def _cost(found: Mapping[str, Any]) -> Table:
    head = ("tokens read", "of these cached", "tokens written", "seconds", "judgements")
    rows: Table = [("part", *head)]
    for part, own in found["cost"].items():
        numbers = [f"{own[key]:.1f}" for key in ("tokens_in", "tokens_cached", "tokens_out")]
        rows.append((part, *numbers, f"{own['seconds']:.2f}", str(own["judgements"])))
    for judge, own in found["asked"].items():
        if own["new"]:
            each = f"{own['seconds'] / own['new']:.3f}"
            rows.append((f"judge {judge}, this run", "", "", "", each, f"{own['new']} new"))
    return rows


def _plots(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, own in found["sets"].items():
        start = (0.0, own["mean"]["value"])
        lines = {
            name: [start, *_by_size(own["sizes"], figures["best_of"])]
            for name, figures in own["rewards"].items()
        }
        lines["oracle"] = [start, *_by_size(own["sizes"], own["oracle"])]
        title = f"Gold of the best of N: {SETS[key]}, {own['queries']} queries"
        yield title, curves(lines, "log2 N", "gold", dashed=("oracle",))
    over, dashed = _over_lines(found)
    if over:
        yield (
            "Gold and proxy against the divergence",
            curves(over, "KL from the policy, nats", "gain, standard deviations", dashed),
        )


def _by_size(sizes: Sequence[int], figures: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(math.log2(size), figures[str(size)]["value"]) for size in sizes]


def _over_lines(
    found: Mapping[str, Any],
) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Lines and points by name, and the names of those that show a proxy."""
    lines: dict[str, list[tuple[float, float]]] = {}
    proxies = []
    sd = found["gold_figures"]["sd"]
    for name, own in found["over_optimization"].items():
        for kind, key in (("gold", "gold_sd"), ("proxy", "proxy")):
            points = [(p["kl"], p[key]["value"]) for p in own["points"] if p[key]]
            if points:
                lines[f"{PROXY[name]} {kind}"] = points
                proxies += [f"{PROXY[name]} {kind}"] * (kind == "proxy")
    for policy, own in found.get("policies", {}).items():
        kl = own["kl"]["value"]
        if kl is None:
            continue
        if sd > 0 and own["gold"]["value"] is not None:
            lines[f"{policy} gold"] = [(kl, own["gold"]["value"] / sd)]
        for name, gain in own["proxies"].items():
            if gain["value"] is not None:
                lines[f"{PROXY[name]} proxy of {policy}"] = [(kl, gain["value"])]
                proxies.append(f"{PROXY[name]} proxy of {policy}")
    return lines, proxies
