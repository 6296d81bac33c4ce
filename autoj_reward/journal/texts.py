"""The texts of a journal. Each text is stored once, and rows refer to it by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from autoj_reward.conversation import Prompt, Response, Turn
from autoj_reward.io.files import text_digest, to_plain
from autoj_reward.journal.records import (
    SampledResponses,
    digest,
    judgement_key,
    judgement_record,
    pack,
    unpack,
)
from autoj_reward.journal.tables import KEEP, SEEN, TEXT
from autoj_reward.media import RECORDED, Media
from autoj_reward.rubric_items import BadRubric, RubricItem, read_items
from autoj_reward.types import JudgeInput

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Function that runs an SQL statement and returns its rows."""
AT_HAND = 512
"""Limit on texts whose numbers are cached."""
FOR_GOOD = float("inf")
"""Time of a text that is never dropped."""


class Texts:
    """Table of texts: SHA-256, compressed text, and the time of the newest row that refers to it.

    Texts are not verified here: the checksum or the key of the row that refers to them does that.
    """

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._numbers: dict[str, tuple[float, int]] = {}

    def forget(self) -> None:
        """Clear the cache of numbers when a transaction begins: cached texts may have been
        dropped."""
        self._numbers.clear()

    def keep(self, text: str, at: float) -> int:
        """Store a text and return its number. Call it within a write transaction.

        at: time of the row that refers to it. A text that is there is not stored again; it gets the
        later time.
        """
        last_at, number = self._numbers.get(text, (-1.0, 0))
        if last_at < at:
            key = text_digest(text)
            rows = self._execute(SEEN, (at, key)) or self._execute(KEEP, (at, key, pack(text)))
            number = int(rows[0][0])
            if len(self._numbers) >= AT_HAND:
                self._numbers.clear()
            self._numbers[text] = at, number
        return number

    def read(self, number: Any) -> str:
        """Return the text of a number. Raises ValueError if it is missing or damaged."""
        rows = self._execute(TEXT, (number,))
        if not rows:
            raise ValueError(f"its text {number!r} is missing")
        return unpack(rows[0][0])

    def keep_input(self, item: JudgeInput, at: float) -> dict[str, Any]:
        """Store the texts of an input, and return its record with numbers in their place."""
        record = item.record()
        if item.prompt.turns:
            record["messages"] = self._keep_text(record["messages"], at)
        else:
            record["query"] = self.keep(item.prompt.text, at)
        record["responses"] = [self._keep_text(response, at) for response in record["responses"]]
        if item.context:
            record["context"] = {name: self.keep(text, at) for name, text in item.context.items()}
        for rubric_item in record.get("items", ()):
            rubric_item["criterion"] = self.keep(rubric_item["criterion"], at)
        if item.points:
            record["points"] = list(item.points)
        return record

    def _keep_text(self, text: str | list[dict[str, Any]], at: float) -> Any:
        """Store a text or the texts of messages, and return it with numbers in their place."""
        if isinstance(text, str):
            return self.keep(text, at)
        return [{**message, "content": self.keep(message["content"], at)} for message in text]

    def _read_turns(self, messages: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
        return tuple(
            Turn(m["role"], self.read(m["content"]), _read_media(m.get(RECORDED, ())))
            for m in messages
        )

    def read_judged(self, row: Sequence[Any]) -> tuple[JudgeInput, dict[str, Any]]:
        """Return the input and the judgement's record of a row of `judgements`.

        Raises ValueError, KeyError, TypeError or AttributeError for a damaged row.
        """
        key, judge, _, input_cell, cell, *_ = row
        record = json.loads(input_cell)
        turns = self._read_turns(record.get("messages", ()))
        responses = (
            Response.of(self._read_turns(number) if isinstance(number, list) else self.read(number))
            for number in record["responses"]
        )
        item = JudgeInput(
            record["protocol"],
            Prompt.of(turns) if turns else self.read(record["query"]),
            tuple(responses),
            record["sample"],
            record.get("direct", False),
            {name: self.read(text) for name, text in record.get("context", {}).items()},
            self._read_items(record.get("items", ())),
            tuple(record.get("points", ())),
        )
        if judgement_key(judge, item) != key:
            raise ValueError("its texts are not what was written")
        return item, judgement_record(cell, judge)

    def _read_items(self, records: Sequence[dict[str, Any]]) -> tuple[RubricItem, ...]:
        items = [{**record, "criterion": self.read(record["criterion"])} for record in records]
        try:
            return read_items(items) if items else ()
        except BadRubric as error:
            raise ValueError(str(error)) from error

    def keep_samples(self, query: str, sampled: SampledResponses) -> tuple[str, str]:
        """Store sampled responses, and return the columns `query` and `samples` of their row.

        Their texts are never dropped.
        """
        record = to_plain(sampled)
        record["responses"] = [self.keep(text, FOR_GOOD) for text in sampled.responses]
        record["digest"] = digest(query, *sampled.responses)
        return json.dumps(self.keep(query, FOR_GOOD)), json.dumps(record)

    def read_sampled(self, row: Sequence[Any]) -> tuple[str, SampledResponses]:
        """Return the query and the responses of a row of `samples`.

        Raises what `read_judged` raises.
        """
        query, record = self.read(json.loads(row[2])), json.loads(row[3])
        responses = tuple(self.read(text) for text in record["responses"])
        if record["digest"] != digest(query, *responses):
            raise ValueError("its texts are not what was written")
        numbers = tuple(record["logprobs"]), tuple(record["finished"]), record["tokens_out"]
        return query, SampledResponses(responses, *numbers)


def _read_media(records: Sequence[dict[str, Any]]) -> tuple[Media, ...]:
    """Return media as a journal has them: a digest stands for their content."""
    return tuple(Media(**record) for record in records)
