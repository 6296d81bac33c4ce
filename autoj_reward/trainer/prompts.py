"""Conversion of a trainer's prompts, completions and columns to queries, responses and context."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from autoj_reward.config import JUDGE, RewardConfig
from autoj_reward.conversation import (
    EMPTY_CONTEXT,
    Context,
    ContextColumn,
    Prompt,
    Response,
    Shows,
    show,
)
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.io.paths import ROW_FIELDS, column_of, find
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.rubric_items import RUBRIC, RubricItem, items_in
from autoj_reward.types import Candidate

Turn = str | Sequence[Mapping[str, Any]]
"""A prompt or completion: plain text, or the messages of a conversation."""
HEADED = (
    (re.compile(r"<\|im_start\|>(\w{1,40})\n"), "<|im_end|>"),  # ChatML
    (
        re.compile(r"<\|start_header_id\|>(\w{1,40})<\|end_header_id\|>\n\n"),
        "<|eot_id|>",
    ),  # Llama 3
    (re.compile(r"<start_of_turn>(\w{1,40})\n"), "<end_of_turn>"),  # Gemma
)
"""Chat templates that begin each turn with its role: pattern of the header, and the end of a
turn."""
SYSTEM = re.compile(r"^\s*<<SYS>>.*?<</SYS>>|^\s*\[SYSTEM_PROMPT\].*?\[/SYSTEM_PROMPT\]", re.DOTALL)
"""System message within a user turn of Llama 2 or Mistral."""
ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",
)
"""Tokens that end a turn, as model families spell them."""
LEAST_OVERLAP = 8
"""Characters of a cut prompt's end that a text must begin with."""


class Beside(NamedTuple):
    """What a judge is shown beside prompt and response."""

    context: Context = EMPTY_CONTEXT
    rubric: tuple[RubricItem, ...] = ()
    unusable: str = ""
    """Why a row's columns cannot be read, which costs that row alone. Empty if they can."""


NOTHING = Beside()
"""Nothing beside prompt and response."""


def query_text(prompt: Turn) -> str:
    """Return the judge's query: a plain prompt, or the one user message of a conversation.

    Its text is unchanged. Several turns, or roles other than the user's, become paragraphs in their
    order that begin with the role ("User: ..."). Raises InputError for a prompt that is neither
    text nor messages.
    """
    return Prompt.of(prompt).text


def candidate(
    prompt: Turn,
    completion: Turn,
    beside: Beside = NOTHING,
    default: Shows = "final",
    text: str | None = None,
) -> Candidate:
    """Return the candidate of a completion to a plain prompt or a conversation.

    The turns of either may be in any order. Malformed messages make the candidate unusable, with
    the reason: it stays in its place and group, so that it costs no other row of its batch. So does
    a row whose context fields cannot be read; `beside` then says why.

    default: what a judge reads of several turns of the completion if its `shows` is null. text: a
    text that it reads then instead.
    """
    reason = ""
    try:
        response = Response.of(completion, default, text)
    except InputError as error:
        response, reason = Response(""), f"completion: {error}"
    try:
        read_prompt = Prompt.of(prompt)
    except InputError as error:
        # Equal prompts stay one group; no judge sees this text.
        read_prompt, reason = Prompt(show(prompt)), f"prompt: {error}"
    reason = reason or beside.unusable
    return Candidate(
        read_prompt, response, context=beside.context, unusable=reason, rubric=beside.rubric
    )


def mappings(turns: Any) -> Any:
    """Return messages with pydantic models as mappings; anything else unchanged."""
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return turns
    return [turn.model_dump() if hasattr(turn, "model_dump") else turn for turn in turns]


def prompt_turns(prompt: str) -> Turn:
    """Return the messages in a prompt that a chat template has rendered.

    ChatML, the headers of Llama 3 and Gemma, and [INST] of Llama 2 and Mistral are parsed. System
    turns are left out, since one that the template added cannot be told from the user's. Any other
    text is returned stripped, as the query.
    """
    turns = _parse_turns(prompt)
    rendered_turns = [
        (role, text.strip()) for role, text in turns if role != "system" and text.strip()
    ]
    return [{"role": role, "content": text} for role, text in rendered_turns] or prompt.strip()


def strip_end_token(response: str) -> str:
    """Return a decoded response without the one token that ends its turn and white space around
    it."""
    text = response.rstrip()
    end = next((end for end in ENDS if text.endswith(end)), "")
    return text.removesuffix(end).strip()


