"""Remarks after a verdict: whether a label stays the verdict, given the text that follows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from autoj_reward.formats.planted import Labels
from autoj_reward.formats.slots import SAID_OUT, TRAIL, Slot, compile_label

WINDOW = 300
"""Number of characters after a label that are read, so that the cost is bounded."""
SENTENCE_END = TRAIL + r"(?:\Z|(?<=\n)|[!。！]|\.++(?!\d))"
"""Pattern of the end of the sentence or line that a label stands in."""
_END = re.compile(SENTENCE_END)
_SEPARATOR = re.compile(TRAIL + r"(?:(?:[,，;；:：(（–—]|(?<=\s)--?(?=\s))\s*+)++")
"""Pattern of punctuation between a label and a remark."""
_LINK = re.compile(
    TRAIL + r"(?:(?:because|since|due\s+to|owing\s+to|thanks\s+to|given|considering|based\s+on|"
    r"as(?!\s+well\b)|for|over|than|rather\s+than|which|while|whereas|although|though|despite|"
    r"in\s+(?:terms|view|light)\s+of|on\s+(?:account|the\s+basis|grounds)\s+of|"
    r"with\s+(?:its|the|an?|more|better)|by\s+an?)\b|因为|由于|鉴于|考虑到|基于|理由|原因|优于|胜过|好于)",
    re.IGNORECASE,
)
"""Pattern of words that join a remark to a label without punctuation.

They are prepositions and conjunctions. Any other word may be the verb of the label, as in "Response
1 loses".
"""
_TURN = re.compile(
    r"(?:(?:x?or|but|nor|as\s+well|(?:al)?together\s+with|along(?:side|\s+with)|plus|perhaps|maybe|"
    r"possibly|probably|presumably|if|unless|except|rather(?!\s+than)|instead|un(?:sure|certain)|not\s+sure)\b|"
    r"[\d/&+<>=~]|或|和|与|以及|及|跟|还是|但|不过|然而|可能|也许|或许|大概|除非|如果|不确定)",
    re.IGNORECASE,
)
"""Pattern of words that make a remark an alternative, a condition or a doubt."""
_RETRACTION = re.compile(
    r"""[\s(*_"'“‘]*(?:(?:no|nope)(?=\s*[,.:;!…—–-]|\s*\Z|\s+wait\b)|(?:wait|hmm*|correction|sorry|"""
    r"scratch\s+that|actually|on\s+(?:reflection|second\s+thoughts?)|or)\b|或|不[,，:：。！]|不对|等等|更正)",
    re.IGNORECASE,
)
"""Pattern of words that take back what was said before."""
_ALTERNATIVE_END = re.compile(
    TRAIL + r"(?:\Z|[,，、;；/.!?。！？]|(?:x?or|are)\b|或)", re.IGNORECASE
)
_PREFERRED = re.compile(
    rf"{SAID_OUT.pattern}|\s+(?:wins|won|is\s+(?:superior|stronger|preferred|preferable))\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^\n.!?。！？]*+(?:\.(?=\d)[^\n.!?。！？]*+)*+([?？]?)")
_RATED_AGAIN = re.compile(
    r"(?:(?:rat(?:e|ed|ing)|scor(?:e|ed)|graded?|deserves?|评分|打分|得分|分数)"
    r"(?:\s*[:：=为是]\s*|\s+(?:is|was|be|of|to|at|as|it|this|an?|should|would|could)(?=\W)){0,6}"
    r"[\s*_(\[]{0,8}|\[\[\s*|boxed\{\s*)"
    r"(?P<rated>\d{1,3}(?:\.\d+)?)"
    r"|(?<![\d.])(?P<share>\d{1,3}(?:\.\d+)?)\s{0,3}(?:/|out\s+of)\s{0,3}(?P<high>\d+)"
    r"|^[^\w\n]*+(?P<alone>\d{1,3}(?:\.\d+)?)[^\w\n]*+$",
    re.IGNORECASE | re.MULTILINE,
)
"""Pattern of a number that is given as a rating: after such a word or a bracket, as `7/10`, or
alone on its line."""
_REASON_FOR_DECISION = re.compile(
    r"\s*(?:(?:based|made|reached|drawn|taken|grounded|rooted|founded|supported|justified|"
    r"motivated|driven|because|due\s+to|owing\s+to)\b|基于|根据|因为|由于|鉴于|考虑到)",
    re.IGNORECASE,
)


def leaves_verdict(text: str, end: int, slot: Slot, name: str) -> bool:
    """Return whether a label that ends at `end` is a verdict, given what follows.

    It is if it ends its sentence, or if punctuation or a conjunction joins a remark to it, unless
    the remark names another label as an alternative or as the better one, doubts the label,
    takes it back or asks a question.

    name: the label's name.
    """
    window = text[end : end + WINDOW]
    if _END.match(window):
        return True
    joint = _SEPARATOR.match(window)
    if joint is None:
        return _LINK.match(window) is not None and _agrees(window, slot, name)
    remark = window[joint.end() :]
    if _TURN.match(remark) or _RETRACTION.match(remark):
        return False
    return _agrees(remark, slot, name)


def _agrees(remark: str, slot: Slot, name: str) -> bool:
    """Return whether the first sentence of a remark leaves the label `name` the verdict."""
    sentence = _SENTENCE.match(remark)
    assert sentence is not None
    if sentence[1]:
        return False
    if not slot.spelled or _is_number(name):
        return True
    others = _compile_others(slot.spelled, name)
    other = others.match(remark)
    if other and _ALTERNATIVE_END.match(remark, other.end()):
        return False
    starts_with_and = re.match(r"and\b", remark, re.IGNORECASE)
    for other in others.finditer(sentence.group()):
        if starts_with_and or _PREFERRED.match(remark, other.end()):
            return False
    return True


def _is_number(name: str) -> bool:
    return name.replace(".", "").isdecimal()


@lru_cache(maxsize=64)
def _compile_others(labels: Labels, name: str) -> re.Pattern[str]:
    """Return the pattern of the labels with another name."""
    spellings = [s for other, texts in labels if other != name for s in texts]
    spelled = "|".join(compile_label(s).pattern for s in sorted(spellings, key=len, reverse=True))
    return re.compile(rf"(?<![0-9A-Za-z])(?:{spelled})", re.IGNORECASE)


def find_other_ratings(text: str, end: int, value: float, high: float) -> Iterator[int]:
    """Yield the offsets of the numbers after `end` that are given as a rating other than `value`.

    high: end of the scale, so that `3/4` on a scale to 10 is no rating.
    """
    for match in _RATED_AGAIN.finditer(text, end):
        name = match.lastgroup if match["share"] is None else "share"
        assert name is not None
        if name == "share" and float(match["high"]) != high:
            continue
        if float(match[name]) != value:
            yield match.start(name)


def is_taken_back(text: str, end: int) -> bool:
    """Return whether the sentence after a verdict that ends at `end` takes it back."""
    window = text[end : end + WINDOW]
    sentence_end = _END.match(window)
    return sentence_end is not None and _RETRACTION.match(window, sentence_end.end()) is not None


def is_reason(text: str, opened: int) -> bool:
    """Return whether an opening that ends at `opened` begins a remark on the verdict before it, as
    in "This final decision is based on accuracy." """
    return _REASON_FOR_DECISION.match(text, opened) is not None
