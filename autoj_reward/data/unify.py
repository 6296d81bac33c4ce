"""Conversion of a teacher's raw answers to training judgements, or a reason to reject them.

Pure functions. Comparisons become the unified format of the paper's Table 18; critiques lose the
teacher's own solution and ratings; merged critiques end in `Rating: [[x]]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from autoj_reward.data.filters import is_english
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import JudgeFormat, parse_comparison, parse_rating
from autoj_reward.types import Verdict


class Reason(StrEnum):
    """Reason why a row is set aside and not trained on."""

    NO_LABEL = "no_human_label"
    AMBIGUOUS = "cannot_be_split_again"
    UNAVAILABLE = "unavailable"
    REJECTED = "input_rejected"
    EMPTY = "empty_answer"
    CUT = "cut_answer"
    REFUSAL = "refusal"
    LANGUAGE = "wrong_language"
    NO_DECISION = "no_decision"
    CONTRADICTORY = "contradictory_decisions"
    NO_FACTORS = "no_factors"
    NO_RATING = "no_rating"
    DISAGREES = "disagrees_with_people"
    UNALTERED = "query_not_altered"
    EQUAL = "equal_responses"


@dataclass(frozen=True, slots=True)
class Unified:
    """A judgement in its final form; verdict or rating is set, by protocol."""

    text: str
    verdict: Verdict | None = None
    rating: float | None = None


REFUSAL = re.compile(
    r"\s*(?:i'?m (?:very )?sorry\b|sorry, (?:but )?i\b|i apologi[sz]e\b|i (?:cannot|can't|can not|"
    r"won't|am unable to|am not able to)\b|i'm (?:unable|not able) to\b|"
    r"as an ai(?: language)? model,? i (?:cannot|can't|am (?:not able|unable)))",
    re.IGNORECASE,
)
BULLET = re.compile(r"\s*(?:[-*•–]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+", re.IGNORECASE)
FACTOR = re.compile(r"(?P<name>[^:\n]{1,80}?)\s*:\s+(?P<text>\S.*)")
HEADING = re.compile(r"[^:.\n]{1,60}:?")
CLOSING = re.compile(r"\b(?:conclusion|final decision|summary|overall)\b", re.IGNORECASE)
CLOSES = re.compile(
    r"(?:overall|in (?:conclusion|summary)|to (?:conclude|sum up)|therefore)\b", re.I
)
DECISION = re.compile(
    r"final decision(?: is:?|:)\s*(?:that )?(?:they are |it is |it's |both are )?(?:a )?[\"'`(]*"
    r"(?P<label>response [12]|tie)d?\b[\"'`)]*(?!\s*(?:/|or\b))",
    re.IGNORECASE,
)
GENERIC = re.compile(
    r"\b(?:criteri(?:on|a)|factors?|distinguish|review|comparison|assessment)\b", re.IGNORECASE
)
WORDS_IN_NAME = 8


def unusable(text: str, finished: bool) -> Reason | None:
    """Return why an answer is unusable for any question: empty, refused, cut or not English.

    Returns None if it is usable. finished: False if the length limit cut it off.
    """
    if not text.strip():
        return Reason.EMPTY
    if REFUSAL.match(text.replace("’", "'")):
        return Reason.REFUSAL
    if not finished:
        return Reason.CUT
    return None if is_english(text) else Reason.LANGUAGE


def unify_comparison(raw: str, fmt: JudgeFormat) -> Unified | Reason:
    """Convert the factors and the decision of a comparison to the unified format."""
    raw = DECISION.sub(lambda m: "final decision is " + m["label"], raw.replace("**", ""))
    verdicts = _find_decisions(raw, fmt)
    if not verdicts:
        return Reason.NO_DECISION
    if len(set(verdicts)) > 1:
        return Reason.CONTRADICTORY
    parsed = parse_comparison(raw, fmt)
    if isinstance(parsed, ParseFailure):
        return Reason.NO_DECISION
    assert fmt.pairwise is not None
    label = fmt.pairwise.labels[parsed.verdict.value][0]  # type: ignore[index]
    opened = _find_sentence_start(raw, parsed.opened)
    factors, closing = _split_factors(_take_text_after(raw[:opened], "Comparison"))
    if not factors:
        return Reason.NO_FACTORS
    after = raw[parsed.start :][len(label) :].lstrip(" .,;:*\"'-–—")
    after = after[:1].upper() + after[1:]  # "Response 1, because ..." becomes two sentences
    remarks = " ".join(" ".join([*closing, after]).split())
    lines = [f"- {name}: {text}" for name, text in factors]
    text = "\n".join(
        [
            "1. The key factors to distinguish these two responses:",
            *lines,
            "",
            "2. The final decision:",
            f"So, the final decision is {label}. {remarks}".rstrip(),
        ]
    )
    again = parse_comparison(text, fmt)
    if isinstance(again, ParseFailure) or again.verdict is not parsed.verdict:
        return Reason.CONTRADICTORY
    return Unified(text, verdict=parsed.verdict)


def clean_critique(raw: str, fmt: JudgeFormat) -> str | Reason:
    """Return the critique without the teacher's own solution before it or a rating after it."""
    text = _take_text_after(raw, "Critiques")
    if slots := list(fmt.slots("single")[0].open_re.finditer(text)):
        text = text[: slots[0].start()]
    return text.strip() or Reason.EMPTY


