"""Label probabilities from the alternatives of tokens, told as text and not as ids.

An endpoint that tokenizes by itself tells which texts might have come next. A label may be one
token or several, and a token may hold a label together with what surrounds it (`[[7`, `7]]`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence

from autoj_reward.engine.base import Alternatives, LabelProbs, WrittenToken
from autoj_reward.types import Usage

Following = Callable[[str], Awaitable[tuple[Alternatives | None, Usage]]]
"""Alternatives of the next token after the slot and the text of a label begun; None where the
endpoint does not tell them."""
SMALL = 1e-4
"""Probability below which nothing more is asked to share it out between labels."""
_GOES_ON = re.compile(r"\w|\.\d")


async def read_labels(labels: Sequence[str], following: Following) -> LabelProbs | None:
    """Return the probability of each label at a slot; None where nothing is told there.

    As `labels.trie_probs` has it, P(1) is what P("1") leaves to the labels that go on from there.
    What cannot be shared out is `unknown`: P("1") where 10 is a label too, the endpoint's tokenizer
    may write it as "1" and "0", and what follows "1" is not told.
    """
    probs, unknown, usage = dict.fromkeys(labels, 0.0), 0.0, Usage()

    async def share_out(begun: str, mass: float) -> bool:
        """Share the probability of what has begun; what is left over is a label that ends here."""
        nonlocal unknown, usage
        told, cost = await following(begun)
        usage += cost
        if told is None:
            unknown += mass
            return False
        texts = [_said(begun, token) for token, _ in told]
        left = mass
        for text, (_, logprob) in zip(texts, told, strict=True):
            part = mass * math.exp(logprob)
            whole = _complete(text, labels, begun.lstrip())
            longer = _longer(text, labels, texts)
            if not text or (begun and not text.strip()):  # what follows cannot be asked for
                unknown += part
                continue
            if text == begun or not (whole or longer):
                continue  # no label goes on with this token
            left -= part
            if longer and part >= SMALL:
                await share_out(text, part)
            elif whole:
                probs[whole] += part
            else:
                unknown += part
        if begun in probs:
            probs[begun] += max(0.0, left)
        return True

    if not await share_out("", 1.0):
        return None
    return LabelProbs(tuple(probs.items()), usage, unknown)


def _said(begun: str, token: bytes) -> str:
    """The label's text with one more token; white space before a label is none of it, and stands
    for itself while nothing follows."""
    text = begun + token.decode("utf-8", "replace")
    return text.lstrip() or text


def _complete(text: str, labels: Sequence[str], begun: str) -> str | None:
    """The longest label, longer than what has begun, with which the text begins and that ends
    within it or at its end."""
    ended = (
        label
        for label in labels
        if len(label) > len(begun)
        and text.startswith(label)
        and not _GOES_ON.match(text, len(label))
    )
    return max(ended, key=len, default=None)


def _longer(text: str, labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The labels that may come of the text with the next tokens. One that is a token itself does
    not come of a shorter label's token."""
    found = [label for label in labels if label != text and label.startswith(text.lstrip())]
    if text not in labels:
        return found
    return [label for label in found if not any(one.startswith(label) for one in texts)]


def written_slot(tokens: Sequence[WrittenToken], text: str, at: int) -> Following:
    """Return what the written tokens tell of the label that begins at text[at].

    text: what the endpoint gave as the answer; its tokens may say more, such as thinking before it
    or white space around it. Where the two cannot be aligned nothing is told.
    """
    said = b"".join(token.text for token in tokens)
    start = said.rfind(text.encode())
    ends: list[int] = []
    for token in tokens:
        ends.append((ends[-1] if ends else 0) + len(token.text))
    label = start + len(text[:at].encode())

    async def following(begun: str) -> tuple[Alternatives | None, Usage]:
        place = label + len(begun.encode())
        number = next((n for n, end in enumerate(ends) if end > place), None)
        if start < 0 or number is None or said[label:place] != begun.encode():
            return None, Usage()
        token = tokens[number]
        head = token.text[: place - (ends[number] - len(token.text))].rstrip()
        if begun and head:
            return None, Usage()  # the label goes on inside a token, which tells no alternatives
        return _after(head, token.alternatives()), Usage()

    return following


def _after(head: bytes, alternatives: Alternatives) -> Alternatives:
    """Alternatives of a token without its head, which stands before the label. One that is only the
    head, or a part of it, says nothing of what would follow."""
    found = []
    for text, logprob in alternatives:
        if text.startswith(head):
            found.append((text[len(head) :], logprob))
        elif head.startswith(text):
            found.append((b"", logprob))
    return tuple(found)
