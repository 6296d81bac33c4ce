"""Judges that think before they answer: the thinking block is limited, and separated from
the text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from autoj_reward.engine.base import Engine, Generation, Prepared, Sampling, require_one
from autoj_reward.thinking import (
    KNOWN_MARKS,
    Marks,
    find_block,
    last_close,
    opened_at_end,
    opened_in_lines,
    without_opening,
    without_stop_tokens,
)

CUT = "thinking_cut"
"""Flag of a judgement whose thinking block was closed by force."""


@dataclass(frozen=True)
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

    @cached_property
    def text(self) -> str:
        """The text after the thinking block, without the stop tokens that an engine left at its
        end."""
        return without_stop_tokens(self.own.text[self.start :])


def skip_thinking(engine: Engine, prepared: Prepared, marks: Marks | None) -> Prepared:
    """Return the prompt followed by an empty thinking block, so that the verdict comes next.

    marks: those of the judge's format; a block that the prompt opens is skipped without. The prompt
    is returned as it is if the judge does not think, or an endpoint assembles the prompt.
    """
    if prepared.tail is None:
        return prepared
    opened_by = opened_at_end(prepared.tail, _make_table(marks))
    if opened_by:
        return engine.extend_prompt(prepared, Generation(""), f"\n{opened_by.close}\n\n")
    if marks is None:
        return prepared
    return engine.extend_prompt(prepared, Generation(""), f"{marks.open}\n\n{marks.close}\n\n")


async def generate_answer(
    engine: Engine, prepared: Prepared, sampling: Sampling, marks: Marks | None, bound: int
) -> SplitAnswer:
    """Generate a judge's answer: at most `bound` thinking tokens, then `sampling.max_tokens` of
    text.

    marks: those of the judge's format; None if it has no thinking block. An endpoint that assembles
    the prompt cannot continue after a block that was cut. It gets both limits as one, and a block
    that is still open at their end is a problem.
    """
    tail = prepared.tail
    opened_by = opened_at_end(tail, _make_table(marks)) if tail else None
    # A schema would forbid the thinking, so it holds only for a text that begins after that.
    thinks = tail is not None and (marks or opened_by)
    first_sampling = replace(sampling, json_schema=None) if thinks else sampling
    if marks is None:
        return split_answer(await _generate(engine, prepared, first_sampling), tail)
    if tail is None:
        whole_sampling = replace(sampling, max_tokens=bound + sampling.max_tokens)
        return split_answer(await _generate(engine, prepared, whole_sampling), None, marks)
    generation = await _generate(engine, prepared, replace(first_sampling, max_tokens=bound))
    if generation.finished:
        return split_answer(generation, tail, marks)
    block = find_block(generation.text, _make_table(marks), opened_by)
    cut = block is not None and not block.closed
    closing = f"\n{block.marks.close}\n\n" if block and cut else ""
    extended = engine.extend_prompt(prepared, generation, closing)
    # An answer that has begun is no longer held to the schema.
    rest = await _generate(engine, extended, sampling if cut else first_sampling)
    joined = replace(
        rest,
        text=generation.text + closing + rest.text,
        ids=(*extended.ids[len(prepared.ids) :], *rest.ids),
        usage=generation.usage + rest.usage,
    )
    return replace(split_answer(joined, tail, marks), cut=cut)


async def _generate(engine: Engine, prepared: Prepared, sampling: Sampling) -> Generation:
    return require_one(await engine.generate(prepared, sampling))


def _make_table(marks: Marks | None) -> tuple[Marks, ...]:
    """Return the marks that a judge may write, those of its format first."""
    return KNOWN_MARKS if marks is None else (marks, *KNOWN_MARKS)


def split_answer(
    generation: Generation, tail: str | None, marks: Marks | None = None
) -> SplitAnswer:
    """Split an answer into its thinking, up to the last closing mark, and its text.

    The last mark counts because the thinking may quote one. A block may be opened by the answer or
    by the prompt, and an answer need not have one, in every format.

    tail: end of the prompt; None if it is unknown, so that any closing mark may end a block. marks:
    those of the judge's format; None if it has no thinking block.
    """
    text, table = generation.text, _make_table(marks)
    opened_by = opened_at_end(tail or "", table)
    lines_marks = opened_in_lines(text, table)
    opening_marks = [*([opened_by] if opened_by else []), *lines_marks]
    own_marks = [marks] if marks else []
    begin, end = last_close(text, table if tail is None else [*opening_marks, *own_marks])
    after = text[end:].lstrip()
    thoughts = [generation.reasoning, without_opening(text[:begin], table)]
    is_cut_off = not generation.finished and not end
    unclosed_marks = opened_in_lines(after, table) if end else lines_marks
    if not unclosed_marks and not generation.reasoning and not end:
        unclosed_marks += [opened_by] if opened_by else []
        # Of an endpoint that was cut off it is unknown whether its template opened a block.
        unclosed_marks += own_marks if is_cut_off and tail is None else []
    problem = ""
    if unclosed_marks or (is_cut_off and not after and (generation.reasoning or marks)):
        close = (unclosed_marks or own_marks or KNOWN_MARKS)[0].close
        thoughts.append(without_opening(after, table))
        problem = f"the thinking block is never closed: no {close} before the judge's end"
        after = ""
    start = len(text) - len(after)
    return SplitAnswer(generation, start, "\n\n".join(filter(None, thoughts)), problem=problem)
