from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import autoj_reward
from autoj_reward import trl
from autoj_reward.cli import main as cli

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "ray", "vllm", "transformers"}

# A room imports itself and what stands left of it.
STAGES = (
    (
        "types",
        "conversation",
        "thinking",
        "media",
        "rubric_items",
        "errors",
        "config",
        "logs",
        "processes",
        "tracing",
    ),
    ("io",),
    ("capacity",),
    ("formats",),
    ("models",),
    ("engine",),
    ("judge",),
    ("questions",),
    ("journal",),
    ("replicas",),
    ("client",),
    ("trainer", "trl", "reward"),
    ("scorers",),
    ("service",),
    ("watch",),
    ("data",),
    ("evaluate",),
    ("check",),
    ("rubrics",),
    ("training",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(STAGES) for name in names}
SOURCES = sorted(
    path
    for folder in ("autoj_reward", "rollouts", "experiments")
    for path in (ROOT / folder).rglob("*.py")
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def find_imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, inside functions too; `from a import b` as a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def find_stages(path: Path) -> set[str]:
    parts = [name.split(".") for name in find_imports(path)]
    return {p[1] for p in parts if p[0] == "autoj_reward" and len(p) > 1}


def test_the_files_are_found() -> None:
    names = set(map(name_of, SOURCES))
    assert {"autoj_reward.types", "autoj_reward.client.client", "rollouts.best_of_n.job"} <= names
    assert "types" in find_stages(ROOT / "autoj_reward/client/client.py")


PACKAGE = [p for p in SOURCES if name_of(p).startswith("autoj_reward.")]


def test_a_stage_imports_only_to_its_left() -> None:
    stages = {path: name_of(path).split(".")[1] for path in PACKAGE}
    assert set(stages.values()) <= set(RANK), "name the stage in STAGES"
    wrong = {
        name_of(path): right
        for path, stage in stages.items()
        if (
            right := {
                imported_stage
                for imported_stage in find_stages(path)
                if RANK[imported_stage] > RANK[stage]
            }
        )
    }
    assert wrong == {}


def find_named_modules(path: Path) -> set[str]:
    """Modules that a file names in strings, `module:function` or a module alone."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"[\"']((?:autoj_reward|rollouts|experiments)(?:\.\w+)+)(?=[:\"'])", text)
    return {name for name in names if ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()}


def test_arrows_go_from_experiments_over_rollouts_to_the_package() -> None:
    houses = ("autoj_reward", "rollouts", "experiments")
    wrong = {}
    for path in SOURCES:
        below = set(houses[houses.index(name_of(path).split(".")[0]) + 1 :])
        modules = set(find_imports(path))
        if name_of(path) != "autoj_reward.cli.main":  # its table names the jobs, and imports none
            modules |= find_named_modules(path)
        if above := {name for name in modules if name.split(".")[0] in below}:
            wrong[name_of(path)] = above
    assert wrong == {}


def test_tests_of_the_product_and_their_helpers_import_no_study() -> None:
    studies = ROOT / "tests" / "experiments"
    files = [p for p in (ROOT / "tests").rglob("*.py") if studies not in p.parents]
    about = {path: {name.split(".")[0] for name in find_imports(path)} for path in files}
    assert [str(path) for path, houses in about.items() if "experiments" in houses] == []


def test_the_table_of_commands_names_all_their_modules() -> None:
    modules = find_named_modules(ROOT / "autoj_reward/cli/main.py")
    rooms = {name.rpartition(".")[0] if "." in name else name for name in modules}
    assert rooms == {"autoj_reward.cli", "rollouts"}
    assert modules == set(cli.MODULES)


def test_no_circle_between_modules() -> None:
    modules = {name_of(path): path for path in SOURCES}

    def find_nearest(name: str) -> str | None:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    needs = {
        module: {nearest for name in find_imports(path) if (nearest := find_nearest(name))}
        - {module}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("library", "only"),
    [
        ("vllm", {"autoj_reward.engine.vllm"}),
        (
            "ray",
            {
                "autoj_reward.service.application",
                *(
                    f"autoj_reward.replicas.{name}"
                    for name in ("isolation", "backend", "cluster", "deployments", "pipeline")
                ),
            },
        ),
    ],
)
def test_few_files_import(library: str, only: set[str]) -> None:
    users = {
        name_of(path)
        for path in SOURCES
        if not name_of(path).startswith("experiments")
        and library in {name.split(".")[0] for name in find_imports(path)}
    }
    assert users == only


def list_loaded_modules(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running the code."""
    show = "import sys; print(*{m.split('.')[0] for m in sys.modules})"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return set(process.stdout.split())


@pytest.mark.parametrize(
    ("code", "banned"),
    [
        pytest.param(
            "import autoj_reward, autoj_reward.types, autoj_reward.errors",
            {*HEAVY, "pydantic", "yaml", "numpy", "aiohttp"},
            id="records",
        ),
        pytest.param(
            "import autoj_reward.config\n"
            "from autoj_reward import *\n"
            "import autoj_reward.client.session, autoj_reward.replicas.replica\n"
            "import autoj_reward.engine.openai, autoj_reward.engine.fake",
            HEAVY,
            id="all-that-starts-no-engine",
        ),
    ],
)
def test_importing_stays_cheap(code: str, banned: set[str]) -> None:
    modules = list_loaded_modules(code)
    assert "autoj_reward" in modules
    assert modules & banned == set()


def test_the_public_names() -> None:
    assert autoj_reward.__all__ == [
        "AsyncJudge",
        "AutojError",
        "Candidate",
        "Comparison",
        "Judge",
        "JudgeConfig",
        "Judgement",
        "Outcome",
        "Pair",
        "Reading",
        "RewardConfig",
        "RewardModel",
        "Selection",
        "Verdict",
    ]
    for name in autoj_reward.__all__:
        value = getattr(autoj_reward, name)
        assert value.__name__ == name
        assert value.__module__.startswith("autoj_reward.")
    assert set(autoj_reward.__all__) <= set(dir(autoj_reward))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'judge_everything'"):
        autoj_reward.judge_everything  # noqa: B018


def test_the_trainers_adapters_stand_in_one_place() -> None:
    assert trl.__all__ == sorted(trl.__all__) and set(trl.__all__) == set(trl._MODULES)
    for name in ("GRPOReward", "OnlineDPOReward"):  # the others need torch and TRL
        assert getattr(trl, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'DPOReward'"):
        trl.DPOReward  # noqa: B018
