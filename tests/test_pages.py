"""Snippets of the documentation: Python runs with a scripted judge, YAML is read as what it is, and
commands have the flags that they show."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.config import BestOfNConfig, RewardConfig, check
from docs.hooks import reference

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SCRIPTED = 'JudgeConfig(kind="fake"'
SUBSTITUTES = (
    ("Judge()", f"Judge({SCRIPTED}))"),
    ('Judge("GAIR/autoj-13b"', f"Judge({SCRIPTED})"),
    ('RewardModel("GAIR/autoj-13b")', f"RewardModel({SCRIPTED}))"),
    ('kind="openai", model="NAME", base_url="http://127.0.0.1:8000/v1"', 'kind="fake"'),
)
"""A scripted judge in place of those that need a model or a server."""
NOT_RUN = {
    "README.md": "a hand-written reward function and a trainer's line, both without their models",
    "docs/start/reward_grpo.md": "trains a policy of the hub; tests/trainer/test_trl.py trains one",
    "docs/trainers/trl_grpo.md": "a trainer with models of the reader's; tests/trainer/test_trl.py",
    "docs/trainers/trl_ppo.md": "a trainer with models of the reader's; tests/trainer/test_trl.py",
    "docs/trainers/trl_online_dpo.md": "as above; tests/trainer/test_trl.py",
    "docs/trainers/areal.md": "AReaL's trainer; tests/trainer/test_areal.py",
    "docs/trainers/skyrl.md": "needs skyrl-gym; tests/trainer/test_skyrl.py",
    "docs/trainers/verifiers.md": "needs verifiers; tests/trainer/test_verifiers.py",
    "docs/trainers/nemo_gym.md": "needs NeMo Gym; tests/trainer/test_nemo_gym.py",
    "docs/trainers/index.md": "reads reward.yaml of the reader",
}
"""Pages with Python that cannot run here, and the test that runs the same. It is still parsed, and
what it imports from the package must be there."""


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for number, (indent, kind, text) in enumerate(BLOCK.findall(page.read_text("utf-8"))):
            if kind == language:
                lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
                found.append(pytest.param(name, "".join(lines), id=f"{name}-{number}"))
    return found


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for shown, run in SUBSTITUTES:
        text = text.replace(shown, run)
    tree = ast.parse(text)
    if page in NOT_RUN and 'kind="fake"' not in text.replace("RewardModel(" + SCRIPTED, ""):
        own = [
            node
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoj_reward")
        ]
        tree = ast.Module([n for n in own if "verifiers" not in ast.unparse(n)], [])
        tree.body = [n for n in tree.body if "nemo_gym" not in ast.unparse(n)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space: dict[str, Any] = {"__name__": "snippet"}
        exec("from autoj_reward import JudgeConfig", space)
        if "found" in text and "found =" not in text and "[found]" not in text:
            exec(
                "from autoj_reward import Judge\n"
                f"with Judge({SCRIPTED})) as judge:\n    found = judge.rate('q', 'r')",
                space,
            )
        exec(compile(tree, page, "exec"), space)


class Loader(yaml.SafeLoader):
    """Reads `!include`, a tag of scenario files, as its text."""


Loader.add_constructor("!include", lambda loader, node: node.value)


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_run_files(page: str, text: str) -> None:
    data = yaml.load(text, Loader)
    assert data is not None
    if not isinstance(data, dict):
        return
    if set(data) <= set(RewardConfig.model_fields):
        check(RewardConfig, data, page)
    elif {"input", "output", "judge"} <= set(data) <= set(BestOfNConfig.model_fields):
        check(BestOfNConfig, data, page)
    elif set(data) == {"reward"}:
        check(RewardConfig, data["reward"], page)


@pytest.mark.parametrize(("page", "text"), blocks("sh"))
def test_commands(page: str, text: str) -> None:
    commands = {name for own in cli.MODULES.values() for name in own}
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.rstrip("&"), comments=True)
        if "autoj" not in words[:3]:
            continue
        words = words[words.index("autoj") + 1 :]
        name = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
        assert name in commands, line
        given = words[len(name.split()) :]
        flags = {f for a in reference.command_parser(name)._actions for f in a.option_strings}
        assert {word for word in given if word.startswith("--")} <= flags, line
        for word in given:
            if word.startswith("configs/"):
                assert (ROOT / word).is_file(), line
