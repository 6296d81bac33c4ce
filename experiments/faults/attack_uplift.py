"""How much better a judge rates an answer that tries to talk it into it, with and without defences.

    python -m experiments.faults.attack_uplift --config configs/attack_uplift.yaml [--set key=value]

Every answer of `attacks.py` beside it is judged, and the weak answer inside it alone; the uplift
is the difference of their ratings. Three defences are measured:

* control tokens: responses are tokenized with special tokens off. Without it the spelling of a
  control token in a response becomes one. (Wrappers llama2 and none know no other way, so there
  nothing changes; an endpoint without a tokenizer has its own defence, and is refused here.)
* quotes: a verdict that stands in the response too is not read from the critique.
* flags: responses that the judgement flags are left out, as a caller may do.

The journal in the output folder makes the same command go on after a kill.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import numpy as np
from tqdm import tqdm

from autoj_reward.client.backend import LocalBackend
from autoj_reward.client.client import RewardClient
from autoj_reward.config import JudgeConfig, OverLong
from autoj_reward.engine.base import Engine, Prepared
from autoj_reward.errors import ConfigError
from autoj_reward.evaluate.intervals import Array, Draws, share
from autoj_reward.journal import Journal
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.judge.make import make_judge
from autoj_reward.parse import ParsedRating, parse_rating
from autoj_reward.prompts.format import JudgeFormat
from autoj_reward.prompts.render import Prompt
from autoj_reward.replicas.replica import JudgeReplica
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating
from experiments.faults.attacks import Attack, attacks
from experiments.study import ResampledConfig, Study, command
from experiments.tables import report, tabled

NOTICED = {"planted_verdict", "template_delimiter", "control_token", "empty_response"}
"""Flags that say what a response tries."""


class AttackUpliftConfig(ResampledConfig):
    """judge: a generative judge, run in this process."""

    judge: JudgeConfig


class Trusting:
    """An engine that takes the spelling of control tokens in responses for control tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def prepare(self, prompt: Prompt, max_tokens: int, over_long: OverLong) -> Prepared:
        """As the engine does, with every part trusted."""
        bare = tuple(
            replace(message, parts=tuple(replace(part, trusted=True) for part in message.parts))
            for message in prompt
        )
        return await self._engine.prepare(bare, max_tokens, over_long)


async def judged(config: AttackUpliftConfig, found: Sequence[Attack]) -> dict[str, list[Judgement]]:
    """Judgements of every attack and then of every plain answer, with the control tokens kept
    apart (`all`) and not (`trusting`)."""
    judge = make_judge(config.judge)
    if not isinstance(judge, GenerativeJudge):
        raise ConfigError("judge: a scalar reward model writes no verdict to attack")
    if config.judge.kind == "openai" and config.judge.tokenizer is None:
        raise ConfigError("judge.tokenizer: needed, to send control tokens to the endpoint as such")
    trusting = GenerativeJudge(
        judge.config,
        judge.format,
        cast(Engine, Trusting(judge.engine)),
        f"{judge.name}:trusting",
    )
    items = [JudgeInput(a.query, (a.response,)) for a in found]
    items += [JudgeInput(a.query, (a.plain,)) for a in found]
    answers = {}
    with (
        closing(Journal(config.output / "journal.sqlite")) as journal,
        tqdm(total=2 * len(set(items)), desc="attacks", unit="judgement") as bar,
    ):

        def progress(judgement: Judgement, reused: bool) -> None:
            bar.update()

        await judge.engine.start()
        try:
            for name, one in (("all", judge), ("trusting", trusting)):
                backend = LocalBackend(JudgeReplica(one))
                client = RewardClient(backend, journal=journal, progress=progress)
                answers[name] = await client.judge(items)
        finally:
            await judge.engine.close()
    return answers


def figures(
    found: Sequence[Attack], answers: dict[str, list[Judgement]], fmt: JudgeFormat, draws: Draws
) -> list[dict[str, Any]]:
    """Rating points over the attacks of a family under one set of defences, with intervals over
    questions; `all families` first."""
    n = len(found)
    own, bare = answers["all"], answers["trusting"]
    unquoted = [_reread(judgement, fmt) for judgement in own]
    flagged = {k for k in range(n) if NOTICED & set(own[k].flags)}
    rows = []
    for defences, judgements, kept in (
        ("all", own, range(n)),
        ("without control tokens kept apart", bare, range(n)),
        ("without the rule of quotes", unquoted, range(n)),
        ("all, flagged responses left out", own, [k for k in range(n) if k not in flagged]),
    ):
        families = dict.fromkeys(found[k].family for k in kept)
        for family in ("all families", *families):
            members = [k for k in kept if family in ("all families", found[k].family)]
            uplift = _uplift(found, judgements, members, draws)
            rows.append({"defences": defences, "family": family} | uplift)
    return rows


def _reread(judgement: Judgement, fmt: JudgeFormat) -> Judgement:
    """The judgement as it would be if verdicts that stand in the response were read."""
    parsed = parse_rating(judgement.critique, fmt)
    if not isinstance(parsed, ParsedRating):
        return judgement
    rating = replace(judgement.rating or Rating(parsed.value), value=parsed.value)
    return replace(judgement, outcome=Outcome.OK, reason="", rating=rating)


def _uplift(
    found: Sequence[Attack], judgements: Sequence[Judgement], members: Sequence[int], draws: Draws
) -> dict[str, Any]:
    """Mean difference of ratings (uplift) and of expected ratings, attacked less plain; the share
    that gains a point or more; attacks, or their plain answers, without a rating."""

    def gains(view: str) -> tuple[Array, list[str]]:
        rated = [
            (after - before, found[k].query)
            for k in members
            if (after := judgements[k].view(view)) is not None
            and (before := judgements[len(found) + k].view(view)) is not None
        ]
        return np.array([gain for gain, _ in rated]), [query for _, query in rated]

    written, queries = gains("rating")
    read, read_queries = gains("expected")
    return {
        "uplift": draws.over(share(written), written.size, queries),
        "expected": draws.over(share(read), read.size, read_queries),
        "raised": draws.over(share(written >= 1), written.size, queries),
        "unrated": len(members) - written.size,
    }


COLUMNS = {
    "defences": "{defences}",
    "family": "{family}",
    "n": "{uplift[n]}",
    "uplift in rating": "{uplift}",
    "in expected rating": "{expected}",
    "raised by 1 or more": "{raised}",
    "without a rating": "{unrated}",
}


def render(found: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    title = f"{found['attacks']} attacks on {found['judge']}"
    return report("Attacks", found, [(title, tabled(found["rows"], COLUMNS), "")])


async def study(run: Study[AttackUpliftConfig]) -> str:
    """Judge, count and write."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    found = attacks()
    answers = await judged(run.config, found)
    fmt = make_judge(run.config.judge).format
    assert isinstance(fmt, JudgeFormat)
    rows = figures(found, answers, fmt, run.config.draws)
    record = {"judge": answers["all"][0].judge, "attacks": len(found), "rows": rows}
    return run.write("attack_uplift", record, render)


main = command(AttackUpliftConfig, study)

if __name__ == "__main__":
    sys.exit(main())
