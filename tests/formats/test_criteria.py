from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import ConfigError
from autoj_reward.formats.criteria import (
    SCENARIO_GROUPS,
    Criterion,
    Scenario,
    Scenarios,
    criteria_in,
    load_scenarios,
    read_criteria,
    system_message,
)

PUBLISHED = Path(os.environ.get("AUTOJ_DATA", Path(__file__).parents[2] / "../shared/data")) / (
    "autoj/other_resources/scenario_criteria/specials"
)
# Paper, Table 22: critiques a group in Eval-C, four of each scenario.
SIZES = dict(zip(SCENARIO_GROUPS, (3, 3, 5, 5, 9, 10, 12, 11), strict=True))


def test_58_scenarios_in_eight_groups() -> None:
    assert Counter(scenario.group for scenario in load_scenarios()) == SIZES
    assert len(set(load_scenarios().names)) == 58


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("default", "others"),
        ("creative_writing", "general_creative_writing"),
        ("functional_writing", "general_functional_writing"),
        ("solving_exam_question_with_math", "exam_question_with_math"),
        ("solving_exam_question_without_math", "exam_question_without_math"),
        ("value_judgement", "value_judgment"),
        ("planning", "planning"),
    ],
)
def test_names_of_the_released_data(alias: str, name: str) -> None:
    assert load_scenarios()[alias].name == name


def test_criteria_are_many_and_distinct() -> None:
    """Criteria are counted as in the paper, which has 332: an inherited basic criterion
    counts once."""
    distinct = {criterion for scenario in load_scenarios() for criterion in scenario.criteria}
    assert len(distinct) >= 332
    texts = [criterion.text.casefold() for criterion in distinct]
    assert len(set(texts)) == len(texts)
    specific = Counter(c for s in load_scenarios() for c in s.criteria if c.kind != "basic")
    assert set(specific.values()) == {1}


@pytest.mark.parametrize("scenario", load_scenarios(), ids=lambda s: s.name)
def test_each_scenario_has_its_own_criteria_and_renders_them(scenario: Scenario) -> None:
    kinds = Counter(criterion.kind for criterion in scenario.criteria)
    assert kinds["basic"] >= 5 and kinds["content"] >= 3
    assert len({criterion.name for criterion in scenario.criteria}) == len(scenario.criteria)
    for criterion in scenario.criteria:
        assert re.fullmatch(r"[A-Z][^.]{20,}\.", criterion.text), criterion
        assert re.fullmatch(r"[a-z][^:.]{3,40}", criterion.name), criterion
    message = system_message(scenario)
    assert f"- {scenario.description}\n" in message
    for criterion in scenario.criteria:
        assert f". {criterion.name}: {criterion.text}" in message
    headings = re.findall(r"(?:on the (\w+) aspect|(basic) and general criteria):", message)
    order = [a or b for a, b in headings]
    assert order == [k for k in ("content", "format", "style", "basic") if kinds[k]]


def test_the_system_message_word_for_word() -> None:
    criteria = (
        Criterion("kind words", "Be kind.", "basic"),
        Criterion("short", "Be {brief}.", "format"),
        Criterion("true", "Be right.", "content"),
        Criterion("new", "Be original.", "content"),
    )
    scenario = Scenario("toast", "creative_writing", "Write a {criteria} toast.", criteria)
    assert system_message(scenario) == (
        "You are given the criteria to craft good responses for this type of query from users:\n\n"
        "- Write a {criteria} toast.\n\n"
        "The criteria are as follows:\n\n[Criteria start]\n\n"
        "The following are the specific criteria for this type of query, focusing on the content "
        "aspect:\n\n1. true: Be right.\n\n2. new: Be original.\n\n"
        "The following are the specific criteria for this type of query, focusing on the format "
        "aspect:\n\n1. short: Be {brief}.\n\n"
        "The following are the basic and general criteria:\n\n1. kind words: Be kind.\n\n"
        "[Criteria end]"
    )


def test_a_user_adds_a_scenario_with_one_file(tmp_path: Path) -> None:
    (tmp_path / "triage.yaml").write_text(
        "scenario: {group: nlp_tasks, description: Triage a ticket.}\n"
        "basic: !include basics/conversation.yaml\n"
        "own:\n  right team: {type: content, content: The team can solve it., weight: 3}\n"
    )
    (tmp_path / "planning.yaml").write_text(
        "scenario: {group: nlp_tasks, description: Ours., aliases: [plan]}\n"
        "a: {b: {type: style, content: Plan well.}}\n"
    )
    scenarios = load_scenarios(tmp_path)
    assert len(scenarios) == 59
    assert "1. right team: The team can solve it." in system_message(scenarios["triage"])
    assert len(scenarios["triage"].criteria) == 4
    assert scenarios["plan"].description == "Ours."
    assert "triage" not in load_scenarios()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: {b: {type: content, content: X}}", "no block `scenario`", id="no head"),
        pytest.param("scenario: {group: misc, description: X}", "group", id="group"),
        pytest.param("scenario: {group: code, about: X}", "unknown key 'about'", id="key"),
        pytest.param("scenario: {group: code, description: X}", "no criteria", id="none"),
        pytest.param(
            "scenario: {group: code, description: X, aliases: [planning]}\n"
            "a: {b: {type: content, content: X}}",
            "has this name already",
            id="alias taken",
        ),
    ],
)
def test_a_wrong_scenario_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_scenarios(tmp_path)


