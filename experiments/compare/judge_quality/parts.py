"""The parts of `judge_quality` that ask a judge: what they ask, and what they make of its answers.

Pure: from rows to judge inputs, and from judgements to the figures of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoj_reward.evaluate.intervals import share
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.prompts.render import render
from autoj_reward.types import JudgeInput, Judgement, Outcome
from experiments.compare.critique_health import examine, summarise
from experiments.compare.judge_quality.figures import Measured
from experiments.compare.material import Material, ratings

ANSWERED = (Outcome.OK, Outcome.TRUNCATED, Outcome.UNPARSABLE)


@dataclass(frozen=True, slots=True)
class Part:
    """judge: who is asked (a key of `JudgeQualityConfig.judges`). inputs: what it is asked.
    measure: the figures of its judgements, which come in the order of the inputs."""

    judge: str
    inputs: Callable[[Material], list[JudgeInput]]
    measure: Callable[[Material, JudgeFormat, Sequence[Judgement]], Measured]


def _single_inputs(material: Material) -> list[JudgeInput]:
    return [JudgeInput(row.query, (row.response,)) for row in material.rated]


def _measure_direct(
    material: Material, fmt: JudgeFormat, judgements: Sequence[Judgement]
) -> Measured:
    """Ratings of single responses."""
    predictions = {view: [j.view(view) for j in judgements] for view in ("rating", "expected")}
    counts = Counter(j.rating.value for j in judgements if j.rating)
    figures = {
        "rows": len(judgements),
        "abstained": sum(not j.ok for j in judgements),
        "outcomes": _outcomes(judgements),
        **{view: ratings(material, material.rated, v) for view, v in predictions.items()},
        "histogram": {f"{value:g}": counts[value] for value in sorted(counts)},
    }
    return Measured(figures, predictions)


def _measure_single(
    material: Material, fmt: JudgeFormat, judgements: Sequence[Judgement]
) -> Measured:
    """Ratings with their critiques, beside the health of the reference critiques."""
    direct, inputs = _measure_direct(material, fmt, judgements), _single_inputs(material)
    known = [
        examine(row.judgement, _prompt(item, fmt))
        for row, item in zip(material.rated, inputs, strict=True)
        if row.judgement
    ]
    texts = _texts(material, fmt, inputs, judgements)
    figures = direct.figures | texts | {"reference_health": summarise(known)}
    return Measured(figures, direct.predictions)


def _texts(
    material: Material,
    fmt: JudgeFormat,
    inputs: Sequence[JudgeInput],
    judgements: Sequence[Judgement],
) -> dict[str, Any]:
    """Of the inputs that were answered: the share whose own text parses, and the texts' health."""
    answered = [(i, j) for i, j in zip(inputs, judgements, strict=True) if j.outcome in ANSWERED]
    parsed = [j.ok and not j.forced for _, j in answered]
    health = [
        examine(j.critique, _prompt(i, fmt), hit_limit="output_truncated" in j.flags)
        for i, j in answered
    ]
    return {
        "parsed": material.estimate(share(parsed), [i.query for i, _ in answered]),
        "health": summarise(health),
    }


def _prompt(item: JudgeInput, fmt: JudgeFormat) -> str:
    return "\n".join(message.text for message in render(item, fmt))


def _outcomes(judgements: Sequence[Judgement]) -> dict[str, int]:
    return dict(Counter(j.outcome.value for j in judgements))


JUDGED = {
    "single": Part("greedy", _single_inputs, _measure_single),
    "single_direct": Part("direct", _single_inputs, _measure_direct),
    "base": Part("base", _single_inputs, _measure_single),
}
"""The parts that ask a judge; those of one judge stand together, since it is started once."""
