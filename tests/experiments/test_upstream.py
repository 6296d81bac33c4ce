"""The check of upstream code, on wheels made here, and its table on what is installed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.config import check, load_config
from autoj_reward.errors import EngineError
from experiments import upstream
from experiments.upstream import (
    UpstreamTable,
    check_frameworks,
    find_missing_code,
    read_pinned_versions,
)
from requirements.install import pins

ROOT = Path(__file__).parents[2]
FRAMEWORKS = load_config(UpstreamTable, upstream.TABLE).frameworks
PINNED = read_pinned_versions((ROOT / "Makefile").read_text(encoding="utf-8"))
INIT = '_LAZY = {"trainer": ["Trainer"]}\n'
TRAINER = """
try:
    from fast import Config
except ImportError:
    class Config:
        beta: float = 0.0

class Trainer:
    def __init__(self, model, *, reward_funcs): ...

    def score(self, prompts):
        return self.reward_func(prompts=prompts, completions=[])["rewards"]
"""
RENAMED = TRAINER.replace("completions", "responses").replace("reward_funcs", "rewards_by")
CALLS: dict[str, Any] = {
    "judged": {"Trainer": {}},
    "judged.trainer": {
        "Config": {"takes": ["beta"]},
        "Trainer": {"takes": ["model", "reward_funcs"]},
        "Trainer.score": {"has": ["completions", "rewards"]},
    },
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make a folder with two releases of the package `judged` the only package index."""
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "1.0", TRAINER)
    make_wheel(folder, "2.0", RENAMED, "judged-2.0.data/purelib/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        patch.setattr(upstream, "CACHE", folder / "kept")
        patch.setattr(upstream, "MONTHS", (12,))  # each one more is a process of uv
        upstream.make_index_environment.cache_clear()
        yield
    upstream.make_index_environment.cache_clear()


def make_wheel(index: Path, version: str, trainer: str, inner: str = "") -> None:
    with zipfile.ZipFile(index / f"judged-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{inner}judged/__init__.py", INIT)
        wheel.writestr(f"{inner}judged/trainer.py", trainer)
        about = f"judged-{version}.dist-info"
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: judged\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


def check_release(pin: str = "1.0", **about: Any) -> tuple[str, bool]:
    entry = {"package": "judged", "adapters": ["ours.py"], "calls": CALLS, **about}
    table = check(UpstreamTable, {"frameworks": {"Judged": entry}}, "test")
    return check_frameworks(table.frameworks, {entry["package"]: pin}, datetime.now(UTC))


@pytest.mark.usefixtures("judged")
def test_what_the_newest_release_lacks_is_named() -> None:
    text, fits = check_release()
    assert not fits
    assert "| Judged | 1.0 | 1.0 | 2.0 |" in text
    lacks = [line for line in text.splitlines() if line.startswith("- Judged 2.0: ")]
    assert lacks == [
        "- Judged 2.0: `judged.trainer`: `Trainer` takes no `reward_funcs`",
        "- Judged 2.0: `judged.trainer`: `Trainer.score` has no `completions`",
    ]
    assert "to mend: ours.py" in text


@pytest.mark.usefixtures("judged")
def test_a_held_framework_must_fit_at_its_pin() -> None:
    text, fits = check_release(held="2.0 renamed all")
    assert fits and "`Trainer` takes no `reward_funcs`" in text
    assert "held at 1.0: 2.0 renamed all" in text
    _, fits = check_release(pin="2.0", held="2.0 renamed all")
    assert not fits


@pytest.mark.usefixtures("judged")
def test_releases_before_the_pin_may_be_left_out() -> None:
    text, _ = check_release(pin="2.0", from_pin=True)
    assert "| Judged | 2.0 |  | 2.0 |" in text


@pytest.mark.usefixtures("judged")
def test_a_package_that_the_index_lacks_is_an_error() -> None:
    with pytest.raises(EngineError, match="the package index has no judged-by-none"):
        check_release(package="judged-by-none")


def test_a_module_that_is_gone(tmp_path: Path) -> None:
    [framework] = check(
        UpstreamTable,
        {"frameworks": {"one": {"package": "p", "adapters": ["a"], "calls": CALLS}}},
        "test",
    ).frameworks.values()
    assert find_missing_code(tmp_path, framework.calls) == [
        "`judged`: no such module",
        "`judged.trainer`: no such module",
    ]


INSTALLED = [name for name, framework in FRAMEWORKS.items() if framework.package in pins("gpu")]


@pytest.mark.parametrize("name", INSTALLED)
def test_the_table_fits_what_is_installed(name: str) -> None:
    framework = FRAMEWORKS[name]
    root = upstream.find_installed_code(framework, PINNED[framework.package])
    assert root is not None, "install requirements/*.txt"
    assert find_missing_code(root, framework.calls) == []


def test_the_table_names_our_files_and_the_page_its_pins() -> None:
    page = (ROOT / "docs/reference/frameworks.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \| [\d., ]* \| [\d., ]*\|$", page, re.M))
    assert rows == {name: PINNED[framework.package] for name, framework in FRAMEWORKS.items()}
    adapters = {path for framework in FRAMEWORKS.values() for path in framework.adapters}
    assert [path for path in sorted(adapters) if not (ROOT / path).is_file()] == []
