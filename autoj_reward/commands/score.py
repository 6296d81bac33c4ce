"""`autoj score` and `autoj compare`: judge every row of a file, same order out.

The journal stands beside the output file, so the same command after a crash goes on where it
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoj_reward.commands.flags import CONFIG, INPUT, OUTPUT, SET, STRICT, command

if TYPE_CHECKING:
    from autoj_reward.config import JudgeConfig
    from autoj_reward.io.rows import Rows, TextRow
    from autoj_reward.types import Comparison, Judgement


@command(INPUT, OUTPUT, CONFIG, SET, STRICT)
def score(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Rate query and response of every row."""
    from autoj_reward.config import ScoreConfig, load_config
    from autoj_reward.evaluate.ask import rate_all
    from autoj_reward.io.rows import read_texts, require_usable
    from autoj_reward.models import context_asked
    from autoj_reward.types import Candidate

    checked = load_config(ScoreConfig, config, sets)
    wanted = context_asked(checked.judge, checked.columns, "single")
    rows = read_texts(source, "query", "response", asked=wanted)
    require_usable(rows, source, strict)
    asked = [
        Candidate(query, response, context=row.context)
        for row in rows.rows
        for query, response in [row.texts]
    ]
    with _claimed(checked.judge, output):
        found = rate_all(checked.judge, _journal(output), asked, "judging")
        return _write(output, rows, [rating_fields(judgement) for judgement in found])


@command(INPUT, OUTPUT, CONFIG, SET, STRICT)
def compare(source: str, output: str, config: str | None, sets: Sequence[str], strict: bool) -> int:
    """Compare response_1 and response_2 of every row."""
    from autoj_reward.config import ScoreConfig, load_config
    from autoj_reward.evaluate.ask import compare_all
    from autoj_reward.io.rows import read_texts, require_usable
    from autoj_reward.models import context_asked
    from autoj_reward.types import Contest

    checked = load_config(ScoreConfig, config, sets)
    wanted = context_asked(checked.judge, checked.columns, "pairwise")
    rows = read_texts(source, "query", "response_1", "response_2", asked=wanted)
    require_usable(rows, source, strict)
    asked = [
        Contest(query, first, second, row.context)
        for row in rows.rows
        for query, first, second in [row.texts]
    ]
    with _claimed(checked.judge, output):
        found = compare_all(checked.judge, _journal(output), asked, "judging", swap=checked.swap)
        return _write(output, rows, [verdict_fields(comparison) for comparison in found])


def rating_fields(judgement: Judgement) -> dict[str, Any]:
    """What `autoj score` adds to a row."""
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
    """What the judge thought before it spoke, for a judge that does."""
    return {"thinking": judgement.thinking} if judgement.thinking else {}


def verdict_fields(comparison: Comparison) -> dict[str, Any]:
    """What `autoj compare` adds to a row: the joint verdict, whether the judge compared the two
    or their ratings decided, and what each order said."""
    from autoj_reward.judge.by_ratings import BY_RATINGS

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


def _claimed(judge: JudgeConfig, output: str) -> AbstractContextManager[None]:
    from autoj_reward.io.claims import judged_by
    from autoj_reward.judge.make import judge_name

    return judged_by(judge_name(judge), Path(output), Path(output))


def _journal(output: str) -> Path:
    return Path(output + ".journal.sqlite")


def _write(output: str, rows: Rows[TextRow], added: Sequence[dict[str, Any]]) -> int:
    from collections import Counter

    from autoj_reward.io.files import to_json, write_json, write_jsonl
    from autoj_reward.io.rows import joined

    write_jsonl(output, (joined(r.fields, a) for r, a in zip(rows.rows, added, strict=True)))
    outcomes = Counter(fields["outcome"] for fields in added)
    left_out = [to_json(bad) for bad in rows.bad]
    summary = {"rows": len(added), "outcomes": dict(outcomes), "left_out": left_out}
    write_json(output + ".summary.json", summary)
    said = ", ".join(f"{n} {name}" for name, n in outcomes.most_common())
    print(f"{len(added)} rows: {said}; {len(rows.bad)} left out; results: {output}")
    return 0
