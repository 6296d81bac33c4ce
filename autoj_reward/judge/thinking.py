"""Judges that think before they speak: the block is read past, bounded, and kept apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoj_reward.engine.base import Engine, Generation, Prepared, Sampling, counted
from autoj_reward.formats.schema import Thinking

CUT = "thinking_cut"
"""The flag of a judgement whose thinking block was closed by force."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a judge wrote.

    start: where its text after the thinking block begins in own.text. thinking: the block. cut:
    whether it was closed by force. problem: why no text follows it; empty if one does.
    """

    own: Generation
    start: int = 0
    thinking: str = ""
    cut: bool = False
    problem: str = ""

    @property
    def text(self) -> str:
        return self.own.text[self.start :]


def silent(engine: Engine, prepared: Prepared, marks: Thinking | None) -> Prepared:
    """The prompt after an empty block, where a judge that thinks would give its verdict at once."""
    if marks is None or prepared.tail is None:
        return prepared
    opened = "" if prepared.tail.rstrip().endswith(marks.open) else f"{marks.open}\n"
    return engine.continued(prepared, Generation(""), f"{opened}\n{marks.close}\n\n")


async def speak(
    engine: Engine, prepared: Prepared, sampling: Sampling, marks: Thinking | None, bound: int
) -> Spoken:
    """Let a judge write: at most `bound` tokens of thinking, then at most sampling.max_tokens.

    An endpoint that puts the prompt together itself cannot be made to go on from a block cut off:
    it gets both shares at once, and a block that is open at their end is a problem.
    """
    if marks is None:
        own = await _generated(engine, prepared, sampling)
        return Spoken(own, thinking=own.reasoning)
    if prepared.tail is None:
        whole = replace(sampling, max_tokens=bound + sampling.max_tokens)
        return read_past(await _generated(engine, prepared, whole), marks, inside=True)
    own = await _generated(engine, prepared, replace(sampling, max_tokens=bound))
    began = prepared.tail.rstrip().endswith(marks.open)
    inside = began or own.text.lstrip().startswith(marks.open)
    if own.finished:
        return read_past(own, marks, inside)
    cut = inside and marks.close not in own.text
    put = f"\n{marks.close}\n\n" if cut else ""
    onward = engine.continued(prepared, own, put)
    rest = await _generated(engine, onward, sampling)
    joined = replace(
        rest,
        text=own.text + put + rest.text,
        ids=(*onward.ids[len(prepared.ids) :], *rest.ids),
        usage=own.usage + rest.usage,
    )
    return replace(read_past(joined, marks, inside), cut=cut)


async def _generated(engine: Engine, prepared: Prepared, sampling: Sampling) -> Generation:
    [own] = counted(await engine.generate(prepared, sampling), 1)
    return own


def read_past(own: Generation, marks: Thinking, inside: bool) -> Spoken:
    """What was written, with its thinking apart: everything up to the last close, so that a close
    that is quoted ends nothing.

    inside: whether a text without a close is all thinking, unless an endpoint gives that apart.
    """
    before, close, after = own.text.rpartition(marks.close)
    text = after.lstrip()
    thought = [own.reasoning, before.strip().removeprefix(marks.open).strip()]
    reopened = any(line.lstrip().startswith(marks.open) for line in text.splitlines())
    untold = inside and not close and not own.reasoning
    nothing = not close and not text and not own.finished
    problem = ""
    if reopened or untold or nothing:
        thought.append(text.removeprefix(marks.open).strip())
        problem = f"the thinking block is never closed: no {marks.close} before the judge's end"
        text = ""
    start = len(own.text) - len(text)
    return Spoken(own, start, "\n\n".join(filter(None, thought)), problem=problem)
