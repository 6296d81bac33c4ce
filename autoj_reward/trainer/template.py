"""What was said in a text that a chat template made, and where a response in it ends."""

from __future__ import annotations

import re
import unicodedata

from autoj_reward.trainer.text import Turn

HEADED = (
    (re.compile(r"<\|im_start\|>(\w{1,40})\n"), "<|im_end|>"),  # ChatML
    (
        re.compile(r"<\|start_header_id\|>(\w{1,40})<\|end_header_id\|>\n\n"),
        "<|eot_id|>",
    ),  # Llama 3
    (re.compile(r"<start_of_turn>(\w{1,40})\n"), "<end_of_turn>"),  # Gemma
)
"""Templates that open each turn with its role, and what ends one."""
SYSTEM = re.compile(r"^\s*<<SYS>>.*?<</SYS>>|^\s*\[SYSTEM_PROMPT\].*?\[/SYSTEM_PROMPT\]", re.DOTALL)
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
"""How families spell the token that ends a turn."""
LEAST_OVERLAP = 8
"""Characters of a cut prompt's end that a text has to open with."""


def prompt_turns(prompt: str) -> Turn:
    """The messages of a prompt's text, as they were written.

    They are read from ChatML, the headers of Llama 3 and Gemma, and [INST] of Llama 2 and Mistral.
    System turns are left out: the one that a template
    adds by itself cannot be told from one of the user's. Any other text is the query as it is.
    """
    turns = _turns(prompt)
    said = [(role, text.strip()) for role, text in turns if role != "system" and text.strip()]
    return [{"role": role, "content": text} for role, text in said] or prompt.strip()


def without_end(response: str) -> str:
    """A decoded response without the one token that ends its turn; nothing inside it is touched."""
    text = response.rstrip()
    end = next((end for end in ENDS if text.endswith(end)), "")
    return text.removesuffix(end).strip()


def after_prompt(text: str, prompt: str) -> str | None:
    """Return the rest of a decoded text that opens with its prompt; None where it does not.

    Decoding may change white space and Unicode normalisation, and a prompt that is too long loses
    its beginning: then the longest end of the prompt that the text opens with is taken off. It has
    LEAST_OVERLAP characters, or is the whole prompt: fewer may be chance. Linear time.
    """
    if text.startswith(prompt):
        return text[len(prompt) :]
    if not text.strip():
        return ""
    whole, _ = _folded(prompt)
    opening, places = _folded(text)
    length = _overlap(whole, opening)
    if length < min(len(whole), LEAST_OVERLAP):
        return None
    return text[places[length - 1] + 1 :].lstrip() if length else text.lstrip()


def _folded(text: str) -> tuple[str, list[int]]:
    """Return a text without white space, and decomposed; and where each character of it came from.

    The sort puts accents of one letter into one order, as normalisation does, which for long runs
    of them takes quadratic time in `unicodedata`.
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


def _overlap(whole: str, text: str) -> int:
    """Length of the longest end of `whole` that `text` opens with (Knuth, Morris and Pratt)."""
    fails, matched = [0] * len(text), 0
    for at in range(1, len(text)):
        while matched and text[at] != text[matched]:
            matched = fails[matched - 1]
        matched += text[at] == text[matched]
        fails[at] = matched
    matched = 0
    for character in whole:
        while matched and (matched == len(text) or character != text[matched]):
            matched = fails[matched - 1]
        matched += bool(text) and character == text[matched]
    return matched


def _turns(prompt: str) -> list[tuple[str, str]]:
    """(role, text) in their order; none for a text that no known template made."""
    for header, end in HEADED:
        if header.search(prompt):
            _, *parts = header.split(prompt)
            bodies = [body.rpartition(end)[0] if end in body else body for body in parts[1::2]]
            turns = list(zip(parts[::2], bodies, strict=True))
            return turns[:-1] if _generation(turns[-1][0]) and end not in parts[-1] else turns
    if "[INST]" in prompt and "[/INST]" in prompt:
        return _instructions(prompt)
    return []


def _generation(role: str) -> bool:
    return role in ("assistant", "model")


def _instructions(prompt: str) -> list[tuple[str, str]]:
    _, *pieces = prompt.split("[INST]")
    turns = []
    for piece in pieces:
        user, _, answer = piece.partition("[/INST]")
        answer = answer.strip().removesuffix("<s>").rstrip().removesuffix("</s>")
        turns += [("user", SYSTEM.sub("", user, count=1)), ("assistant", answer)]
    return turns
