"""Labelled pairs against a judge: `autoj evaluate eval-p` and `autoj evaluate pairs`.

A verdict agrees only if both orders give it and it is the label (paper, section 6.1). Pairs are
judged and written as they are read; what is kept of each is a `Kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from autoj_reward.context import Asked
from autoj_reward.data.labelled import LABELS
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.ask import joint, judge_each, rate_each, require_protocol
from autoj_reward.evaluate.config import PairsConfig, with_view_read
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.evaluate.metrics import joint as joint_verdict
from autoj_reward.evaluate.metrics import pointwise_verdicts
from autoj_reward.evaluate.pair_figures import (
    Kept,
    Said,
    figures,
    keep,
    of_comparisons,
    of_ratings,
    of_sections,
)
from autoj_reward.evaluate.pair_files import Pair, read_pairs
from autoj_reward.evaluate.results import Cost, journal_path, require_own, save, writing_rows
from autoj_reward.evaluate.rows import Measured, choice, read_answers
from autoj_reward.models import context_asked, ratings_tie
from autoj_reward.models.unused import load_run
from autoj_reward.types import Candidate, Contest, JudgeInput, Judgement, Verdict

Done = Callable[[Pair, Said], None]


def eval_p(
    data: str,
    verdicts: str | None,
    swapped_verdicts: str | None,
    result: str,
    config: str | None,
    sets: Sequence[str],
    strict: bool,
) -> int:
    """Eval-P: agreement and consistency by group (paper, Table 1 and Figure 4)."""
    checked = load_run(PairsConfig, config, sets, strict)
    require_own(result, checked, config, data, verdicts, swapped_verdicts)
    checked = with_view_read(checked)
    if verdicts is None:
        if swapped_verdicts is not None:
            raise ConfigError("--swapped-verdicts is nothing without --verdicts: name both")
        return _judged("eval-p", data, result, checked)
    if checked.sample is not None:
        raise ConfigError("sample: verdicts from a file are measured on all rows; drop it")
    pairs = read_pairs(data, "eval-p", _asked(checked))
    said = read_verdicts(verdicts, data, pairs)
    other = read_verdicts(swapped_verdicts, data, pairs) if swapped_verdicts else None
    sources = {"data": data, "verdicts": verdicts}
    sources |= {"swapped_verdicts": swapped_verdicts} if swapped_verdicts else {}

    def given(done: Done) -> None:
        for pair, one, two in zip(pairs, said, other or repeat(None), strict=False):
            shown = (one, two) if two else None
            done(pair, Said(joint_verdict(*shown) if shown else one, shown))

    return _measure("eval-p", sources, given, lambda rows: {}, result, checked, verdicts)


def pairs(
    data: str, form: str, result: str, config: str | None, sets: Sequence[str], strict: bool
) -> int:
    """Labelled pairs in another benchmark's form."""
    checked = load_run(PairsConfig, config, sets, strict)
    require_own(result, checked, config, data)
    checked = with_view_read(checked)
    return _judged(form, data, result, checked)


def _asked(config: PairsConfig) -> tuple[Asked, ...]:
    kind = "pairwise" if config.protocol == "pairwise" else "single"
    return context_asked(config.judge, config.columns, kind)


def read_verdicts(source: str, data: str, pairs: Measured[Pair]) -> Measured[Verdict]:
    """Verdicts of a file in the authors' form, `{"output": 0}` a row: 0 first, 1 second, 2 tie.

    In the file of the swapped order, 0 names the response that stands first there. InputError as
    for `read_answers`.
    """
    options = dict(enumerate(LABELS))
    fields = (pair.fields for pair in pairs)
    return read_answers(source, data, fields, lambda row: choice(row, "output", options))


