"""The figures of a comparison as Markdown."""

from __future__ import annotations

from typing import Any

from autoj_reward.evaluate.intervals import estimate_text
from experiments.tables import report, tabled

NAMES = {
    "constant": "the commonest scenario",
    "terms": "TF-IDF, linear",
    "vectors": "token embeddings of the base, linear",
    "finetuned": "fine-tuned on the published prompt",
}
COLUMNS = {
    "classifier": "{name}",
    "accuracy": "{validation[accuracy]}",
    "macro-F1": "{validation[macro_f1]}",
    "calibration error": "{validation[calibration_error]:.3f}",
    "accuracy, measured besides": "{measured[accuracy]}",
    "macro-F1, measured besides": "{measured[macro_f1]}",
    "ms a query": "{ms_per_query:.2f}",
}
NOTHING = dict.fromkeys(("accuracy", "macro_f1", "calibration_error"))


def render_report(found: dict[str, Any]) -> str:
    """One table of all parts, and the leads of the best."""
    counts = found["rows"]
    rows = [
        {"name": NAMES[part], "ms_per_query": None}
        | own
        | {side: NOTHING | (own[side] or {}) for side in ("validation", "measured")}
        for part, own in found["classifiers"].items()
    ]
    about = (
        f"{counts['training']} training rows, {counts['validation']} validation rows, "
        f"{counts['scenarios']} scenarios; {counts['measured']} rows measured besides."
    )
    leads = "; ".join(f"{name} by {estimate_text(own)}" for name, own in found["leads"].items())
    note = f"Leads in macro-F1 on paired resamples: {leads}." if leads else ""
    sections = [("Classifiers", tabled(rows, COLUMNS), note)]
    return report("Scenario of a query", found, sections, about)
