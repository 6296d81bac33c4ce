"""The generated reference: every config key, command and HTTP route is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import Block
from docs.hooks import reference

ROOT = Path(__file__).parents[1]
SECTIONS = reference.config_blocks()
BLOCKS = [block for blocks in SECTIONS.values() for block in blocks]
CONFIG, COMMANDS = reference.config_page(), reference.cli_page()


def defined_blocks(block: type[Block]) -> list[type[Block]]:
    """Return the blocks that derive from one."""
    return [
        derived for below in block.__subclasses__() for derived in (below, *defined_blocks(below))
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_every_key_has_its_text(block: type[Block]) -> None:
    keys = [key for key in block.model_fields if key in vars(block).get("__annotations__", {})]
    # A key that a base has too stands among those of the base.
    assert sorted(key for key in reference.field_texts(block) if key in keys) == sorted(keys)


def test_every_block_of_the_config_package_is_listed_once() -> None:
    config_blocks = [
        b for b in defined_blocks(Block) if b.__module__.startswith("autoj_reward.config.")
    ]
    assert set(config_blocks) <= set(BLOCKS)
    names = [block.__name__ for block in BLOCKS]
    assert len(names) == len(set(names))


def test_every_key_of_the_run_files_is_on_the_page() -> None:
    for block in BLOCKS:
        assert f"### {block.__name__}\n" in CONFIG
        assert all(f"| `{key}` |" in CONFIG for key in block.model_fields)


def test_links_between_blocks_lead_to_blocks() -> None:
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", CONFIG, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", CONFIG)) <= anchors


def test_every_command_has_its_flags() -> None:
    for name in (name for commands in cli.MODULES.values() for name in commands):
        assert f"## autoj {name}\n" in COMMANDS
        for action in reference.command_parser(name)._actions:
            if action.dest != "help":
                assert all(f"`{flag}" in COMMANDS for flag in action.option_strings)


def test_every_route_and_schema_is_on_the_page() -> None:
    page, document = reference.http_page(), reference.openapi()
    for path, methods in document["paths"].items():
        assert all(f"### {method.upper()} {path}\n" in page for method in methods)
    for name, schema in document["components"]["schemas"].items():
        assert f"### {name}\n" in page
        assert all(f"| `{field}` |" in page for field in schema.get("properties", ()))


def test_every_generated_part_has_its_page() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    texts = [page.read_text(encoding="utf-8") for page in pages]
    generated_parts = [
        name for text in texts for name in re.findall(r"<!-- generated: (\w+) -->", text)
    ]
    assert sorted(generated_parts) == sorted(reference.PAGES)