def strip_prompt(text: str, prompt: str) -> str | None:
    """Return the rest of a decoded text that begins with its prompt; None if it does not.

    Decoding may change white space and Unicode normalisation, and a prompt that is too long loses
    its beginning. Then the longest end of the prompt that the text begins with is removed. It must
    have LEAST_OVERLAP characters or be the whole prompt, since a shorter match may be chance.
    Linear time.
    """
    if text.startswith(prompt):
        return text[len(prompt) :]
    if not text.strip():
        return ""
    whole, _ = _fold(prompt)
    opening, places = _fold(text)
    length = _measure_overlap(whole, opening)
    if length < min(len(whole), LEAST_OVERLAP):
        return None
    return text[places[length - 1] + 1 :].lstrip() if length else text.lstrip()


def _fold(text: str) -> tuple[str, list[int]]:
    """Return a text decomposed and without white space, and the source position of each character.

    Sorting puts combining accents in canonical order, as normalisation does. `unicodedata` would
    take quadratic time for long runs of accents.
    """
    runs: list[tuple[int, int, str, int]] = []
    starters = 0
    for place, character in enumerate(text):
        for part in unicodedata.normalize("NFKD", character):
            order = unicodedata.combining(part)
            starters += not order
            if not part.isspace():
                runs.append((starters, order, part, place))
    runs.sort(key=lambda run: run[:2])
    return "".join(run[2] for run in runs), [run[3] for run in runs]


def _measure_overlap(whole: str, text: str) -> int:
    """Return the length of the longest end of `whole` that `text` begins with.

    Algorithm of Knuth, Morris and Pratt.
    """
    fails, matched = [0] * len(text), 0
    for index in range(1, len(text)):
        while matched and text[index] != text[matched]:
            matched = fails[matched - 1]
        matched += text[index] == text[matched]
        fails[index] = matched
    matched = 0
    for character in whole:
        while matched and (matched == len(text) or character != text[matched]):
            matched = fails[matched - 1]
        matched += bool(text) and character == text[matched]
    return matched


def _parse_turns(prompt: str) -> list[tuple[str, str]]:
    """Return (role, text) pairs in order; [] for a text that no known template rendered."""
    for header, end in HEADED:
        if header.search(prompt):
            _, *parts = header.split(prompt)
            bodies = [body.rpartition(end)[0] if end in body else body for body in parts[1::2]]
            turns = list(zip(parts[::2], bodies, strict=True))
            return turns[:-1] if _is_policy_role(turns[-1][0]) and end not in parts[-1] else turns
    if "[INST]" in prompt and "[/INST]" in prompt:
        return _parse_instructions(prompt)
    return []


def _is_policy_role(role: str) -> bool:
    return role in ("assistant", "model")


def _parse_instructions(prompt: str) -> list[tuple[str, str]]:
    _, *pieces = prompt.split("[INST]")
    turns = []
    for piece in pieces:
        user, _, answer = piece.partition("[/INST]")
        answer = answer.strip().removesuffix("<s>").rstrip().removesuffix("</s>")
        turns += [("user", SYSTEM.sub("", user, count=1)), ("assistant", answer)]
    return turns


