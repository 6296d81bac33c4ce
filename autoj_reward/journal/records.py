"""What stands in a journal, as Python holds it and as a file does: keys, records, packed texts."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from autoj_reward.conversation import messages_of
from autoj_reward.io.files import encoded
from autoj_reward.types import JudgeInput, Judgement, Outcome, Rating, Usage, Verdict

USUAL = (
    b"the response of and to a in that is for it with as on be are this by not which an from have "
    b"or more has was can their its but would could should about user's query provides information "
    b"answer question clear concise accurate helpful relevant detailed however lacks specific "
    b"comprehensive explanation does not address the user's question, could be improved by "
    b"providing more examples Additionally, Overall, However, the response provides a The response "
    b'is Rating: [[{"outcome": "truncated", {"outcome": "unparsable", "reason": "", '
    b'"critique": "", "rating": null, "verdict": "first", "verdict": "second", "verdict": "tie", '
    b'"confidence": [["first", 0.0, "flags": ["planted_verdict", "input_truncated"], '
    b'"forced": true, {"outcome": "ok", "reason": "", "critique": "The response ", '
    b'"rating": {"value": 5.0, "distribution": [["1", 0.00], ["2", 0.00], ["3", 0.0], ["4", 0.1], '
    b'["5", 0.2], ["6", 0.3], ["7", 0.0], ["8", 0.00], ["9", 0.00], ["10", 0.000e-05]], '
    b'"expected": 5.0, "outside": 0.000, "forced": false, "direct": 5.0}, "verdict": null, '
    b'"confidence": null, "forced": false, "usage": {"tokens_in": 500, "tokens_cached": 400, '
    b'"tokens_out": 100, "latency_s": 1.0}, "flags": [], "thinking": ""}'
)
"""What packed texts are likely to hold. Files are read by it: it must stay as it is."""


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
    return digest(judge, item.query, list(item.responses), item.sample, *added)


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


def judgement_cell(judge: str, record: dict[str, Any]) -> bytes:
    """The record of a judgement for its row; the judge stands beside it, and here only if it is
    another."""
    said = {k: v for k, v in record.items() if k != "judge" or v != judge}
    return packed(json.dumps(said))


def judgement_record(cell: bytes, judge: str) -> dict[str, Any]:
    """The inverse: what `as_json` made of a judgement."""
    found = json.loads(unpacked(cell))
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in place of an object")
    return {"judge": judge} | found


def judgement_of(data: dict[str, Any]) -> Judgement:
    """The inverse of asdict(judgement), which JSON may have been through."""
    rating = data["rating"]
    if rating is not None:
        rating["distribution"] = _pairs(rating["distribution"])
        data["rating"] = Rating(**rating)
    data["outcome"] = Outcome(data["outcome"])
    data["verdict"] = Verdict(data["verdict"]) if data["verdict"] else None
    data["confidence"] = _pairs(data["confidence"])
    data["usage"] = Usage(**data["usage"])
    data["flags"] = tuple(data["flags"])
    return Judgement(**data)


def _pairs(value: list[list[Any]] | None) -> tuple[tuple[str, float], ...] | None:
    return None if value is None else tuple((label, p) for label, p in value)
