"""One query of a best-of-N job: its candidates, their judgements, and the chosen one."""

from __future__ import annotations

from dataclasses import dataclass

from autoj_reward.io.rows import QueryRow
from autoj_reward.questions.race import Fate, Spending, Standing
from autoj_reward.types import Candidate, Judgement, Selection


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A query, its candidates, one judgement each in the same order, and the chosen one.

    standings, spending: what became of each candidate on a budget, and what was spent; without a
    budget none.
    """

    row: QueryRow
    candidates: tuple[Candidate, ...]
    judgements: tuple[Judgement, ...]
    selection: Selection
    standings: tuple[Standing, ...] = ()
    spending: Spending | None = None

    def __post_init__(self) -> None:
        if len(self.candidates) != len(self.judgements):
            raise ValueError(
                f"{len(self.candidates)} candidates with {len(self.judgements)} judgements"
            )
        if not 0 <= self.selection.index < len(self.candidates):
            raise ValueError(f"chosen {self.selection.index} of {len(self.candidates)} candidates")

    @property
    def chosen(self) -> Judgement:
        """The judgement of the chosen candidate."""
        return self.judgements[self.selection.index]

    @property
    def own(self) -> tuple[Judgement, ...]:
        """The judgements without those of copies, which are their originals'."""
        if not self.standings:
            return self.judgements
        pairs = zip(self.judgements, self.standings, strict=True)
        return tuple(judgement for judgement, s in pairs if s.fate is not Fate.COPY)

    def values(self, view: str) -> tuple[float, ...]:
        """The numbers that ranked the candidates, without copies and those that have none."""
        found = (judgement.view(view) for judgement in self.own)
        return tuple(value for value in found if value is not None)