class ContextFields:
    """Context fields that the parts of a reward show, and the columns that hold them.

    Its attribute `asked` lists them. Fields that the main judge needs to rate are required. A
    function may read any field, so with one the reference and every name in `columns` are included.
    Raises ConfigError for a name in `columns` that no part shows.
    """

    def __init__(self, config: RewardConfig, judges: Mapping[str, JudgeSpec]) -> None:
        """judges: the judges of the config, as `reward_judges` returns them."""
        self._by_items = {name for name in judges if config.judged[name].rubric}
        self._fields_by_part = {
            name: set(judge.format.context(config.judged[name].protocol))
            | ({RUBRIC} if name in self._by_items else set())
            for name, judge in judges.items()
        }
        texts = {RUBRIC} & {
            field
            for name, part_fields in self._fields_by_part.items()
            if name not in self._by_items
            for field in part_fields
        }
        if texts and self._by_items:
            raise ConfigError(
                "one judge of this reward scores rubric items, and another shows the text "
                f"{RUBRIC!r}: a row holds one of the two, so set the other judge's format"
            )
        self._for_judges = {
            field for part_fields in self._fields_by_part.values() for field in part_fields
        }
        fields = set(self._for_judges)
        if any(part.function for part in config.parts.values()):
            fields |= {"reference", *(set(config.columns) - set(ROW_FIELDS))}
        if unknown := sorted(set(config.columns) - fields - set(ROW_FIELDS)):
            raise ConfigError(
                f"columns names {unknown[0]!r}, and the judges of this reward show "
                f"{sorted(fields) or 'no context fields'}: leave it out, or set judge.format"
            )
        self._known_fields = fields
        needed = judges[JUDGE].context(config.protocol)
        items = {RUBRIC} if self._by_items else set()
        self.asked = tuple(
            ContextColumn(
                name,
                config.columns.get(name, name),
                needed.get(name, False) and name not in items,
                name in items,
            )
            for name in sorted(fields)
        )

    def read(self, row: Mapping[str, Any], reference: str | None = None) -> Beside:
        """Return the context fields of a framework's row, and the items of its rubric.

        Null, NaN and blank values count as missing. reference: the framework's name of its
        reference answer (such as `label`), used if the row has no `reference` and `columns` does
        not name one. For functions, lists and mappings become JSON. A number that is not finite, a
        judge's field that is neither text nor a number, and malformed rubric items make the row
        unusable.
        """
        try:
            return self._read(row, reference)
        except InputError as error:
            return Beside(unusable=str(error))

    def _read(self, row: Mapping[str, Any], reference: str | None) -> Beside:
        texts: dict[str, str] = {}
        rubric: tuple[RubricItem, ...] = ()
        for context_column in self.asked:
            if context_column.items:
                named = {name: find(row, name) for name in context_column.names}
                rubric = items_in(named, context_column.names)
                continue
            column = context_column.column
            value = find(row, column)
            if column == context_column.field == "reference" and value is None and reference:
                column = reference
                value = find(row, column)
            text = self._read_text(context_column.field, column, value)
            if text.strip():
                texts[context_column.field] = text
        return Beside(Context(texts), rubric)

    def _read_text(self, field: str, column: str, value: Any) -> str:
        """Return a field's value as text; "" if it is missing."""
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()  # a scalar of numpy or torch
        if type(value).__name__ in ("NAType", "NaTType"):
            return ""  # how pandas writes a missing value, too
        if isinstance(value, float) and not math.isfinite(value):
            if math.isnan(value):  # how pandas and datasets write a missing value
                return ""
            raise InputError(f"{column} holds {value}: give a finite number, or null")
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if field not in self._for_judges and isinstance(value, bool | Mapping | list | tuple):
            with suppress(TypeError, ValueError):
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        raise InputError(
            f"{column} holds {value!r:.80}, which is no text for the field {field!r}: give a text, "
            "or name another column in reward.columns"
        )

    def of_columns(self, columns: Mapping[str, Any], count: int) -> list[Beside]:
        """Return what stands beside `count` candidates from columns by name.

        A column is a list, an array, or a column of pandas or datasets. Raises ConfigError for a
        missing column that the judge needs, and for a column of another length.
        """
        column_names = {
            column_of(name) for context_column in self.asked for name in context_column.names
        }
        lists = {
            name: values
            for name, column in columns.items()
            if name in column_names and (values := _to_list(column)) is not None
        }
        for context_column in self.asked:
            if context_column.required and column_of(context_column.column) not in lists:
                raise ConfigError(
                    f"the judge's format needs {context_column.field!r}, and the dataset has no "
                    f"column {context_column.column!r} (it has {sorted(columns)}): name it in "
                    "reward.columns"
                )
        for name, values in lists.items():
            if len(values) != count:
                raise ConfigError(
                    f"column {name!r} has {len(values)} values for {count} completions: give one "
                    "for each"
                )
        return [
            self.read({name: column_values[n] for name, column_values in lists.items()})
            for n in range(count)
        ]

    def for_part(self, name: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates for one part, without the fields that only other parts show."""
        if name not in self._fields_by_part:
            return list(candidates)
        hidden_fields = self._known_fields - self._fields_by_part[name]
        shown_candidates = []
        for candidate in candidates:
            context = Context(
                {
                    field: text
                    for field, text in candidate.context.items()
                    if field not in hidden_fields
                }
            )
            rubric = candidate.rubric if name in self._by_items else ()
            shown_candidates.append(replace(candidate, context=context, rubric=rubric))
        return shown_candidates


def _to_list(column: Any) -> list[Any] | None:
    """Return the values of a column as a list; None for a value that is no column."""
    if isinstance(column, str | bytes | Mapping):
        return None
    if hasattr(column, "tolist"):  # numpy, torch and pandas
        column = column.tolist()
    return list(column) if isinstance(column, Sequence) else None


def refuse_needed(fields: ContextFields, reason: str) -> None:
    """Raise ConfigError if the judge needs a field, for a trainer that passes no columns.

    reason: why it passes none, for the error.
    """
    if needed_fields := [
        context_column.field for context_column in fields.asked if context_column.required
    ]:
        raise ConfigError(
            f"the judge's format needs {needed_fields[0]!r}, and {reason}: set judge.format"
        )
