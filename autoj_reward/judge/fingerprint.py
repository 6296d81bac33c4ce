"""The name of a judge: another one as soon as anything could change its judgements."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def fingerprint_of(model: str, fmt: str, facts: dict[str, Any]) -> str:
    """A readable head (model and format) and 16 hex digits of SHA-256 over the facts."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return f"{model}:{fmt}:{digest}"
