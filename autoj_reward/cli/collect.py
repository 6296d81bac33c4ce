"""`autoj collect`: ask a stronger model for judgements to train on, or say what would be asked."""

from __future__ import annotations

from collections.abc import Sequence

from autoj_reward.cli.flags import RUN, SET, STRICT_KEYS, command, flag


@command(
    *(RUN, SET, STRICT_KEYS),
    flag("--dry-run", action="store_true", help="count and price, ask nothing"),
)
def collect(config: str, sets: Sequence[str], strict: bool, dry_run: bool) -> int:
    """Ask, and write what is worth training on; print counts and where it is."""
    import asyncio

    from autoj_reward.data.collect import (
        CollectConfig,
        collect_judgements,
        estimate_cost,
        prepare_rows,
    )
    from autoj_reward.data.statistics import render_statistics
    from autoj_reward.formats.criteria import load_scenarios
    from autoj_reward.models.unused import load_run

    checked = load_run(CollectConfig, config, sets, strict)
    known = load_scenarios(checked.scenarios)
    work = prepare_rows(checked, known)
    if dry_run:
        for case, figures in estimate_cost(checked, work.rows, known).items():
            shown = (
                f"{k} {v:,.2f}" if k[:3] == "usd" else f"{k} {v:,}" for k, v in figures.items()
            )
            print(f"{case}: {', '.join(shown)}")
        return 0
    found = asyncio.run(collect_judgements(checked, work, known))
    print(f"{render_statistics(found)}\nresults: {checked.output}")
    return 0
