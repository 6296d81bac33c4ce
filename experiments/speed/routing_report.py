"""The table of `experiments.speed.routing`."""

from __future__ import annotations

from typing import Any

from autoj_reward.io.markdown import section


def render(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    run, config = found["run"], found["config"]
    rows = [
        ("replicas", f"{run['replicas']}, {run['where']}"),
        ("candidates; answered, reported", "{candidates}; {answered}, {told}".format(**run)),
        ("judgements that are not the candidate's own", str(run["wrong"])),
        (
            "seconds; scheduled; ideal",
            "{seconds:.1f}; {scheduled_s:.1f}; {ideal_s:.1f}".format(**run),
        ),
        ("ratio, seconds to scheduled", f"{run['ratio']:.3f}"),
        ("candidates/s", f"{run['per_second']:.0f}"),
        (
            "seconds added to a judgement, median and 99th percentile",
            f"{run['added_p50_s']:.4f}, {run['added_p99_s']:.4f}",
        ),
        ("CPU seconds of this process", f"{run['cpu_s']:.1f}"),
        (
            "its memory after a tenth of the answers, and the most",
            "{:.0f}, {:.0f} MiB".format(*run["rss_mib"]),
        ),
    ]
    note = (
        f"Scripted engines: {config['concurrent']} judgements under way each, of "
        f"{config['latency_s']:g} s by the median (log-normal, sigma "
        f"{config['latency_spread']:g}). Scheduled: the same seconds without overhead, each next "
        "candidate at the place that is free first; the ratio is to it. Ideal: the sum of their "
        "seconds over all places, a lower bound that leaves out the wait for the last candidates."
    )
    lines = section("A stream of candidates", [("what", "figure"), *rows], note)
    return (
        "\n".join(["# Routing", "", f"`{found['command']}`; {found['at']}", "", *lines]).rstrip()
        + "\n"
    )
