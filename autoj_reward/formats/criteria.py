"""Scenarios of queries, each with the criteria for judging responses (paper, section 3.1).

The paper's 58 scenarios (Table 6) in eight groups come with the package, and users can add more. A
scenario is one file `NAME.yaml` in the published dialect: sections that map names to criteria, and
for a new scenario a block `scenario` (group, description, aliases). A criterion has `content` (a
sentence), `type` (`basic`, `content`, `format` or `style`) and an optional `weight`. The weight is
ignored, as the authors gave it up. A section may be `!include some/file.yaml`. Reading a file runs
no code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from autoj_reward.config import Block, check
from autoj_reward.config.load import read_yaml
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import PLACEHOLDER

ScenarioGroup = Literal[
    "summarization",
    "exam_questions",
    "code",
    "rewriting",
    "creative_writing",
    "functional_writing",
    "general_communication",
    "nlp_tasks",
]
"""Group of scenarios (paper, Table 6)."""
SCENARIO_GROUPS: tuple[ScenarioGroup, ...] = get_args(ScenarioGroup)
SCENARIO_FILES = Path(__file__).parent / "scenarios"
"""Folder of the package's scenarios. Its `basics/` holds criteria that several of them include."""
OTHER_SCENARIO = "others"
"""Scenario of a query that fits no other one."""
CriterionKind = Literal["basic", "content", "format", "style"]
"""Aspect of a response that a criterion is about."""
CRITERION_KINDS: tuple[CriterionKind, ...] = get_args(CriterionKind)
CRITERION_FIELDS = {"content", "type", "weight"}
"""Keys that a criterion may have."""
MAX_FILES = 200
"""Maximum number of files read for one scenario. A file included twice counts twice."""
SYSTEM_MESSAGE = (SCENARIO_FILES / "system.txt").read_text(encoding="utf-8")
"""Template of a teacher's system message."""
SPECIFIC = (
    "The following are the specific criteria for this type of query, focusing on the {} aspect:"
)
"""Heading of one aspect's criteria."""
HEADINGS: dict[CriterionKind, str] = {
    "content": SPECIFIC.format("content"),
    "format": SPECIFIC.format("format"),
    "style": SPECIFIC.format("style"),
    "basic": "The following are the basic and general criteria:",
}
"""Headings by aspect, in the order of the message.

The paper's Table 9 shows no style. Here it stands with the other specific aspects.
"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One property of a good response."""

    name: str
    text: str
    """The criterion as one sentence."""
    kind: CriterionKind


@dataclass(frozen=True, slots=True)
class Scenario:
    """Kind of query, with the criteria for responses to it."""

    name: str
    group: ScenarioGroup
    description: str
    criteria: tuple[Criterion, ...]
    aliases: tuple[str, ...] = ()
    """Other names of the scenario in released data."""

    @property
    def needs_reasoning(self) -> bool:
        """Whether a teacher solves the task first, as in the exam group (paper, section 3.3)."""
        return self.group == "exam_questions"


class Scenarios:
    """Scenarios by name or alias, ordered by group, then by name."""

    def __init__(self, scenarios: Iterable[Scenario]) -> None:
        """Raise ConfigError if two scenarios share a name or an alias."""
        self._all = tuple(sorted(scenarios, key=lambda s: (SCENARIO_GROUPS.index(s.group), s.name)))
        self._by_name: dict[str, Scenario] = {}
        for scenario in self._all:
            for name in (scenario.name, *scenario.aliases):
                if other := self._by_name.get(name):
                    raise ConfigError(f"scenario {name!r}: {other.name} has this name already")
                self._by_name[name] = scenario

    def __getitem__(self, name: str) -> Scenario:
        """Return a scenario. Raises ConfigError with similar names if there is none."""
        if scenario := self._by_name.get(name):
            return scenario
        similar_names = difflib.get_close_matches(name, self._by_name, 3) or sorted(self._by_name)
        raise ConfigError(f"no scenario {name!r}; did you mean {', '.join(similar_names)}?")

    def get(self, name: str) -> Scenario | None:
        """Return a scenario; None if there is none."""
        return self._by_name.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the scenarios, without aliases."""
        return tuple(scenario.name for scenario in self._all)


class _Head(Block):
    group: ScenarioGroup
    description: str
    aliases: tuple[str, ...] = ()


@lru_cache
def load_scenarios(folder: Path | None = None) -> Scenarios:
    """Load the package's scenarios, and on top every `NAME.yaml` of a folder.

    A file of the folder replaces the package's scenario of the same name or alias. Without a block
    `scenario` it replaces the criteria alone. Includes are looked up in the folder first, then in
    the package, and by their path in the repository that the folder lies in. Raises ConfigError
    that names the faulty file.
    """
    shipped = [_read_scenario(path) for path in sorted(SCENARIO_FILES.glob("*.yaml"))]
    if folder is None:
        return Scenarios(shipped)
    own_paths = sorted(folder.glob("*.yaml"))
    if not own_paths:
        raise ConfigError(f"{folder}: no scenario files; each is one NAME.yaml")
    known = Scenarios(shipped)
    scenarios = {scenario.name: scenario for scenario in shipped}
    for path in own_paths:
        replaced = known.get(path.stem)
        scenario = _read_scenario(path, replaced)
        scenarios[replaced.name if replaced else scenario.name] = scenario
    return Scenarios(scenarios.values())


def _read_scenario(path: Path, replaced: Scenario | None = None) -> Scenario:
    """replaced: the package's scenario, which a file without a block `scenario` describes."""
    folder = path.parent.resolve()
    data = read_criteria(path, folder, SCENARIO_FILES, library=folder.parent)
    head = data.pop("scenario", None)
    if head is None and replaced is not None:
        return replace(replaced, criteria=_require_criteria(data, path))
    if not isinstance(head, dict):
        raise ConfigError(
            f"{path}: no block `scenario` with group (one of {', '.join(SCENARIO_GROUPS)}) and "
            "description"
        )
    facts = check(_Head, head, f"{path}: scenario")
    criteria = _require_criteria(data, path)
    return Scenario(path.stem, facts.group, facts.description.strip(), criteria, facts.aliases)


