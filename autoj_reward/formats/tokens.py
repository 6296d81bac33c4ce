"""Tokenization of prompts in which untrusted text never becomes a control token.

Text between two control tokens of the template is tokenized in one piece, with special tokens
split. Ordinary text so gets the ids that the model was trained on, merges across the border of
template and response included. A `</s>` in a response stays ordinary characters. Some templates
mark turns with ordinary text (`[INST]` of Llama 2). There the same marks in a response are broken
up.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from autoj_reward.config import OverLong
from autoj_reward.errors import InputRejected, ModelError
from autoj_reward.formats.fold import CONTROL
from autoj_reward.formats.output_tokenizer import OutputTokenizer
from autoj_reward.formats.render import (
    Message,
    Part,
    RenderedPrompt,
    break_control_tokens,
    broken_up,
    fold_system,
)

WRAPPERS = Path(__file__).parent / "wrappers"
"""Folder of the wrappers' template files."""
TURNS = {"vicuna": ("USER:", "ASSISTANT:")}
"""Plain words that separate the turns, by wrapper."""
ELLIPSIS = " … "
"""Text that replaces the part cut from a response."""
LEFT_OUT = "[…]\n\n"
"""Text in place of a conversation's turns that were left out."""
LEAST_TOKENS = 16
"""Tokens to which a response, or a turn of it, is cut at most."""
SpelledTurns = dict[int, list[tuple[Part, list[int]]]]
"""Turns of a response by index: their parts, each with its token ids."""


