"""Label probabilities from the text of token alternatives, for endpoints that return no token ids.

An endpoint that tokenizes by itself returns the texts that might have come next. A label may be one
token or several. A token may hold a label together with neighbouring text (`[[7`, `7]]`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Sequence

from autoj_reward.engine.base import Alternatives, LabelProbs, WrittenToken
from autoj_reward.types import Usage

ReadAlternatives = Callable[[str], Awaitable[tuple[Alternatives | None, Usage]]]
"""Return the alternatives of the next token after the slot and the given beginning of a label.

The alternatives are None where the endpoint does not return them.
"""
SMALL = 1e-4
"""Probability below which no further request is made to divide it among longer labels."""
_GOES_ON = re.compile(r"\w|\.\d")


async def read_labels(
    labels: Sequence[str], read_alternatives: ReadAlternatives
) -> LabelProbs | None:
    """Return the probability of each label at a slot, or None if the endpoint returns no
    alternatives.

    As in `labels.trie_probs`, P(1) is what P("1") leaves to the labels that continue it.
    Probability that cannot be assigned to a label is `unknown`. For example, P("1") is unknown if
    10 is a label too, "10" may be the tokens "1" and "0", and the alternatives after "1" are not
    returned.
    """
    probs, unknown, usage = dict.fromkeys(labels, 0.0), 0.0, Usage()

    async def share_out(begun: str, mass: float) -> bool:
        """Divide the probability of a begun label among the labels that continue it.

        What remains belongs to the label that ends here. Return False if no alternatives are known.
        """
        nonlocal unknown, usage
        alternatives, cost = await read_alternatives(begun)
        usage += cost
        if alternatives is None:
            unknown += mass
            return False
        texts = [_append_token(begun, token) for token, _ in alternatives]
        remaining = mass
        for text, (_, logprob) in zip(texts, alternatives, strict=True):
            part = mass * math.exp(logprob)
            whole = _find_completed_label(text, labels, begun.lstrip())
            longer = _find_longer_labels(text, labels, texts)
            if not text or (begun and not text.strip()):  # its continuation cannot be requested
                unknown += part
                continue
            if text == begun or not (whole or longer):
                continue  # no label continues with this token
            remaining -= part
            if longer and part >= SMALL:
                await share_out(text, part)
            elif whole:
                probs[whole] += part
            else:
                unknown += part
        if begun in probs:
            probs[begun] += max(0.0, remaining)
        return True

    if not await share_out("", 1.0):
        return None
    return LabelProbs(tuple(probs.items()), usage, unknown)


def _append_token(begun: str, token: bytes) -> str:
    """Return the label's text with one more token.

    White space before a label is dropped, but kept while nothing follows it.
    """
    text = begun + token.decode("utf-8", "replace")
    return text.lstrip() or text


def _find_completed_label(text: str, labels: Sequence[str], begun: str) -> str | None:
    """Return the longest label that the text begins with and completes, or None.

    The label must be longer than what has begun, and end within the text or at its end.
    """
    completed = (
        label
        for label in labels
        if len(label) > len(begun)
        and text.startswith(label)
        and not _GOES_ON.match(text, len(label))
    )
    return max(completed, key=len, default=None)


def _find_longer_labels(text: str, labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the labels that the next tokens may complete from this text.

    A label that is a token itself does not continue a shorter label's token.
    """
    candidates = [label for label in labels if label != text and label.startswith(text.lstrip())]
    if text not in labels:
        return candidates
    return [label for label in candidates if not any(other.startswith(label) for other in texts)]


def read_written_slot(tokens: Sequence[WrittenToken], text: str, at: int) -> ReadAlternatives:
    """Return a reader of the alternatives of written tokens, for the label that begins at text[at].

    text: the answer as the endpoint returned it. The tokens may hold more, such as thinking before
    it or white space around it. Where text and tokens cannot be aligned, the reader returns None.
    """
    token_bytes = b"".join(token.text for token in tokens)
    start = token_bytes.rfind(text.encode())
    ends: list[int] = []
    for token in tokens:
        ends.append((ends[-1] if ends else 0) + len(token.text))
    label_start = start + len(text[:at].encode())

    async def read_alternatives(begun: str) -> tuple[Alternatives | None, Usage]:
        place = label_start + len(begun.encode())
        index = next((n for n, end in enumerate(ends) if end > place), None)
        if start < 0 or index is None or token_bytes[label_start:place] != begun.encode():
            return None, Usage()
        token = tokens[index]
        head = token.text[: place - (ends[index] - len(token.text))].rstrip()
        if begun and head:
            return None, Usage()  # the label continues inside a token, which has no alternatives
        return _strip_head(head, token.alternatives()), Usage()

    return read_alternatives


def _strip_head(head: bytes, alternatives: Alternatives) -> Alternatives:
    """Return the alternatives of a token without its head, the text before the label.

    An alternative that is the head alone, or part of it, gives no information about the label: its
    text becomes empty.
    """
    remainders = []
    for text, logprob in alternatives:
        if text.startswith(head):
            remainders.append((text[len(head) :], logprob))
        elif head.startswith(text):
            remainders.append((b"", logprob))
    return tuple(remainders)
