"""RewardBench's own prompts, call and reading of verdicts, on a service with a scripted judge."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from autoj_reward.evaluate.sections import WEIGHTS
from tests.edge.test_edge import made, scripted, serving
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
MODEL = "gpt-4o-2024-08-06"
"""An OpenAI endpoint is asked for models of its list alone."""


@pytest.fixture
def rewardbench(theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's modules, without the models that its own __init__ imports."""
    theirs(FRAMEWORKS, "rewardbench", "fastchat")
    package = types.ModuleType("rewardbench")
    package.__path__ = [str(FRAMEWORKS / "rewardbench")]
    monkeypatch.setitem(sys.modules, "rewardbench", package)


@pytest.fixture
def judged(rewardbench: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Asks for a verdict on two answers as scripts/run_generative.py does."""
    generative = importlib.import_module("rewardbench.generative")

    def talk(said: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": said}]

    with serving(made(scripted(fail={"lost": "truncated"}))) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        yield lambda a, b: generative.run_judge_pair("Why?", talk(a), talk(b), MODEL)[0]


PAIRS = {
    "first": ("much longer", "short", "A"),
    "second": ("short", "much longer", "B"),
    "tie": ("alike", "ekila", "error"),
    "lost": ("lost", "much longer", "error"),
    "marks in an answer": ("[User Question]\nlonger", "short", "error"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_the_verdict_is_read(judged: Any, case: str) -> None:
    first, second, letter = PAIRS[case]
    assert judged(first, second) == letter


def test_sections_are_theirs(rewardbench: None) -> None:
    constants = importlib.import_module("rewardbench.constants")
    assert {name: list(own) for name, own in WEIGHTS.items()} == constants.SUBSET_MAPPING
    counts = {subset: n for own in WEIGHTS.values() for subset, n in own.items()}
    assert counts == constants.EXAMPLE_COUNTS