class PromptTokenizer(OutputTokenizer):
    """Hugging Face tokenizer with a wrapper, which turns messages into the model's input.

    Wrappers:

    - `chat`: the tokenizer's chat template. It asks for an answer unless the prompt ends with one.
    - `llama2`: the wrapper of Auto-J.
    - `vicuna`: the wrapper of Vicuna 1.5.
    - `none`: the messages' text alone, the system message first.
    - `template`: the text of the one message. Control tokens in its trusted parts are kept, so it
      brings its own BOS.

    With `llama2`, `vicuna` and `none` the ids begin with the tokenizer's BOS, if it adds one.
    """

    def __init__(
        self,
        tokenizer: Any,
        wrapper: str,
        marks: Sequence[str] = (),
        template_values: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the wrapper.

        `marks` are the texts around the judge's thinking, special tokens or not.
        `template_values` are for the chat template, such as `enable_thinking`.

        Raises ModelError for `chat` if the tokenizer has no chat template.
        """
        if wrapper == "chat" and not tokenizer.chat_template:
            raise ModelError(
                f"{tokenizer.name_or_path}: the tokenizer has no chat template; "
                "set the wrapper to llama2, vicuna or none, or give a scalar reward model a format "
                "file with its own template"
            )
        super().__init__(tokenizer, marks)
        self.wrapper = wrapper
        self._template_values = dict(template_values or {})
        texts = sorted(self._added, key=len, reverse=True)
        self._control_re = (
            re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None
        )

    def ids(self, prompt: RenderedPrompt) -> list[int]:
        """Return the token ids of a prompt.

        They are ready for generation unless the prompt ends with an assistant's message that asks
        for no answer.

        Raises InputRejected for text that the tokenizer cannot keep apart from a control token. It
        is also raised for a conversation that the wrapper or the chat template cannot show. Raises
        ModelError for a chat template that fails on any prompt.
        """
        if self.wrapper not in ("chat", "template"):
            return [*self._get_bos(), *self._encode_text(self._wrap(prompt))]
        ids: list[int] = []
        for piece in self._split_prompt(prompt):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_text(piece, start=not ids or self._restarts)
        return ids

    def _get_bos(self) -> list[int]:
        ids = self.tokenizer("", add_special_tokens=True)["input_ids"]
        return [i for i in ids if i == self.tokenizer.bos_token_id][:1]

    def _encode_text(self, text: str, start: bool = True) -> list[int]:
        if not text:
            return []
        ids = self._encode(text) if start else self.continuation(text)
        control_ids = self._find_control_ids(ids, text)
        if control_ids and self._control_re:
            # Some tokenizers keep added tokens whole if they are not flagged as special.
            cuts = [m.start() + 1 for m in self._control_re.finditer(text)]
            bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
            head, *rest = [text[a:b] for a, b in bounds]
            runs = [self._encode(head) if start else self.continuation(head)]
            runs += [self.continuation(piece) for piece in rest]
            ids = [i for run in runs for i in run]
            control_ids = [
                i
                for run, piece in zip(runs, [head, *rest], strict=True)
                for i in self._find_control_ids(run, piece)
            ]
        if control_ids:
            raise InputRejected(
                f"text still holds the control token {self.tokenizer.decode(control_ids[:1])!r} "
                "after splitting: this tokenizer cannot keep it apart"
            )
        return ids

    def _find_control_ids(self, ids: list[int], text: str) -> list[int]:
        """Return the control ids among the ids of a text.

        The id of an unknown character does not count.
        """
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and self.tokenizer.unk_token in text:
            unknown = None
        return [i for i in ids if i in self._control and i != unknown]

    def _wrap(self, prompt: RenderedPrompt) -> str:
        system = next((m for m in prompt if m.role == "system"), None)
        user, *other_messages = [m for m in prompt if m.role != "system"]
        if other_messages:
            raise InputRejected(
                f"the wrapper {self.wrapper} shows one turn, and this conversation has "
                f"{1 + len(other_messages)}: ask a model with a chat template"
            )
        if self.wrapper == "none":
            return user.text if system is None else f"{system.text}\n\n{user.text}"
        shell = _read_wrapper(f"{self.wrapper}{'' if system is None else '_system'}.txt")
        values = {"input": user} | ({"system_message": system} if system else {})
        pieces = re.split(r"\{(\w+)\}", shell)
        marks = self._find_spelled_marks(shell)
        return "".join(
            self._fill_message(values[p], marks) if k % 2 else p for k, p in enumerate(pieces)
        )

    def _fill_message(self, message: Message, marks: set[str]) -> str:
        parts = message.parts
        return "".join(p.text if p.trusted else self._break_up(p.text, marks) for p in parts)

    def _find_spelled_marks(self, shell: str) -> set[str]:
        """Return the control marks that a template spells and that are no tokens."""
        return set(CONTROL.findall(shell)) - set(self._added)

    def _break_up(self, text: str, spelled_marks: set[str]) -> str:
        """Return untrusted text in which the template's marks are broken up if they are no tokens.

        Llama 2 spells `[/INST]` in ordinary text, so ids cannot tell a response's mark from the
        template's.
        """
        marks = (*self._marks, *TURNS.get(self.wrapper, ()))
        plain = broken_up(text, [mark for mark in marks if mark not in self._added])
        return break_control_tokens(plain, spelled_marks)

    def _split_prompt(self, prompt: RenderedPrompt) -> list[int | str]:
        """Return the template's control ids and the runs of text between them, in order."""
        nonce = secrets.token_hex(8)
        untrusted: list[str] = []
        messages = []
        for message in prompt:
            content = ""
            for part in message.parts:
                if part.trusted:
                    content += part.text
                else:
                    content += f"\ue000{nonce}:{len(untrusted)}\ue001"
                    untrusted.append(part.text)
            messages.append({"role": message.role, "content": content})
        if self.wrapper == "template":
            shell = messages[0]["content"]
        else:
            shell = self._fill_chat(messages, prompt[-1].asks)
        fill = re.compile(f"\ue000{nonce}:(\\d+)\ue001")
        marks = self._find_spelled_marks(shell)
        pieces: list[int | str] = []
        after_rstrip = False
        for piece in self._control_re.split(shell) if self._control_re else [shell]:
            if piece in self._added:
                pieces.append(self._added[piece])
                after_rstrip = self._control[self._added[piece]].rstrip
            elif piece:
                piece = piece.lstrip() if after_rstrip else piece
                pieces.append(
                    fill.sub(lambda m: self._break_up(untrusted[int(m.group(1))], marks), piece)
                )
                after_rstrip = False
        return pieces

    def _fill_chat(self, messages: list[dict[str, str]], asks: bool) -> str:
        asks = asks or messages[-1]["role"] != "assistant"
        values = {"add_generation_prompt": asks} | self._template_values
        try:
            try:
                shell: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **values)
            except Exception:  # a chat template may raise any exception
                folded = fold_system(messages)
                if folded == messages:
                    raise
                # Some templates know no system message.
                shell = self.tokenizer.apply_chat_template(folded, tokenize=False, **values)
        except Exception as error:
            problem = f"the chat template refused the judge's messages: {error}"
            turns = [m["role"] for m in messages if m["role"] != "system"]
            if turns in (["user"], ["user", "assistant"]):
                raise ModelError(problem) from error
            raise InputRejected(f"{problem} (turns: {', '.join(turns)})") from error
        return shell

    def fit(
        self, prompt: RenderedPrompt, budget: int, cut: OverLong = "truncate"
    ) -> tuple[RenderedPrompt, list[int], bool]:
        """Shorten a prompt to at most `budget` tokens.

        First the oldest turns of a conversation are left out. Then the responses are cut to equal
        length, the longest first. `cut` says where a text is cut: in the middle, at its end or at
        its start. A response of several turns loses turns from its middle, its last turn last.

        Returns the prompt, its ids and whether anything was cut. Raises InputRejected if the
        responses would have to be cut to fewer than LEAST_TOKENS.
        """
        ids = self.ids(prompt)
        if len(ids) <= budget:
            return prompt, ids, False
        prompt, ids = self._drop_oldest_turns(prompt, ids, budget)
        if len(ids) <= budget:
            return prompt, ids, True
        responses: dict[str, SpelledTurns] = {}
        encode = cache(self._encode_text)  # the marks around turns recur
        for part in (p for m in prompt for p in m.parts if p.response):
            turns = responses.setdefault(part.name, {})
            turns.setdefault(part.turn, []).append((part, encode(part.text)))
        lengths = [sum(map(_count_ids, turns.values())) for turns in responses.values()]
        fixed = len(ids) - sum(lengths)
        room = budget - fixed
        while (level := _find_level(lengths, room)) >= LEAST_TOKENS:
            texts: dict[Part, Part] = {}
            dropped_turns = {n: self._cut_turns(t, level, cut, texts) for n, t in responses.items()}
            shorter = _shorten(prompt, texts, dropped_turns)
            ids = self.ids(shorter)
            if len(ids) <= budget:
                return shorter, ids, True
            room -= len(ids) - budget
        sizes: Counter[str] = Counter()
        for part in (p for m in prompt for p in m.parts if _is_other_text(p)):
            sizes[part.name] += len(self._encode_text(part.text))
        longest = max(sizes, key=sizes.__getitem__, default="query")
        raise InputRejected(
            f"{_list_sizes(sizes)} and the template take {fixed} of {budget} prompt tokens and "
            f"leave no room for the response: raise max_model_len or shorten the {longest}"
        )

    def _drop_oldest_turns(
        self, prompt: RenderedPrompt, ids: list[int], budget: int
    ) -> tuple[RenderedPrompt, list[int]]:
        """Return the prompt and its ids without as many of the oldest turns as necessary."""
        sizes: Counter[int] = Counter()
        for part in (p for m in prompt for p in m.parts if _get_earlier_turn(p)):
            sizes[part.turn] += len(self._encode_text(part.text))
        shorter, excess = prompt, len(ids) - budget
        for turn in sorted(sizes):
            excess -= sizes[turn]
            if excess <= 0 or turn == max(sizes):
                shorter = _drop_turns(prompt, turn)
                ids = self.ids(shorter)
                # Estimated sizes may be too large. Doubling the excess keeps the rounds few.
                excess = 2 * (len(ids) - budget)
                if excess <= 0:
                    break
        return shorter, ids

    def _cut_turns(
        self, turns: SpelledTurns, room: int, cut: OverLong, texts: dict[Part, Part]
    ) -> set[int]:
        """Return the turns of a response to leave out, so that the rest has at most `room` tokens.

        The last turn is kept longest, then the first, then those nearest the ends. The text of the
        first one that does not fit is cut and added to `texts`, if enough of it is left.
        """
        dropped_turns, last = set[int](), max(turns)
        for turn in _yield_from_ends(sorted(turns)):
            size = _count_ids(turns[turn])
            if size <= room:
                room -= size
                continue
            untrusted = [spelled for spelled in turns[turn] if not spelled[0].trusted]
            room_left = room - size + _count_ids(untrusted)
            if untrusted and (room_left >= LEAST_TOKENS or turn == last):
                [(part, ids)] = untrusted
                texts[part] = self._cut(part, ids, max(1, room_left), cut)
            else:
                dropped_turns.add(turn)
            room = 0
        return dropped_turns

    def _cut(self, part: Part, ids: list[int], room: int, cut: OverLong) -> Part:
        if len(ids) <= room:
            return part
        first = {"truncate_end": room, "truncate_start": 0}.get(cut, room // 2)
        head, tail = ids[:first], ids[len(ids) - (room - first) :]
        text = (
            self._decode_whole([head[: len(head) - n] for n in range(4)])
            + ELLIPSIS
            + self._decode_whole([tail[n:] for n in range(4)])
        )
        return replace(part, text=text)

    def _decode_whole(self, runs: list[list[int]]) -> str:
        """Return the text of the first run of ids with the fewest broken characters."""
        return str(min(map(self.tokenizer.decode, runs), key=lambda text: text.count("\ufffd")))


def _drop_turns(prompt: RenderedPrompt, last: int) -> RenderedPrompt:
    """Return the prompt without the turns up to `last`. LEFT_OUT marks a gap inside a message."""
    messages = []
    for message in prompt:
        parts = tuple(part for part in message.parts if not 0 < _get_earlier_turn(part) <= last)
        if parts and len(parts) < len(message.parts):
            gap = next(
                n for n, part in enumerate(message.parts) if 0 < _get_earlier_turn(part) <= last
            )
            parts = (*parts[:gap], Part(LEFT_OUT), *parts[gap:])
        messages += [replace(message, parts=parts)] if parts or not message.parts else []
    return tuple(messages)


def _get_earlier_turn(part: Part) -> int:
    """Return the index of a part's turn in the conversation before the response. Else 0."""
    return 0 if part.response else part.turn


def _count_ids(parts: Sequence[tuple[Part, list[int]]]) -> int:
    return sum(len(ids) for _, ids in parts)


def _yield_from_ends(turns: Sequence[int]) -> Iterator[int]:
    """Yield the last turn, the first, the last but one, the second, and so on."""
    remaining = deque(turns)
    while remaining:
        yield remaining.pop()
        if remaining:
            yield remaining.popleft()


def _shorten(
    prompt: RenderedPrompt, texts: Mapping[Part, Part], dropped_turns: Mapping[str, Collection[int]]
) -> RenderedPrompt:
    """Return the prompt with cut texts, and a note in place of the turns that are left out.

    dropped_turns: turns to leave out, by the name of their response.
    """
    noted = set[str]()
    messages = []
    for message in prompt:
        parts = []
        for part in message.parts:
            left_out = dropped_turns.get(part.name, ()) if part.response else ()
            if part.turn not in left_out:
                parts.append(texts.get(part, part))
            elif part.name not in noted:
                noted.add(part.name)
                count = "1 turn" if len(left_out) == 1 else f"{len(left_out)} turns"
                parts.append(Part(f"[{count} left out]\n\n"))
        messages += [replace(message, parts=tuple(parts))] if parts or not message.parts else []
    return tuple(messages)


def _is_other_text(part: Part) -> bool:
    """Return whether a part is a named text other than a response."""
    return bool(part.name) and not part.response


def _list_sizes(sizes: dict[str, int]) -> str:
    """Return the fields, with their token counts if there are several."""
    if len(sizes) < 2:
        return f"the {next(iter(sizes), 'query')}"
    return ", ".join(f"the {name} ({size} tokens)" for name, size in sizes.items())


def _find_level(lengths: Sequence[int], room: int) -> int:
    """Return the length to which longer items are cut so that their sum is at most `room`."""
    level = 0
    for count, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        level = room // count
        if length > level:
            break
        room -= length
    return level


@lru_cache
def _read_wrapper(name: str) -> str:
    return (WRAPPERS / name).read_bytes().decode("utf-8")