def unify_rating(raw: str, fmt: JudgeFormat) -> Unified | Reason:
    """Convert a critique to the form that ends in exactly one rating."""
    parsed = parse_rating(raw, fmt)
    if isinstance(parsed, ParseFailure):
        return Reason.NO_RATING
    slots = list(fmt.slots("single")[0].open_re.finditer(raw))
    values = {parse_rating(raw[: s.end() + 12], fmt) for s in slots[:-1]}
    if any(isinstance(v, ParseFailure) or v.value != parsed.value for v in values):
        return Reason.CONTRADICTORY
    critique = raw[: slots[0].start()].rstrip(" \n*#")
    if not critique.strip():
        return Reason.EMPTY
    return Unified(f"{critique.strip()}\n\nRating: [[{parsed.rating:g}]]", rating=parsed.rating)


def _find_decisions(raw: str, fmt: JudgeFormat) -> list[Verdict]:
    """Return all decisions in the text. Repeated lists of the options do not count."""
    starts = [match.start() for match in fmt.slots("pairwise")[0].open_re.finditer(raw)]
    pieces = [raw[a:b] for a, b in pairwise([*starts, len(raw)])]
    parsed = [parse_comparison(piece, fmt) for piece in pieces]
    return [comparison.verdict for comparison in parsed if not isinstance(comparison, ParseFailure)]


def _find_sentence_start(raw: str, opened: int) -> int:
    """Return the index where the decision's sentence ("So, the ...") begins."""
    head = raw[:opened]
    return (
        max(head.rfind("\n"), *(m.end() - 1 for m in re.finditer(r"(?<!\n\d)[.!?:]\s", head)), -1)
        + 1
    )


def _take_text_after(raw: str, heading: str) -> str:
    """Return what follows the last line that begins with a heading; the whole text without one."""
    pattern = rf"^[\s\d.)#*]*{heading}\s*(?:\*\*)?\s*:\s*(?:\*\*)?"
    headings = list(re.finditer(pattern, raw, re.MULTILINE | re.IGNORECASE))
    return raw[headings[-1].end() :] if headings else raw


def _split_factors(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (name, explanation) of each factor, and the closing remarks before the decision."""
    factors: list[tuple[str, str]] = []
    closing: list[str] = []
    concluding, heading = False, ""
    for line in text.splitlines():
        bare = line.strip("# \t")
        if not bare:
            continue
        body = BULLET.sub("", bare, count=1)
        factor = FACTOR.fullmatch(body)
        if factor and CLOSING.search(factor["name"]):
            concluding = True
            closing.append(factor["text"])
        elif CLOSING.search(body) and HEADING.fullmatch(body):
            concluding = True
        elif concluding or CLOSES.match(body):
            concluding = True
            closing.append(body)
        elif factor and _names_a_factor(factor["name"]):
            factors.append((factor["name"].strip(" \"'"), factor["text"].strip()))
            heading = ""
        elif body.endswith(":"):
            heading = body.rstrip(": ") if _names_a_factor(body) else ""
        elif heading:
            factors.append((heading, body))
            heading = ""
        elif factors and not GENERIC.match(body):
            name, explanation = factors[-1]
            factors[-1] = (name, f"{explanation} {body}")
    return factors, closing


def _names_a_factor(name: str) -> bool:
    return len(name.split()) <= WORDS_IN_NAME and not GENERIC.search(name)
