"""Records of a journal, in Python and as stored: keys, judgements and compressed texts."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoj_reward.conversation import messages_of
from autoj_reward.io.files import encoded, to_compact_json
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
"""Compression dictionary of likely text. It must not change: stored texts are read with it."""

SHORT_BYTES = 2048
"""Length in bytes below which a text is compressed with a small window."""
STORED_FIELDS = ("outcome", "reason", "critique", "readings", "usage", "judge", "flags", "thinking")
"""Fields of a judgement's record that a journal stores. The others follow from the readings."""


@dataclass(frozen=True, slots=True)
class SampledResponses:
    """Responses of a policy to one query."""

    responses: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    """Sequence log-probability of each response under the policy (natural log); None if unknown."""
    finished: tuple[bool, ...]
    """Whether each response stopped by itself, and not at the token limit."""
    tokens_out: int
    """Tokens of all responses together."""


def judgement_key(judge: str, item: JudgeInput) -> str:
    """Return the key of a judgement: SHA-256 over the judge's fingerprint and the exact input.

    Optional fields that an input does not have do not enter it.
    """
    optional: list[Any] = ["direct"] if item.direct else []
    optional += [{"context": dict(item.context)}] if item.context else []
    optional += [{"turns": messages_of(item.prompt.turns)}] if item.prompt.turns else []
    optional += [{"items": [entry.record() for entry in item.items]}] if item.items else []
    responses = [response.record() for response in item.responses]
    return digest(judge, item.protocol, item.prompt.text, responses, item.sample, *optional)


def digest(*parts: Any) -> str:
    """Return the SHA-256 of JSON values and bytes as hexadecimal digits."""
    plain = [part.decode("latin-1") if isinstance(part, bytes) else part for part in parts]
    # Escaped, two lone surrogates would give the same digest as the character that they spell.
    return hashlib.sha256(encoded(_UNESCAPED.encode(plain))).hexdigest()


_UNESCAPED = json.JSONEncoder(ensure_ascii=False)


def pack(text: str) -> bytes:
    """Return a text compressed with the dictionary USUAL."""
    body = encoded(text)
    # A short text gains nothing from a large window, which takes longer to set up than to use.
    window, memory = (-12, 4) if len(body) < SHORT_BYTES else (-zlib.MAX_WBITS, 6)
    packer = zlib.compressobj(6, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, USUAL)
    return packer.compress(body) + packer.flush()


def unpack(body: bytes) -> str:
    """Return the text of bytes that `pack` made. Raises ValueError for damaged bytes."""
    try:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS, USUAL)
        text = unpacker.decompress(body) + unpacker.flush()
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("its end is missing, or something follows")
    return text.decode("utf-8", "surrogatepass")


def judgement_cell(judge: str, judgement: Judgement) -> bytes:
    """Return a judgement as the bytes of its row.

    judge: fingerprint in the row's own column; the bytes hold the judgement's only if it differs.
    """
    record = {name: getattr(judgement, name) for name in STORED_FIELDS}
    record["usage"] = judgement.usage.record()
    if judgement.judge == judge:
        del record["judge"]
    return pack(to_compact_json(record).decode("ascii"))


def judgement_record(cell: bytes, judge: str) -> dict[str, Any]:
    """Return the record in a row's bytes, for `read_judgement`. The inverse of `judgement_cell`."""
    record = json.loads(unpack(cell))
    if not isinstance(record, dict):
        raise TypeError(f"{type(record).__name__} in place of an object")
    return {"judge": judge} | record


def read_judgement(data: Mapping[str, Any]) -> Judgement:
    """Return the judgement of a record, also after a round trip through JSON.

    The inverse of `Judgement.record`. Raises ValueError, KeyError or TypeError for an invalid
    record.
    """
    return Judgement(
        Outcome(data["outcome"]),
        data["reason"],
        data["critique"],
        tuple(_read_reading(record) for record in data["readings"]),
        Usage(**data["usage"]),
        data["judge"],
        tuple(data["flags"]),
        data["thinking"],
    )


def _read_reading(data: Mapping[str, Any]) -> Reading:
    distribution = data["distribution"]
    pairs = None if distribution is None else tuple((label, p) for label, p in distribution)
    return Reading(**{**data, "distribution": pairs})
