"""Judge formats loaded from YAML: template files, rating scale, verdict slots and labels.

A format is a folder with `format.yaml` and its template files, or the path of such a YAML file.
`load_format` takes the name of a format in this package (`autoj-en`) or a path to your own. The
format of a scalar reward model is smaller: see `ScalarFormat`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, create_model, field_validator, model_validator

from autoj_reward.config import Block, check
from autoj_reward.config.load import read_yaml
from autoj_reward.conversation import NAME, is_reserved_name
from autoj_reward.errors import ConfigError, FormatError, did_you_mean
from autoj_reward.formats.protocols import (
    LABEL,
    PROTOCOLS,
    JudgeProtocol,
    MessageBlock,
    Pairwise,
    Single,
    read_slots,
)
from autoj_reward.formats.read import ParseFailure, WrittenVerdict, read_slot
from autoj_reward.formats.scale import Scale
from autoj_reward.formats.slots import Slot
from autoj_reward.formats.turns import Turns
from autoj_reward.thinking import Marks
from autoj_reward.types import PAIRWISE, SINGLE, VERDICT, JudgeInput, Verdict

FORMATS = Path(__file__).parent / "shipped"
"""Folder of the package's formats."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""Placeholder in a template, such as `{query}`."""


class Thinking(Block):
    """Marks around a judge's thinking before its answer, such as `<think>` and `</think>`.

    Text up to the last closing mark is never read as a verdict.
    """

    open: str = Field(min_length=2)
    """Mark before the thinking."""
    close: str = Field(min_length=2)
    """Mark after the thinking."""

    @property
    def marks(self) -> Marks:
        """The marks, as the table of known ones has them."""
        return Marks(self.open, self.close)


