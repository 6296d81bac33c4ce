"""Generated parts of the reference: commands, config keys and HTTP routes, as Markdown.

A page asks for one by a line such as `<!-- generated: cli -->`; `site.py` puts it in.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from autoj_reward.cli import main as cli
from autoj_reward.config import Block
from autoj_reward.io.layouts import GROUP, PAIR, SINGLE, load_layouts
from autoj_reward.io.markup import table

RUN_FILES: dict[str, tuple[str, ...]] = {
    "Jobs": (
        "autoj_reward.config:BestOfNConfig",
        "autoj_reward.config:ScoreConfig",
        "autoj_reward.config:RankConfig",
    ),
    "Judges, policies and engines": (
        "autoj_reward.config:JudgeConfig",
        "autoj_reward.config:PolicyConfig",
    ),
    "Rewards": ("autoj_reward.config:RewardConfig",),
    "Service": (
        "autoj_reward.service.serve:EdgeConfig",
        "autoj_reward.service.application:ApplicationConfig",
    ),
    "Training a policy": (
        "rollouts.train.learner:TrainConfig",
        "rollouts.train.rejection_sampling:RejectionSamplingConfig",
    ),
    "Evaluation": (
        "autoj_reward.evaluate.pairs:PairsConfig",
        "autoj_reward.evaluate.judges:CompareJudgesConfig",
        "autoj_reward.evaluate.best_of_four:BestOfFourConfig",
        "autoj_reward.evaluate.selection:SelectionConfig",
    ),
    "Training a judge": (
        "autoj_reward.training.judge.recipe:TrainJudgeConfig",
        "autoj_reward.training.judge.recipe:JudgeGRPOConfig",
        "autoj_reward.training.judge.recipe:JudgeDPOConfig",
        "autoj_reward.training.scalar.data:TrainScalarConfig",
    ),
    "Collecting training data": ("autoj_reward.data.collect:CollectConfig",),
    "Writing rubrics": ("autoj_reward.rubrics.generate:GenerateConfig",),
    "Judge formats": (
        "autoj_reward.formats.schema:JudgeFormat",
        "autoj_reward.formats.protocols:Pairwise",
        "autoj_reward.formats.protocols:Group",
        "autoj_reward.formats.schema:ScalarFormat",
    ),
}
"""The config class of each kind of file. The blocks inside it follow from its fields."""

BODY_MODULES = (
    "autoj_reward.models.facts",
    "autoj_reward.service.bodies",
    "autoj_reward.service.trainers",
    "autoj_reward.types",
)
"""Where the schemas of the HTTP API stand as classes of the same names."""

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""An example in a docstring, to the next empty line. Markdown would read `>>>` as a quotation."""

