"""The numbers that a judge can give, and the one of them that a job or a reward uses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from autoj_reward.config import JudgeConfig, View, ViewOrAuto
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat

VIEWS: frozenset[View] = frozenset(get_args(View))
Use = Literal["choose", "reward"]
"""Whether the number ranks candidates, or is a trainer's reward."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Where an engine can tell the probabilities of labels.

    written: at a verdict that the judge wrote. slots: at any slot, so also where the judge wrote no
    verdict, and right after the prompt. about: how, in words for the log.
    """

    written: bool = True
    slots: bool = True
    about: str = "read from the model at the verdict slot"


def views_of(
    config: JudgeConfig, fmt: JudgeFormat | ScalarFormat, can: Abilities
) -> frozenset[View]:
    """Return the views of a judge whose engine can do this; none for one that only compares."""
    if isinstance(fmt, ScalarFormat):
        return VIEWS
    if fmt.single is None:
        return frozenset()
    if not config.critique:
        return VIEWS if can.slots else frozenset()
    found: set[View] = {"rating"}
    reads = config.distribution is not False and (can.written or can.slots)
    found |= {"expected"} if reads else set()
    found |= {"direct"} if can.slots else set()
    return frozenset(found)


def distributions_of(config: JudgeConfig, fmt: JudgeFormat | ScalarFormat, can: Abilities) -> str:
    """Return in words where a judge's distributions come from, or why there are none."""
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
    """Return the view that counts.

    `auto` is the preferred one, which the judge's entry names; else `rating` to choose, where ties
    go to the tie-break list, and `expected` for rewards where the judge gives it, else `rating`.
    views: those that the judge gives. Raises ConfigError, which names the key, for another one.
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
        f"{key} is {view}, and this judge gives {' and '.join(sorted(views))} alone: its endpoint "
        "tells no log-probabilities there (vLLM and SGLang do, and judge.tokenizer reads them from "
        f"any endpoint that takes token ids), or judge.distribution is false. Set {key} to rating"
    )
