"""Measures of a rubric's items over judged responses, and of responses without content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from autoj_reward.evaluate.statistics import Correlation, Scores, pearson, spearman
from autoj_reward.questions.rubric import HELD, RubricScore
from autoj_reward.rubric_items import RubricItem

CORRELATED = 3
"""Smallest number of responses for a correlation."""
CONSTANT = 1e-4
"""Variance of an item's share up to which the item counts as constant: it teaches nothing."""
REDUNDANT = 0.95
"""Absolute correlation with another item from which an item counts as redundant."""
CONFIDENT = (
    "The answer to this is clear. It follows directly from the facts, every important point has "
    "been covered with care, and the result is complete, correct and easy to apply."
)
"""Response that is confident and says nothing."""


@dataclass(frozen=True, slots=True)
class ItemAudit:
    """Measures of one rubric item over the responses to its query.

    A share is that of the item's points that a response earns, 0 to 1.
    """

    criterion: str
    points: float
    verdicts: int
    """Number of responses on which the judge did not abstain."""
    met: float | None
    """Mean share; None without a verdict."""
    variance: float | None
    """Variance of the share over the responses; None with fewer than two verdicts."""
    agreement: float | None
    """Spearman's correlation of share and grade, -1 to 1, negated for an item with negative
    points. None with fewer than CORRELATED graded verdicts or if either is constant."""
    redundancy: float | None
    """Highest absolute correlation (Pearson's) of the share with that of another item, 0 to 1.
    None with fewer than CORRELATED common verdicts or if the item is constant."""
    redundant_with: int | None
    """Position in the rubric, from 0, of that other item."""
    flips: float | None
    """Share of further samples whose verdict differs from the first sample's; None without."""
    met_by: tuple[str, ...]
    """Names of the trivial responses for which the criterion holds."""

    @property
    def constant(self) -> bool:
        """Whether the share hardly varies over the responses."""
        return self.variance is not None and self.variance <= CONSTANT

    @property
    def redundant(self) -> bool:
        """Whether the share correlates highly with that of another item."""
        return self.redundancy is not None and self.redundancy >= REDUNDANT


@dataclass(frozen=True, slots=True)
class TrivialReward:
    """Reward of a response without content."""

    name: str
    """`empty`, `query`, `claims` or `confident`."""
    reward: float | None
    """The rubric's score; None if the judge abstains."""
    reason: str
    """Why there is no reward. Empty if there is one."""


@dataclass(frozen=True, slots=True)
class RubricAudit:
    """Audit of the rubric of one input row."""

    line: int
    """Number of the row, from 1."""
    query: str
    responses: int
    """Number of real responses."""
    items: tuple[ItemAudit, ...]
    trivial: tuple[TrivialReward, ...]

    @property
    def best(self) -> TrivialReward | None:
        """The trivial response with the highest reward; None if the judge abstains on all."""
        rewards = [
            (response.reward, response) for response in self.trivial if response.reward is not None
        ]
        return max(rewards, key=lambda pair: pair[0])[1] if rewards else None

    @property
    def constant(self) -> int:
        """Number of items whose share hardly varies over the responses."""
        return sum(item.constant for item in self.items)

    @property
    def redundant(self) -> int:
        """Number of items that correlate highly with another one."""
        return sum(item.redundant for item in self.items)

    @property
    def unknown(self) -> bool:
        """Whether a trivial response could not be judged."""
        return any(response.reward is None for response in self.trivial)

    def is_gamed(self, most: float) -> bool:
        """Return whether a trivial response earns more than `most`."""
        return any(
            response.reward is not None and response.reward > most for response in self.trivial
        )


def make_trivial_responses(query: str, items: Sequence[RubricItem]) -> dict[str, str]:
    """Return responses without content, by name.

    `empty` is the empty text, `query` repeats the query, `claims` claims to do what each item with
    positive points asks for, and `confident` says nothing with confidence.
    """
    claims = [f"- {' '.join(item.criterion.split())}" for item in items if item.points > 0]
    claim_list = "\n".join(["This response does all of the following:", *claims])
    return {"empty": "", "query": query, "claims": claim_list, "confident": CONFIDENT}


def measure_items(
    items: Sequence[RubricItem],
    samples: Sequence[Sequence[RubricScore]],
    grades: Scores,
    trivial: Mapping[str, RubricScore],
) -> tuple[ItemAudit, ...]:
    """Return the measures of each item, in the rubric's order.

    samples: for each response its scores, of which all but the first count for flips alone. grades:
    the grade of each response, None without one. trivial: scores of trivial responses by name.
    """
    shares = [tuple(_get_share(scores[0], n) for scores in samples) for n in range(len(items))]
    varied_shares = [
        item_shares if _varies(item_shares) else (None,) * len(item_shares)
        for item_shares in shares
    ]
    audits = []
    for n, item in enumerate(items):
        known_shares = [share for share in shares[n] if share is not None]
        sign = -1.0 if item.points < 0 else 1.0
        variance = pvariance(known_shares) if len(known_shares) > 1 else None
        agreement = _correlate(spearman, varied_shares[n], grades)
        redundancy, other = _find_most_correlated(varied_shares, n)
        audits.append(
            ItemAudit(
                criterion=item.criterion,
                points=item.points,
                verdicts=len(known_shares),
                met=fmean(known_shares) if known_shares else None,
                variance=variance,
                agreement=None if agreement is None else sign * agreement,
                redundancy=redundancy,
                redundant_with=other,
                flips=_measure_flips(samples, n),
                met_by=tuple(name for name, score in trivial.items() if _holds(score, n)),
            )
        )
    return tuple(audits)


def _get_share(score: RubricScore, n: int) -> float | None:
    """Return the share of item n; None if the judge gave no verdict on it."""
    return score.verdicts[n].share if score.verdicts else None


def _varies(shares: Scores) -> bool:
    """Return whether an item is not constant. Correlations of a constant one would be noise."""
    known_shares = [share for share in shares if share is not None]
    return len(known_shares) > 1 and pvariance(known_shares) > CONSTANT


def _holds(score: RubricScore, n: int) -> bool | None:
    share = _get_share(score, n)
    return None if share is None else share >= HELD


def _find_most_correlated(shares: Sequence[Scores], n: int) -> tuple[float | None, int | None]:
    """Return the highest absolute correlation of item n with another one, and that one."""
    best: tuple[float | None, int | None] = None, None
    for other, other_shares in enumerate(shares):
        correlation = None if other == n else _correlate(pearson, shares[n], other_shares)
        if correlation is not None and (best[0] is None or abs(correlation) > best[0]):
            best = abs(correlation), other
    return best


def _correlate(measure: Correlation, first: Scores, second: Scores) -> float | None:
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(pairs) < CORRELATED:
        return None
    return measure([a for a, _ in pairs], [b for _, b in pairs])


def _measure_flips(samples: Sequence[Sequence[RubricScore]], n: int) -> float | None:
    """Return the share of further samples whose verdict on item n is not the first sample's."""
    differences = [
        first_verdict != later_verdict
        for first_verdict, *later_verdicts in (
            [_holds(score, n) for score in scores] for scores in samples
        )
        for later_verdict in later_verdicts
        if first_verdict is not None and later_verdict is not None
    ]
    return fmean(differences) if differences else None
