"""Labelled pairs against a judge: `autoj evaluate eval-p` and `autoj evaluate pairs`.

A verdict agrees only if both orders give it and it is the label (paper, section 6.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autoj_reward.config import load_config
from autoj_reward.context import Asked
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate import checks
from autoj_reward.evaluate.ask import compare_all, rate_all, require_protocol
from autoj_reward.evaluate.config import PairsConfig
from autoj_reward.evaluate.intervals import Draws, Figures, percent, rounded, share
from autoj_reward.evaluate.labelled import LABELS
from autoj_reward.evaluate.metrics import (
    Shown,
    agrees,
    cohen_kappa,
    consistent,
    joint,
    pointwise_verdicts,
    position,
    search_tie_threshold,
)
from autoj_reward.evaluate.pair_files import Pair, read_pairs
from autoj_reward.evaluate.results import journal_path, judging_cost, save
from autoj_reward.evaluate.rows import (
    by_group,
    choice,
    drawn,
    read_answers,
)
from autoj_reward.evaluate.sections import sections
from autoj_reward.models import context_asked
from autoj_reward.types import Candidate, Contest, Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What was said of every pair.

    joint: the verdict of both orders, or of a rating of each response alone. shown: what each
    order said as it showed the pair; None where there is one order only. judgements: of every
    pair, in the order asked; none where verdicts came from a file. extra: figures of their own.
    """

    joint: tuple[Verdict, ...]
    shown: tuple[tuple[Shown, Shown], ...] | None
    judgements: tuple[tuple[Judgement, ...], ...] = ()
    extra: Figures | None = None


def eval_p(
    data: str,
    verdicts: str | None,
    swapped_verdicts: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
) -> int:
    """Eval-P: agreement and consistency by group (paper, Table 1 and Figure 4)."""
    checked = load_config(PairsConfig, config, sets)
    pairs = read_pairs(data, "eval-p", _asked(checked))
    if verdicts is None:
        if swapped_verdicts is not None:
            raise ConfigError("--swapped-verdicts is nothing without --verdicts: name both")
        return _measure("eval-p", data, pairs, result, checked)
    if checked.sample is not None:
        raise ConfigError("sample: verdicts from a file are measured on all rows; drop it")
    said = read_verdicts(verdicts, data, pairs)
    other = read_verdicts(swapped_verdicts, data, pairs) if swapped_verdicts else None
    shown = tuple(zip(said, other, strict=True)) if other else None
    found = Verdicts(tuple(joint(*pair) for pair in shown) if shown else said, shown)
    sources = {"data": data, "verdicts": verdicts}
    sources |= {"swapped_verdicts": swapped_verdicts} if swapped_verdicts else {}
    return _finish("eval-p", sources, pairs, found, result, checked, verdicts)


def pairs(data: str, form: str, result: str, config: str | None, sets: Sequence[str]) -> int:
    """Labelled pairs in another benchmark's form."""
    checked = load_config(PairsConfig, config, sets)
    return _measure(form, data, read_pairs(data, form, _asked(checked)), result, checked)


def _asked(config: PairsConfig) -> tuple[Asked, ...]:
    kind = "pairwise" if config.protocol == "pairwise" else "single"
    return context_asked(config.judge, config.columns, kind)


def read_verdicts(source: str, data: str, pairs: Sequence[Pair]) -> tuple[Verdict, ...]:
    """Verdicts of a file in the authors' form, `{"output": 0}` a row: 0 first, 1 second, 2 tie.

    In the file of the swapped order, 0 names the response that stands first there. InputError as
    for `read_answers`.
    """
    options = dict(enumerate(LABELS))
    fields = [pair.fields for pair in pairs]
    return read_answers(source, data, fields, lambda row: choice(row, "output", options))


def compare_pairs(pairs: Sequence[Pair], config: PairsConfig, result: str) -> Verdicts:
    """Every pair compared in both orders, `repeats` times; the first time counts."""
    asked = [Contest(pair.query, *pair.responses, pair.context) for pair in pairs]
    journal, rounds = journal_path(config, result), config.repeats
    found = compare_all(config.judge, journal, asked, "comparing", rounds=rounds)
    first = [(found[i].orders[0], found[i].orders[1]) for i in range(len(pairs))]
    extra: Figures = {"calibration": checks.calibration(_labelled(pairs, first))}
    said = [comparison.verdict for comparison in found]
    if rounds > 1:
        extra["stability"] = checks.stability(
            [said[n : n + len(pairs)] for n in range(0, len(said), len(pairs))]
        )
    shown = tuple((a.verdict, b.verdict) for a, b in first)
    return Verdicts(tuple(said[: len(pairs)]), shown, tuple(first), extra)


