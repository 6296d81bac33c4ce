"""What the pages say of commands, modules and each other is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
COMMANDS = {name for own in cli.MODULES.values() for name in own}
MODULES = sorted(set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)))
NOT_ON_THE_WAY = {"capacity", "data", "training"}


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 140


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    groups = {*cli.GROUPS}
    for first, second in re.findall(
        r"(?:^|`|/)autoj ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text, re.M
    ):
        typed = f"{first} {second}" if first in groups and second else first
        assert typed in COMMANDS | groups, f"{page.name}: autoj {typed}"


def test_every_command_is_named_in_the_readme() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert [name for name in COMMANDS if name.split()[0] not in text] == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_on_the_way_exists(name: str) -> None:
    folder = ROOT if name.startswith("rollouts/") else ROOT / "autoj_reward"
    assert (folder / name).is_file()


def test_every_room_is_on_the_way_or_known_not_to_be() -> None:
    rooms = {path.parent.name for path in (ROOT / "autoj_reward").glob("*/__init__.py")}
    assert rooms - NOT_ON_THE_WAY <= {name.split("/")[0] for name in MODULES}
    assert all(f" {room} " in ARCHITECTURE.replace("\n", " \n ") for room in rooms)
