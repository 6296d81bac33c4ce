"""Judge formats: template files, rating scale, verdict slot and labels, loaded from YAML.

A format is a folder or file `format.yaml` with template files beside it. `load_format` takes the
name of one in this package (`autoj-en`) or a path to one's own. The format of a scalar reward
model is smaller: see `ScalarFormat`.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from autoj_reward.config import Block, check
from autoj_reward.config.load import read_yaml
from autoj_reward.conversation import NAME, OWN
from autoj_reward.errors import ConfigError, FormatError, did_you_mean
from autoj_reward.formats.scale import Scale
from autoj_reward.formats.slots import PairwiseSlot, Slot
from autoj_reward.formats.turns import Turns

FORMATS = Path(__file__).parent / "shipped"
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Thinking(Block):
    """The marks around what a judge writes to itself before it speaks, such as `<think>` and
    `</think>`. Nothing up to the last close is ever a verdict."""

    open: str = Field(min_length=2)
    close: str = Field(min_length=2)


class JudgeFormat(Block):
    """Everything that makes a judge's input and output readable, and nothing of the model.

    constants: texts by name, each in place where a judge input's context has none of its name.
    thinking: the block in which the judge thinks before it speaks; None: it has none.
    turns: how the query is shown, which is a conversation then; None: plainly.
    """

    name: str
    language: str = "en"
    scale: Scale = Scale()
    constants: dict[str, str] = Field(default_factory=dict)
    single: Slot | None = None
    pairwise: PairwiseSlot | None = None
    thinking: Thinking | None = Field(None, exclude_if=lambda block: block is None)
    turns: Turns | None = Field(None, exclude_if=lambda shown: shown is None)
    texts: dict[str, str] = Field(default_factory=dict, exclude=True)

    def slot(self, kind: str) -> Slot:
        """The protocol `single` or `pairwise`; FormatError if the format lacks it."""
        chosen = self.single if kind == "single" else self.pairwise
        if chosen is None:
            raise FormatError(f"format {self.name!r} has no {kind} protocol")
        return chosen

    def context(self, kind: str | None = None) -> dict[str, bool]:
        """The context fields that a protocol, or any of them, shows, and whether it must have
        each."""
        if kind not in self._contexts:
            self._contexts[kind] = self._context(kind)
        return self._contexts[kind]

    def _context(self, kind: str | None) -> dict[str, bool]:
        slots = (self.single, self.pairwise) if kind is None else (self.slot(kind),)
        found: dict[str, bool] = {}
        for slot in filter(None, slots):
            for placeholder, name in slot.fields.items():
                if name not in OWN:
                    free = placeholder in slot.optional or name in self.constants
                    found[name] = found.get(name, False) or not free
        return found

    @cached_property
    def _contexts(self) -> dict[str | None, dict[str, bool]]:
        return {}

    def headings(self, kind: str) -> tuple[str, ...]:
        """The lines of a protocol's template that set its parts apart."""
        if kind not in self._headings:
            slot = self.slot(kind)
            texts = (self.texts[slot.template], *slot.optional.values())
            pieces = (piece for text in texts for piece in PLACEHOLDER.split(text)[::2])
            lines = (line.strip() for piece in pieces for line in piece.splitlines())
            found = dict.fromkeys(line for line in lines if line.startswith(("[", "###")))
            self._headings[kind] = tuple(found)
        return self._headings[kind]

    @cached_property
    def _headings(self) -> dict[str, tuple[str, ...]]:
        return {}

    @model_validator(mode="after")
    def _protocols(self) -> JudgeFormat:
        if self.single is None and self.pairwise is None:
            raise ValueError("a format needs a protocol: single, pairwise or both")
        return self

    @property
    def neutral(self) -> float:
        """The middle of the scale."""
        return (self.scale.low + self.scale.high) / 2

    def share(self, value: float) -> float:
        """Where a rating lies on the scale, 0..1."""
        return (value - self.scale.low) / (self.scale.high - self.scale.low)

    @property
    def digest(self) -> str:
        """SHA-256 over the definition and every template byte."""
        body = self.model_dump_json() + "".join(
            f"\0{k}\0{v}" for k, v in sorted(self.texts.items())
        )
        return hashlib.sha256(body.encode()).hexdigest()


