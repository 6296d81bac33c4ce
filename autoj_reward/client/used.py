"""One line on what a run uses: judge, view, where distributions come from, failures so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from autoj_reward.client.client import RewardClient
from autoj_reward.config import View
from autoj_reward.logs import announce
from autoj_reward.types import Judgement, Outcome

FIRST = 32
"""Judgements after which a job says what it uses; one of fewer says it at its end."""


def used_line(
    client: RewardClient, view: View | None, judgements: Iterable[Judgement] = (), part: str = ""
) -> str:
    """Return what a run uses and how its judgements ended, without any secret.

    view: the number that counts; None where verdicts do. part: name of a reward's part, if the
    reward has several.
    """
    backend = client.backend
    head = f"{part}: judge" if part else "judge"
    return (
        f"{head} {backend.judge} ({backend.place}), {f'view {view}' if view else 'verdicts'}, "
        f"distributions: {backend.distributions}; {_ended(Counter(j.outcome for j in judgements))}"
    )


def _ended(outcomes: Counter[Outcome]) -> str:
    """How judgements ended, those left aside that a budget gave up before they were made."""
    made = outcomes.total() - outcomes[Outcome.ABANDONED]
    if not made:
        return "no judgement so far"
    kinds = [
        (n, name) for name, n in outcomes.most_common() if name.value not in ("ok", "abandoned")
    ]
    failures = ", ".join(f"{n} {name.value}" for n, name in kinds)
    return f"{outcomes[Outcome.OK]} of {made} judgements ok" + (
        f" ({failures})" if failures else ""
    )


class FirstJudgements:
    """Says once what a job uses, when its first judgements are there.

    A job whose judge was not asked, since all is on record, says nothing.
    """

    def __init__(
        self, client: RewardClient, view: View | None, say: Callable[[str], object] = announce
    ) -> None:
        """say: called with the line."""
        self._client, self._view, self._say = client, view, say
        self._seen: list[Judgement] | None = []

    def add(self, judgements: Iterable[Judgement]) -> None:
        """Take note of judgements in which `no_number` is a failure like the others."""
        if self._seen is None:
            return
        self._seen += judgements
        if len(self._seen) >= FIRST:
            self.end()

    def end(self) -> None:
        """Say the line of a job that ends before it has so many judgements."""
        if self._seen and self._client.was_asked:
            self._say(used_line(self._client, self._view, self._seen))
            self._seen = None
