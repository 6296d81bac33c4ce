"""The figures of a comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoj_reward.evaluate.metrics import estimate_text
from autoj_reward.io.markdown import table

NAMES = {
    "constant": "the commonest scenario",
    "terms": "TF-IDF, linear",
    "vectors": "token embeddings of the base, linear",
    "states": "hidden states of the base, linear",
    "finetuned": "fine-tuned on the published prompt",
}


def render_report(result: Mapping[str, Any]) -> str:
    """One table of all parts, and the leads of the best."""
    counts = result["rows"]
    head = (
        "classifier", "accuracy", "macro-F1", "calibration error", "accuracy, measured besides",
        "macro-F1, measured besides", "ms a query",
    )  # fmt: skip
    rows = []
    for part, found in result["parts"].items():
        own, other = found["validation"], found["measured"] or {}
        rows.append(
            (
                NAMES[part],
                estimate_text(own["accuracy"]),
                estimate_text(own["macro_f1"]),
                f"{own['calibration_error']:.3f}" if "calibration_error" in own else "",
                estimate_text(other.get("accuracy")),
                estimate_text(other.get("macro_f1")),
                f"{found['ms_per_query']:.2f}" if "ms_per_query" in found else "",
            )
        )
    lines = [
        f"{counts['training']} training rows, {counts['validation']} validation rows, "
        f"{counts['scenarios']} scenarios; {counts['measured']} rows measured besides.",
        "",
        *table(head, rows),
        "",
        *(
            f"{name}: {estimate_text(found)} of macro-F1 on paired resamples."
            for name, found in result["leads"].items()
        ),
    ]
    return "\n".join(lines) + "\n"
