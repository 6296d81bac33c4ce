"""The reference of config keys: docs/reference/config.md holds the text under each
key's attribute.

`AUTOJ_GOLDEN=write` in the environment writes the page anew.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import types
import typing
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from autoj_reward.config import (
    BestOfNConfig,
    Block,
    EngineConfig,
    FailureBudgetConfig,
    FailureConfig,
    JudgeConfig,
    JudgedConfig,
    PartConfig,
    PolicyConfig,
    RayDataConfig,
    ReplicaConfig,
    RewardConfig,
    ScoreConfig,
    ServiceConfig,
    ShapingConfig,
)
from autoj_reward.io.markup import table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
HEAD = """\
# Keys of run files

A run file is YAML. `--set judge.max_tokens=256` overrides one key, and a key that is
unknown or has no effect is named. This page is made from the source: the text of each key stands
under its attribute in `autoj_reward/config/`. The other pages explain what the keys are for.
"""
WORDS: dict[Any, str] = {
    **{str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"},
    **{Any: "anything", type(None): "null"},
}
BLOCKS = {
    "Jobs": (BestOfNConfig, RayDataConfig, ScoreConfig),
    "Models": (EngineConfig, JudgeConfig, PolicyConfig, ReplicaConfig),
    "Rewards": (
        *(JudgedConfig, RewardConfig, PartConfig, ServiceConfig, ShapingConfig),
        *(FailureBudgetConfig, FailureConfig),
    ),
}


def texts(block: type[Block]) -> dict[str, str]:
    """The text under each attribute of a block's own."""
    [node] = ast.parse(inspect.getsource(block)).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for key, text in pairwise(node.body):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(key.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def shown(kind: Any) -> str:
    """A type in words; a block as a link to its keys."""
    inner = get_args(kind)
    match get_origin(kind):
        case typing.Annotated:
            return shown(inner[0])
        case typing.Literal:
            return " or ".join(f"`{word}`" for word in inner)
        case typing.Union | types.UnionType:
            return " or ".join(map(shown, inner))
        case builtins.dict:
            return f"{shown(inner[1])} by name"
        case builtins.tuple:
            return f"list of {shown(inner[0])}" if inner[-1] is ... else "two numbers"
    if isinstance(kind, type) and issubclass(kind, Block):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return WORDS[kind]


def values(field: FieldInfo) -> str:
    """What a key takes, with the bounds of a number."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, name):,}"
        for bound in field.metadata
        for name, sign in signs.items()
        if hasattr(bound, name)
    ]
    return ", ".join([shown(field.annotation), *bounds])


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, Block):
        return "its defaults"
    return f"`{TypeAdapter(Any).dump_json(value).decode()}`"


def page() -> str:
    lines = HEAD.splitlines()
    for title, blocks in BLOCKS.items():
        lines += ["", f"## {title}"]
        for block in blocks:
            lines += ["", f"### {block.__name__}", "", " ".join((block.__doc__ or "").split())]
            [base] = [one for one in block.__bases__ if issubclass(one, Block)]
            if base is not Block:
                lines[-1] += f" Beside the keys of [{base.__name__}](#{base.__name__.lower()}):"
            rows = []
            for key, text in texts(block).items():
                field = block.model_fields[key]
                rows.append((f"`{key}`", values(field), default(field), text))
            lines += ["", *table(("key", "values", "default", "meaning"), rows)]
    return "\n".join(lines) + "\n"


def test_every_key_has_its_text_and_the_page_holds_all_of_them() -> None:
    listed = [block for blocks in BLOCKS.values() for block in blocks]
    known = [b for b in blocks_of(Block) if b.__module__.startswith("autoj_reward.config.")]
    assert set(listed) == set(known)
    for block in listed:
        assert list(texts(block)) == list(block.__annotations__), block.__name__
    if os.environ.get("AUTOJ_GOLDEN") == "write":
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def blocks_of(kind: type[Block]) -> list[type[Block]]:
    return [own for below in kind.__subclasses__() for own in (below, *blocks_of(below))]
