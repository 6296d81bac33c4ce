"""JSON of a run, a candidate and a judgement for display, on the live page and in a report.

Texts are truncated, and their invisible characters are made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoj_reward.client.judging import SCORED_BY, value_name
from autoj_reward.io.files import to_plain
from autoj_reward.io.markup import visible
from autoj_reward.questions.rubric import ItemVerdict, read_item
from autoj_reward.types import CHECKLIST, DIRECT, JudgeInput, Judgement
from autoj_reward.watch.statistics import (
    VIEWS,
    CandidateResult,
    RunStatistics,
    bars,
    notices,
)
from autoj_reward.watch.timeline import RATING

CUT = 40_000
"""Maximum characters of a displayed text."""
EXCERPT = 240
"""Maximum characters of an excerpt."""
BARS = 64
"""Maximum bars of a histogram."""
CRITERION = 500
"""Maximum characters of a rubric item's criterion, and of the reason why it has no verdict."""
NAMES = 32
"""Maximum displayed names in a count of a summary."""
COUNTS = ("outcomes", "reasons", "flags", "rules", "seconds", "usage")
"""Keys of a summary that hold counts or amounts by name."""
SCALARS = (
    "queries", "candidates", "ok_share", "forced", "forced_share", "cache_hit_rate", "comparisons",
    "failed_comparisons", "reused", "rows", "rows_left_out", "curve_queries",
    "judgements_per_second", "output_tokens_per_second", "tie_rate", "pair_tie_rate", "spread",
)  # fmt: skip
"""Keys of a summary that hold one number."""
OF_A_VIEW = ("tie_rate", "pair_tie_rate", "spread")
"""Keys of a summary that depend on the view which ranked its candidates."""


def displayed_text(text: str, most: int = CUT) -> str:
    """Return a text with visible control characters, truncated to `most` characters.

    The number of omitted characters is appended.
    """
    excess = len(text) - most
    return visible(text[:most]) + (f"\n… {excess:,} more characters" if excess > 0 else "")


def excerpt(text: str) -> str:
    """Return the beginning of a text on one line."""
    words = " ".join(text[: 4 * EXCERPT].split())
    return visible(words[:EXCERPT]) + "…" * (len(words) > EXCERPT or len(text) > 4 * EXCERPT)


def run_figures(
    statistics: RunStatistics, summary: Mapping[str, Any] | None = None, judge: str = ""
) -> dict[str, Any]:
    """Return a run's statistics, with warnings for the reader.

    statistics: those of the candidates in the index. summary: content of `summary.json` once the
    job has finished; its values replace the counted ones. judge: judge of the counted candidates; a
    summary with another judge's results is ignored.
    """
    figures, view = to_plain(statistics.as_json()), "rating"
    views = {name: totals.as_json() for name, totals in zip(VIEWS, statistics.views, strict=True)}
    checked_summary = None
    if summary is not None and summary.get("judge", judge) in (judge, ""):
        checked_summary = _check_summary(summary)
        view = checked_summary["view"]
        figures |= {name: checked_summary.pop(name) for name in figures if name in checked_summary}
        views[view] |= {
            name: checked_summary[name] for name in OF_A_VIEW if name in checked_summary
        }
        if checked_summary["scored_by"]:
            figures["mean_rating"] = _compute_mean(figures["histogram"])
    histogram, width = bars(figures.pop("histogram"), BARS)
    return {
        "statistics": figures | {"bars": histogram, "bar_width": width},
        "views": views,
        "view": view,
        "summary": checked_summary,
        "notices": notices(
            figures | views[view], view, bool(checked_summary and checked_summary["scored_by"])
        ),
    }


def _check_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the displayed parts of a summary. Values that another version wrote differently are
    dropped."""
    view = summary.get("view")
    parts: dict[str, Any] = {"view": view if view in VIEWS else "rating"}
    scored_by = summary.get("scored_by")
    parts["scored_by"] = scored_by if scored_by in SCORED_BY else None
    parts["value_name"] = value_name(parts["scored_by"])
    for name in SCALARS:
        if name in summary and (summary[name] is None or _is_number(summary[name])):
            parts[name] = summary[name]
    for name in COUNTS:
        if isinstance(counts := summary.get(name), Mapping):
            parts[name] = {
                displayed_text(str(key), 100): number
                for key, number in list(counts.items())[:NAMES]
                if _is_number(number)
            }
    for name in ("curve", "histogram"):
        if isinstance(points := summary.get(name), list | tuple):
            parts[name] = [point for point in points if _is_point(point)]
    return parts


def _compute_mean(histogram: Sequence[Sequence[float]]) -> float | None:
    """Return the mean of a histogram's values; None without any."""
    total = sum(count for _, count in histogram)
    return sum(value * count for value, count in histogram) / total if total else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_point(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))


