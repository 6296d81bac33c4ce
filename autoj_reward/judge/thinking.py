"""Judges that think before they answer: the thinking block is limited, and separated from
the text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoj_reward.engine.base import Engine, Generation, Prepared, Sampling, require_one
from autoj_reward.formats.schema import Thinking

KNOWN_MARKS = (
    Thinking(open="<think>", close="</think>"),
    Thinking(open="<thinking>", close="</thinking>"),
    Thinking(open="<thought>", close="</thought>"),
    Thinking(open="<seed:think>", close="</seed:think>"),
    Thinking(open="[THINK]", close="[/THINK]"),
    Thinking(open="◁think▷", close="◁/think▷"),
)
"""Marks that models put around their thinking. Any judge may write them, whatever its format."""
CUT = "thinking_cut"
"""Flag of a judgement whose thinking block was closed by force."""


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    """A judge's output, split into thinking and text."""

    own: Generation
    """The whole generated answer."""
    start: int = 0
    """Index in `own.text` where the text after the thinking block begins."""
    thinking: str = ""
    """Content of the thinking block."""
    cut: bool = False
    """Whether the block was closed by force."""
    problem: str = ""
    """Reason why no text follows the block; empty if one does."""

    @property
    def text(self) -> str:
        return self.own.text[self.start :]


def skip_thinking(engine: Engine, prepared: Prepared, marks: Thinking | None) -> Prepared:
    """Return the prompt followed by an empty thinking block, so that the verdict comes next.

    The prompt is returned as it is if the judge does not think, or an endpoint assembles the
    prompt.
    """
    if marks is None or prepared.tail is None:
        return prepared
    opening = "" if prepared.tail.rstrip().endswith(marks.open) else f"{marks.open}\n"
    return engine.extend_prompt(prepared, Generation(""), f"{opening}\n{marks.close}\n\n")


async def generate_answer(
    engine: Engine, prepared: Prepared, sampling: Sampling, marks: Thinking | None, bound: int
) -> SplitAnswer:
    """Generate a judge's answer: at most `bound` thinking tokens, then `sampling.max_tokens` of
    text.

    An endpoint that assembles the prompt cannot continue after a block that was cut. It gets both
    limits as one, and a block that is still open at their end is a problem.
    """
    if marks is None:
        return split_thinking(await _generate(engine, prepared, sampling), prepared.tail or "")
    if prepared.tail is None:
        whole_sampling = replace(sampling, max_tokens=bound + sampling.max_tokens)
        return read_past(await _generate(engine, prepared, whole_sampling), marks, inside=True)
    generation = await _generate(engine, prepared, replace(sampling, max_tokens=bound))
    began = prepared.tail.rstrip().endswith(marks.open)
    inside = began or generation.text.lstrip().startswith(marks.open)
    if generation.finished:
        return read_past(generation, marks, inside)
    cut = inside and marks.close not in generation.text
    closing = f"\n{marks.close}\n\n" if cut else ""
    extended = engine.extend_prompt(prepared, generation, closing)
    rest = await _generate(engine, extended, sampling)
    joined = replace(
        rest,
        text=generation.text + closing + rest.text,
        ids=(*extended.ids[len(prepared.ids) :], *rest.ids),
        usage=generation.usage + rest.usage,
    )
    return replace(read_past(joined, marks, inside), cut=cut)


async def _generate(engine: Engine, prepared: Prepared, sampling: Sampling) -> Generation:
    return require_one(await engine.generate(prepared, sampling))


def split_thinking(generation: Generation, tail: str = "") -> SplitAnswer:
    """Split an answer to a format without a thinking block, if the judge thinks all the same.

    tail: end of the prompt, which may open the block.
    """
    text = generation.text.lstrip()
    for marks in KNOWN_MARKS:
        inside = text.startswith(marks.open) or tail.rstrip().endswith(marks.open)
        if inside or _opens_line(text.rpartition(marks.close)[2], marks):
            return read_past(generation, marks, inside)
    return SplitAnswer(generation, thinking=generation.reasoning)


def _opens_line(text: str, marks: Thinking) -> bool:
    return any(line.lstrip().startswith(marks.open) for line in text.splitlines())


def read_past(generation: Generation, marks: Thinking, inside: bool) -> SplitAnswer:
    """Split an answer into its thinking, up to the last closing mark, and its text.

    The last mark counts because the thinking may quote one. inside: whether a text without a
    closing mark is all thinking, unless an endpoint returned the thinking separately.
    """
    before, close, after = generation.text.rpartition(marks.close)
    text = after.lstrip()
    thoughts = [generation.reasoning, before.strip().removeprefix(marks.open).strip()]
    reopened = _opens_line(text, marks)
    is_unclosed = inside and not close and not generation.reasoning
    is_empty = not close and not text and not generation.finished
    problem = ""
    if reopened or is_unclosed or is_empty:
        thoughts.append(text.removeprefix(marks.open).strip())
        problem = f"the thinking block is never closed: no {marks.close} before the judge's end"
        text = ""
    start = len(generation.text) - len(text)
    return SplitAnswer(generation, start, "\n\n".join(filter(None, thoughts)), problem=problem)
