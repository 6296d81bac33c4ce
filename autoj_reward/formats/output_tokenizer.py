"""Tokenization of the judge's own output, and the token position at which a piece of it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from autoj_reward.errors import ModelError

TAIL = 16
"""Number of last prompt tokens in which an opening of a thinking block is looked for."""
UNFINISHED = 4
"""Maximum number of tokens that spell one character byte by byte."""


class OutputTokenizer:
    """Hugging Face tokenizer that knows which of its tokens are control tokens.

    `marks` are the texts around the judge's thinking, control tokens or not. Raises ModelError for
    a mark that the tokenizer drops when it decodes.
    """

    def __init__(self, tokenizer: Any, marks: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        # Runs of white space that a tokenizer keeps whole (Gemma) are no control tokens.
        self._control = {
            i: t
            for i, t in tokenizer.added_tokens_decoder.items()
            if t.content and (t.special or t.content.strip("▁ \t\r\n"))
        }
        self._added = {t.content: i for i, t in self._control.items()}
        self._marks = marks
        lost = [m for m in marks if m in self._added and self._control[self._added[m]].special]
        if lost:
            raise ModelError(
                f"{tokenizer.name_or_path}: {lost[0]!r} is a special token, which is left out of "
                "what the model says, so that no thinking block can be told by it"
            )

    @cached_property
    def _restarts(self) -> bool:
        """Whether text after a control token is tokenized like the start of a text.

        The ids then include the space mark of a text's start.
        """
        for control, i in self._added.items():
            head, *rest = self.tokenizer(control + "a", add_special_tokens=False)["input_ids"]
            if head == i:
                return bool(rest == self._encode("a"))
        return True

    def _encode(self, text: str) -> list[int]:
        out = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return list(out["input_ids"])

    def count(self, text: str) -> int:
        """Return the number of tokens of a text that continues another one."""
        return len(self.continuation(text))

    def continuation(self, text: str) -> list[int]:
        """Return the ids of text that continues other text, without a start-of-text space mark."""
        for guard in ("x", "\n") if text[:1].isspace() else ("\n", "x"):
            head, whole = self._encode(guard), self._encode(guard + text)
            if whole[: len(head)] == head:
                return whole[len(head) :]
        return self._encode(text)

    def written(self, text: str) -> list[int]:
        """Return the token ids of text that the judge wrote after its prompt.

        Marks of its thinking become control tokens if the tokenizer has them, since the judge wrote
        them.
        """
        marks = [re.escape(mark) for mark in self._marks if mark in self._added]
        first, *rest = re.split(f"({'|'.join(marks)})", text) if marks else [text]
        ids = self.continuation(first) if first else []
        for piece in rest:
            if piece in self._added:
                ids.append(self._added[piece])
            elif piece:
                ids += self._encode(piece) if self._restarts else self.continuation(piece)
        return ids

    def tail(self, ids: Sequence[int]) -> str:
        """Return the last TAIL tokens of a prompt as text, control tokens included."""
        return str(self.tokenizer.decode(list(ids[-TAIL:]), skip_special_tokens=False))

    def own_prefix(self, text: str, ids: Sequence[int], end: int) -> tuple[list[int], int]:
        """Return the longest run of generated ids that spells a prefix of `text[:end]`.

        Also return the prefix's length in characters. ([], 0) if no run spells one. The text may
        lack or keep the space that a SentencePiece tokenizer puts before the first word.
        """
        low, high = 0, len(ids)
        while low < high:  # bisection works: if a run spells too much, so does a longer one
            middle = (low + high + 1) // 2
            near = range(middle, max(0, middle - UNFINISHED), -1)
            if any(self._count_covered(text, ids[:n], end) for n in near):
                low = middle
            else:
                high = middle - 1
        for n in range(low, 0, -1):
            if ids[n - 1] in self._control:
                continue
            if covered := self._count_covered(text, ids[:n], end):
                return list(ids[:n]), covered
        return [], 0

    def _count_covered(self, text: str, ids: Sequence[int], end: int) -> int:
        """Return the length of the prefix of `text[:end]` that the ids spell; 0 if they
        spell none."""
        decoded = self.tokenizer.decode(ids, skip_special_tokens=True)
        for spelled in (decoded, " " + decoded):
            if len(spelled) <= end and text.startswith(spelled):
                return len(spelled)
        return 0