class JudgeFormat(Block):
    """Layout of a judge's prompt and output. It says nothing about the model."""

    name: str
    """Name of the format, shown in errors and fingerprints."""
    language: str = "en"
    """Language of the templates."""
    scale: Scale = Scale()
    """Ratings that the judge may give."""
    constants: dict[str, str] = Field(default_factory=dict)
    """Texts by name. A text of the same name in a judge input's context replaces the constant."""
    protocols: dict[str, SerializeAsAny[JudgeProtocol]] = Field(min_length=1)
    """Protocols by name. In format.yaml each stands under its own name (`single`, `pairwise`)."""
    thinking: Thinking | None = Field(None, exclude_if=lambda block: block is None)
    """Marks of the judge's thinking block. None if it has no such block."""
    turns: Turns | None = Field(None, exclude_if=lambda turns: turns is None)
    """Marks around a conversation's turns. With them every query is shown as a conversation."""
    shows_answer: bool = Field(False, exclude_if=lambda shows: not shows)
    """Whether a response is shown by its final answer alone, for a judge that checks one.

    It is the text in the last `<answer>` tags or the last `\\boxed{}` after turns and thinking. A
    response without either is shown whole.
    """
    chat_template_kwargs: dict[str, Any] = Field({}, exclude_if=lambda values: not values)
    """Values for the model's chat template. Those of `judge.chat_template_kwargs` replace them."""
    texts: dict[str, str] = Field(default_factory=dict, exclude=True)
    """Contents of the template files by file name."""

    @model_validator(mode="before")
    @classmethod
    def _collect_protocols(cls, data: Any) -> Any:
        """Collect the blocks of protocols under `protocols`."""
        if not isinstance(data, dict) or "protocols" in data:
            return data
        blocks = {name: data[name] for name in PROTOCOLS if data.get(name) is not None}
        if not blocks:
            names = ", ".join(PROTOCOLS)
            raise ValueError(f"a format needs a protocol, one or several of: {names}")
        rest = {name: value for name, value in data.items() if name not in PROTOCOLS}
        return rest | {"protocols": blocks}

    @field_validator("protocols", mode="before")
    @classmethod
    def _check_protocols(cls, data: dict[str, Any]) -> dict[str, JudgeProtocol]:
        kinds: dict[str, Any] = {name: (PROTOCOLS[name], ...) for name in data}
        protocols = create_model("Protocols", __base__=Block, **kinds).model_validate(data)
        return {name: getattr(protocols, name) for name in data}

    @property
    def single(self) -> Single | None:
        """Protocol that rates one response. None if the format has none."""
        protocol = self.protocols.get(SINGLE)
        return protocol if isinstance(protocol, Single) else None

    @property
    def pairwise(self) -> Pairwise | None:
        """Protocol that compares two responses. None if the format has none."""
        protocol = self.protocols.get(PAIRWISE)
        return protocol if isinstance(protocol, Pairwise) else None

    def protocol(self, name: str) -> JudgeProtocol:
        """Return a protocol by name. Raises FormatError if the format lacks it."""
        if name not in self.protocols:
            raise FormatError(
                f"format {self.name!r} has no {name} protocol: set `format` of this judge to one "
                "that has"
            )
        return self.protocols[name]

    def slots(self, name: str, count: int | None = None) -> tuple[Slot, ...]:
        """Return the slots of a protocol for `count` responses, in the order of reading.

        None stands for the smallest number of responses.
        """
        key = name, count or self.protocol(name).responses
        if key not in self._slots:
            self._slots[key] = self.protocol(name).slots(self.scale, key[1])
        return self._slots[key]

    def slots_of(self, item: JudgeInput) -> tuple[Slot, ...]:
        """Return the slots in which a judgement of this input is read, in order."""
        protocol = self.protocol(item.protocol)
        if protocol.most_items:
            return protocol.slots_of(self.scale, item)
        return self.slots(item.protocol, len(item.responses))

    @cached_property
    def verdicts(self) -> frozenset[Verdict]:
        """Verdicts that a comparison can have; empty without a pairwise protocol."""
        if self.pairwise is None:
            return frozenset()
        if self.pairwise.by_numbers:
            return frozenset({Verdict.FIRST, Verdict.SECOND, Verdict.TIE})
        return frozenset(self.pairwise.canonical.values())

    @cached_property
    def _slots(self) -> dict[tuple[str, int], tuple[Slot, ...]]:
        return {}

    def json_schema(self, item: JudgeInput) -> str | None:
        """Return the JSON schema that the answer to an input follows, as JSON text; None if it is
        free."""
        return self._write_schema(item.protocol, self.slots_of(item))

    @property
    def first_schema(self) -> str | None:
        """JSON schema that one protocol sends, by which an endpoint is tried; None if none does."""
        schemas = (self._write_schema(name, self.slots(name)) for name in self.protocols)
        return next(filter(None, schemas), None)

    def _write_schema(self, name: str, slots: Sequence[Slot]) -> str | None:
        protocol = self.protocol(name)
        if not protocol.sends_schema:
            return None
        return json.dumps(protocol.json_schema(slots), ensure_ascii=False)

    def context(self, protocol: str | None = None) -> dict[str, bool]:
        """Return the context fields of a protocol, or of any, and whether each is required."""
        if protocol not in self._contexts:
            self._contexts[protocol] = self._collect_context(protocol)
        return self._contexts[protocol]

    def _collect_context(self, protocol: str | None) -> dict[str, bool]:
        protocols = self.protocols.values() if protocol is None else (self.protocol(protocol),)
        fields: dict[str, bool] = {}
        for definition in protocols:
            for placeholder, name in definition.fields.items():
                if not is_reserved_name(name):
                    free = placeholder in definition.optional or name in self.constants
                    fields[name] = fields.get(name, False) or not free
        return fields

    @cached_property
    def _contexts(self) -> dict[str | None, dict[str, bool]]:
        return {}

    def message_text(self, block: MessageBlock) -> str:
        """Return the template of a message. Empty for the turns of a conversation."""
        return self.texts[block.template] if block.template else block.text

    def headings(self, protocol: str) -> tuple[str, ...]:
        """Return the lines of a protocol's template that begin its sections."""
        if protocol not in self._headings:
            definition = self.protocol(protocol)
            shown = (self.message_text(block) for block in definition.layout)
            texts = (*shown, *definition.optional.values())
            pieces = (piece for text in texts for piece in PLACEHOLDER.split(text)[::2])
            lines = (line.strip() for piece in pieces for line in piece.splitlines())
            headings = dict.fromkeys(line for line in lines if line.startswith(("[", "###")))
            self._headings[protocol] = tuple(headings)
        return self._headings[protocol]

    @cached_property
    def _headings(self) -> dict[str, tuple[str, ...]]:
        return {}

    @property
    def neutral(self) -> float:
        """Middle of the scale."""
        return (self.scale.low + self.scale.high) / 2

    def share(self, value: float) -> float:
        """Return the position of a rating on the scale, 0..1."""
        return (value - self.scale.low) / (self.scale.high - self.scale.low)

    @property
    def digest(self) -> str:
        """SHA-256 of the definition and of every template."""
        body = self.model_dump_json() + "".join(
            f"\0{k}\0{v}" for k, v in sorted(self.texts.items())
        )
        return hashlib.sha256(body.encode()).hexdigest()


