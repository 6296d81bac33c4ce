"""The preference model of the page, with the types of Tinker's cookbook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.errors import BudgetExceeded
from tests.trainer.conftest import FRAMEWORKS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code
PAGE = Path(__file__).parents[2] / "docs/trainers/tinker.md"


@pytest.fixture
def page(require_packages: Any) -> dict[str, Any]:
    """Run the page's code and return its names."""
    require_packages(FRAMEWORKS, "tinker", "tinker_cookbook", "chz")
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


async def test_a_preference_is_the_judges_in_both_orders(page: Any, make_model: Any) -> None:
    make_model()

    def make_comparison(first: str, second: str) -> Any:
        completions = ([{"role": "assistant", "content": text}] for text in (first, second))
        return page["Comparison"]([{"role": "user", "content": "Why?"}], *completions)

    prefer = page["JudgePreferenceBuilder"]()()
    assert isinstance(prefer, page["PreferenceModel"])
    pairs = [("longer", "short"), ("short", "longer"), ("equal", "alike")]
    assert [await prefer(make_comparison(*pair)) for pair in pairs] == [-1.0, 1.0, 0.0]
    assert await prefer(make_comparison("longer", "short").swap()) == 1.0
    assert await prefer(make_comparison("lost", "longer")) == 0.0
    with pytest.raises(BudgetExceeded):
        for n in range(9):
            await prefer(make_comparison("lost", f"longer {n}"))
