"""Final answer of a response: what stands in its last answer tags or its last box."""

from __future__ import annotations

import re

_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\.|[{}]", re.DOTALL)


def find_final_answer(text: str) -> str:
    r"""Return the final answer of a response without its thinking.

    It is the text in the last `<answer>` tags, and in it or else in the whole text that of the last
    `\boxed{}`. A text without either is its own answer. Takes time linear in the text.
    """
    answer = _find_in_tags(text)
    answer = text if answer is None else answer
    boxed = _find_in_box(answer)
    return answer.strip() if boxed is None else boxed.strip()


def _find_in_tags(text: str) -> str | None:
    """Return the text in the last pair of tags. None without one."""
    found = None
    opened = None
    for tag in _TAGS.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            found = text[opened : tag.start()]
            opened = None
    return found


def _find_in_box(text: str) -> str | None:
    """Return the text in the last closed box that is in no other. None without one."""
    found = None
    # Start of the content of each open brace's box; None for a brace that opens none.
    starts: list[int | None] = []
    open_boxes = 0
    for brace in _BRACES.finditer(text):
        token = brace.group()
        if token == "{":
            starts.append(None)
        elif token.endswith("{") and len(token) > 2:
            starts.append(brace.end())
            open_boxes += 1
        elif token == "}" and starts:
            start = starts.pop()
            if start is not None:
                open_boxes -= 1
                if not open_boxes:
                    found = text[start : brace.start()]
    return found
