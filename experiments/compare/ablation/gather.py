"""Everything that is measured, gathered through the journal: candidates, grades and judgements."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from tqdm import tqdm

from autoj_reward.config import PolicyConfig
from autoj_reward.errors import InputError
from autoj_reward.io.rows import Rows, read_queries, require_usable
from autoj_reward.journal import Journal, Sampled
from autoj_reward.judge.make import judge_name
from autoj_reward.replicas.cluster import Cluster
from autoj_reward.replicas.replica import policy_name
from autoj_reward.types import BadRow, JudgeInput
from experiments.compare.ablation.checkers import Checkable, grade, read_checkable
from experiments.compare.ablation.config import RewardAblationConfig
from experiments.compare.ablation.figures import Run
from experiments.compare.ablation.pairs import alone_inputs
from experiments.compare.ablation.rewards import KNOWN, Group
from experiments.compare.panel import Material, ask, read_material
from rollouts.best_of_n.stages import sample_missing

Said = tuple[str, str]
"""A query and a response."""


def read_rows(config: RewardAblationConfig) -> Rows[Checkable]:
    """The queries; repeated ones are bad, since they would count as independent."""
    if config.gold is None:
        read = read_checkable(config.queries)
    else:
        plain_rows = read_queries(config.queries)
        own = tuple(Checkable(row.line, row.query, "", ()) for row in plain_rows.rows)
        read = Rows(own, plain_rows.bad)
    first: dict[str, int] = {}
    kept, bad = [], list(read.bad)
    for row in read.rows:
        if row.query in first:
            why = f"repeats the query of line {first[row.query]}"
            bad.append(BadRow(config.queries, row.line, "query", why))
        else:
            first[row.query] = row.line
            kept.append(row)
    rows = Rows(tuple(kept), tuple(bad))
    require_usable(rows, config.queries)
    return rows


async def sampled_responses(
    policy: PolicyConfig, queries: Sequence[str], journal: Journal
) -> dict[str, Sampled | str]:
    """policy.n responses to every query, or the reason why there are none."""
    cluster = Cluster()
    try:
        with tqdm(total=len(queries) * policy.n, desc="sampling", unit="response") as bar:

            def progress(done: Sampled) -> None:
                bar.update(len(done.responses))

            failed = await sample_missing(queries, policy, journal, progress, cluster)
    finally:
        cluster.close()
    name = policy_name(policy)
    kept = {query: journal.get_samples(name, query) for query in queries}
    return {query: own or failed[query] for query, own in kept.items()}


async def put_graded(
    run: Run,
    rows: Sequence[Checkable],
    sampled: Mapping[str, Sampled | str],
    bad: list[BadRow],
    journal: Journal,
) -> None:
    """Put graded candidates into the run. InputError if fewer than two queries are left."""
    answered = [(row, sampled[row.query]) for row in rows]
    said: list[Said] = [
        (row.query, response)
        for row, answer in answered
        if isinstance(answer, Sampled)
        for response in answer.responses
    ]
    gold = await _gold(run.config, rows, said, journal)
    for row, answer in answered:
        if isinstance(answer, str):
            bad.append(BadRow(run.config.queries, row.line, "query", answer))
            continue
        known = [
            (response, logprob, value)
            for response, logprob in zip(answer.responses, answer.logprobs, strict=True)
            if (value := gold[row.query, response]) is not None
        ]
        run.ungraded += len(answer.responses) - len(known)
        if len(known) < run.config.costly.candidates:
            why = f"{len(known)} graded candidates, fewer than costly.candidates"
            bad.append(BadRow(run.config.queries, row.line, "query", why))
            continue
        responses, logprobs, values = zip(*known, strict=True)
        run.groups.append(Group(row.query, responses, logprobs, values))
    if len(run.groups) < 2:
        raise InputError(
            f"{run.config.queries}: {len(run.groups)} queries with graded candidates, and an "
            "interval over queries needs two"
        )


async def _gold(
    config: RewardAblationConfig, rows: Sequence[Checkable], said: Sequence[Said], journal: Journal
) -> dict[Said, float | None]:
    """Gold of every response; None where the gold judge abstains."""
    if config.gold is None:
        checks = {row.query: row.checks for row in rows}
        return {(query, text): grade(text, checks[query]) for query, text in dict.fromkeys(said)}
    one = config.gold.model_copy(update={"critiques": 1})
    answers = await ask(one, journal, (JudgeInput(query, (text,)) for query, text in said))
    return {
        (item.query, item.responses[0]): judgement.view(config.gold_view)
        for item, judgement in answers.items()
    }


async def gather(
    config: RewardAblationConfig, parts: tuple[str, ...], limit: int | None = None
) -> tuple[Run, list[BadRow]]:
    """Sample, grade and ask what the parts need; also the rows that were left out.

    limit: queries, and rows of labelled pairs. Raises AutojError.
    """
    rows = read_rows(config)
    bad = list(rows.bad)
    material, bad_pairs = _material(config, parts, limit)
    gathered = Run(config, parts, material)
    with closing(Journal(config.journal or config.output / "journal.sqlite")) as journal:
        asked = rows.rows[:limit]
        queries = [row.query for row in asked]
        responses = await sampled_responses(config.policy, queries, journal)
        await put_graded(gathered, asked, responses, bad, journal)
        for name, inputs in _inputs(gathered).items():
            own = config.judges[name]
            new = len(set(inputs) - journal.get(judge_name(own), inputs).keys())
            started = time.monotonic()
            gathered.answers[name] = await ask(own, journal, inputs)
            gathered.seconds[name] = (time.monotonic() - started, new)
    return gathered, [*bad, *bad_pairs]


def _material(
    config: RewardAblationConfig, parts: Sequence[str], limit: int | None
) -> tuple[Material, list[BadRow]]:
    """Test and validation pairs."""
    if "eval_p" not in parts:
        return Material(draws=config.draws), []
    own = config.model_copy(update={"data": config.data.model_copy(update={"rated": ()})})
    return read_material(own, config.format, limit)


def _inputs(run: Run) -> dict[str, list[JudgeInput]]:
    """All that each judge is asked, in the order of the config's judges."""
    config = run.config
    found: dict[str, list[JudgeInput]] = {name: [] for name in config.judges}
    for own in {(own.judge, own.part): own for own in KNOWN.values()}.values():
        asked = found.get(own.judge, [])
        if own.part in run.parts:
            asked += run.inputs(own)
        if "eval_p" in run.parts and not own.costly:
            asked += alone_inputs(run.material)
    return {name: list(dict.fromkeys(inputs)) for name, inputs in found.items() if inputs}
