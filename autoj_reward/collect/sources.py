"""Readers of published preference sets: query, two responses, and the human label.

Each form names what it needs and raises BadField for a row that lacks it. Dialogues give their
first turn only (paper, section 3.2). Where files put the better response first everywhere, the
order is drawn from the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from autoj_reward.config import Block
from autoj_reward.errors import InputError
from autoj_reward.evaluate.labelled import LABELS, is_held_out, read_compared
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, Limits
from autoj_reward.io.rows import Rows
from autoj_reward.io.sources import numbered
from autoj_reward.prompts.format import load_format
from autoj_reward.types import BadRow, Verdict

Form = Literal[
    "chatbot_arena",
    "mt_bench",
    "openai_summary",
    "webgpt",
    "shp",
    "synthetic_gptj",
    "safe_rlhf",
    "hh",
    "pandalm",
    "own",
]
LIMITS = Limits()


class SourceConfig(Block):
    """One file or dataset. path: as for every input, relative paths from the data folder.

    name: what its rows are called in the output's `source_dataset`; null takes the form's name.
    """

    form: Form
    path: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Preference:
    """Two responses to one query. label: FIRST, SECOND or TIE by people, None without a label.

    scenario: where the source itself tells it. english: what the source says, None if nothing.
    """

    source: str
    file: str
    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict | None
    scenario: str | None = None
    english: bool | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """What a row holds, before it is known where the row stands."""

    query: str
    responses: tuple[str, str]
    label: Verdict | None
    scenario: str | None = None
    english: bool | None = None


def read_preferences(source: SourceConfig, path: str) -> Rows[Preference]:
    """Every usable row of a source; the others are named by line.

    Raises InputError if the source as a whole cannot be read.
    """
    name = source.name or source.form
    if source.form in ("hh", "pandalm"):
        return _compared(name, path)
    build = FORMS[source.form]
    rows: list[Preference] = []
    bad: list[BadRow] = []
    for line, load in numbered(path, ()):
        try:
            r = build(check.own_fields(load()))
            if not r.query.strip():
                raise BadField("", "the query is blank")
            rows.append(
                Preference(name, path, line, r.query, r.responses, r.label, r.scenario, r.english)
            )
        except BadField as why:
            bad.append(BadRow(path, line, why.field, why.reason))
    if not rows and not bad:
        raise InputError(f"{path} has no rows")
    return Rows(tuple(rows), tuple(bad))


def _compared(name: str, path: str) -> Rows[Preference]:
    """PandaLM and Anthropic HH, which judges are measured on too.

    Dialogues of several turns differ in their last answer only, so they have no first turn to
    compare.
    """
    found = read_compared(path, load_format("autoj-en"))
    rows, bad = [], list(found.bad)
    for row in found.rows:
        if "\n\nAssistant:" in row.query:
            bad.append(BadRow(path, row.line, "chosen", "the responses answer a later turn"))
        else:
            rows.append(Preference(name, path, row.line, row.query, row.responses, row.label))
    return Rows(tuple(rows), tuple(sorted(bad, key=lambda b: b.line)))


def _arena(row: dict[str, Any]) -> _Read:
    """lmsys/chatbot_arena_conversations; the vote is on the whole dialogue."""
    query, first = _first_turn(row, "conversation_a")
    other, second = _first_turn(row, "conversation_b")
    if query != other:
        raise BadField("conversation_b", "its first query is another than conversation_a's")
    language = row.get("language")
    return _Read(
        query, (first, second), _winner(row), None, None if not language else language == "English"
    )


def _mt_bench(row: dict[str, Any]) -> _Read:
    """lmsys/mt_bench_human_judgments: one vote a turn, of which the first counts here."""
    if row.get("turn") != 1:
        raise BadField("turn", f"{check.show(row.get('turn'))}: a vote on a later turn")
    return _arena(row)


def _summary(row: dict[str, Any]) -> _Read:
    """openai/summarize_from_feedback, comparisons; all are of one scenario."""
    info, summaries = row.get("info"), row.get("summaries")
    if not isinstance(info, dict):
        raise BadField("info", f"not a mapping: {check.show(info)}")
    if not (isinstance(summaries, list) and len(summaries) == 2):
        raise BadField("summaries", f"not two summaries: {check.show(summaries)}")
    if not all(isinstance(summary, dict) for summary in summaries):
        raise BadField("summaries", "not two mappings with text")
    post = check.text(info, "post", LIMITS, blank=False)
    title = check.text(info, "title", LIMITS) if info.get("title") else ""
    # As Eval-P words it.
    query = f"Summarize the following post\n\nTitle: {title}\n\nPost: {post}"
    first, second = (check.text(s, "text", LIMITS).strip() for s in summaries)
    label = _by_index(row, "choice")
    return _Read(query, (first, second), label, "post_summarization")


def _webgpt(row: dict[str, Any]) -> _Read:
    """openai/webgpt_comparisons: scores of the two answers are opposite numbers, 0 for a tie."""
    question = row.get("question")
    if not isinstance(question, dict):
        raise BadField("question", f"not a mapping: {check.show(question)}")
    query = check.text(question, "full_text", LIMITS, blank=False)
    responses = (check.text(row, "answer_0", LIMITS), check.text(row, "answer_1", LIMITS))
    scores = [row.get("score_0"), row.get("score_1")]
    for field, score in zip(("score_0", "score_1"), scores, strict=True):
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise BadField(field, f"not a number: {check.show(score)}")
    gap = scores[0] - scores[1]  # type: ignore[operator]
    label = Verdict.TIE if gap == 0 else Verdict.FIRST if gap > 0 else Verdict.SECOND
    return _Read(query, responses, label, "open_question")


def _shp(row: dict[str, Any]) -> _Read:
    """stanfordnlp/SHP: label 1 says that the first comment got more votes, 0 the second."""
    query = check.text(row, "history", LIMITS, blank=False)
    responses = (check.text(row, "human_ref_A", LIMITS), check.text(row, "human_ref_B", LIMITS))
    value = row.get("labels")
    if type(value) is not int or value not in (0, 1):
        raise BadField("labels", f"{check.show(value)} is no label: 1 for A, 0 for B")
    return _Read(query, responses, Verdict.FIRST if value else Verdict.SECOND)


def _synthetic(row: dict[str, Any]) -> _Read:
    """Dahoas/synthetic-instruct-gptj-pairwise."""
    query = check.text(row, "prompt", LIMITS, blank=False)
    chosen, rejected = (check.text(row, f, LIMITS).strip() for f in ("chosen", "rejected"))
    if is_held_out(chosen + rejected, 0.5):
        return _Read(query, (rejected, chosen), Verdict.SECOND)
    return _Read(query, (chosen, rejected), Verdict.FIRST)


def _safe_rlhf(row: dict[str, Any]) -> _Read:
    """PKU-Alignment/PKU-SafeRLHF: the label is the more helpful response."""
    query = check.text(row, "prompt", LIMITS, blank=False)
    responses = (check.text(row, "response_0", LIMITS), check.text(row, "response_1", LIMITS))
    return _Read(query, responses, _by_index(row, "better_response_id"))


def _own(row: dict[str, Any]) -> _Read:
    """`query`, `response_1`, `response_2`; `label` and `scenario` where they are known."""
    query = check.text(row, "query", LIMITS, blank=False)
    responses = (check.text(row, "response_1", LIMITS), check.text(row, "response_2", LIMITS))
    label = row.get("label")
    if label is not None and not (type(label) is int and 0 <= label < len(LABELS)):
        if not isinstance(label, str) or label not in LABELS:
            raise BadField("label", f"{check.show(label)}: 0 or first, 1 or second, 2 or tie")
        label = LABELS.index(Verdict(label))
    scenario = check.text(row, "scenario", LIMITS, blank=False) if row.get("scenario") else None
    return _Read(query, responses, None if label is None else LABELS[label], scenario)


FORMS: dict[str, Callable[[dict[str, Any]], _Read]] = {
    "chatbot_arena": _arena,
    "mt_bench": _mt_bench,
    "openai_summary": _summary,
    "webgpt": _webgpt,
    "shp": _shp,
    "synthetic_gptj": _synthetic,
    "safe_rlhf": _safe_rlhf,
    "own": _own,
}
assert set(FORMS) | {"hh", "pandalm"} == set(get_args(Form))


def _winner(row: dict[str, Any]) -> Verdict | None:
    winner = row.get("winner")
    if winner in (None, ""):
        return None
    votes = {"model_a": Verdict.FIRST, "model_b": Verdict.SECOND}
    if isinstance(winner, str) and winner.startswith("tie"):
        return Verdict.TIE
    if winner not in votes:
        raise BadField("winner", f"{check.show(winner)}: not model_a, model_b or a tie")
    return votes[winner]


def _first_turn(row: dict[str, Any], field: str) -> tuple[str, str]:
    turns = row.get(field)
    if not (isinstance(turns, list) and len(turns) >= 2):
        raise BadField(field, f"no query with its answer: {check.show(turns)}")
    texts = []
    for turn, role in zip(turns[:2], ("user", "assistant"), strict=True):
        if not isinstance(turn, dict) or turn.get("role") != role:
            raise BadField(field, f"not a turn of the {role}: {check.show(turn)}")
        texts.append(check.text(turn, "content", LIMITS))
    return texts[0], texts[1]


def _by_index(row: dict[str, Any], field: str) -> Verdict | None:
    value = row.get(field)
    if value is None:
        return None
    if type(value) is not int or value not in (0, 1):
        raise BadField(field, f"{check.show(value)} is no label: 0 or 1")
    return LABELS[value]