def _require_criteria(data: dict[str, Any], path: Path) -> tuple[Criterion, ...]:
    criteria = criteria_in(data, str(path))
    if not criteria:
        raise ConfigError(f"{path}: no criteria")
    return criteria


def read_criteria(path: Path, *roots: Path, library: Path | None = None) -> dict[str, Any]:
    """Read the mapping in a file, with includes looked up in the roots in turn.

    library: folder whose files are also found by their path from any folder above it. Raises
    ConfigError, with the file's name, for text that is no YAML mapping or has a duplicate key. It
    is also raised for an include outside the roots, and for a file that includes itself, directly
    or not.
    """
    resolved = tuple(root.resolve() for root in roots)
    return _read_file(path.resolve(), resolved, library, (), [])


def _read_file(
    path: Path,
    roots: tuple[Path, ...],
    library: Path | None,
    including_paths: tuple[Path, ...],
    read_paths: list[Path],
) -> dict[str, Any]:
    origin = f", included by {including_paths[-1]}" if including_paths else ""
    read_paths.append(path)
    if len(read_paths) > MAX_FILES:
        raise ConfigError(
            f"{path}{origin}: more than {MAX_FILES} files are included: include fewer"
        )

    def include(name: str) -> dict[str, Any]:
        paths = [(root / name).resolve() for root in roots]
        if not all(map(Path.is_relative_to, paths, roots)):
            raise ConfigError(
                f"{path}: !include {name!r} leaves the folder that includes come from"
            )
        # The authors' files name others by the path from the root of their repository.
        if library is not None:
            by_path = [(above / name).resolve() for above in library.parents]
            paths += [found for found in by_path if found.is_relative_to(library)]
        target = next((path for path in paths if path.is_file()), paths[0])
        if target in (*including_paths, path):
            raise ConfigError(f"{path}: !include {name!r} comes back to a file that is being read")
        return _read_file(target, roots, library, (*including_paths, path), read_paths)

    try:
        data = read_yaml(path, {"!include": include})
    except OSError as error:
        raise ConfigError(f"{path}{origin}: cannot be read: {error.strerror}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: criteria are a mapping, not {type(data).__name__}")
    return data


def criteria_in(data: dict[str, Any], source: str) -> tuple[Criterion, ...]:
    """Return the criteria of all sections, in order.

    Raises ConfigError that names an invalid one.
    """
    return tuple(_walk(data, source))


def _walk(data: dict[str, Any], source: str) -> Iterator[Criterion]:
    for name, value in data.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {name!r} is no criterion and no section: {value!r:.60}")
        if "content" not in value and "type" not in value:
            yield from _walk(value, source)
            continue
        if unknown := set(value) - CRITERION_FIELDS:
            raise ConfigError(f"{source}: criterion {name!r} has unknown keys {sorted(unknown)}")
        text, kind = value.get("content"), value.get("type")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{source}: criterion {name!r} needs a sentence as its content")
        if kind not in CRITERION_KINDS:
            raise ConfigError(
                f"{source}: criterion {name!r} has type {kind!r}; name one of "
                f"{', '.join(CRITERION_KINDS)}"
            )
        yield Criterion(str(name), " ".join(text.split()), kind)


def criteria_text(scenario: Scenario) -> str:
    """Return the criteria as one numbered list for each aspect.

    Aspects without criteria are left out.
    """
    blocks = []
    for kind, heading in HEADINGS.items():
        chosen = [c for c in scenario.criteria if c.kind == kind]
        if chosen:
            lines = [f"{number}. {c.name}: {c.text}" for number, c in enumerate(chosen, 1)]
            blocks.append("\n\n".join([heading, *lines]))
    return "\n\n".join(blocks)


def system_message(scenario: Scenario) -> str:
    """Return a teacher's system message with description and criteria (paper, Tables 8 and 9)."""
    values = {"description": scenario.description, "criteria": criteria_text(scenario)}
    return PLACEHOLDER.sub(lambda m: values[m[1]], SYSTEM_MESSAGE)