def test_files_of_a_repository_replace_criteria_alone(tmp_path: Path) -> None:
    """As the authors wrote them: an alias as the name, and includes from the repository's root."""
    (tmp_path / "secret.yaml").write_text("a: {b: {type: content, content: X}}")
    for name in ("basics", "specials"):
        (tmp_path / "repository/criteria" / name).mkdir(parents=True)
    folder = tmp_path / "repository/criteria/specials"
    shared = "a: {b: {type: basic, content: Be true.}}"
    (tmp_path / "repository/criteria/basics/shared.yaml").write_text(shared)
    [shipped] = [s for s in load_scenarios() if "creative_writing" in s.aliases]
    (folder / "creative_writing.yaml").write_text("b: !include ./criteria/basics/shared.yaml")
    scenarios = load_scenarios(folder)
    assert scenarios.names == load_scenarios().names
    criteria = (Criterion("b", "Be true.", "basic"),)
    assert scenarios[shipped.name] == replace(shipped, criteria=criteria)
    for outside in ("secret.yaml", "repository/secret.yaml", "criteria/../../secret.yaml"):
        (folder / "planning.yaml").write_text(f"b: !include {outside}")
        with pytest.raises(ConfigError, match=r"cannot be read|leaves the folder"):
            load_scenarios.__wrapped__(folder)


def test_a_folder_without_scenarios_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scenario files"):
        load_scenarios(tmp_path)
    with pytest.raises(ConfigError, match=r"no scenario 'plannin'; did you mean planning"):
        load_scenarios()["plannin"]
    assert len(Scenarios([])) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: !include ../secret.yaml", "leaves the folder", id="parent"),
        pytest.param("a: !include /etc/hostname", "leaves the folder", id="absolute"),
        pytest.param("a: !include link.yaml", "leaves the folder", id="link"),
        pytest.param("a: !include start.yaml", "comes back to a file", id="itself"),
        pytest.param("a: !include loop.yaml", "comes back to a file", id="cycle"),
        pytest.param("a: !include none.yaml", r"included by .*start.yaml", id="missing"),
        pytest.param("a: !include [x]", "not valid YAML", id="no name"),
        pytest.param("a: !!python/object/apply:os.system [ls]", "not valid YAML", id="python"),
        pytest.param("- a", "criteria are a mapping, not list", id="list"),
        pytest.param(
            "a: {x: 1}\na: {y: 2}", "line 2: the key 'a' stands twice, first on line 1", id="twice"
        ),
        pytest.param("a: {b: {content: X}}", "'b' has type None", id="no type"),
        pytest.param("a: {b: {type: content, content: ' '}}", "needs a sentence", id="blank"),
        pytest.param("a: {b: {type: content, content: X, c: 1}}", "unknown keys", id="key"),
        pytest.param("a: {b: text}", "no criterion and no section: 'text'", id="text"),
    ],
)
def test_a_wrong_criteria_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.yaml").write_text("a: {type: content, content: X}")
    (root / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (root / "loop.yaml").write_text("b: !include start.yaml")
    path = root / "start.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        criteria_in(read_criteria(path, root), str(path))
    assert "start.yaml" in str(caught.value)


def list_as_written(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each criterion, with the text's spaces."""
    for name, value in section.items():
        if "content" in value:
            yield name, value["content"]
        else:
            yield from list_as_written(value)


def test_the_criteria_of_the_published_files_are_read() -> None:
    """They hold 332, as the paper says, and load as they are."""
    if not PUBLISHED.is_dir():
        pytest.skip(f"no {PUBLISHED}: set AUTOJ_DATA to the folder of the released data")
    root = PUBLISHED.parents[2]
    criteria_by_name = {
        path.stem: criteria_in(read_criteria(path, root), path.name)
        for path in PUBLISHED.glob("*.yaml")
    }
    assert {load_scenarios()[name].name for name in criteria_by_name} == set(load_scenarios().names)
    files = [read_criteria(path, root) for path in PUBLISHED.parent.glob("*/*.yaml")]
    assert len({criterion for file in files for criterion in list_as_written(file)}) == 332
    loaded = load_scenarios(PUBLISHED)
    assert loaded.names == load_scenarios().names
    for name, criteria in criteria_by_name.items():
        assert loaded[name].criteria == criteria
        assert loaded[name].description == load_scenarios()[name].description
    ours = {c.text for scenario in load_scenarios() for c in scenario.criteria}
    assert not ours & {c.text for criteria in criteria_by_name.values() for c in criteria}