class ScalarFormat(Block):
    """Layout of query and response for a scalar reward model."""

    name: str
    """Name of the format, shown in errors and fingerprints."""
    kind: Literal["scalar"]
    """Tells this layout from that of a judge that writes."""
    template: str | None = None
    """Text with {query}, {response} and the model's own control tokens, BOS included.

    For example `<|prompter|>{query}<|endoftext|><|assistant|>{response}<|endoftext|>`. With null
    the tokenizer's chat template is used: the query is the user's message, the response the answer.
    """

    @model_validator(mode="after")
    def _check_placeholders(self) -> ScalarFormat:
        placeholders = PLACEHOLDER.findall(self.template or "{query}{response}")
        if sorted(placeholders) != ["query", "response"]:
            raise ValueError(
                f"template must have {{query}} and {{response}} once, not {placeholders}"
            )
        return self

    def context(self, protocol: str | None = None) -> dict[str, bool]:
        """Return no context fields: a scalar format shows none."""
        return {}

    @property
    def neutral(self) -> float:
        """Score that replaces an unknown one."""
        return 0.0

    def share(self, value: float) -> float:
        """Return the probability of being preferred to a response with score 0 (Bradley-Terry)."""
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0

    @property
    def wrapper(self) -> str:
        """Wrapper that the template needs; see `PromptTokenizer`."""
        return "template" if self.template else "chat"

    @property
    def digest(self) -> str:
        """SHA-256 of the definition."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def load_format(name: str) -> JudgeFormat:
    """Load a generative judge's format, by name or by the path of a folder or YAML file.

    Raises FormatError that names the file and the fault.
    """
    fmt = load_any_format(name)
    if isinstance(fmt, ScalarFormat):
        raise FormatError(
            f"judge format {name!r} is a scalar reward model's: it has no critiques or verdicts"
        )
    return fmt


@lru_cache
def load_any_format(name: str) -> JudgeFormat | ScalarFormat:
    """Load the format of a generative judge or a scalar reward model, once per process.

    See `load_format`.
    """
    return read_format(name)


def read_format(name: str) -> JudgeFormat | ScalarFormat:
    """Read a format's files as they are now; see `load_any_format`."""
    path = FORMATS / name / "format.yaml"
    if not path.is_file():
        path = Path(name)
        path = path / "format.yaml" if path.is_dir() else path
    if not path.is_file():
        raise FormatError(
            f"no judge format {name!r}{did_you_mean(name, format_names())} (known: "
            f"{', '.join(format_names())}; of your own name the folder or its format.yaml)"
        )
    try:
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise FormatError(f"{path}: a judge format is a mapping, not {type(data).__name__}")
        if data.get("kind") == "scalar":
            return check(ScalarFormat, data, str(path))
        parsed = check(JudgeFormat, data, str(path))
    except (ConfigError, OSError) as error:
        raise FormatError(f"judge format {path}: {error}") from error
    texts = {}
    for protocol in parsed.protocols.values():
        for file in filter(None, (block.template for block in protocol.layout)):
            texts[file] = _read_template(path.parent, file)
        _check_protocol(protocol, texts, path)
    fields, constants = set(parsed.context()), set(parsed.constants)
    if (unused := sorted(constants - fields)) and (inputs := sorted(fields - constants)):
        raise FormatError(
            f"{path}: no field shows the constants {unused}, and fields show {inputs}, which are "
            "no constants, so that judge inputs must bring them: correct the name, or drop what is "
            "not shown"
        )
    return parsed.model_copy(update={"texts": texts})


