"""Best-of-N for less: critiques only for candidates that can still win, within a token budget.

`select_within` needs nothing of the judge but one callable, so a job and an evaluation run the very
same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoj_reward.config import View
from autoj_reward.errors import ConfigError
from autoj_reward.questions.choose import choose
from autoj_reward.questions.race import Ask, Race, Spending, Standing
from autoj_reward.types import Candidate, Judgement, Selection

FINALS = 0.25
"""Share of the budget kept for comparisons where `pairwise` is the first tie-break."""
FIRST = 0.5
"""Share of the budget for first critiques where k > 1; the rest repeats critiques at the top."""


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The choice, and of every candidate its judgement and its standing, in order.

    An abandoned candidate's judgement has the outcome ABANDONED, or that of its cheap reading if
    this failed; a copy's is its original's, at no cost and flagged `copied_judgement`.
    """

    selection: Selection
    judgements: tuple[Judgement, ...]
    standings: tuple[Standing, ...]
    spending: Spending


def require_cheap_pass(views: frozenset[View]) -> None:
    """Raise ConfigError unless the judge gives the rating distribution right after the prompt."""
    if "direct" not in views:
        raise ConfigError(
            "budget needs the rating distribution right after the prompt, and this judge's "
            "endpoint does not tell it (vLLM and SGLang do): leave budget out, or name "
            "judge.tokenizer"
        )


async def select_within(
    candidates: Sequence[Candidate],
    ask: Ask,
    *,
    share: float,
    critiques: int = 1,
    view: str = "rating",
    rules: Sequence[str] = ("policy_logprob", "expected_rating", "pairwise", "first"),
    pairwise: bool = False,
) -> Budgeted:
    """Choose among the candidates of one query for a share of full judging's tokens.

    Judge tokens are those that the judge writes: they are what a critique costs, they depend on
    no cache, and reading is reported beside them. Full judging is k critiques of every response
    that differs. The budget is `share` (over 0, at most 1) of its tokens, every critique taken at
    the mean length of this query's so far. Nothing is started that would not fit: neither a
    critique nor one order of a comparison, each taken as one mean critique. So there are never
    more of them than `share` of full judging's critiques, less what the cheap pass wrote; but as
    long as no candidate has a value, the next one gets its first critique. In tokens that is exact
    as far as lengths are equal. What the judge never wrote, since it failed before, costs nothing.

    1. Copies, the very same text, are judged once, as the first of them.
    2. Cheap pass: the expected rating at the slot right after the prompt, of every original.
    3. Critiques in waves, highest cheap rating first: one, whose length tells what the cheap pass
       was worth, then each time half of what the budget still allows. After a wave, whoever waits
       is abandoned if it cannot win: its upper bound (`bounds.Bound`) is below the best rating so
       far, less that one's own error where k > 1. When the budget is used up, the rest is
       abandoned. Unreadable candidates wait last.
    4. With k > 1, the waves ask one critique each, for half of the budget but of two candidates;
       then the best by mean and all whose mean is less than `Bound.z` standard errors of the
       difference below it get one more, until there is no such other, k is reached or the budget
       is used up.
    5. The best is chosen by `choose.choose` among those that were judged; `pairwise` plays
       while the budget lasts, and a match that it does not allow decides nothing. Where it is the
       first rule, a quarter of the budget is kept for it.

    share 1 is full judging: no cheap pass, no copies, nothing abandoned.
    pairwise: whether the judge can compare. Judgements that abstain never win.
    """
    race = Race(candidates, ask, share, critiques, view)
    kept = FINALS if pairwise and tuple(rules[:1]) == ("pairwise",) else 0.0
    if share >= 1:
        await race.critique([(i, s) for i in race.entrants for s in range(critiques)])
    else:
        await race.glance()
        await race.waves(1 - (1 - kept) * (FIRST if critiques > 1 else 1))
        await race.repeat(kept)
    found = race.judgements()
    judged = [i for i in race.entrants if i in race.samples]
    chosen = await choose(
        [candidates[i] for i in judged],
        [found[i] for i in judged],
        view=view,
        rules=rules,
        compare=race.compare if pairwise else None,
    )
    chosen = Selection(
        judged[chosen.index],
        chosen.rule,
        tuple(judged[i] for i in chosen.tied),
        tuple((judged[i], judged[j], verdict) for i, j, verdict in chosen.comparisons),
    )
    return Budgeted(chosen, tuple(found), tuple(race.standings()), race.spending())
