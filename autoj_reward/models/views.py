"""Views: the numbers that a judge can give, and the choice of one for a job or a reward."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from autoj_reward.config import JudgeConfig, View, ViewOrAuto
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat

VIEWS: frozenset[View] = frozenset(get_args(View))
"""All views."""
Use = Literal["choose", "reward"]
"""Purpose of the number: to rank candidates, or to be a trainer's reward."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Places at which an engine can read the probabilities of labels."""

    written: bool = True
    """Whether it can at a verdict that the judge wrote."""
    slots: bool = True
    """Whether it can at any slot: also right after the prompt, and where the judge wrote
    no verdict."""
    about: str = "read from the model at the verdict slot"
    """Description for the log."""


def views_of(
    config: JudgeConfig, fmt: JudgeFormat | ScalarFormat, can: Abilities
) -> frozenset[View]:
    """Return the views of a judge on an engine with these abilities. Empty if it only compares."""
    if isinstance(fmt, ScalarFormat):
        return VIEWS
    if fmt.single is None:
        return frozenset()
    if not config.critique:
        return VIEWS if can.slots else frozenset()
    views: set[View] = {"rating"}
    reads = config.distribution is not False and (can.written or can.slots)
    views |= {"expected", "pessimistic"} if reads else set()
    views |= {"direct"} if can.slots else set()
    return frozenset(views)


def distributions_of(config: JudgeConfig, fmt: JudgeFormat | ScalarFormat, can: Abilities) -> str:
    """Return a description of where the judge's distributions come from, or why it has none."""
    if isinstance(fmt, ScalarFormat):
        return "none: a scalar model gives one score"
    if config.distribution is False:
        return "none of written ratings: judge.distribution is false"
    if can.written and not can.slots and not config.distribution:
        return "not asked for: they would come with each critique (judge.distribution asks)"
    return can.about


def resolve_view(
    view: ViewOrAuto,
    use: Use,
    preferred: View | None,
    views: Collection[View] = VIEWS,
    key: str = "view",
) -> View:
    """Return the view to use.

    `auto` means the preferred view, which the judge's entry names. Without one it is `rating` for
    choosing, where the tie-break list decides among equals. For rewards it is `expected` if the
    judge gives it, else `rating`. Raises ConfigError that names `key` if the view is not among
    `views`.
    """
    if view == "auto":
        finest: View = "expected" if use == "reward" and "expected" in views else "rating"
        view = preferred or finest
    if view in views:
        return view
    if not views:
        raise ConfigError(
            f"{key} is {view}, and this judge rates no single response: its format only compares, "
            "or judge.critique is false and its endpoint tells no probabilities right after the "
            "prompt (then set judge.critique to true)"
        )
    raise ConfigError(
        f"{key} is {view}, and this judge gives only {', '.join(sorted(views))}: its endpoint "
        "tells no log-probabilities there (vLLM and SGLang do, and judge.tokenizer reads them from "
        f"any endpoint that takes token ids), or judge.distribution is false. Set {key} to rating"
    )
