"""`autoj rate`: one verdict in the terminal, with its critique and its distribution as bars."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autoj_reward.cli.main import CONFIG, SET, command, flag

if TYPE_CHECKING:
    from autoj_reward.config import JudgeConfig
    from autoj_reward.questions.rubric import RubricScore
    from autoj_reward.types import Comparison, Judgement

MOST_WIDTH = 100
"""Largest width of the output in characters, for reading."""
BAR_WIDTH = 32
"""Length of the bar of a probability of 1, in characters."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
"""Bars of zero to eight eighths of a character."""
LEAST_SHOWN = 0.005
"""Probability below which a label gets no line, since it reads 0.00."""
CHAT_FORMATS = {"rubric": "rubric-item", "reference": "rubric"}
"""Formats for any chat model that show what the default one does not, by the flag that needs it."""


@command(
    flag("query", metavar="QUERY", help="the query, or @FILE that holds it"),
    flag("response", metavar="RESPONSE", help="the response to judge, or @FILE that holds it"),
    flag("--judge", metavar="MODEL", help="model, folder or known name (the default judge)"),
    flag("--base-url", metavar="URL", help="ask this OpenAI-compatible endpoint for the model"),
    flag("--api-key-env", metavar="NAME", help="variable that holds the endpoint's key"),
    flag("--format", metavar="NAME", dest="format_name", help="judge format (that of the model)"),
    flag("--against", metavar="RESPONSE", help="compare with this response, in both orders"),
    flag("--reference", metavar="TEXT", help="reference answer that the judge is shown"),
    flag(
        "--rubric",
        action="append",
        default=[],
        metavar="CRITERION",
        help="criterion that the response is scored by; again for more",
    ),
    CONFIG,
    SET,
)
def rate(
    query: str,
    response: str,
    judge: str | None,
    base_url: str | None,
    api_key_env: str | None,
    format_name: str | None,
    against: str | None,
    reference: str | None,
    rubric: Sequence[str],
    config: str | None,
    sets: Sequence[str],
) -> int:
    """Ask a judge one question. Returns 1 if it abstains."""
    import asyncio

    from autoj_reward.config import ScoreConfig
    from autoj_reward.errors import ConfigError
    from autoj_reward.models.unused import load_run

    if against is not None and rubric:
        raise ConfigError("--against compares and --rubric scores one response: leave out one")
    if base_url is not None and judge is None and config is None:
        raise ConfigError("--base-url names no model: add --judge MODEL, its name at the endpoint")
    named_keys = {
        "model": judge,
        "kind": None if base_url is None else "openai",
        "base_url": base_url,
        "api_key_env": api_key_env,
        "format": format_name or _choose_format(base_url, bool(rubric), reference is not None),
    }
    named = [f"judge.{key}={json.dumps(value)}" for key, value in named_keys.items() if value]
    judge_config = load_run(ScoreConfig, config, [*sets, *named]).judge
    texts = [read_text(text) for text in (query, response, *([against] if against else []))]
    context = {} if reference is None else {"reference": read_text(reference)}
    lines, is_ok = asyncio.run(ask(judge_config, texts, context, rubric))
    print("\n".join(lines))
    return 0 if is_ok else 1


def _choose_format(base_url: str | None, has_rubric: bool, has_reference: bool) -> str | None:
    """Return a format that shows what was given to a chat model; None for the model's own."""
    if base_url is None:
        return None
    if has_rubric:
        return CHAT_FORMATS["rubric"]
    return CHAT_FORMATS["reference"] if has_reference else None