def format_names() -> tuple[str, ...]:
    """Return the names of the package's formats."""
    return tuple(sorted(p.parent.name for p in FORMATS.glob("*/format.yaml")))


def _read_template(folder: Path, file: str) -> str:
    """Read a template. Raises FormatError for a file outside the format's folder.

    Without this check, a format by somebody else could send any file of this machine to an
    endpoint.
    """
    try:
        path = (folder / file).resolve()
        if path.is_relative_to(folder.resolve()):
            return path.read_bytes().decode("utf-8")
    except (OSError, RuntimeError, ValueError) as error:  # circular links, or no valid path
        raise FormatError(
            f"judge format {folder}: cannot read template {file!r}: {error}"
        ) from error
    raise FormatError(
        f"judge format {folder}: template {file!r} is {path}, outside the format's folder: copy it "
        "into the folder"
    )


def _check_protocol(protocol: JudgeProtocol, texts: dict[str, str], path: Path) -> None:
    templates = "".join(texts.get(block.template, block.text) for block in protocol.layout)
    name = protocol.template or "messages"
    if missing := set(protocol.fields) - set(PLACEHOLDER.findall(templates)):
        raise FormatError(f"{path}: {name} has no placeholder for {sorted(missing)}")
    responses = {
        *protocol.response_names(protocol.responses),
        *(["items"] if protocol.most_items else []),
    }
    for placeholder, field in protocol.fields.items():
        other = is_reserved_name(field) and field not in {"query", *responses}
        if (
            other
            or not NAME.fullmatch(field)
            or (is_reserved_name(field) and placeholder in protocol.optional)
        ):
            raise FormatError(
                f"{path}: field {placeholder!r} is {field!r}: write query, {sorted(responses)}, or "
                "the name of a constant or a context field, which alone may be optional"
            )
    if unknown := set(protocol.optional) - set(protocol.fields):
        raise FormatError(f"{path}: optional names {sorted(unknown)}, which fields do not have")
    shown = {*protocol.fields.values(), *(block.turns for block in protocol.layout)}
    if unshown := {"query", *responses} - shown:
        raise FormatError(f"{path}: {name} never shows {sorted(unshown)}")
    opening = protocol.open.replace(LABEL, "1")
    for pattern in (opening, protocol.close, getattr(protocol, "scores", "")):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FormatError(
                f"{path}: {pattern!r} is not a regular expression: {error}"
            ) from error


def parse_rating(
    text: str,
    fmt: JudgeFormat,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> WrittenVerdict | ParseFailure:
    """Parse the rating of one response; see `read_slot`."""
    if fmt.single is None:
        return ParseFailure(f"format {fmt.name} has no rating", len(text))
    [slot] = fmt.slots(SINGLE)
    return read_slot(text, slot, policy_texts, given_texts)


def parse_comparison(
    text: str,
    fmt: JudgeFormat,
    policy_texts: Sequence[str] = (),
    given_texts: Sequence[str] = (),
) -> WrittenVerdict | ParseFailure:
    """Parse the verdict between two responses; see `read_slot`."""
    if fmt.pairwise is None:
        return ParseFailure(f"format {fmt.name} has no comparison", len(text))
    found = read_slots(fmt.slots(PAIRWISE), text, policy_texts, given_texts)
    return fmt.pairwise.conclude_written(found)[VERDICT]
