"""The assertion file, loaded and called as promptfoo's Python wrapper does.

Read in promptfoo at 0a18b33b and 03026dae: `src/assertions/python.ts`, `src/python/wrapper.py`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.scorers import promptfoo
from autoj_reward.trainer.rows import REWARD_MODELS, VARIABLE

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


@pytest.fixture
def get_assert(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the file with its folder first on the path; return what promptfoo gets."""
    path = Path(promptfoo.__file__)
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("promptfoo", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(output: str, prompt: str = "Why?", **variables: str) -> Any:
        context = {"prompt": prompt, "vars": variables, "test": {}, "config": None}
        return json.loads(json.dumps(module.get_assert(output, context)))

    return call


def test_the_score_is_the_reward_from_0_to_1(make_model: Any, get_assert: Any) -> None:
    make_model()
    result = get_assert("good")
    assert result["pass"] is True and result["score"] == pytest.approx(8 / 9)
    assert result["reason"].endswith("Rating: [[9]]")
    assert get_assert("poor")["score"] == pytest.approx(1 / 9)


def test_an_abstention_raises_and_is_no_score(make_model: Any, get_assert: Any) -> None:
    make_model()
    with pytest.raises(EngineError, match="the judge abstains: truncated: "):
        get_assert("lost")


def test_the_judge_reads_a_chat_prompt_and_the_tests_variables(
    make_model: Any, get_assert: Any, tmp_path: Path
) -> None:
    make_model(fmt="equivalence", more={"columns": {"reference": "expected"}, "view": "rating"})
    with pytest.raises(EngineError, match="needs the context field 'reference'"):
        get_assert("good")
    assert get_assert("good", json.dumps(CHAT), expected="144")["score"] in (0.0, 1.0)
    assert promptfoo.chat_prompt(json.dumps(CHAT)) == CHAT
    for plain in ("Why?", "[1, 2]", "[]", '{"role": "user"}', "[" * 100_000):
        assert promptfoo.chat_prompt(plain) == plain


@pytest.mark.parametrize(
    ("config", "named_key"),
    [
        pytest.param("judge: {model: default}", "run `autoj serve`", id="starts a judge"),
        pytest.param(
            "{judge: {kind: fake, format: listwise}, relative: {by: listwise}}",
            "reward.relative",
            id="needs a group",
        ),
    ],
)
def test_what_cannot_answer_one_output_at_a_time(
    config: str, named_key: str, get_assert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward.yaml").write_text(config, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "reward.yaml"))
    REWARD_MODELS.clear()
    with pytest.raises(ConfigError, match=named_key):
        get_assert("good")
    REWARD_MODELS.clear()
