"""The pages name commands, modules, files and headings that exist."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from docs.hooks.reference import PAGES as GENERATED
from docs.hooks.reference import command_parser

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "autoj_reward" / "models").rglob("README.md")),
]
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
COMMANDS = {name for commands in cli.MODULES.values() for name in commands}
MODULES = sorted(set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)))
FENCED = re.compile(r"^(`{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT)).replace("/", ".")
)


@cache
def find_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for name in re.findall(r"^<!-- generated: (\w+) -->$", text, re.MULTILINE):
        text += "\n" + GENERATED[name]()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)|[^\w\s-]", "", title).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor and ".md" in target.suffix and target.name != "python.md":
            assert anchor in find_anchors(target.resolve()), f"{link}#{anchor}"


@each_page
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    pattern = r"(?:^|`|/)autoj ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^\n`#|]*)"
    for first, second, rest in re.findall(pattern, text, re.MULTILINE):
        command = f"{first} {second}" if first in cli.GROUPS and second else first
        assert command in COMMANDS | {*cli.GROUPS}, f"autoj {command}"
        if command in COMMANDS:
            options = command_parser(command)._option_string_actions
            flags = re.findall(r"(?<=\s)--[a-z][a-z-]*", rest)
            assert [flag for flag in flags if flag not in options] == [], f"autoj {command}"


@each_page
def test_targets_modules_and_run_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    make_lines = re.findall(r"(?:^|`)make ((?:[a-z][a-z0-9-]+ ?)+)", text, re.MULTILINE)
    assert {target for line in make_lines for target in line.split()} <= targets
    modules = set(re.findall(r"python -m ((?:autoj_reward|rollouts)[\w.]*\w)", text))
    modules |= set(re.findall(r"\bexperiments(?:\.\w+)+", text))
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    files = set(re.findall(r"\bconfigs/[\w/]+\.yaml", text))
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_every_command_is_named_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [name for name in COMMANDS if name.split()[0] not in text] == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_on_the_way_exists(name: str) -> None:
    folder = ROOT if name.startswith("rollouts/") else ROOT / "autoj_reward"
    assert (folder / name).is_file()


def test_every_module_stands_in_the_table_of_what_to_open() -> None:
    table = ARCHITECTURE.partition("## To change X, open Y")[2]
    named = re.findall(r"`([\w/]+\.py)`", table)
    modules = set()
    for folder in (ROOT / "autoj_reward", ROOT / "rollouts"):
        base = ROOT if folder.name == "rollouts" else folder
        for path in folder.rglob("*.py"):
            if path.name != "__init__.py":
                modules.add(path.relative_to(base).as_posix())
    assert sorted(modules - {*named}) == [], "name them under 'To change X, open Y'"
    assert len(named) == len({*named}), "a module stands in one row"


def test_every_package_has_its_row() -> None:
    packages = {path.parent.name for path in (ROOT / "autoj_reward").glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"| `{name}` |" not in ARCHITECTURE] == []
