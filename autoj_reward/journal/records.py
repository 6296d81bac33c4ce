"""What stands in a journal, as Python holds it and as a file does: keys, records, packed texts."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoj_reward.conversation import messages_of
from autoj_reward.io.encoding import encoded
from autoj_reward.types import JudgeInput, Judgement, Outcome, Reading, Usage

USUAL = (
    b"the response of and to a in that is for it with as on be are this by not which an from have "
    b"or more has was can their its but would could should about user's query provides information "
    b"answer question clear concise accurate helpful relevant detailed however lacks specific "
    b"comprehensive explanation does not address the user's question, could be improved by "
    b"providing more examples Additionally, Overall, However, the response provides a The response "
    b'is Rating: [[{"outcome": "truncated", {"outcome": "unparsable", "reason": "", '
    b'"critique": "", "readings": [], [{"slot": "verdict", "label": "second", "label": "tie", '
    b'"label": "first", "value": null, "distribution": [["first", 0.0], ["second", 0.0], ["tie", '
    b'"expected": null, "flags": ["planted_verdict", "input_truncated"], "forced": true}], '
    b'{"outcome": "ok", "reason": "", "critique": "The response ", "readings": [{"slot": "rating", '
    b'"label": "5", "value": 5.0, "distribution": [["1", 0.00], ["2", 0.00], ["3", 0.0], '
    b'["4", 0.1], ["5", 0.2], ["6", 0.3], ["7", 0.0], ["8", 0.00], ["9", 0.00], '
    b'["10", 0.000e-05]], "expected": 5.0, "outside": 0.000, "unknown": 0.0, "forced": false}, '
    b'{"slot": "direct", "label": "5", "value": 5.0, "usage": {"tokens_in": 500, '
    b'"tokens_cached": 400, "tokens_out": 100, "latency_s": 1.0, "queued_s": 0.0}, "flags": [], '
    b'"thinking": ""}'
)
"""What packed texts are likely to hold. Files are read by it: it must stay as it is."""

KEPT = ("outcome", "reason", "critique", "readings", "usage", "judge", "flags", "thinking")
"""The fields of a judgement's record that a journal keeps; the others follow from the readings."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Responses of a policy to one query, with their log-probabilities and the tokens spent."""

    responses: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    finished: tuple[bool, ...]
    tokens_out: int


def judgement_key(judge: str, item: JudgeInput) -> str:
    """SHA-256 over the judge's fingerprint and the exact inputs. What an input does not have leaves
    no trace."""
    added: list[Any] = ["direct"] if item.direct else []
    added += [{"context": dict(item.context)}] if item.context else []
    added += [{"turns": messages_of(item.turns)}] if item.turns else []
    return digest(judge, item.protocol, item.query, list(item.responses), item.sample, *added)


def digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can hold, and of bytes, as hexadecimal digits."""
    plain = [part.decode("latin-1") if isinstance(part, bytes) else part for part in parts]
    # Escaped, a split surrogate pair would read like the character that it spells.
    return hashlib.sha256(encoded(_UNESCAPED.encode(plain))).hexdigest()


_UNESCAPED = json.JSONEncoder(ensure_ascii=False)


def packed(text: str) -> bytes:
    made = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS, 6, zlib.Z_DEFAULT_STRATEGY, USUAL)
    return made.compress(encoded(text)) + made.flush()


def unpacked(body: bytes) -> str:
    """The inverse of `packed`. Raises ValueError."""
    try:
        found = zlib.decompressobj(-zlib.MAX_WBITS, USUAL)
        text = found.decompress(body) + found.flush()
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not found.eof or found.unused_data:
        raise ValueError("its end is missing, or something follows")
    return text.decode("utf-8", "surrogatepass")


def judgement_cell(judge: str, judgement: Judgement) -> bytes:
    """The record of a judgement for its row: what `judgement_of` needs. The judge stands beside it,
    and here only if it is another."""
    said = judgement.record()
    kept = {name: said[name] for name in KEPT if name != "judge" or said[name] != judge}
    return packed(json.dumps(kept))


def judgement_record(cell: bytes, judge: str) -> dict[str, Any]:
    """The inverse: a record as `judgement_of` reads it."""
    found = json.loads(unpacked(cell))
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in place of an object")
    return {"judge": judge} | found


def judgement_of(data: Mapping[str, Any]) -> Judgement:
    """The inverse of `Judgement.record`, which JSON may have been through. Raises ValueError,
    KeyError or TypeError for what is no record of a judgement."""
    return Judgement(
        Outcome(data["outcome"]),
        data["reason"],
        data["critique"],
        tuple(_reading(own) for own in data["readings"]),
        Usage(**data["usage"]),
        data["judge"],
        tuple(data["flags"]),
        data["thinking"],
    )


def _reading(data: Mapping[str, Any]) -> Reading:
    told = data["distribution"]
    pairs = None if told is None else tuple((label, p) for label, p in told)
    return Reading(**{**data, "distribution": pairs})