TYPE_NAMES: dict[Any, str] = {
    **{str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"},
    **{Any: "anything", type(None): "null"},
}


# Commands


def cli_page() -> str:
    """Return every command with its usage and flags."""
    lines: list[str] = []
    for commands in cli.MODULES.values():
        for name in commands:
            parser = command_parser(name)
            usage = parser.format_usage().removeprefix("usage: ").rstrip()
            lines += [f"## autoj {name}", "", parser.description or "", ""]
            lines += ["```text", usage, "```", ""]
            flags = [flag_row(action) for action in parser._actions if action.dest != "help"]
            lines += [*table(("flag", "default", "meaning"), flags), ""]
    return "\n".join(lines)


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command, such as `train grpo`."""
    parser = cli.parser(name.split())
    for word in name.split():
        [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parser = commands.choices[word]
    return parser


def flag_row(action: argparse.Action) -> tuple[str, str, str]:
    """Return a flag with its value's name, its default and its help text."""
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        names += f" {action.metavar or (action.dest.upper())}"
    if action.required:
        default = "required"
    elif action.nargs == 0 or action.default in (None, [], argparse.SUPPRESS):
        default = ""
    else:
        default = f"`{action.default}`"
    text = str(action.help or "") % {"default": action.default, "prog": "autoj"}
    if action.choices is not None:
        text += f" ({', '.join(f'`{choice}`' for choice in action.choices)})"
    return f"`{names}`", default, cell(text)


# Config keys


def config_page() -> str:
    """Return every block of the run files and judge formats with its keys."""
    lines: list[str] = []
    for title, blocks in config_blocks().items():
        lines += ["", f"## {title}"]
        for block in blocks:
            lines += ["", f"### {block.__name__}", "", paragraphs(block.__doc__)]
            [base] = [one for one in block.__bases__ if issubclass(one, Block)]
            if base is not Block:
                link = f"[{base.__name__}](#{base.__name__.lower()})"
                lines += ["", f"It also takes every key of {link}."]
            texts = field_texts(block)
            rows = [
                (f"`{key}`", cell(allowed(field)), cell(default(field)), cell(texts.get(key, "")))
                for key, field in block.model_fields.items()
                if key in vars(block).get("__annotations__", {})
            ]
            if rows:
                lines += ["", *table(("key", "values", "default", "meaning"), rows)]
    return "\n".join(lines)


def config_blocks() -> dict[str, list[type[Block]]]:
    """Return all blocks by section. A block is listed once, in the first section that names it as a
    root, else in the first one that uses it."""
    roots = {
        title: [load(reference) for reference in references]
        for title, references in RUN_FILES.items()
    }
    listed: set[type[Block]] = {block for blocks in roots.values() for block in blocks}
    sections: dict[str, list[type[Block]]] = {}
    for title, blocks in roots.items():
        sections[title] = []
        for root in blocks:
            sections[title].append(root)
            for block in used_blocks(root):
                if block not in listed:
                    listed.add(block)
                    sections[title].append(block)
    return sections


def used_blocks(block: type[Block]) -> Iterator[type[Block]]:
    """Yield the base of a block and the blocks in its fields, and theirs; some more than once."""
    inner = [base for base in block.__bases__ if issubclass(base, Block) and base is not Block]
    for field in block.model_fields.values():
        inner += blocks_in(field.annotation)
    for one in inner:
        if one is not block:
            yield one
            yield from used_blocks(one)


def blocks_in(kind: Any) -> list[type[Block]]:
    """Return the blocks that a type annotation names."""
    if isinstance(kind, type) and issubclass(kind, Block):
        return [kind]
    return [block for inner in get_args(kind) for block in blocks_in(inner)]


def load(reference: str) -> Any:
    """Import `module:name`."""
    module, name = reference.split(":")
    return getattr(import_module(module), name)


def field_texts(block: type) -> dict[str, str]:
    """Return the string under each attribute of a class; those of its bases are not included."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(block))).body
    assert isinstance(node, ast.ClassDef)
    return {
        ast.unparse(key.target): inspect.cleandoc(text.value.value)
        for key, text in pairwise(node.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def type_name(kind: Any) -> str:
    """Return a type in words, and a block as a link to its keys."""
    inner = get_args(kind)
    match get_origin(kind):
        case typing.Annotated:
            return type_name(inner[0])
        case typing.Literal:
            return " or ".join(f"`{value}`" for value in inner)
        case typing.Union | types.UnionType:
            return " or ".join(dict.fromkeys(map(type_name, inner)))
        case builtins.dict:
            return f"{type_name(inner[1])} by name"
        case builtins.list:
            return f"list of {type_name(inner[0])}"
        case builtins.tuple:
            if inner[-1] is ...:
                return f"list of {type_name(inner[0])}"
            return "list of " + ", ".join(map(type_name, inner))
    if isinstance(kind, type) and issubclass(kind, Block):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return TYPE_NAMES.get(kind) or getattr(kind, "__name__", str(kind)).lower()


def allowed(field: FieldInfo) -> str:
    """Return what a key takes, with the bounds of a number."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, name):,}"
        for bound in field.metadata
        for name, sign in signs.items()
        if isinstance(getattr(bound, name, None), int | float)
    ]
    return ", ".join([type_name(field.annotation), *bounds])


def default(field: FieldInfo) -> str:
    """Return the default of a key as it would stand in a run file."""
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, Block):
        return "its defaults"
    return f"`{TypeAdapter(Any).dump_json(value).decode()}`"


# HTTP routes


