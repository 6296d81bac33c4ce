"""The scenarios: 58 of the paper (Table 6) in eight groups, and those that a user adds.

Each is one file `NAME.yaml`: a block `scenario` (group, description, other names) and sections of
criteria, basic ones by `!include`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from autoj_reward.config import Block, check
from autoj_reward.errors import ConfigError
from autoj_reward.scenarios.criteria_file import Criterion, criteria_in, read_criteria

Group = Literal[
    "summarization",
    "exam_questions",
    "code",
    "rewriting",
    "creative_writing",
    "functional_writing",
    "general_communication",
    "nlp_tasks",
]
GROUPS: tuple[Group, ...] = get_args(Group)
CRITERIA = Path(__file__).parent / "criteria"
OTHERS = "others"
"""The scenario of a query that belongs to no other."""


class _Head(Block):
    group: Group
    description: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of query. aliases: other names for it in released data."""

    name: str
    group: Group
    description: str
    criteria: tuple[Criterion, ...]
    aliases: tuple[str, ...] = ()

    @property
    def needs_reasoning(self) -> bool:
        """Whether a teacher first solves the task itself: the exam group (paper, section 3.3)."""
        return self.group == "exam_questions"


class Registry:
    """Scenarios by name or alias, in the order of their groups, then by name."""

    def __init__(self, scenarios: Iterable[Scenario]) -> None:
        """Raises ConfigError where two scenarios share a name or an alias."""
        self._all = tuple(sorted(scenarios, key=lambda s: (GROUPS.index(s.group), s.name)))
        self._named: dict[str, Scenario] = {}
        for scenario in self._all:
            for name in (scenario.name, *scenario.aliases):
                if other := self._named.get(name):
                    raise ConfigError(f"scenario {name!r}: {other.name} has this name already")
                self._named[name] = scenario

    def __getitem__(self, name: str) -> Scenario:
        """Raises ConfigError with the nearest names for one that is unknown."""
        if found := self._named.get(name):
            return found
        near = difflib.get_close_matches(name, self._named, 3) or sorted(self._named)
        raise ConfigError(f"no scenario {name!r}; did you mean {', '.join(near)}?")

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(scenario.name for scenario in self._all)


@lru_cache
def load_scenarios(folder: Path | None = None) -> Registry:
    """The package's scenarios, and every `NAME.yaml` of a folder on top.

    A file of the folder replaces the package's scenario of the same name. Its includes are taken
    from the folder first, then from the package. Raises ConfigError naming the file at fault.
    """
    files = {path.stem: path for path in CRITERIA.glob("*.yaml")}
    if folder is not None:
        own = sorted(folder.glob("*.yaml"))
        if not own:
            raise ConfigError(f"{folder}: no scenario files; each is one NAME.yaml")
        files |= {path.stem: path for path in own}
    return Registry(_scenario(path, (path.parent, CRITERIA)) for path in files.values())


def _scenario(path: Path, roots: tuple[Path, ...]) -> Scenario:
    data = read_criteria(path, *roots)
    head = data.pop("scenario", None)
    if not isinstance(head, dict):
        raise ConfigError(
            f"{path}: no block `scenario` with group (one of {', '.join(GROUPS)}) and description"
        )
    facts = check(_Head, head, f"{path}: scenario")
    criteria = criteria_in(data, str(path))
    if not criteria:
        raise ConfigError(f"{path}: no criteria")
    return Scenario(path.stem, facts.group, facts.description.strip(), criteria, facts.aliases)
