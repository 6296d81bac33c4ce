"""`autoj score` and `autoj compare` judge every row of a file, same order out; `autoj serve` judges
over HTTP.

The journal of `score` and `compare` stands beside the output file, so the same command after a
crash goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autoj_reward.cli.main import (
    CONFIG,
    INPUT,
    OUTPUT,
    RUN,
    SET,
    STRICT,
    STRICT_KEYS,
    calling,
    command,
)

if TYPE_CHECKING:
    from autoj_reward.config import View
    from autoj_reward.io.rows import Stream, TextRow
    from autoj_reward.models.spec import JudgeSpec
    from autoj_reward.questions.ask import Ask, OneCall
    from autoj_reward.types import Comparison, Judgement

T = TypeVar("T")
SUMMARY, JOURNAL = ".summary.json", ".journal.sqlite"
"""Endings of what goes beside an output."""

serve = calling("autoj_reward.service.serve:main", RUN, SET, STRICT_KEYS)


@command(INPUT, OUTPUT, CONFIG, SET, STRICT)
def score(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Rate query and response of every row."""
    from autoj_reward.config import ScoreConfig
    from autoj_reward.io.rows import text_rows
    from autoj_reward.models.spec import judge_spec
    from autoj_reward.models.unused import load_run
    from autoj_reward.questions.rate import Rate
    from autoj_reward.types import Candidate

    require_own((source, config), output)
    checked = load_run(ScoreConfig, config, sets, strict)
    spec = judge_spec(checked.judge)
    wanted = spec.context_columns(checked.columns, "single")

    def question(row: TextRow) -> Rate:
        query, response = row.texts
        return Rate(Candidate(query, response, context=row.context), spec.critiques)

    rows = text_rows(source, "query", "response", asked=wanted)
    return _judge(spec, rows, question, rating_fields, output, strict, "rating")


@command(INPUT, OUTPUT, CONFIG, SET, STRICT)
def compare(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Compare response_1 and response_2 of every row."""
    from autoj_reward.config import ScoreConfig
    from autoj_reward.io.rows import text_rows
    from autoj_reward.models.spec import judge_spec
    from autoj_reward.models.unused import load_run
    from autoj_reward.questions.compare import Compare
    from autoj_reward.types import Pair

    require_own((source, config), output)
    checked = load_run(ScoreConfig, config, sets, strict)
    spec = judge_spec(checked.judge)
    wanted = spec.context_columns(checked.columns, "pairwise")

    def question(row: TextRow) -> Compare:
        query, first, second = row.texts
        return Compare(Pair(query, first, second, row.context), checked.swap, spec.ratings_tie)

    rows = text_rows(source, "query", "response_1", "response_2", asked=wanted)
    return _judge(spec, rows, question, verdict_fields, output, strict)


def require_own(read: Sequence[str | None], output: str) -> None:
    """Refuse an output that is, or has beside it, a file that is read. Raises OutputError."""
    from autoj_reward.io.files import require_apart

    require_apart(read, (output, output + SUMMARY, output + JOURNAL))


def rating_fields(judgement: Judgement) -> dict[str, Any]:
    """Return what `autoj score` adds to a row."""
    return {
        "outcome": judgement.outcome.value,
        "reason": judgement.reason,
        "rating": judgement.view("rating"),
        "expected": judgement.view("expected"),
        "direct": judgement.view("direct"),
        "forced": judgement.forced,
        "critique": judgement.critique,
        "flags": list(judgement.flags),
        "judge": judgement.judge,
    } | thinking_of(judgement)


def thinking_of(judgement: Judgement) -> dict[str, str]:
    """Return what the judge thought before its answer, for a judge with a thinking block."""
    return {"thinking": judgement.thinking} if judgement.thinking else {}


def verdict_fields(comparison: Comparison) -> dict[str, Any]:
    """Return what `autoj compare` adds to a row: the joint verdict, whether the judge compared
    the two or their ratings decided, and what each order said."""
    from autoj_reward.questions.compare import BY_RATINGS

    first = next((o for o in comparison.orders if not o.ok), comparison.orders[0])
    return {
        "outcome": first.outcome.value if comparison.verdict.value == "failed" else "ok",
        "reason": comparison.reason,
        "verdict": comparison.verdict.value,
        "rule": "ratings" if BY_RATINGS in first.flags else "comparison",
        "orders": [
            {
                "verdict": o.verdict.value if o.verdict else None,
                "forced": o.forced,
                "critique": o.critique,
            }
            | thinking_of(o)
            for o in comparison.orders
        ],
        "judge": comparison.orders[0].judge,
    }


def _judge(
    spec: JudgeSpec,
    rows: Stream[TextRow],
    question: Callable[[TextRow], OneCall[T]],
    fields: Callable[[T], dict[str, Any]],
    output: str,
    strict: bool,
    view: View | None = None,
) -> int:
    """Judge row by row, and write each with the fields that were found. view: the number that the
    judge must give."""
    from autoj_reward.evaluate.ask import ask_each
    from autoj_reward.io.claims import judged_by
    from autoj_reward.io.files import filling, to_json, write_json
    from autoj_reward.io.rows import join_fields, look_through

    total = 0
    outcomes: Counter[str] = Counter()

    def expect(row: TextRow) -> None:
        nonlocal total
        total += len(question(row).inputs())

    left_out = look_through(rows, strict, expect)
    result, journal = Path(output), Path(output + JOURNAL)
    with judged_by(spec.name, result, result, total), filling(output) as file:

        def done(row: TextRow, found: T) -> None:
            added = fields(found)
            outcomes[added["outcome"]] += 1
            file.line(join_fields(row.fields, added))

        async def answer(ask: Ask, row: TextRow) -> tuple[T, Sequence[Judgement]]:
            return await question(row).answer(ask), ()

        def size(row: TextRow) -> int:
            return len(question(row).inputs())

        ask_each(spec, journal, rows.usable(), answer, done, "judging", size, total, view)
    count, named = outcomes.total(), [to_json(bad) for bad in left_out.first]
    summary = {"rows": count, "outcomes": dict(outcomes), "left_out": named}
    write_json(output + SUMMARY, summary | {"rows_left_out": left_out.count})
    said = ", ".join(f"{n} {name}" for name, n in outcomes.most_common())
    print(f"{count} rows: {said}; {left_out.count} left out; results: {output}")
    return 0