def candidate_line(name: str, response: str, result: CandidateResult) -> dict[str, Any]:
    """Return a candidate's row in the list of its query."""
    return {
        "name": name,
        "text": excerpt(response),
        "values": dict(zip(VIEWS, result.values, strict=True)),
        "outcome": result.outcome,
        "forced": result.forced,
        "flags": _list_flags(result.flags),
    }


def judgement_details(
    judgement: Judgement, kind: str = RATING, sample: int = 0, most: int = CUT
) -> dict[str, Any]:
    """Return one judgement of a candidate in full.

    kind: RATING, READING or a format's own protocol, whose slots are in `readings`. sample: index
    of the critique among k. most: maximum characters of each text.
    """
    rating = judgement.reading(RATING)
    distribution = rating.distribution if rating else None
    return _describe_judgement(judgement, most) | {
        "kind": kind,
        "sample": sample,
        "rating": judgement.rating,
        "expected": judgement.expected,
        "direct": judgement.direct,
        "distribution": [[visible(label), round(p, 5)] for label, p in (distribution or ())[:64]],
        "readings": [
            [visible(reading.slot[:200]), visible(reading.label[:200])]
            for reading in judgement.readings
            if reading.slot not in (RATING, DIRECT)
        ][:64],
    }


def rubric_line(verdict: ItemVerdict, points: float | None) -> dict[str, Any]:
    """Return a rubric item and the verdict on it. points: None if they are unknown."""
    return {
        "criterion": displayed_text(verdict.item.criterion, CRITERION),
        "points": points,
        "kind": verdict.item.kind,
        "answer": visible(verdict.answer),
        "share": verdict.share,
        "reason": displayed_text(verdict.reason, CRITERION),
    }


def rubric_on_record(judgements: Iterable[tuple[JudgeInput, Judgement]]) -> list[dict[str, Any]]:
    """Return the rubric items of a response and the verdicts on them, most points first.

    judgements: those of the response with their inputs, as a journal has them. Those without items
    are skipped, and so are further samples. A journal has the points of the first run that asked.
    """
    lines = []
    for item, judgement in judgements:
        rubric_items = item.items if item.protocol == CHECKLIST and item.sample == 0 else ()
        for place, rubric_item in enumerate(rubric_items, 1):
            points = item.points[place - 1] if item.points else None
            scored_item = rubric_item if points is None else replace(rubric_item, points=points)
            lines.append(rubric_line(read_item(scored_item, judgement, place), points))
    return sorted(lines, key=lambda line: (-(line["points"] or 0.0), line["criterion"]))


def comparison_details(judgement: Judgement) -> dict[str, Any]:
    """Return the judgement of two candidates in one order, in full."""
    confidence = judgement.confidence or ()
    return _describe_judgement(judgement, CUT) | {
        "verdict": judgement.verdict.value if judgement.verdict else None,
        "confidence": [[visible(label), p] for label, p in confidence[:8]],
    }


def _describe_judgement(judgement: Judgement, most: int) -> dict[str, Any]:
    usage = judgement.usage
    return {
        "outcome": judgement.outcome.value,
        "reason": displayed_text(judgement.reason, 500),
        "critique": displayed_text(judgement.critique, most),
        "thinking": displayed_text(judgement.thinking, most),
        "forced": judgement.forced,
        "flags": _list_flags(judgement.flags),
        "tokens_in": usage.tokens_in,
        "tokens_cached": usage.tokens_cached,
        "tokens_out": usage.tokens_out,
        "latency_s": usage.latency_s,
        "queued_s": usage.queued_s,
    }


def _list_flags(flags: Iterable[str]) -> list[str]:
    return sorted({visible(flag[:200]) for flag in flags})[:16]
