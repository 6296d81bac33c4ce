"""Rewards of a judge's own outputs, by labels that a program can check, and their metrics.

Sources: a right verdict, and one that is right in both orders (J1, arXiv 2505.10320); the best
response of a group scored highest (DeepSeek-GRM, arXiv 2504.02495). An output without a verdict of
its own gets the lowest value of each reward: here that is the policy's own fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from autoj_reward.formats.scale import Scale
from autoj_reward.training.judge.outputs import JudgedOutput
from autoj_reward.training.judge.questions import COMPARED, PREFERRED, RANKED, RATED
from autoj_reward.types import Verdict

Place = tuple[int, int]
"""Number of a unit, and a place in it."""


class Scorer:
    """Rewards of the outputs of one step, by name."""

    def __init__(self, scale: Scale, expected: bool, longest: int) -> None:
        """expected: whether ratings are expected ratings. longest: limit of an output in tokens."""
        self._width = scale.high - scale.low
        self._expected = expected
        self._longest = longest

    def score(self, name: str, outputs: Sequence[JudgedOutput]) -> list[float | None]:
        """Return a reward of each output; None where its question is of another kind.

        outputs: all outputs of the step, since some rewards compare those of one unit.
        """
        compute: Callable[[JudgedOutput, Sequence[JudgedOutput]], float | None]
        compute = getattr(self, f"_{name}")
        by_place = _group_by_place(outputs)
        return [
            compute(output, by_place.get((output.question.unit, 1 - output.question.place), ()))
            for output in outputs
        ]

    def _verdict(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        if output.question.part != COMPARED:
            return None
        return float(is_right(output))

    def _both_orders(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        if output.question.part != COMPARED:
            return None
        if not is_right(output) or not others:
            return 0.0
        return fmean(map(is_right, others))

    def _order(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        question = output.question
        if question.part != PREFERRED:
            return None
        rating = self.rating_of(output)
        if rating is None:
            return 0.0
        better_place = 0 if question.label is Verdict.FIRST else 1
        sign = 1 if question.place == better_place else -1
        # Outputs without a rating cannot be compared with; that is not this output's fault.
        ratings = [r for r in map(self.rating_of, others) if r is not None]
        shares = [
            0.5 if other == rating else float(sign * (rating - other) > 0) for other in ratings
        ]
        return fmean(shares) if shares else 0.5

    def _best(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        if output.question.part != RANKED:
            return None
        return float(is_best_first(output))

    def _distance(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        reference = output.question.rating
        if reference is None:
            return None
        rating = self.rating_of(output)
        return 0.0 if rating is None else 1 - abs(rating - reference) / self._width

    def _ended(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        return float(output.parsed)

    def _length(self, output: JudgedOutput, others: Sequence[JudgedOutput]) -> float | None:
        # A short output without a verdict must not earn more than a long one with it.
        return -output.tokens / self._longest if output.parsed else -1.0

    def rating_of(self, output: JudgedOutput) -> float | None:
        """Return the rating of an output, written or expected; None if it has none of its own."""
        if not output.parsed:
            return None
        judgement = output.judgement
        return judgement.expected if self._expected else judgement.rating

    def metrics(self, outputs: Sequence[JudgedOutput]) -> dict[str, float]:
        """Return the metrics of some outputs; those that these outputs say nothing of are left out.

        `parse_rate` and `output_tokens`. Comparisons: `accuracy` over all outputs, `consistency` of
        the two orders, and shares of the verdicts `first`, `second` and `tie`. Rated pairs:
        `order`. Groups: `best`. Rated responses: `rating_error` in points.
        """
        if not outputs:
            return {}
        found = {
            "parse_rate": fmean(output.parsed for output in outputs),
            "output_tokens": fmean(output.tokens for output in outputs),
        }
        compared = [output for output in outputs if output.question.part == COMPARED]
        if compared:
            found["accuracy"] = fmean(map(is_right, compared))
            found["consistency"] = measure_consistency(compared)
            verdicts = [output.judgement.verdict for output in compared if output.parsed]
            for verdict in (Verdict.FIRST, Verdict.SECOND, Verdict.TIE):
                share = verdicts.count(verdict) / len(verdicts) if verdicts else 0.0
                found[verdict.value] = share
        for name in ("order", "best"):
            values = [value for value in self.score(name, outputs) if value is not None]
            if values:
                found[name] = fmean(values)
        errors = []
        for output in outputs:
            rating = self.rating_of(output)
            if output.question.part == RATED and rating is not None:
                assert output.question.rating is not None  # the reader refused others
                errors.append(abs(rating - output.question.rating))
        if errors:
            found["rating_error"] = fmean(errors)
        return found


def is_right(output: JudgedOutput) -> bool:
    """Return whether a comparison decides as its label does, with a verdict of its own."""
    return output.parsed and output.judgement.verdict is output.question.label


def is_best_first(output: JudgedOutput) -> bool:
    """Return whether a group's highest score is that of one response, and of a best one."""
    leaders = find_leaders(output) if output.parsed else ()
    return len(leaders) == 1 and leaders[0] in output.question.best


def find_leaders(output: JudgedOutput) -> tuple[int, ...]:
    """Return the indices of the responses of a group that share the highest score.

    Empty if the output lacks the score of a response.
    """
    scores = []
    for n in range(len(output.question.item.responses)):
        reading = output.judgement.reading(f"response_{n + 1}")
        if reading is None or reading.value is None:
            return ()
        scores.append(reading.value)
    highest = max(scores)
    return tuple(n for n, score in enumerate(scores) if score == highest)


def measure_consistency(outputs: Sequence[JudgedOutput]) -> float:
    """Return the share of pairs that get the same verdict in both orders, 0..1.

    The n-th output in one order meets the n-th in the other. An output without a verdict of its own
    agrees with nothing. 0 without any pair.
    """
    by_place = _group_by_place(outputs)
    agreements = []
    for (unit, place), firsts in by_place.items():
        if place == 0:
            for first, second in zip(firsts, by_place.get((unit, 1), ()), strict=False):
                verdict = first.judgement.verdict if first.parsed else None
                other = second.judgement.verdict if second.parsed else None
                agreements.append(
                    verdict is not None and other is not None and verdict is other.swapped()
                )
    return fmean(agreements) if agreements else 0.0


def _group_by_place(outputs: Sequence[JudgedOutput]) -> dict[Place, list[JudgedOutput]]:
    by_place: dict[Place, list[JudgedOutput]] = defaultdict(list)
    for output in outputs:
        by_place[output.question.unit, output.question.place].append(output)
    return dict(by_place)
