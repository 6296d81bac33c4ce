"""Commands that judge: `autoj score`, `autoj compare` and `autoj serve`.

`score` and `compare` judge every row of a file and keep its order. Their journal stands beside the
output file, so the same command resumes after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autoj_reward.cli.endings import Ending
from autoj_reward.cli.main import (
    CONFIG,
    INPUT,
    LAYOUT,
    OUTPUT,
    RUN,
    SET,
    STRICT,
    STRICT_KEYS,
    calling,
    command,
)

if TYPE_CHECKING:
    from autoj_reward.client.panel import Panel
    from autoj_reward.config import RankConfig, RubricConfig, ScoreConfig, Scoring, View
    from autoj_reward.io.rows import Stream, TextRow
    from autoj_reward.models.spec import JudgeSpec
    from autoj_reward.questions.ask import Ask, BoundedQuestion
    from autoj_reward.questions.compare import Compare
    from autoj_reward.questions.listwise import Listwise
    from autoj_reward.questions.rank import Ranking
    from autoj_reward.questions.rate import Rate
    from autoj_reward.questions.rubric import RubricScore, ScoreRubric
    from autoj_reward.questions.tournament import Tournament
    from autoj_reward.types import Comparison, Judgement

T = TypeVar("T")
SHOWN_FIRST = "response_1", "response_2"
"""Response that is shown first in each order of a comparison."""
SUMMARY, JOURNAL = ".summary.json", ".journal.sqlite"
"""Suffixes of the files beside an output."""

serve = calling("autoj_reward.service.serve:main", RUN, SET, STRICT_KEYS)


@command(INPUT, OUTPUT, CONFIG, SET, LAYOUT, STRICT)
def score(
    source: str,
    output: str,
    config: str | None,
    sets: Sequence[str],
    layout: str | None,
    strict: bool,
) -> int:
    """Rate the response of every row."""
    from autoj_reward.client.panel import build_panel
    from autoj_reward.config import ScoreConfig
    from autoj_reward.config.load import with_layout
    from autoj_reward.io.candidates import text_rows
    from autoj_reward.io.layouts import SINGLE
    from autoj_reward.models.spec import join_context_columns, judge_spec
    from autoj_reward.models.unused import load_run
    from autoj_reward.questions.rate import rating_question
    from autoj_reward.types import Candidate

    require_separate_output((source, config), output)
    checked = load_run(ScoreConfig, config, with_layout(sets, layout), strict)
    spec = judge_spec(checked.judge).limited(checked.max_usd, checked.panel)
    if rubric := checked.rubric:
        return _score_rubrics(spec, rubric, checked, source, output, strict)
    panel = build_panel(spec, checked.panel, checked.reduce, "rating")
    judges = panel.specs.values() if panel else [spec]
    columns = join_context_columns([(one, "single") for one in judges], checked.columns)

    def make_question(row: TextRow) -> Rate:
        [response] = row.responses
        return rating_question(Candidate(row.prompt, response, context=row.context), spec.asks)

    rows = text_rows(source, SINGLE, columns, checked.columns, checked.layout)
    arguments = spec, rows, make_question, rating_fields, output, strict, checked
    return _judge("autoj score", *arguments, view="rating", panel=panel)


def _score_rubrics(
    spec: JudgeSpec,
    rubric: RubricConfig,
    config: ScoreConfig,
    source: str,
    output: str,
    strict: bool,
) -> int:
    """Score the response of every row by the items of its rubric."""
    from autoj_reward.io.candidates import text_rows
    from autoj_reward.io.layouts import SINGLE
    from autoj_reward.questions.rubric import rubric_question
    from autoj_reward.types import Candidate

    spec = spec.that_scores(rubric)

    def make_question(row: TextRow) -> ScoreRubric:
        [response] = row.responses
        candidate = Candidate(row.prompt, response, context=row.context, rubric=row.rubric)
        return rubric_question(candidate, spec.facts, spec.asks, rubric)

    columns = spec.context_columns(config.columns, rubric.protocol, rubric)
    rows = text_rows(source, SINGLE, columns, config.columns, config.layout)
    arguments = spec, rows, make_question, rubric_fields, output, strict, config
    return _judge("autoj score", *arguments, scoring=rubric)


@command(INPUT, OUTPUT, CONFIG, SET, LAYOUT, STRICT)
def compare(
    source: str,
    output: str,
    config: str | None,
    sets: Sequence[str],
    layout: str | None,
    strict: bool,
) -> int:
    """Compare response_1 and response_2 of every row."""
    from autoj_reward.config import ScoreConfig
    from autoj_reward.config.load import with_layout
    from autoj_reward.errors import ConfigError
    from autoj_reward.io.candidates import text_rows
    from autoj_reward.io.layouts import PAIR
    from autoj_reward.models.spec import judge_spec
    from autoj_reward.models.unused import load_run
    from autoj_reward.questions.compare import comparison_question
    from autoj_reward.types import Pair

    require_separate_output((source, config), output)

    def compares(config: ScoreConfig) -> bool:
        return True

    checked = load_run(ScoreConfig, config, with_layout(sets, layout), strict, compares)
    if checked.panel:
        raise ConfigError("panel rates responses for `autoj score`: a comparison has one judge")
    spec = judge_spec(checked.judge).limited(checked.max_usd)
    columns = spec.context_columns(checked.columns, "pairwise")

    def make_question(row: TextRow) -> Compare:
        first, second = row.responses
        pair = Pair(row.prompt, first, second, row.context)
        return comparison_question(pair, spec.facts, spec.asks, swap=checked.swap)

    rows = text_rows(source, PAIR, columns, checked.columns, checked.layout)
    return _judge(
        "autoj compare", spec, rows, make_question, verdict_fields, output, strict, checked
    )


@command(INPUT, OUTPUT, CONFIG, SET, LAYOUT, STRICT)
def rank(
    source: str,
    output: str,
    config: str | None,
    sets: Sequence[str],
    layout: str | None,
    strict: bool,
) -> int:
    """Judge the responses of every row together."""
    from autoj_reward.config import RankConfig
    from autoj_reward.config.load import with_layout
    from autoj_reward.io.candidates import text_rows
    from autoj_reward.io.layouts import GROUP
    from autoj_reward.models.spec import judge_spec
    from autoj_reward.models.unused import load_run
    from autoj_reward.questions.relative import rank_question
    from autoj_reward.types import Candidate

    require_separate_output((source, config), output)
    checked = load_run(RankConfig, config, with_layout(sets, layout), strict)
    spec = judge_spec(checked.judge).limited(checked.max_usd)
    relative = checked.relative or spec.facts.default_relative
    spec = spec.that_scores(relative)
    columns = spec.context_columns(checked.columns, relative.protocol)

    def make_question(row: TextRow) -> Listwise | Tournament:
        candidates = [
            Candidate(row.prompt, response, context=row.context) for response in row.responses
        ]
        return rank_question(candidates, spec.facts, spec.asks, relative)

    rows = text_rows(source, GROUP, columns, checked.columns, checked.layout)
    arguments = spec, rows, make_question, ranking_fields, output, strict, checked
    return _judge("autoj rank", *arguments, scoring=relative)


def ranking_fields(ranking: Ranking) -> dict[str, Any]:
    """Return the fields that `autoj rank` adds to a row: scores of the responses, and evidence."""
    known_scores = [score for score in ranking.scores if score is not None]
    failed = next((judgement for judgement in ranking.judgements if not judgement.ok), None)
    judge = next((judgement.judge for judgement in ranking.judgements), "")
    return {
        "outcome": "ok" if known_scores else failed.outcome.value if failed else "unparsable",
        "best": ranking.scores.index(max(known_scores)) if known_scores else None,
        **ranking.record(),
        "critiques": list(ranking.critiques),
        "judge": judge,
    }


def rubric_fields(rubric_score: RubricScore) -> dict[str, Any]:
    """Return the fields that `autoj score` adds to a row that is scored by its rubric."""
    judgement = rubric_score.as_judgement()
    return {
        "outcome": judgement.outcome.value,
        **rubric_score.record(),
        "forced": judgement.forced,
        "critique": judgement.critique,
        "flags": list(judgement.flags),
        "judge": judgement.judge,
    }


def require_separate_output(inputs: Sequence[str | None], output: str) -> None:
    """Raise OutputError if the output, its summary or its journal is also an input file."""
    from autoj_reward.io.files import require_apart

    require_apart(inputs, (output, output + SUMMARY, output + JOURNAL))


def rating_fields(judgement: Judgement) -> dict[str, Any]:
    """Return the fields that `autoj score` adds to a row."""
    from autoj_reward.questions.panel import member_ratings

    fields: dict[str, Any] = {
        "outcome": judgement.outcome.value,
        "reason": judgement.reason,
        "rating": judgement.view("rating"),
        "expected": judgement.view("expected"),
        "direct": judgement.view("direct"),
        "pessimistic": judgement.view("pessimistic"),
        "forced": judgement.forced,
        "critique": judgement.critique,
        "flags": list(judgement.flags),
        "judge": judgement.judge,
    }
    if ratings := member_ratings(judgement):
        fields["panel"] = ratings
    return fields | make_thinking_field(judgement)


def make_thinking_field(judgement: Judgement) -> dict[str, str]:
    """Return the field `thinking` for a judge with a thinking block, else no field."""
    return {"thinking": judgement.thinking} if judgement.thinking else {}


def verdict_fields(comparison: Comparison) -> dict[str, Any]:
    """Return the fields that `autoj compare` adds to a row.

    They are the joint verdict, the rule that decided (a comparison or the ratings), and the verdict
    and critique of each order.
    """
    from autoj_reward.questions.compare import BY_RATINGS

    first = next((order for order in comparison.orders if not order.ok), comparison.orders[0])
    return {
        "outcome": first.outcome.value if comparison.verdict.value == "failed" else "ok",
        "reason": comparison.reason,
        "verdict": comparison.verdict.value,
        "rule": "ratings" if BY_RATINGS in first.flags else "comparison",
        "orders": [
            {
                "shown_first": shown_first,
                "verdict": order.verdict.value if order.verdict else None,
                "forced": order.forced,
                "critique": order.critique,
            }
            | make_thinking_field(order)
            for shown_first, order in zip(SHOWN_FIRST, comparison.orders, strict=False)
        ],
        "judge": comparison.orders[0].judge,
    }


def _judge(
    command_name: str,
    spec: JudgeSpec,
    rows: Stream[TextRow],
    make_question: Callable[[TextRow], BoundedQuestion[T]],
    fields: Callable[[T], dict[str, Any]],
    output: str,
    strict: bool,
    config: ScoreConfig | RankConfig,
    view: View | None = None,
    scoring: Scoring | None = None,
    panel: Panel | None = None,
) -> int:
    """Judge every row and write it with the new fields; write and print the summary. Returns 0, or
    1 if every row failed.

    config: of the command. view: the number that the judge must give; None where verdicts or
    scores count. scoring: what scores in place of a view, for the log line. panel: judges that rate
    beside this one.
    """
    from autoj_reward.evaluate.ask import ask_each
    from autoj_reward.io.claims import judged_by
    from autoj_reward.io.files import filling, to_plain, write_json
    from autoj_reward.io.rows import join_fields, look_through
    from autoj_reward.io.track import tracking

    total = 0
    ending = Ending()

    def expect(row: TextRow) -> None:
        nonlocal total
        total += make_question(row).most_inputs

    left_out = look_through(rows, strict, expect)
    result, journal = Path(output), Path(output + JOURNAL)
    method = scoring.by if scoring else None
    claim = judged_by(
        panel.name if panel else spec.name,
        result,
        result,
        command=command_name,
        total=total,
        scored_by=method,
        vote=spec.asks.vote,
        panel=panel is not None,
        files=(output + SUMMARY,),
    )
    tracked = tracking(config.track, output, config)

    def make_summary() -> dict[str, Any]:
        bad = [to_plain(row) for row in left_out.first]
        return ending.fields() | {"left_out": bad, "rows_left_out": left_out.count}

    with claim:
        with tracked as reports, filling(output) as file:

            def count_inputs(item: tuple[TextRow, BoundedQuestion[T]]) -> int:
                return item[1].most_inputs

            def write_answer(item: tuple[TextRow, BoundedQuestion[T]], answer: T) -> None:
                added = fields(answer)
                ending.add_row(added)
                file.line(join_fields(item[0].fields, added))
                reports.offer(ending.rows, make_summary)

            async def answer_item(
                ask: Ask, item: tuple[TextRow, BoundedQuestion[T]]
            ) -> tuple[T, Sequence[Judgement]]:
                async def ask_and_count(*asked: Any) -> list[Judgement]:
                    judgements = await ask(*asked)
                    ending.add_judgements(judgements)
                    return judgements

                return await item[1].answer(ask_and_count), ()

            items = ((row, make_question(row)) for row in rows.usable())
            ask_each(
                spec,
                journal,
                items,
                answer_item,
                write_answer,
                "judging",
                count_inputs,
                total,
                view,
                scoring=scoring,
                panel=panel,
            )
            reports.send(ending.rows, make_summary())
        write_json(output + SUMMARY, make_summary())
    for problem in ending.find_problems():
        print(f"{command_name}: warning: {problem}", file=sys.stderr)
    print(f"{ending.describe()}; {left_out.count} left out; results: {output}")
    return 1 if ending.all_failed else 0