def http_page() -> str:
    """Return every route of the reward service with its body, its answer and its errors, from the
    OpenAPI document that the service shows."""
    document = openapi()
    schemas = document["components"]["schemas"]
    texts = schema_texts(schemas)
    lines: list[str] = []
    shown: list[str] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += ["", f"### {method.upper()} {path}", ""]
            lines += [paragraphs(operation.get("description")), ""]
            body = operation.get("requestBody", {}).get("content", {})
            good = operation["responses"].get("200", {}).get("content", {})
            for title, content in (("Body", body), ("Answer", good)):
                for kind, media in content.items():
                    name = schema_link(media.get("schema", {}))
                    lines += [f"{title}: `{kind}`" + (f", {name}" if name else "") + ".", ""]
                    shown += [ref for ref in references(media) if ref not in shown]
            codes = ", ".join(code for code in operation["responses"] if code != "200")
            lines += [f"Errors: {codes}.", ""] if codes else []
    lines += ["", "## Fields"]
    for name in shown + [name for name in schemas if name not in shown]:
        schema = schemas.get(name, {})
        lines += ["", f"### {name}", "", paragraphs(schema.get("description"))]
        if "enum" in schema:
            lines += ["", "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + "."]
        needed = set(schema.get("required", ()))
        rows = [
            (
                f"`{key}`",
                cell(json_type(field)),
                "required" if key in needed else "",
                cell(field.get("description") or texts.get(name, {}).get(key, "")),
            )
            for key, field in schema.get("properties", {}).items()
        ]
        if rows:
            lines += ["", *table(("field", "type", "", "meaning"), rows)]
    return "\n".join(lines)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a reward service, of a scripted judge."""
    from autoj_reward.client.backend import LocalBackend
    from autoj_reward.client.client import JudgeClient
    from autoj_reward.config import JudgeConfig, RewardConfig
    from autoj_reward.models.spec import judge_spec
    from autoj_reward.service import trainers
    from autoj_reward.service.api import make_app
    from autoj_reward.trainer.reward import RewardModel

    judge = JudgeConfig(kind="fake")
    app = make_app(JudgeClient(LocalBackend(judge_spec(judge))), "unused")
    trainers.add_routes(app, RewardModel(RewardConfig(judge=judge)))
    document: dict[str, Any] = app.openapi()
    return document


def schema_texts(schemas: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the texts under the attributes of each schema's class and its bases, by schema."""
    modules = [import_module(name) for name in BODY_MODULES]
    found: dict[str, dict[str, str]] = {}
    for name in schemas:
        for kind in (getattr(module, name, None) for module in modules):
            if isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
                ours = [base for base in kind.__mro__ if base.__module__.startswith("autoj_reward")]
                found[name] = {
                    k: v for base in reversed(ours) for k, v in field_texts(base).items()
                }
    return found


def references(schema: Any) -> list[str]:
    """Return the names of the schemas that a part of an OpenAPI document refers to."""
    if isinstance(schema, Mapping):
        own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return own + [name for inner in schema.values() for name in references(inner)]
    if isinstance(schema, list):
        return [name for inner in schema for name in references(inner)]
    return []


def schema_link(schema: Mapping[str, Any]) -> str:
    """Return a schema as links to its fields, or "" for one without fields."""
    names = references(schema)
    return " or ".join(f"[{name}](#{name.lower()})" for name in names)


def json_type(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema in words, with its bounds."""
    if "$ref" in schema:
        return schema_link(schema)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(json_type, schema["anyOf"])))
    if "allOf" in schema:
        return " and ".join(map(json_type, schema["allOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        items = schema.get("items") or {}
        parts = schema.get("prefixItems")
        name = "array of " + (", ".join(map(json_type, parts)) if parts else json_type(items))
    elif kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        name = f"object of {json_type(schema['additionalProperties'])}"
    else:
        name = str(kind)
    limits = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
        "minItems": "at least",
        "maxItems": "at most",
    }
    bounds = [f"{sign} {schema[key]:,}" for key, sign in limits.items() if key in schema]
    return ", ".join([name, *bounds])


# Text


def cell(text: str) -> str:
    """Return a text on one line, as a cell of a table needs it."""
    return " ".join(text.split())


def paragraphs(text: str | None) -> str:
    """Return a docstring as Markdown."""
    return EXAMPLE.sub(r"```pycon\n\g<0>\n```", inspect.cleandoc(text or ""))


def layouts_page() -> str:
    """Return the table of the layouts of rows."""
    kinds = {SINGLE: "one response", PAIR: "two responses", GROUP: "several responses"}
    rows = []
    for layout in load_layouts().values():
        optional = [" or ".join(c.names) for c in layout.columns if c.optional]
        columns = layout.needed + (f" ({', '.join(optional)})" if optional else "")
        kind = kinds.get(layout.kind, "a prompt")
        if layout.lacks:
            kind = f"not judged: {layout.lacks}"
        elif layout.path("rubric") not in ((), ("rubric", "rubrics")):
            kind += ", a rubric"
        label = LABELS_SHOWN.get(layout.coding, layout.coding)
        title = f"{layout.title}, {layout.also}" if layout.also else layout.title
        rows.append((f"`{layout.name}`", title, cell(columns), cell(kind), cell(label)))
    return "\n".join(table(("name", "rows of", "columns", "what a row is", "label"), rows))


LABELS_SHOWN = {
    "first": "the first is better",
    "0, 1": "0 is the first",
    "1, 0": "1 is the first",
    "1, 2": "1 is the first",
    "0, 1, 2": "0 is the first, 2 a tie",
    "-3..3": "negative for the first",
    "1..2": "below 1.5 for the first",
    "votes": "majority of three",
    "flags": "the column that is 1",
    "winner": "names the winner, a tie, or both bad",
}
"""Words for the codings of labels."""

PAGES = {"cli": cli_page, "config": config_page, "http": http_page, "layouts": layouts_page}
"""The generated parts, by the name in `<!-- generated: NAME -->`."""
