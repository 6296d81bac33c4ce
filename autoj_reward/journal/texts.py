"""The texts of a journal, each stored once, however many rows show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from autoj_reward.context import Context
from autoj_reward.conversation import Turn, plain
from autoj_reward.io.encoding import text_digest
from autoj_reward.io.plain import as_json
from autoj_reward.journal.records import (
    Sampled,
    digest,
    judgement_key,
    judgement_record,
    packed,
    unpacked,
)
from autoj_reward.journal.tables import KEEP, SEEN, TEXT
from autoj_reward.types import JudgeInput

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
AT_HAND = 512
"""Texts whose numbers are known without asking."""
FOR_GOOD = float("inf")
"""The time of a text that never makes room."""


class Texts:
    """The table `texts`: SHA-256, the text compressed, and when a row last came that shows it.

    What is read is not checked here: the row that shows it has a checksum, or its key, over it.
    """

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._kept: dict[str, tuple[float, int]] = {}

    def forget(self) -> None:
        """A transaction begins: what an earlier one kept may have gone."""
        self._kept.clear()

    def keep(self, text: str, at: float) -> int:
        """The number of a text that is there from now on. Within a transaction that writes, which
        keeps each text once: all rows of a query show it."""
        kept_at, number = self._kept.get(text, (-1.0, 0))
        if kept_at < at:
            key = text_digest(text)
            known = self._execute(SEEN, (at, key))
            number = int((known or self._execute(KEEP, (at, key, packed(text))))[0][0])
            if len(self._kept) >= AT_HAND:
                self._kept.clear()
            self._kept[text] = at, number
        return number

    def read(self, number: Any) -> str:
        """The text of a number. Raises ValueError."""
        rows = self._execute(TEXT, (number,))
        if not rows:
            raise ValueError(f"its text {number!r} is missing")
        return unpacked(rows[0][0])

    def keep_input(self, item: JudgeInput, at: float) -> dict[str, Any]:
        """The record of an input with numbers in place of its texts."""
        record = item.record()
        for message in record.get("messages", ()):
            message["content"] = self.keep(message["content"], at)
        if not item.turns:
            record["query"] = self.keep(item.query, at)
        record["responses"] = [self.keep(text, at) for text in item.responses]
        if item.context:
            record["context"] = {name: self.keep(text, at) for name, text in item.context.items()}
        return record

    def read_judged(self, row: Sequence[Any]) -> tuple[JudgeInput, dict[str, Any]]:
        """What a judge was asked by a row of judgements, and the record of what it said.

        Raises ValueError, KeyError, TypeError or AttributeError.
        """
        key, judge, _, given, said, *_ = row
        record = json.loads(given)
        said_before = record.get("messages", [])
        read = self.read
        turns = tuple(Turn(m["role"], read(m["content"])) for m in said_before)
        item = JudgeInput(
            record["protocol"],
            plain(turns) if turns else read(record["query"]),
            tuple(read(text) for text in record["responses"]),
            record["sample"],
            record.get("direct", False),
            Context({n: read(text) for n, text in record.get("context", {}).items()}, turns),
        )
        if judgement_key(judge, item) != key:
            raise ValueError("its texts are not what was written")
        return item, judgement_record(said, judge)

    def keep_samples(self, query: str, sampled: Sampled) -> tuple[str, str]:
        """The cells `query` and `samples` of their row. Their texts never make room."""
        kept = as_json(sampled)
        kept["responses"] = [self.keep(text, FOR_GOOD) for text in sampled.responses]
        kept["digest"] = digest(query, *sampled.responses)
        return json.dumps(self.keep(query, FOR_GOOD)), json.dumps(kept)

    def read_sampled(self, row: Sequence[Any]) -> tuple[str, Sampled]:
        """The inverse, of a whole row; else as `read_judged`."""
        query, kept = self.read(json.loads(row[2])), json.loads(row[3])
        responses = tuple(self.read(text) for text in kept["responses"])
        if kept["digest"] != digest(query, *responses):
            raise ValueError("its texts are not what was written")
        numbers = tuple(kept["logprobs"]), tuple(kept["finished"]), kept["tokens_out"]
        return query, Sampled(responses, *numbers)
