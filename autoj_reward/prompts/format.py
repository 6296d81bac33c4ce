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

import yaml
from pydantic import Field, model_validator

from autoj_reward.config import Block, check
from autoj_reward.errors import ConfigError, FormatError
from autoj_reward.prompts.scale import Scale
from autoj_reward.types import Verdict

FORMATS = Path(__file__).parent / "formats"
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Thinking(Block):
    """The marks around what a judge writes to itself before it speaks, such as `<think>` and
    `</think>`. Nothing up to the last close is ever a verdict."""

    open: str = Field(min_length=2)
    close: str = Field(min_length=2)


class Slot(Block):
    """One protocol of a format.

    template, system: file names beside format.yaml. fields: placeholder of the template to
    `query`, `response`, `response_1`, `response_2` or the name of a constant.
    open, close: regular expressions around the verdict in the judge's own output; the last match
    of open counts, and nothing may follow the verdict. Where the verdict comes first and the reason
    after it, open begins with `\\A`. force: text that brings an unfinished judgement to its
    verdict.
    """

    template: str
    system: str | None = None
    fields: dict[str, str]
    open: str
    close: str = ""
    force: str

    @cached_property
    def open_re(self) -> re.Pattern[str]:
        return re.compile(self.open)

    @property
    def comes_first(self) -> bool:
        """Whether the verdict opens the judge's text, so that its reason follows."""
        return self.open.startswith(r"\A")


class PairwiseSlot(Slot):
    """Comparison: labels gives the spellings of each verdict, the canonical one first.

    scores: in place of labels, for a judge that opens its text with a number for each response:
    the regular expression of what stands between the two. The higher number wins.
    """

    labels: dict[Literal["first", "second", "tie"], tuple[str, ...]] = Field(default_factory=dict)
    scores: str = Field("", exclude_if=lambda between: not between)

    @model_validator(mode="after")
    def _sides(self) -> PairwiseSlot:
        if self.scores:
            if self.labels or not self.comes_first:
                raise ValueError("scores stand in place of labels, where open begins with \\A")
            return self
        if not {"first", "second"} <= set(self.labels) or not all(self.labels.values()):
            raise ValueError("labels must spell out at least first and second")
        return self

    @property
    def canonical(self) -> dict[str, Verdict]:
        return {spellings[0]: Verdict(name) for name, spellings in self.labels.items()}


class JudgeFormat(Block):
    """Everything that makes a judge's input and output readable, and nothing of the model.

    thinking: the block in which the judge thinks before it speaks; None: it has none.
    """

    name: str
    language: str = "en"
    scale: Scale = Scale()
    constants: dict[str, str] = Field(default_factory=dict)
    single: Slot | None = None
    pairwise: PairwiseSlot | None = None
    thinking: Thinking | None = Field(None, exclude_if=lambda block: block is None)
    texts: dict[str, str] = Field(default_factory=dict, exclude=True)

    def slot(self, kind: str) -> Slot:
        """The protocol `single` or `pairwise`; FormatError if the format lacks it."""
        chosen = self.single if kind == "single" else self.pairwise
        if chosen is None:
            raise FormatError(f"format {self.name!r} has no {kind} protocol")
        return chosen

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
    """Load the format of a judge or of a scalar reward model; see `load_format`."""
    path = FORMATS / name / "format.yaml"
    if not path.is_file():
        path = Path(name)
        path = path / "format.yaml" if path.is_dir() else path
    if not path.is_file():
        raise FormatError(
            f"no judge format {name!r}: name one of {', '.join(available())} or a format.yaml"
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise FormatError(f"{path}: a judge format is a mapping, not {type(data).__name__}")
        if data.get("kind") == "scalar":
            return check(ScalarFormat, data, str(path))
        parsed = check(JudgeFormat, data, str(path))
    except (ConfigError, yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"judge format {path}: {error}") from error
    texts = {}
    for slot in filter(None, (parsed.single, parsed.pairwise)):
        for file in filter(None, (slot.template, slot.system)):
            texts[file] = _read(path.parent / file)
        _check_slot(parsed, slot, texts[slot.template], path)
    return parsed.model_copy(update={"texts": texts})


def available() -> tuple[str, ...]:
    """Names of the formats in the package."""
    return tuple(sorted(p.parent.name for p in FORMATS.glob("*/format.yaml")))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"judge format: cannot read template {path}: {error}") from error


def _check_slot(fmt: JudgeFormat, slot: Slot, template: str, path: Path) -> None:
    found = set(PLACEHOLDER.findall(template))
    if missing := set(slot.fields) - found:
        raise FormatError(f"{path}: {slot.template} has no placeholder for {sorted(missing)}")
    responses = {"response"} if slot is fmt.single else {"response_1", "response_2"}
    known = {"query", *responses, *fmt.constants}
    for placeholder, source in slot.fields.items():
        if source not in known:
            raise FormatError(
                f"{path}: field {placeholder!r} is {source!r}, not in {sorted(known)}"
            )
    if unused := {"query", *responses} - set(slot.fields.values()):
        raise FormatError(f"{path}: {slot.template} never shows {sorted(unused)}")
    for pattern in (slot.open, slot.close, getattr(slot, "scores", "")):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FormatError(
                f"{path}: {pattern!r} is not a regular expression: {error}"
            ) from error
