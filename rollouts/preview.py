"""See what a judge sees: `autoj preview`.

    autoj preview --config configs/trainers/grpo.yaml --response "I do not know."

For the first rows of a run file it prints each prompt of the judge, the judge's text, what is read
at the slots, and the reward. The judge is the one of the run file; the judges of a panel are shown
one after the other. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from autoj_reward.config import (
    JUDGE,
    BestOfNConfig,
    Block,
    PanelJudge,
    RewardConfig,
    ScoreConfig,
)
from autoj_reward.config.load import read_config
from autoj_reward.conversation import Context, ContextColumn, Prompt, Response
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.io.candidates import (
    naming_layout,
    prompt_of_row,
    read_context,
    response_of_row,
)
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item
from autoj_reward.io.layouts import PAIR
from autoj_reward.io.markup import visible
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import Stream
from autoj_reward.journal.reading import Entry, Reader
from autoj_reward.judge.prompt_text import CLOSE, OPEN, load_prompt_tokenizer, prompt_text
from autoj_reward.models.spec import JudgeSpec, judge_spec
from autoj_reward.models.unused import load_run
from autoj_reward.rubric_items import RubricItem
from autoj_reward.service.serve import EdgeConfig
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import BadRow, Candidate, Judgement, Pair, Reading
from rollouts.best_of_n.job import build_job
from rollouts.train.learner import TrainConfig
from rollouts.train.rejection_sampling import RejectionSamplingConfig, job_of_round

KINDS: tuple[type[Block], ...] = (
    RewardConfig,
    BestOfNConfig,
    RejectionSamplingConfig,
    EdgeConfig,
    TrainConfig,
    ScoreConfig,
)
"""Run files with a judge that can be previewed. A file is of the kind that has most of its keys;
of several it is the first one for which least is missing."""
LABELS = 12
"""Maximum labels of a distribution that are printed, the likeliest ones."""


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """Texts of one input row that the judge is asked about."""

    line: int
    """Number of the row, from 1."""
    prompt: Prompt
    responses: tuple[Response, ...]
    compared: bool
    """Whether the row is a pair to compare."""
    context: Context
    rubric: tuple[RubricItem, ...]

    @property
    def candidates(self) -> list[Candidate]:
        """Return the candidates, which are one group."""
        return [
            Candidate(self.prompt, response, context=self.context, rubric=self.rubric)
            for response in self.responses
        ]


@dataclass(frozen=True, slots=True)
class PreviewRun:
    """The parts of a run file that a preview uses."""

    reward: RewardConfig
    input: str | None
    """Input of the run file; None where it names none."""
    number: str
    """Name of the number that a response gets: `reward`, or the view that ranks in a job."""
    swap: bool = True
    """Whether pairs are compared in both orders."""
    pairwise: bool = False
    """Whether two responses of a row are compared and not rated."""
    layout: str | None = None
    """Layout of the rows; None finds that of each row."""
    panel: Mapping[str, PanelJudge] = field(default_factory=dict)
    """Further judges of the run file, by name."""

    def by_judge(self) -> Iterator[tuple[str, PreviewRun]]:
        """Yield the name and the run of each judge alone, that of `judge` first."""
        yield JUDGE, self
        for name, member in self.panel.items():
            reward = self.reward.model_copy(update={"judge": member.judge})
            yield name, replace(self, reward=reward)


def main(
    config: str | None,
    sets: Sequence[str],
    source: str | None,
    count: int,
    responses: Sequence[str],
) -> int:
    """Print what the judge is asked and answers for the first rows. Returns the exit code 0.

    source: rows in place of the run file's input. count: number of rows. responses: texts to judge
    in rows without a response.
    """
    if count < 1:
        raise ConfigError(f"--rows is {count}: show 1 or more")
    run = preview_run(config, sets)
    name = source or run.input
    if name is None:
        raise ConfigError("this run file names no rows: give them by --input FILE")
    for judge, own_run in run.by_judge():
        # One judge is open at a time, so that a panel needs no more memory than its largest judge.
        if run.panel:
            print(f"##### {judge} #####\n", flush=True)
        if not _show_rows(own_run, name, count, responses):
            raise InputError(f"{name}: no row to show; those that were read are named above")
    if run.panel:
        print("The job asks each judge as above, and counts their vote.")
    return 0


def _show_rows(run: PreviewRun, source: str, count: int, responses: Sequence[str]) -> int:
    """Print the first rows, and return how many were judged. Arguments are as for `main`."""
    shown_rows = 0
    with TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.sqlite"
        with RewardModel(_add_journal(run.reward, journal)) as model:
            preview = Preview(run, model, Reader(journal))
            rows = preview_rows(
                source, model.fields.asked, responses, run.pairwise, run.reward.columns, run.layout
            )
            for row in _take_first(rows, count):
                if isinstance(row, BadRow):
                    print(f"left out {visible(row)}\n")
                    continue
                shown_rows += 1
                print("\n".join(preview.lines(row)), flush=True)
    return shown_rows


def preview_run(config: str | None, sets: Sequence[str]) -> PreviewRun:
    """Read a run file of any of KINDS. Raises ConfigError for one that is wrong or has no judge."""
    keys = set(read_config(config, sets))

    def fit(kind: type[Block]) -> tuple[int, int]:
        fields = kind.model_fields
        missing = [name for name in fields if fields[name].is_required() and name not in keys]
        return len(keys & set(fields)), -len(missing)

    checked = load_run(max(KINDS, key=fit), config, sets)
    if isinstance(checked, RejectionSamplingConfig):
        checked = job_of_round(checked, checked.policy.model, 1)
    match checked:
        case RewardConfig():
            return PreviewRun(_add_default_scoring(checked), None, "reward")
        case EdgeConfig():
            return PreviewRun(_add_default_scoring(checked.reward), None, "reward")
        case TrainConfig():
            source, pairwise = checked.input, checked.pairwise
            return PreviewRun(
                _add_default_scoring(checked.reward), source, "reward", pairwise=pairwise
            )
        case BestOfNConfig():
            job = build_job(checked)
            number = "score" if checked.scoring else job.choice.view
            view = "auto" if checked.scoring else job.choice.view
            reward = RewardConfig(
                judge=job.judge.config,
                view=view,
                columns=checked.columns,
                relative=checked.relative,
                rubric=checked.rubric,
            )
            return PreviewRun(
                reward, checked.input, number, layout=checked.layout, panel=checked.panel
            )
    assert isinstance(checked, ScoreConfig)
    reward = RewardConfig(judge=checked.judge, columns=checked.columns, rubric=checked.rubric)
    reward = _add_default_scoring(reward)
    return PreviewRun(
        reward, None, "reward", swap=checked.swap, layout=checked.layout, panel=checked.panel
    )


def _add_default_scoring(config: RewardConfig) -> RewardConfig:
    """Return the config with the default way of scoring if the judge cannot rate one response.

    Its format may only rank groups, answer rubric items, or compare.
    """
    spec = judge_spec(config.judge)
    if config.scoring or config.service or spec.rates:
        return config
    if spec.facts.max_items is not None:
        return config.model_copy(update={"rubric": spec.facts.default_rubric})
    return config.model_copy(update={"relative": spec.facts.default_relative})


def _add_journal(config: RewardConfig, journal: Path) -> RewardConfig:
    """Return the config with a new journal, which records what the judge is asked, without an audit
    and with failure budgets that never end the preview."""
    parts = {
        name: part.model_copy(update={"failures": part.failures.model_copy(update={"budget": 1.0})})
        for name, part in config.parts.items()
    }
    failures = config.failures.model_copy(update={"budget": 1.0})
    changed = {"journal": journal, "parts": parts, "failures": failures, "audit": None}
    return config.model_copy(update=changed)


def preview_rows(
    source: str,
    context_columns: Sequence[ContextColumn],
    default_responses: Sequence[str],
    pairwise: bool = False,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
) -> Stream[PreviewRow]:
    """Stream rows for any job or trainer: a response, a pair, a group, or a prompt alone.

    A row without a response gets the `default_responses`, and is bad if there are none.
    context_columns: context fields to read. pairwise: whether two responses are a pair. columns,
    layout: as for `read_items`.
    """

    def build(item: Item) -> PreviewRow:
        responses = tuple(response_of_row(item, n) for n in range(len(item.responses)))
        responses = responses or tuple(map(Response, default_responses))
        if not responses:
            raise BadField(
                "response",
                "none given: the policy would write it. Name rows with responses by --input, or "
                "give a text to judge by --response",
            )
        is_pair = pairwise and len(responses) == 2
        compared = item.kind == PAIR or is_pair
        asked = [
            replace(column, required=column.required and not compared) for column in context_columns
        ]
        beside = read_context(item.fields, asked, item)
        return PreviewRow(item.line, prompt_of_row(item), responses, compared, *beside)

    items = read_items(source, columns=columns, layout=layout)
    return items.mapped(naming_layout(build))


def _take_first(rows: Stream[PreviewRow], count: int) -> Iterator[PreviewRow | BadRow]:
    """Yield rows until `count` usable ones have come; at most as many bad ones more."""
    usable = bad = 0
    for row in rows:
        yield row
        usable, bad = usable + isinstance(row, PreviewRow), bad + isinstance(row, BadRow)
        if count in (usable, bad):
            return


class PreviewJudge(NamedTuple):
    """A judge of the reward, and what its prompts are shown with."""

    about: str
    """Words for the heading of its prompts: its part, and whether a service judges."""
    spec: JudgeSpec
    tokens: PromptTokenizer | None
    """Tokenizer of its prompts; None where they are shown as messages."""


class Preview:
    """Asks an open reward model about rows, and describes what its judges saw and said."""

    def __init__(self, run: PreviewRun, model: RewardModel, journal: Reader) -> None:
        """journal: the journal of the model."""
        self._run, self._model, self._journal = run, model, journal
        self._seen_times: dict[str, float] = {}
        self._judges: dict[str, PreviewJudge] = {}
        for name, client in model.clients.items():
            spec, served = model.specs[name], model.config.judged[name].service is not None
            about = f", {name}" if len(model.clients) > 1 else ""
            about += f", by format {spec.format.name} before the service's model" if served else ""
            tokens = None if served else load_prompt_tokenizer(spec)
            self._judges.setdefault(client.backend.judge, PreviewJudge(about, spec, tokens))

    def lines(self, row: PreviewRow) -> list[str]:
        """Judge a row and return its description, line by line."""
        if row.compared:
            ending = self._compare(row)
        else:
            rewards = self._model.rewards_now(row.candidates)
            ending = self._describe_rewards(row.candidates, rewards)
        lines = [f"=== row {row.line} ==="]
        entries = self._read_new_entries()
        for entry in entries:
            lines += self._describe_judgement(entry)
        lines += [] if entries else ["the judge was asked the same for a row above"]
        return [*lines, *ending, ""]

    def _read_new_entries(self) -> list[Entry]:
        """Return the judgements that are new on record. A repeated input is judged once."""
        entries: list[Entry] = []
        while new := self._journal.newer(256, lambda keys: self._seen_times):
            self._seen_times |= {entry.key: entry.at for entry in new}
            entries += new
        return entries

    def _describe_judgement(self, entry: Entry) -> list[str]:
        judge = self._judges.get(entry.judge) or next(iter(self._judges.values()))
        judgement, kind = entry.judgement, f"{entry.item.protocol}{judge.about}"
        lines = [f"--- prompt ({kind}), untrusted texts in {OPEN} {CLOSE} ---"]
        lines.append(prompt_text(entry.item, judge.spec, judge.tokens))
        if judgement.thinking:
            lines += ["--- the judge thinks ---", visible(judgement.thinking)]
        if judgement.critique:
            lines += ["--- the judge writes ---", visible(judgement.critique)]
        return [*lines, "--- what is read ---", *_describe_readings(judgement)]

    def _describe_rewards(
        self, candidates: Sequence[Candidate], rewards: Sequence[Reward]
    ) -> list[str]:
        name, lines = self._run.number, list[str]()
        for n, reward in enumerate(rewards, 1):
            line = f"{name} of response {n}: " if len(rewards) > 1 else f"{name}: "
            if reward.value is None:
                line += f"none, since {visible(reward.judgement.why)}"
            else:
                line += f"{reward.value:g}" + _describe_shaping(reward)
            lines.append(line + (f" ({_describe_parts(reward.parts)})" if reward.parts else ""))
        if name == "reward" and any(reward.value is None for reward in rewards):
            filled = self._model.numbers(rewards, candidates)
            numbers = ", ".join(f"{number:g}" for number in filled)
            lines.append(f"with the fallback, for trainers that need a number: {numbers}")
        return lines

    def _compare(self, row: PreviewRow) -> list[str]:
        first, second = row.responses
        pair = Pair(row.prompt, first, second, row.context)
        swap = self._run.swap
        [comparison] = self._model.run(lambda client: client.compare([pair], swap=swap)).result()
        return [
            f"verdict: {comparison.verdict}"
            + (f", {comparison.reason}" if comparison.reason else "")
        ]


def _describe_readings(judgement: Judgement) -> list[str]:
    """Return what was read at each slot, or why there is nothing."""
    lines = [_describe_reading(reading) for reading in judgement.readings]
    if not judgement.ok:
        lines.append(visible(judgement.why))
    if judgement.flags:
        lines.append(f"flags: {', '.join(judgement.flags)}")
    return lines


def _describe_reading(reading: Reading) -> str:
    line = f"{reading.slot}: {reading.label}" + (" (forced)" if reading.forced else "")
    if reading.expected is not None:
        line += f", expected {reading.expected:.3f}"
    if reading.distribution is None:
        return f"{line}; no probabilities"
    likeliest = sorted(reading.distribution, key=lambda pair: -pair[1])[:LABELS]
    probabilities = ", ".join(f"{visible(label)} {p:.3f}" for label, p in likeliest)
    return f"{line}; probabilities: {probabilities}; none of the labels {reading.outside or 0:.3f}"


def _describe_shaping(reward: Reward) -> str:
    shaped = reward.raw is not None and reward.raw != reward.value
    return f", before shaping {reward.raw:g}" if shaped else ""


def _describe_parts(parts: Mapping[str, float | None]) -> str:
    texts = (
        f"{name} {'abstains' if value is None else f'{value:g}'}" for name, value in parts.items()
    )
    return ", ".join(texts)
