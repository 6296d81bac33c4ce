"""Candidates, judgements and comparisons as the page shows them, cut where they are too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoj_reward.io.page import visible
from autoj_reward.journal.reading import Entry
from autoj_reward.types import RATING
from autoj_reward.watch.index import Row
from autoj_reward.watch.standing import VIEWS, Stander

CUT = 40_000
"""Characters of a text that are shown."""
EXCERPT = 240


def shown(text: str, most: int = CUT) -> str:
    """A text whose controls can be seen, and how much of it is left out."""
    left = len(text) - most
    return visible(text[:most]) + (f"\n… {left:,} more characters" if left > 0 else "")


def excerpt(text: str) -> str:
    """The beginning of a text in one line."""
    words = " ".join(text[: 4 * EXCERPT].split())
    return visible(words[:EXCERPT]) + "…" * (len(words) > EXCERPT or len(text) > 4 * EXCERPT)


def candidate(own: Stander, row: Row, entry: Entry | None) -> dict[str, Any]:
    """A candidate's line in the list of a query's."""
    text = entry.item.responses[row.one != own.response] if entry else ""
    flags = sorted({flag for mark in own.marks for flag in mark.flags})
    return {
        "name": str(own.response),
        "text": excerpt(text),
        "values": dict(zip(VIEWS, own.values, strict=True)),
        "judgements": len(own.marks),
        "outcome": own.outcome,
        "forced": any(mark.forced for mark in own.marks),
        "flags": flags[:16],
    }


def judged(row: Row, entry: Entry) -> dict[str, Any]:
    """One judgement of a candidate, with all that the judge said."""
    said, rating = entry.judgement, entry.judgement.reading(RATING)
    slot = rating.distribution if rating else None
    return _told(row, entry) | {
        "rating": said.rating,
        "expected": said.expected,
        "direct": said.direct,
        "outside": rating.outside if rating else None,
        "distribution": [[visible(label), p] for label, p in (slot or ())[:64]],
    }


def comparison(row: Row, entry: Entry) -> dict[str, Any]:
    """One order of two candidates. verdict: of `one`, which was shown first, and `two`."""
    confidence = entry.judgement.confidence or ()
    return _told(row, entry) | {
        "one": str(row.one),
        "two": str(row.two),
        "verdict": row.mark.verdict,
        "confidence": [[visible(label), p] for label, p in confidence[:8]],
    }


def _told(row: Row, entry: Entry) -> dict[str, Any]:
    said, used = entry.judgement, entry.judgement.usage
    return {
        "kind": row.mark.kind,
        "at": entry.at,
        "sample": entry.item.sample,
        "outcome": said.outcome.value,
        "reason": shown(said.reason, 500),
        "critique": shown(said.critique),
        "thinking": shown(said.thinking),
        "forced": row.mark.forced,
        "flags": row.mark.flags[:16],
        "tokens_in": used.tokens_in,
        "tokens_cached": used.tokens_cached,
        "tokens_out": used.tokens_out,
        "latency_s": used.latency_s,
        "queued_s": used.queued_s,
    }


def summary_figures(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the page shows of a finished job beyond what its journal says; left out is what another
    version wrote in another way."""
    if summary is None:
        return None
    kinds: dict[str, type | tuple[type, ...]] = {
        "view": str, "queries": int, "rows": int, "candidates": int, "comparisons": int,
        "reused": int, "rules": dict, "seconds": dict, "curve": list,
    }  # fmt: skip
    found = {k: summary[k] for k, kind in kinds.items() if isinstance(summary.get(k), kind)}
    for name in ("rules", "seconds"):
        found[name] = {
            shown(str(k), 100): v
            for k, v in list(found.get(name, {}).items())[:32]
            if isinstance(v, int | float)
        }
    found["curve"] = [point for point in found.get("curve", [])[:64] if _is_point(point)]
    named = summary.get("bad_rows", summary.get("left_out", []))
    left_out = summary.get("rows_left_out", len(named) if isinstance(named, list) else None)
    found["left_out"] = left_out if isinstance(left_out, int) else None
    return found


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int | float) for number in value)
    )
