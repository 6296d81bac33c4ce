"""Vote of a panel: several judges rate the same response, and their ratings make one judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoj_reward.config import PanelVote
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.questions.rate import vote_of
from autoj_reward.types import DIRECT, RATING, Judgement, Reading, concurrent_usage

MEMBER = "panel:"
"""Start of the slots that hold the rating of each judge of a panel, before the judge's name."""


def vote_of_panel(judgements: Mapping[str, Judgement], vote: PanelVote, name: str) -> Judgement:
    """Return one judgement from the ratings of several judges, all on one scale.

    Judges without a rating are left out, if at least half of the judges rate. Otherwise the panel
    abstains, as it does if a judge failed over a text with a planted verdict. An expected rating
    or a distribution that fewer than half of the judges give is left out. The rating of each judge
    is kept as a reading of its own.

    judgements: of each judge by name. name: of the panel, as the judge of the result.
    """
    members = list(judgements.values())
    rated = [member for member in members if member.rating is not None]
    usage = concurrent_usage([member.usage for member in members])
    if _is_minority(len(rated), members):
        failed = [member for member in members if member.rating is None]
        spoiled = [member for member in failed if member.spoiled()]
        first = (spoiled or failed)[0]
        reason = f"{len(rated)} of {len(members)} judges of the panel rate it: {first.why}"
        return replace(first, readings=(), reason=reason, usage=usage, judge=name)
    voted = vote_of(members, vote)
    if not voted.ok:
        return replace(voted, judge=name)
    readings = []
    for reading in voted.readings:
        if reading.slot in (RATING, DIRECT):
            found = [member.reading(reading.slot) for member in rated]
            known = [one for one in found if one is not None and one.expected is not None]
            if _is_minority(len(known), members):
                reading = replace(reading, expected=None, distribution=None)
        readings.append(reading)
    for member_name, member in judgements.items():
        if member.rating is not None:
            readings.append(Reading(MEMBER + member_name, f"{member.rating:g}", member.rating))
    return replace(voted, readings=tuple(readings), judge=name)


def _is_minority(count: int, members: Sequence[Judgement]) -> bool:
    return 2 * count < len(members)


def member_ratings(judgement: Judgement) -> dict[str, float | None]:
    """Return the rating of each judge of a panel, by name; empty for a judge alone."""
    return {
        reading.slot.removeprefix(MEMBER): reading.value
        for reading in judgement.readings
        if reading.slot.startswith(MEMBER)
    }


def on_scale(
    judgement: Judgement, own: JudgeFormat | ScalarFormat, shown: JudgeFormat
) -> Judgement:
    """Return a rating on the scale of another format, at the same share of the scale.

    own: the format that the judge rates by. shown: the format whose scale the result has. A scalar
    model's score counts as its probability of being preferred to a score of 0.
    """
    if isinstance(own, JudgeFormat) and _ends(own) == _ends(shown):
        return judgement
    low, high = _ends(shown)

    def move(number: float | None) -> float | None:
        return None if number is None else low + own.share(number) * (high - low)

    readings = []
    for reading in judgement.readings:
        if reading.slot in (RATING, DIRECT):
            distribution = reading.distribution
            if distribution is not None:
                distribution = tuple((f"{move(float(label)):g}", p) for label, p in distribution)
            value = move(reading.value)
            reading = replace(
                reading,
                label="" if value is None else f"{value:g}",
                value=value,
                expected=move(reading.expected),
                distribution=distribution,
            )
        readings.append(reading)
    return replace(judgement, readings=tuple(readings))


def _ends(fmt: JudgeFormat) -> tuple[float, float]:
    return fmt.scale.low, fmt.scale.high
