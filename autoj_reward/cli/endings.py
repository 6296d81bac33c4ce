"""Ends of the commands that judge rows: what was counted, what it cost, and what is wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from autoj_reward.types import PLANTED_FLAG, Judgement, Outcome, Usage

FEWEST = 10
"""Least number of rows from which a share is a finding and no accident."""
MOST_FORCED = 0.2
"""Share of forced verdicts from which the end of a run says so."""
MOST_INCONSISTENT = 0.3
"""Share of comparisons whose two orders disagree from which the end of a run says so."""
MOST_FIRST = 0.2
"""Distance from one half of the share of orders that prefer the response shown first."""
MOST_POSITION = 0.3
"""Mean correlation of score and position, either way, from which the end of a run says so."""
MOST_EQUAL = 0.8
"""Share of the rows with the commonest rating from which the ratings rank nothing."""


class Ending:
    """Counter of a run's answers and judgements, for its summary and its last lines."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.outcomes: Counter[str] = Counter()
        """Rows by outcome."""
        self._reasons: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._orders: Counter[str] = Counter()
        self._ratings: Counter[float] = Counter()
        self._correlations: list[float] = []
        self._usage = Usage()
        self._judgements = self._judged = self._forced = self._planted = 0

    @property
    def rows(self) -> int:
        """Number of rows that have an answer."""
        return self.outcomes.total()

    @property
    def all_failed(self) -> bool:
        """Whether there are rows, and none has a verdict."""
        return self.rows > 0 and not self.outcomes[Outcome.OK]

    def add_judgements(self, judgements: Iterable[Judgement]) -> None:
        """Count judgements, whether they were made or read from the journal."""
        for judgement in judgements:
            self._judgements += 1
            self._judged += judgement.ok
            self._forced += judgement.forced
            self._planted += any(flag.startswith(PLANTED_FLAG) for flag in judgement.flags)
            self._usage += judgement.usage

    def add_row(self, added: Mapping[str, Any]) -> None:
        """Count a row by the fields that its command adds to it."""
        self.outcomes[added["outcome"]] += 1
        if reason := added.get("reason"):
            self._reasons[reason] += added["outcome"] != Outcome.OK
        if verdict := added.get("verdict"):
            self._verdicts[verdict] += 1
        for order in added.get("orders", ()):
            if "verdict" in order:
                self._orders[order["verdict"]] += 1
        if added.get("rating") is not None:
            self._ratings[added["rating"]] += 1
        if added.get("position_correlation") is not None:
            self._correlations.append(added["position_correlation"])

    def fields(self) -> dict[str, Any]:
        """Return the fields of the summary."""
        fields: dict[str, Any] = {"rows": self.rows, "outcomes": dict(self.outcomes)}
        if self._verdicts:
            fields["verdicts"] = dict(self._verdicts)
        usage = self._usage
        fields |= {
            "judgements": self._judgements,
            "forced": self._forced,
            "planted": self._planted,
            "tokens_in": usage.tokens_in,
            "tokens_cached": usage.tokens_cached,
            "tokens_out": usage.tokens_out,
            "seconds": round(time.monotonic() - self._started, 3),
        }
        return fields | ({"usd": usage.usd} if usage.usd else {})

    def describe(self) -> str:
        """Return the counts in one line."""
        counts = [f"{n} {name}" for name, n in self.outcomes.most_common()]
        parts = [f"{self.rows} rows: {', '.join(counts)}"]
        if self._verdicts:
            names = self._verdicts.most_common()
            parts.append(f"verdicts: {', '.join(f'{n} {name}' for name, n in names)}")
        parts += [f"{self._forced} forced"] if self._forced else []
        parts += [f"{self._usage.usd:.4f} US dollars"] if self._usage.usd else []
        return "; ".join(parts)

    def find_problems(self) -> Iterator[str]:
        """Yield what is wrong with the run, each with what to do."""
        if self.all_failed:
            [(reason, _)] = self._reasons.most_common(1) or [("", 0)]
            yield f"nothing was judged{f': {reason}' if reason else ''}"
            return
        if self._planted:
            yield (
                f"{self._planted} of {self._judgements} judgements read a response that holds a "
                "whole verdict: look at the rows with the flag planted_verdict"
            )
        if self._judged < FEWEST:
            return
        if self._forced > MOST_FORCED * self._judged:
            yield (
                f"{self._forced} of {self._judged} verdicts were forced, since the judge wrote "
                "none: raise judge.max_tokens if its texts are cut off, else take the format that "
                "it was trained on (`autoj preview` shows its texts)"
            )
        yield from self._find_position_bias()
        [(rating, count)] = self._ratings.most_common(1) or [(0.0, 0)]
        if count > MOST_EQUAL * self._ratings.total():
            yield (
                f"{count} of {self._ratings.total()} ratings are {rating:g}: written ratings do "
                "not tell these responses apart. Take `expected` (judge.distribution), or compare"
            )

    def _find_position_bias(self) -> Iterator[str]:
        decided = sum(self._verdicts[name] for name in ("first", "second", "tie"))
        inconsistent = self._verdicts["inconsistent"]
        if inconsistent > MOST_INCONSISTENT * (decided + inconsistent):
            yield (
                f"{inconsistent} of {decided + inconsistent} comparisons change with the order of "
                "the responses: they count for neither. A larger judge changes fewer"
            )
        first, second = self._orders["first"], self._orders["second"]
        if first + second >= FEWEST and abs(first / (first + second) - 0.5) > MOST_FIRST:
            yield (
                f"the response shown first wins {first} of {first + second} orders: judge both "
                "orders (swap: true), and take no verdict of one order for a preference"
            )
        if len(self._correlations) >= FEWEST:
            correlation = fmean(self._correlations)
            if abs(correlation) > MOST_POSITION:
                yield (
                    f"scores go with the position of a response (correlation {correlation:.2f}): "
                    "raise relative.orders, or compare pairs (relative.by: comparisons)"
                )
