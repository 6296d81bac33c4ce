"""Readers of published preference sets: query, two responses, and the human label.

A reader raises BadField for a row that lacks a field of its form. A dialogue gives only its first
turn (paper, section 3.2). If a set always puts the better response first, the text decides the
order at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from autoj_reward.config import Block
from autoj_reward.data.labelled import LABELS, in_drawn_order, label_of, read_compared
from autoj_reward.formats.schema import load_format
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField
from autoj_reward.io.rows import Rows, read_rows
from autoj_reward.types import BadRow, Verdict

PreferenceForm = Literal[
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


class SourceConfig(Block):
    """A file or dataset of preferences."""

    form: PreferenceForm
    """Layout of the source's rows."""
    path: str
    """Path or `hf://` address, as for every input. A relative path starts in the data folder."""
    name: str | None = None
    """Name of its rows in the output's `source_dataset`; null takes the form's name."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Pair of responses to one query with the human preference label."""

    query: str
    responses: tuple[str, str]
    label: Verdict | None
    """FIRST, SECOND or TIE; None without a label."""
    scenario: str | None = None
    """Scenario given by the source; None if it gives none."""
    english: bool | None = None
    """Whether the source marks the row as English; None if it gives no language."""
    source: str = ""
    file: str = ""
    line: int = 0


def read_preferences(source: SourceConfig, path: str) -> Rows[Preference]:
    """Read all usable rows of a source. The result also lists the bad rows by line.

    Raises InputError if the source as a whole cannot be read.
    """
    name = source.name or source.form
    if source.form in ("hh", "pandalm"):
        return _read_compared_rows(name, path)
    read_row = READERS[source.form]

    def build(line: int, value: Any) -> Preference:
        preference = read_row(check.own_fields(value))
        if not preference.query.strip():
            raise BadField("", "the query is blank")
        return replace(preference, source=name, file=path, line=line)

    return read_rows(path, build, ())


def _read_compared_rows(name: str, path: str) -> Rows[Preference]:
    """Read PandaLM and Anthropic HH with the reader of the evaluations.

    Dialogues of several turns differ in their last answer only, so they have no first turn to
    compare.
    """
    compared_rows = read_compared(path, load_format("autoj-en"))
    rows, bad = [], list(compared_rows.bad)
    for row in compared_rows.rows:
        if "\n\nAssistant:" in row.query:
            bad.append(BadRow(path, row.line, "chosen", "the responses answer a later turn"))
        else:
            rows.append(
                Preference(
                    row.query, row.responses, row.label, source=name, file=path, line=row.line
                )
            )
    return Rows(tuple(rows), tuple(sorted(bad, key=lambda b: b.line)))


def _read_arena(row: dict[str, Any]) -> Preference:
    """lmsys/chatbot_arena_conversations; the vote is on the whole dialogue."""
    query, first = _read_first_turn(row, "conversation_a")
    other, second = _read_first_turn(row, "conversation_b")
    if query != other:
        raise BadField("conversation_b", "its first query is another than conversation_a's")
    language = row.get("language")
    return Preference(
        query,
        (first, second),
        _read_winner(row),
        None,
        None if not language else language == "English",
    )


def _read_mt_bench(row: dict[str, Any]) -> Preference:
    """lmsys/mt_bench_human_judgments: one vote a turn, of which the first counts here."""
    if row.get("turn") != 1:
        raise BadField("turn", f"{check.show(row.get('turn'))}: a vote on a later turn")
    return _read_arena(row)


def _read_summary(row: dict[str, Any]) -> Preference:
    """openai/summarize_from_feedback, comparisons; all are of one scenario."""
    info, summaries = row.get("info"), row.get("summaries")
    if not isinstance(info, dict):
        raise BadField("info", f"not a mapping: {check.show(info)}")
    if not (isinstance(summaries, list) and len(summaries) == 2):
        raise BadField("summaries", f"not two summaries: {check.show(summaries)}")
    if not all(isinstance(summary, dict) for summary in summaries):
        raise BadField("summaries", "not two mappings with text")
    post = check.text(info, "post", blank=False)
    title = check.text(info, "title") if info.get("title") else ""
    # As Eval-P words it.
    query = f"Summarize the following post\n\nTitle: {title}\n\nPost: {post}"
    first, second = (check.text(s, "text").strip() for s in summaries)
    label = _read_label(row, "choice")
    return Preference(query, (first, second), label, "post_summarization")