def read_text(argument: str) -> str:
    """Return an argument's text: that of a file if it begins with `@`. Raises InputError."""
    from autoj_reward.errors import InputError

    if not argument.startswith("@"):
        return argument
    try:
        with open(argument[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{argument}: {error}") from error


async def ask(
    config: JudgeConfig, texts: Sequence[str], context: dict[str, str], rubric: Sequence[str]
) -> tuple[list[str], bool]:
    """Ask the judge, and return the lines to print and whether there is a verdict."""
    from autoj_reward.client.judge import AsyncJudge

    query, response, *others = texts
    print(f"judge {config.model}: starting", file=sys.stderr)
    async with AsyncJudge(config) as judge:
        if others:
            comparison = await judge.compare(query, response, others[0], context=context)
            return list(show_comparison(comparison)), comparison.verdict.value != "failed"
        if rubric:
            score = await judge.score_rubric(query, response, rubric, context=context)
            return list(show_rubric(score)), score.score is not None
        judgement = await judge.rate(query, response, context=context)
        return list(show_judgement(judgement)), judgement.ok


def show_judgement(judgement: Judgement) -> Iterator[str]:
    """Yield the lines that show a rating: critique, number, and its distribution as bars."""
    yield from _show_critique(judgement.critique)
    if not judgement.ok:
        yield f"no rating: {judgement.why}"
    for reading in judgement.readings:
        if reading.value is None:
            continue
        parts = [f"{reading.slot} {reading.label}"]
        parts += [f"expected {reading.expected:.2f}"] if reading.expected is not None else []
        parts += ["forced: the judge wrote none"] if reading.forced else []
        yield ", ".join(parts)
        yield from _show_distribution(reading.distribution)
    yield from _show_flags(judgement.flags)


def show_comparison(comparison: Comparison) -> Iterator[str]:
    """Yield the lines that show a comparison: each order, then the verdict over both."""
    for number, order in enumerate(comparison.orders):
        shown_first = ("RESPONSE", "--against")[number]
        yield f"## {shown_first} shown first"
        yield ""
        yield from _show_critique(order.critique)
        if order.verdict is None:
            yield f"no verdict: {order.why}"
        else:
            yield f"verdict {order.verdict.value}"
            yield from _show_distribution(order.confidence)
        yield from _show_flags(order.flags)
        yield ""
    meaning = {"first": "RESPONSE is better", "second": "--against is better"}
    verdict = comparison.verdict.value
    yield f"both orders: {meaning.get(verdict, verdict)}" + (
        f" ({comparison.reason})" if comparison.reason else ""
    )


def show_rubric(score: RubricScore) -> Iterator[str]:
    """Yield the lines that show a rubric's score: critiques, the items, and the score."""
    yield from _show_critique(score.critique)
    for verdict in score.verdicts:
        share = "  –  " if verdict.share is None else f"{verdict.share:5.2f}"
        bar = make_bar(verdict.share or 0.0)
        answer = verdict.answer or f"no answer: {verdict.reason}"
        yield f"{share} {bar} {verdict.item.criterion} ({answer})"
    yield f"score {score.score:.3f}" if score.score is not None else f"no score: {score.reason}"


def _show_critique(critique: str) -> Iterator[str]:
    """Yield a critique wrapped to the terminal's width, and an empty line after it."""
    width = min(MOST_WIDTH, shutil.get_terminal_size().columns)
    for line in critique.strip().splitlines():
        yield from textwrap.wrap(line, width) or [""]
    if critique.strip():
        yield ""


def _show_distribution(distribution: tuple[tuple[str, float], ...] | None) -> Iterator[str]:
    """Yield a bar for each label that is probable enough to be seen."""
    if distribution is None:
        yield "no distribution: its server tells no log-probabilities, or they were not asked for"
        return
    width = max(len(label) for label, _ in distribution)
    for label, p in distribution:
        if p >= LEAST_SHOWN:
            yield f"{label:>{width}} {p:5.2f} {make_bar(p)}".rstrip()


def make_bar(share: float) -> str:
    """Return a bar of block characters for a share of 0 to 1, padded to BAR_WIDTH."""
    whole, eighths = divmod(round(share * BAR_WIDTH * 8), 8)
    return (EIGHTHS[8] * whole + EIGHTHS[eighths].strip()).ljust(BAR_WIDTH)


def _show_flags(flags: Sequence[str]) -> Iterator[str]:
    if flags:
        yield f"flags: {', '.join(flags)}"
