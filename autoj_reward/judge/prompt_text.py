"""Text of a judge's prompts for display, as its model reads them, with untrusted text marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoj_reward.engine.base import fit_prompt
from autoj_reward.errors import InputRejected
from autoj_reward.formats.render import (
    Part,
    RenderedPrompt,
    answered_prompt,
    break_control_tokens,
    broken_up,
    render,
)
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.io.markup import visible
from autoj_reward.judge.generative import reserved_tokens, with_criteria
from autoj_reward.models import CRITERIA
from autoj_reward.models.spec import JudgeSpec
from autoj_reward.types import JudgeInput

OPEN, CLOSE = "⟦", "⟧"
"""Marks around each untrusted text. In the text itself they become double brackets."""


def load_prompt_tokenizer(spec: JudgeSpec) -> PromptTokenizer | None:
    """Return the tokenizer of a judge's prompts, without its model's weights.

    None if an endpoint tokenizes on its side, and for a scripted judge.
    """
    config, fmt = spec.config, spec.format
    if config.on_replicas:
        path, revision = spec.model.path, spec.model.revision
    elif config.kind == "openai" and config.tokenizer:
        path, revision = config.tokenizer, None
    else:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        path, revision=revision, trust_remote_code=config.trust_remote_code
    )
    wrapper = spec.wrapper if isinstance(fmt, JudgeFormat) else fmt.wrapper
    marks = _get_thinking_marks(fmt)
    return PromptTokenizer(tokenizer, wrapper, marks, config.chat_template_kwargs)


def prompt_text(item: JudgeInput, spec: JudgeSpec, tokens: PromptTokenizer | None) -> str:
    """Return the prompts of a judge input for display; a scalar model has one for each response.

    With a tokenizer it is the text of the token ids, control tokens included, and cut as the engine
    cuts it. Without one it is the messages, each below its role. Untrusted texts stand between OPEN
    and CLOSE, and control characters are made visible. An input that the judge rejects gives the
    reason.
    """
    try:
        return "\n".join(
            _format_prompt(prompt, spec, tokens) for prompt in _render_prompts(item, spec)
        )
    except InputRejected as error:
        return f"(no prompt: {error})"


def _render_prompts(item: JudgeInput, spec: JudgeSpec) -> list[RenderedPrompt]:
    fmt = spec.format
    media = spec.config.media
    # A journal has no content, so that media which were sent are shown as marks like the others.
    item = item.show_media(replace(media, omits=media.omits or media.reads))
    if not isinstance(fmt, JudgeFormat):
        return [answered_prompt(item.prompt, response, fmt) for response in item.responses]
    if spec.config.criteria and CRITERIA in fmt.context(item.protocol):
        item = with_criteria(item)
    return [render(item, fmt)]


def _format_prompt(prompt: RenderedPrompt, spec: JudgeSpec, tokens: PromptTokenizer | None) -> str:
    config, fmt = spec.config, spec.format
    if tokens is None:
        marks = _get_thinking_marks(fmt) if config.kind == "openai" else None
        messages = (
            f"<{m.role}>\n{''.join(_format_sent_part(p, marks) for p in m.parts)}" for m in prompt
        )
        return _make_visible("\n".join(messages))
    reserved = reserved_tokens(config, fmt) if isinstance(fmt, JudgeFormat) else 1
    fitted = fit_prompt(tokens, prompt, config.max_model_len, reserved, config.over_long).prompt
    marked = tuple(replace(m, parts=tuple(map(_mark_untrusted, m.parts))) for m in fitted)
    text: str = tokens.tokenizer.decode(tokens.ids(marked), clean_up_tokenization_spaces=False)
    return _make_visible(text)


def _mark_untrusted(part: Part) -> Part:
    if part.trusted:
        return part
    inner = part.text.replace(OPEN, "[[").replace(CLOSE, "]]")
    return replace(part, text=f"{OPEN}{inner}{CLOSE}")


def _format_sent_part(part: Part, marks: Sequence[str] | None) -> str:
    """Return a part as it is sent. A chat endpoint gets untrusted texts with broken control tokens
    and broken marks of thinking; others (marks None) get them as they are."""
    text = _mark_untrusted(part).text
    if part.trusted or marks is None:
        return text
    return broken_up(break_control_tokens(text), marks)


def _get_thinking_marks(fmt: JudgeFormat | ScalarFormat) -> tuple[str, ...]:
    thinking = fmt.thinking if isinstance(fmt, JudgeFormat) else None
    return (thinking.open, thinking.close) if thinking else ()


def _make_visible(text: str) -> str:
    return visible(text).replace("\u200b", "<U+200B>")