class ScalarFormat(Block):
    """How a scalar reward model reads a query with its response.

    template: text with {query} and {response} and the model's own control tokens, BOS among them,
        for example `<|prompter|>{query}<|endoftext|><|assistant|>{response}<|endoftext|>`. null:
        the tokenizer's chat template, the query as the user's message, the response as the answer.
    """

    name: str
    kind: Literal["scalar"]
    template: str | None = None

    @model_validator(mode="after")
    def _places(self) -> ScalarFormat:
        found = PLACEHOLDER.findall(self.template or "{query}{response}")
        if sorted(found) != ["query", "response"]:
            raise ValueError(f"template must have {{query}} and {{response}} once, not {found}")
        return self

    def context(self, kind: str | None = None) -> dict[str, bool]:
        """It shows no context field."""
        return {}

    @property
    def neutral(self) -> float:
        """What stands for a score where none is known."""
        return 0.0

    def share(self, value: float) -> float:
        """The probability of being preferred to a response of score 0 (Bradley-Terry), 0..1."""
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0

    @property
    def wrapper(self) -> str:
        return "template" if self.template else "chat"

    @property
    def digest(self) -> str:
        """SHA-256 over the definition."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def load_format(name: str) -> JudgeFormat:
    """Load a generative judge's format: one of the package by name, or one's own by path to its
    folder or YAML file.

    Raises FormatError naming the file and what is wrong.
    """
    found = load_any_format(name)
    if isinstance(found, ScalarFormat):
        raise FormatError(
            f"judge format {name!r} is a scalar reward model's: it has no critiques or verdicts"
        )
    return found


@lru_cache
def load_any_format(name: str) -> JudgeFormat | ScalarFormat:
    """Load the format of a judge or of a scalar reward model, once a process; see `load_format`."""
    return read_format(name)


def read_format(name: str) -> JudgeFormat | ScalarFormat:
    """Read the files of a format as they are now; see `load_any_format`."""
    path = FORMATS / name / "format.yaml"
    if not path.is_file():
        path = Path(name)
        path = path / "format.yaml" if path.is_dir() else path
    if not path.is_file():
        raise FormatError(
            f"no judge format {name!r}{did_you_mean(name, available())} (known: "
            f"{', '.join(available())}; of your own name the folder or its format.yaml)"
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
    for slot in filter(None, (parsed.single, parsed.pairwise)):
        for file in filter(None, (slot.template, slot.system)):
            texts[file] = _read(path.parent, file)
        _check_slot(parsed, slot, texts, path)
    shown, constants = set(parsed.context()), set(parsed.constants)
    if (unused := sorted(constants - shown)) and (asked := sorted(shown - constants)):
        raise FormatError(
            f"{path}: no field shows the constants {unused}, and fields show {asked}, which are no "
            "constants, so that judge inputs must bring them: correct the name, or drop what is "
            "not shown"
        )
    return parsed.model_copy(update={"texts": texts})


def available() -> tuple[str, ...]:
    """Names of the formats in the package."""
    return tuple(sorted(p.parent.name for p in FORMATS.glob("*/format.yaml")))


def _read(folder: Path, file: str) -> str:
    """Read a template. Raise FormatError for one outside the format's folder.

    Otherwise a format that somebody else wrote could send any file of this machine to an endpoint.
    """
    try:
        path = (folder / file).resolve()
        if path.is_relative_to(folder.resolve()):
            return path.read_bytes().decode("utf-8")
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, or no path at all
        raise FormatError(
            f"judge format {folder}: cannot read template {file!r}: {error}"
        ) from error
    raise FormatError(
        f"judge format {folder}: template {file!r} is {path}, outside the format's folder: copy it "
        "into the folder"
    )


def _check_slot(fmt: JudgeFormat, slot: Slot, texts: dict[str, str], path: Path) -> None:
    shown = texts[slot.template] + (texts[slot.system] if slot.system else "")
    if missing := set(slot.fields) - set(PLACEHOLDER.findall(shown)):
        raise FormatError(f"{path}: {slot.template} has no placeholder for {sorted(missing)}")
    responses = {"response"} if slot is fmt.single else {"response_1", "response_2"}
    for placeholder, name in slot.fields.items():
        other = name in OWN and name not in {"query", *responses}
        if other or not NAME.fullmatch(name) or (name in OWN and placeholder in slot.optional):
            raise FormatError(
                f"{path}: field {placeholder!r} is {name!r}: write query, {sorted(responses)}, or "
                "the name of a constant or a context field, which alone may be optional"
            )
    if unknown := set(slot.optional) - set(slot.fields):
        raise FormatError(f"{path}: optional names {sorted(unknown)}, which fields do not have")
    if unseen := {"query", *responses} - set(slot.fields.values()):
        raise FormatError(f"{path}: {slot.template} never shows {sorted(unseen)}")
    for pattern in (slot.open, slot.close, getattr(slot, "scores", "")):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FormatError(
                f"{path}: {pattern!r} is not a regular expression: {error}"
            ) from error