def _read_webgpt(row: dict[str, Any]) -> Preference:
    """openai/webgpt_comparisons: scores of the two answers are opposite numbers, 0 for a tie."""
    question = row.get("question")
    if not isinstance(question, dict):
        raise BadField("question", f"not a mapping: {check.show(question)}")
    query = check.text(question, "full_text", blank=False)
    responses = _read_both(row, "answer_0", "answer_1")
    scores = [row.get("score_0"), row.get("score_1")]
    for field, score in zip(("score_0", "score_1"), scores, strict=True):
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise BadField(field, f"not a number: {check.show(score)}")
    gap = scores[0] - scores[1]  # type: ignore[operator]
    label = Verdict.TIE if gap == 0 else Verdict.FIRST if gap > 0 else Verdict.SECOND
    return Preference(query, responses, label, "open_question")


def _read_shp(row: dict[str, Any]) -> Preference:
    """stanfordnlp/SHP: label 1 says that the first comment got more votes, 0 the second."""
    query = check.text(row, "history", blank=False)
    responses = _read_both(row, "human_ref_A", "human_ref_B")
    value = row.get("labels")
    if type(value) is not int or value not in (0, 1):
        raise BadField("labels", f"{check.show(value)} is no label: 1 for A, 0 for B")
    return Preference(query, responses, Verdict.FIRST if value else Verdict.SECOND)


def _read_synthetic(row: dict[str, Any]) -> Preference:
    """Dahoas/synthetic-instruct-gptj-pairwise."""
    query = check.text(row, "prompt", blank=False)
    chosen, rejected = _read_both(row, "chosen", "rejected")
    return Preference(query, *in_drawn_order(chosen.strip(), rejected.strip()))


def _read_safe_rlhf(row: dict[str, Any]) -> Preference:
    """PKU-Alignment/PKU-SafeRLHF: the label is the more helpful response."""
    query = check.text(row, "prompt", blank=False)
    responses = _read_both(row, "response_0", "response_1")
    return Preference(query, responses, _read_label(row, "better_response_id"))


def _read_own(row: dict[str, Any]) -> Preference:
    """`query`, `response_1`, `response_2`; `label` and `scenario` where they are known."""
    query = check.text(row, "query", blank=False)
    responses = _read_both(row, "response_1", "response_2")
    label = None if row.get("label") is None else label_of(row, "label")
    scenario = check.text(row, "scenario", blank=False) if row.get("scenario") else None
    return Preference(query, responses, label, scenario)


READERS: dict[str, Callable[[dict[str, Any]], Preference]] = {
    "chatbot_arena": _read_arena,
    "mt_bench": _read_mt_bench,
    "openai_summary": _read_summary,
    "webgpt": _read_webgpt,
    "shp": _read_shp,
    "synthetic_gptj": _read_synthetic,
    "safe_rlhf": _read_safe_rlhf,
    "own": _read_own,
}
assert set(READERS) | {"hh", "pandalm"} == set(get_args(PreferenceForm))


def _read_both(row: dict[str, Any], first: str, second: str) -> tuple[str, str]:
    return check.text(row, first), check.text(row, second)


def _read_winner(row: dict[str, Any]) -> Verdict | None:
    winner = row.get("winner")
    if winner in (None, ""):
        return None
    votes = {"model_a": Verdict.FIRST, "model_b": Verdict.SECOND}
    if isinstance(winner, str) and winner.startswith("tie"):
        return Verdict.TIE
    if winner not in votes:
        raise BadField("winner", f"{check.show(winner)}: not model_a, model_b or a tie")
    return votes[winner]


def _read_first_turn(row: dict[str, Any], field: str) -> tuple[str, str]:
    turns = row.get(field)
    if not (isinstance(turns, list) and len(turns) >= 2):
        raise BadField(field, f"no query with its answer: {check.show(turns)}")
    texts = []
    for turn, role in zip(turns[:2], ("user", "assistant"), strict=True):
        if not isinstance(turn, dict) or turn.get("role") != role:
            raise BadField(field, f"not a turn of the {role}: {check.show(turn)}")
        texts.append(check.text(turn, "content"))
    return texts[0], texts[1]


def _read_label(row: dict[str, Any], field: str) -> Verdict | None:
    value = row.get(field)
    if value is None:
        return None
    if type(value) is not int or value not in (0, 1):
        raise BadField(field, f"{check.show(value)} is no label: 0 or 1")
    return LABELS[value]
