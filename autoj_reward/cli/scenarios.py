"""`autoj scenarios`: what responses are judged by, scenario by scenario."""

from __future__ import annotations

from autoj_reward.cli.flags import command, flag


@command(
    flag("--show", metavar="NAME", help="its criteria as a teacher reads them"),
    flag("--folder", metavar="DIR", help="scenario files of your own"),
)
def scenarios(show: str | None, folder: str | None) -> int:
    """List scenarios with group, criteria and description; or print one's system message."""
    from pathlib import Path

    from autoj_reward.formats.criteria import load_scenarios, system_message

    known = load_scenarios(Path(folder) if folder else None)
    if show is not None:
        print(system_message(known[show]))
        return 0
    width = max(map(len, known.names))
    for scenario in known:
        count = len(scenario.criteria)
        print(f"{scenario.name:{width}}  {scenario.group:21} {count:2}  {scenario.description}")
    return 0
