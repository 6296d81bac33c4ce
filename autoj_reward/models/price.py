"""Prices of a model's tokens, and the limit on what a run spends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoj_reward.config import PricedConfig
from autoj_reward.errors import ConfigError, SpendingLimit, from_extras
from autoj_reward.processes import processes
from autoj_reward.types import Usage

MILLION = 1e6
SAMPLE_TOKENS = 1000
"""Tokens whose price is looked up. Some models cost more beyond a length, which few judgements
reach."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    tokens_in: float
    cached: float
    """For prompt tokens that came from the provider's cache."""
    tokens_out: float

    def usd(self, usage: Usage) -> float:
        """Return the cost of a usage in US dollars."""
        cached = min(usage.tokens_cached, usage.tokens_in)
        new = usage.tokens_in - cached
        cost = new * self.tokens_in + cached * self.cached + usage.tokens_out * self.tokens_out
        return cost / MILLION


def find_price(config: PricedConfig) -> Price | None:
    """Return the price of a config's model, None if the config names none.

    Raises ConfigError if the price is to be looked up and the model is not listed.
    """
    price = config.price
    if price is None:
        return None
    if isinstance(price, dict):
        return Price(price["in"], price.get("cached", price["in"]), price["out"])
    with from_extras():
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    samples = (
        Tokens(input_tokens=SAMPLE_TOKENS),
        Tokens(input_tokens=SAMPLE_TOKENS, cache_read_tokens=SAMPLE_TOKENS),
        Tokens(output_tokens=SAMPLE_TOKENS),
    )
    try:
        costs = [float(calc_price(tokens, config.model).total_price) for tokens in samples]
    except LookupError:
        raise ConfigError(
            f"price is genai-prices, which does not list the model {config.model}: write "
            "`price: {in: USD, out: USD}`, per million tokens"
        ) from None
    return Price(*(cost * MILLION / SAMPLE_TOKENS for cost in costs))


class Spending:
    """Counter of the dollars that a run spends on judges, with a limit.

    The processes of one run divide the limit. Judgements in flight when it is reached are still
    paid for.
    """

    def __init__(self, max_usd: float) -> None:
        self._max_usd = max_usd
        self._share = max_usd / processes()
        self._usd = 0.0

    def add(self, usage: Usage) -> None:
        """Count the cost of a new judgement."""
        self._usd += usage.usd

    def require(self) -> None:
        """Raise SpendingLimit if the limit is reached."""
        if self._usd >= self._share:
            raise SpendingLimit(
                f"max_usd is {self._max_usd:g}, and this run has spent {self._usd:.4f} US dollars: "
                "raise it, or spend as much again by the same command, which goes on from there"
            )


def limit_spending(
    max_usd: float | None, judges: Mapping[str, PricedConfig], served: bool = False
) -> Spending | None:
    """Return the limit that the judges of a run share; None without one.

    judges: by key in the run file. served: whether a service judges too, which counts dollars by
    the price in its own config. Raises ConfigError for an endpoint without a price, whose dollars
    nobody would count, and if no judge has a price.
    """
    if max_usd is None:
        return None
    for key, config in judges.items():
        if config.kind == "openai" and config.price is None:
            raise ConfigError(
                f"max_usd is {max_usd:g}, which needs a price: set {key}.price, for an endpoint "
                "that costs nothing {in: 0, out: 0}"
            )
    if not served and not any(config.price is not None for config in judges.values()):
        raise ConfigError(
            f"max_usd is {max_usd:g}, which needs a price: set {next(iter(judges))}.price"
        )
    return Spending(max_usd)