def compare_pairs(pairs: Measured[Pair], config: PairsConfig, result: str, done: Done) -> None:
    """Every pair compared in both orders, `repeats` times; the first time counts."""

    def inputs(pair: Pair) -> list[JudgeInput]:
        contest = Contest(pair.query, *pair.responses, pair.context)
        return [item for k in range(config.repeats) for item in contest.inputs(True, k)]

    def told(pair: Pair, found: list[Judgement]) -> None:
        said = tuple(joint(found[n : n + 2]).verdict for n in range(0, len(found), 2))
        first, second = found[:2]
        shown = (first.verdict, second.verdict)
        done(pair, Said(said[0], shown, (first, second), said))

    asked, total = ((pair, inputs(pair)) for pair in pairs), 2 * config.repeats * len(pairs)
    judge_each(config.judge, journal_path(config, result), asked, told, "comparing", total)


def rate_pairs(pairs: Measured[Pair], config: PairsConfig, result: str, done: Done) -> None:
    """Each response rated alone; a tie if the two are at most `tie_threshold` apart."""

    def sides(pair: Pair) -> list[Candidate]:
        return [Candidate(pair.query, r, context=pair.context) for r in pair.responses]

    def told(pair: Pair, found: list[Judgement]) -> None:
        a, b = (side.view(config.view) for side in found)
        gap = None if a is None or b is None else a - b
        [verdict] = pointwise_verdicts([gap], config.tie_threshold or 0.0)
        done(pair, Said(verdict, judgements=tuple(found), gap=gap))

    asked, journal = ((pair, sides(pair)) for pair in pairs), journal_path(config, result)
    rate_each(config.judge, journal, asked, told, "rating", 2 * len(pairs), config.view)


def _judged(task: str, data: str, result: str, config: PairsConfig) -> int:
    if config.tie_threshold is None:
        within = ratings_tie(config.judge) or 0.0
        config = config.model_copy(update={"tie_threshold": within})
    rows = read_pairs(data, task, _asked(config)).drawn(config.sample, config.seed)
    compared = config.protocol == "pairwise"
    require_protocol(config.judge, "pairwise" if compared else "single")
    ask, extra = (compare_pairs, of_comparisons) if compared else (rate_pairs, of_ratings)

    def asked(done: Done) -> None:
        ask(rows, config, result, done)

    return _measure(task, {"data": data}, asked, extra, result, config, None)


def _measure(
    task: str,
    sources: dict[str, str],
    tell: Callable[[Done], None],
    extra: Callable[[Sequence[Kept]], Figures],
    result: str,
    config: PairsConfig,
    verdicts: str | None,
) -> int:
    """tell: tells of every pair what was said, in order, and each is written then."""
    rows: list[Kept] = []
    cost = Cost()
    with writing_rows(result, verdicts or config.judge) as file:

        def done(pair: Pair, said: Said) -> None:
            file.line(_row(pair, said))
            cost.add(said.judgements)
            rows.append(keep(pair, said))

        tell(done)
        content = figures(rows, extra(rows), config.draws)
        if task == "rewardbench":
            content["sections"] = of_sections(rows, config.draws)
        if verdicts is None:
            content["cost"] = cost.figures()
    save(result, task, config, verdicts or config.judge, sources, content)
    _tell(content)
    print(f"result: {result}")
    return 0


def _row(pair: Pair, said: Said) -> dict[str, Any]:
    """A judged pair as the leaderboard's browser shows it."""
    return {
        "line": pair.line,
        "id": pair.id,
        "group": pair.group,
        "query": pair.query,
        "responses": pair.responses,
        "label": pair.label,
        "verdict": said.joint,
        "agrees": said.joint is pair.label,
        "orders": said.shown or (),
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
            for j in said.judgements
        ],
    }


def _tell(content: Figures) -> None:
    print(f"{'group':<24}{'n':>6}{'agreement':>11}{'consistency':>13}")
    for name, own in [*content["groups"].items(), ("overall", content["overall"])]:
        same = "-" if own["consistency"] is None else f"{own['consistency']:.2f}"
        print(f"{name[:23]:<24}{own['n']:>6}{own['agreement']:>11.2f}{same:>13}")
    for name, own in content.get("sections", {}).items():
        print(f"{'section ' + name:<24}{own['n']:>6}{own['score']:>11.2f}")