def rate_pairs(pairs: Sequence[Pair], config: PairsConfig, result: str) -> Verdicts:
    """Each response rated alone; a tie if the two are at most `tie_threshold` apart.

    Also what the threshold of 0 to 2.0 with the highest agreement on these very rows would give,
    which is how the authors report scalar reward models, and flatters them.
    """
    asked = [Candidate(p.query, r, context=p.context) for p in pairs for r in p.responses]
    found = rate_all(config.judge, journal_path(config, result), asked, "rating")
    sides = list(zip(found[::2], found[1::2], strict=True))
    values = [(a.view(config.view), b.view(config.view)) for a, b in sides]
    gaps = [None if a is None or b is None else a - b for a, b in values]
    labels = [pair.label for pair in pairs]
    best = search_tie_threshold(gaps, labels)
    hits = agrees(pointwise_verdicts(gaps, best), labels)
    extra = {
        "searched_on_these_rows": {
            "tie_threshold": best,
            "agreement": percent(float(hits.mean())),
        },
        "equal_values": sum(gap == 0 for gap in gaps),
    }
    said = tuple(pointwise_verdicts(gaps, config.tie_threshold))
    return Verdicts(said, None, tuple(sides), extra)


def figures(pairs: Sequence[Pair], found: Verdicts, intervals: Draws) -> Figures:
    """Overall and by group; the biases; agreement beyond chance."""
    members = by_group([pair.group for pair in pairs])
    responses, labels = [p.responses for p in pairs], [p.label for p in pairs]
    biases: Figures = {
        "length": checks.leaning(checks.length, responses, found.joint, labels),
        "style": checks.leaning(checks.markup, responses, found.joint, labels),
    }
    if found.shown:
        place = position(found.shown)
        biases["position"] = asdict(place) | {"first_share": percent(place.first_share)}
    return {
        "protocol": "pairwise" if found.shown else "pointwise",
        "overall": _shares(pairs, found, range(len(pairs)), intervals),
        "groups": {name: _shares(pairs, found, own, intervals) for name, own in members.items()},
        "bias": biases,
        **(found.extra or {}),
    }


def _shares(
    pairs: Sequence[Pair], found: Verdicts, rows: Sequence[int], intervals: Draws
) -> Figures:
    own = [found.joint[i] for i in rows]
    labels = [pairs[i].label for i in rows]
    queries = [pairs[i].query for i in rows]
    both = found.shown is not None
    return {
        "n": len(own),
        "failed": own.count(Verdict.FAILED),
        **intervals.percent("agreement", share(agrees(own, labels)), queries),
        **(
            intervals.percent("consistency", share(consistent(own)), queries)
            if both
            else {"consistency": None, "consistency_95": [None, None]}
        ),
        **intervals.percent("ties", share([v is Verdict.TIE for v in own]), queries),
        "human_ties": percent(labels.count(Verdict.TIE) / len(labels)),
        "kappa": rounded(cohen_kappa(own, labels), 4),
    }


def _measure(
    task: str, data: str, pairs: tuple[Pair, ...], result: str, config: PairsConfig
) -> int:
    pairs = drawn(pairs, config.sample, config.seed)
    compared = config.protocol == "pairwise"
    require_protocol(config.judge, "pairwise" if compared else "single")
    found = (compare_pairs if compared else rate_pairs)(pairs, config, result)
    return _finish(task, {"data": data}, pairs, found, result, config, None)


def _finish(
    task: str,
    sources: dict[str, str],
    pairs: Sequence[Pair],
    found: Verdicts,
    result: str,
    config: PairsConfig,
    verdicts: str | None,
) -> int:
    content = figures(pairs, found, config.draws)
    if task == "rewardbench":
        subsets, queries = [pair.group for pair in pairs], [pair.query for pair in pairs]
        content["sections"] = sections(subsets, found.joint, queries, config.draws)
    if found.judgements:
        content["cost"] = judging_cost([j for row in found.judgements for j in row])
    rows = [_row(i, pair, found) for i, pair in enumerate(pairs)]
    save(result, task, config, verdicts or config.judge, sources, content, rows)
    _tell(content)
    print(f"result: {result}")
    return 0


def _row(index: int, pair: Pair, found: Verdicts) -> dict[str, Any]:
    """A judged pair as the leaderboard's browser shows it."""
    said = found.shown[index] if found.shown else ()
    judgements = found.judgements[index] if found.judgements else ()
    verdict = found.joint[index]
    return {
        "line": pair.line,
        "id": pair.id,
        "group": pair.group,
        "query": pair.query,
        "responses": pair.responses,
        "label": pair.label,
        "verdict": verdict,
        "agrees": verdict is pair.label,
        "orders": said,
        "judgements": [
            {
                "outcome": j.outcome,
                "reason": j.reason,
                "critique": j.critique,
                "rating": j.view("rating"),
                "expected": j.view("expected"),
                "forced": j.forced,
                "flags": j.flags,
            }
            for j in judgements
        ],
    }


def _labelled(
    pairs: Sequence[Pair], orders: Sequence[tuple[Judgement, Judgement]]
) -> list[tuple[Judgement, Verdict]]:
    return [
        (judgement, pair.label if k == 0 else pair.label.swapped())
        for pair, both in zip(pairs, orders, strict=True)
        for k, judgement in enumerate(both)
    ]


def _tell(content: Figures) -> None:
    print(f"{'group':<24}{'n':>6}{'agreement':>11}{'consistency':>13}")
    for name, own in [*content["groups"].items(), ("overall", content["overall"])]:
        same = "-" if own["consistency"] is None else f"{own['consistency']:.2f}"
        print(f"{name[:23]:<24}{own['n']:>6}{own['agreement']:>11.2f}{same:>13}")
    for name, own in content.get("sections", {}).items():
        print(f"{'section ' + name:<24}{own['n']:>6}{own['score']:>11.2f}")
