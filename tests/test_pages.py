"""Snippets of the documentation: Python runs in the order of its page with a scripted judge, its
output is the one that the page prints, run files are checked, and commands begin."""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import re
import shlex
import symtable
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml

from autoj_reward.cli import main as cli
from autoj_reward.config import JudgeConfig, check, jobs, load_config
from autoj_reward.data.collect import CollectConfig
from autoj_reward.data.labelled import JudgeData
from autoj_reward.engine.base import LabelProbs
from autoj_reward.engine.fake import FakeEngine
from autoj_reward.evaluate.judges import CompareJudgesConfig
from autoj_reward.formats import protocols
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.formats.turns import Turns
from autoj_reward.rubrics.generate import GenerateConfig
from autoj_reward.training.judge.recipe import METHODS, TrainJudgeConfig
from tests.support.configs import kind_of

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

SUBSTITUTES = (
    ("JudgeConfig(critique=False)", 'JudgeConfig(kind="fake", critique=False)'),
    ("Judge()", "Judge(SCRIPTED)"),
    ('Judge("GAIR/autoj-13b"', "Judge(SCRIPTED"),
    ('RewardModel("GAIR/autoj-13b"', "RewardModel(SCRIPTED"),
    ('kind="openai", model="NAME", base_url="http://127.0.0.1:8000/v1"', 'kind="fake"'),
    ('service: {address: "http://JUDGE:8300"}', "judge: {kind: fake}"),
    ("RewardConfig(service=service)", "RewardConfig(judge=judge)"),
    (
        "judge: {model: opencompass/CompassVerifier-3B}",
        "judge: {kind: fake, format: compassverifier, "
        "script: {ratings: {Half of it.: A, One third.: B}}}",
    ),
)
"""A scripted judge in place of those that need a model, an endpoint or a service."""

RESPONSE = "Air scatters blue light more than red light."
CRITIQUE = """\
The response provided does not directly address the user's query. The user did not ask for a \
reason why the sky is blue, but rather asked for a reason why the sky is blue. This is a \
significant omission as it does not fully meet the user's request. The response could have been \
more informative by providing a clear explanation of why the sky is blue, such as "The Earth's \
atmosphere scatters blue light more than red light." \n
Rating: [[4]]"""
RATINGS = (0.02, 0.063, 0.169, 0.209, 0.205, 0.197, 0.107, 0.024, 0.006, 0.0)
"""What the default judge says of the response: its critique, and the probability of 1 to 10."""
SCRIPT = JudgeConfig(kind="fake", script={"ratings": {RESPONSE: CRITIQUE}})

TRAINERS = (
    "trl.GRPOTrainer",
    "trl.experimental.ppo.PPOTrainer",
    "autoj_reward.trl.DecidedPairsTrainer",
)
"""Trainers that the pages construct: here only their arguments are checked."""

READERS: dict[tuple[str, int], dict[str, Any]] = {
    ("README.md", 1): {"ask_judge": None},
    ("docs/trainers/areal.md", 0): {"trainer": None},
    ("README.md", 2): {"model": "POLICY", "dataset": []},
    ("docs/trainers/trl_grpo.md", 0): {"model": "POLICY", "dataset": []},
    ("docs/trainers/unsloth.md", 0): {"model": "POLICY", "dataset": []},
    ("docs/rewards/answers.md", 2): {"model": "POLICY", "dataset": []},
    ("docs/rewards/parts.md", 1): {"model": "POLICY", "args": "OBJECT", "dataset": []},
    ("docs/trainers/trl_async_grpo.md", 0): {"dataset": []},
    ("docs/trainers/trl_online_dpo.md", 0): {"model": "POLICY", "dataset": []},
    ("docs/trainers/trl_ppo.md", 0): {
        **dict.fromkeys(("args", "policy", "reference", "value"), "OBJECT"),
        "tokenizer": SimpleNamespace(pad_token_id=0, eos_token_id=1),
        "dataset": [{"input_ids": [5, 6], "prompt": "Why is the sky blue?"}],
    },
}
"""{(page, number of its Python block, from 0): names that the reader brings}."""

MATH_VERIFY = """
from fractions import Fraction

def parse(text):
    try:
        return [Fraction(text.strip("$").removeprefix("\\\\boxed{").removesuffix("}"))]
    except ValueError:
        return []

def verify(gold, answer):
    return bool(gold) and gold == answer
"""
"""A stand-in for math-verify, which no test environment has. It reads fractions."""
BLOCKS = {"areal": 1, "skyrl": 1, "verifiers": 2, "nemo_gym": 1, "trl_async_grpo": 1}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = {*PROJECT["optional-dependencies"]}
NOT_RUN = {(f"docs/trainers/{name}.md", n) for name, count in BLOCKS.items() for n in range(count)}
NOT_RUN |= {("docs/judges/evaluation_tools.md", 0), ("docs/trainers/tinker.md", 0)}
"""Blocks that need a framework which is not installed; `make test-frameworks` runs the same."""

UNDER: dict[str, Any] = {
    "ray_data": jobs.RayDataConfig,
    "reward": jobs.RewardConfig,
    "data": JudgeData,
    "turns": Turns,
}
"""{only key of a YAML block: class of what stands under it}."""
WHOLE = {
    "input": jobs.BestOfNConfig,
    "judges": CompareJudgesConfig,
    "model": TrainJudgeConfig,
    "panel": jobs.ScoreConfig,
    "writer": GenerateConfig,
}
"""{first key of a run file: its class}. A block that starts with `method` trains a judge by it, one
that starts with `name` is a format, and any other block a reward config."""
EXTRACTS = {"teacher": (CollectConfig, "configs/jobs/collect_single.yaml")}
"""{first key of a block with a few keys of a run file: its class, a file with the others}."""
OTHER_PROGRAMS = {
    ("docs/rewards/rubrics.md", "items"),
    ("docs/trainers/nemo_gym.md", "genrm_model"),
    ("docs/train/data.md", "scenario"),
}
"""(page, first key) of files that are no run file: NeMo Gym's, criteria, and rubric items."""


class Snippet(NamedTuple):
    page: str
    language: str
    text: str
    output: str | None  # the `text` block that follows


def read_snippets() -> Iterator[Snippet]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = []
        for indent, language, text in BLOCK.findall(path.read_text("utf-8")):
            lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
            blocks.append((language, "".join(lines)))
        for (language, text), (following, output) in pairwise([*blocks, ("", "")]):
            printed = output if (language, following) == ("python", "text") else None
            yield Snippet(str(path.relative_to(ROOT)), language, text, printed)


SNIPPETS = list(read_snippets())


def select_snippets(language: str) -> list[Any]:
    chosen = [snippet for snippet in SNIPPETS if snippet.language == language]
    return [pytest.param(s, id=f"{s.page}-{n}") for n, s in enumerate(chosen)]


def matches(printed: str, shown: str) -> bool:
    """Compare an output with the page's, in which `[...]` stands for any text."""
    parts = [re.escape(part.strip()) for part in shown.split("[...]")]
    return re.fullmatch(r".*".join(parts), printed.strip(), re.DOTALL) is not None


def find_unbound_names(text: str) -> set[str]:
    """Return global names that a block reads and does not bind."""
    table = symtable.symtable(text, "block", "exec")
    tables, names = [table], set()
    while tables:
        scope = tables.pop()
        tables += scope.get_children()
        names |= {s.get_name() for s in scope.get_symbols() if s.is_global() or scope is table}
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {child.get_name() for child in table.get_children()}
    return names - bound - {*dir(builtins), "__name__"}


def is_defined(module: str, name: str) -> bool:
    """Return whether a module's source defines a name. The module itself is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    source = Path(spec.origin).read_text("utf-8")
    table = symtable.symtable(source, spec.origin, "exec")
    if name in {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}:
        return True
    if "__getattr__" in table.get_identifiers() and f'if name == "{name}"' in source:
        return True
    inside = spec.submodule_search_locations
    return bool(inside) and importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize(
    "snippet", [p for kind in ("python", "toml", "sh") for p in select_snippets(kind)]
)
def test_names_of_this_package_exist(snippet: Snippet) -> None:
    dotted = re.findall(r"(autoj_reward(?:\.\w+)*)[:.](\w+)[\"'\n]", snippet.text)
    for module, names in re.findall(r"from (autoj_reward[\w.]*) import ([\w, ]+)", snippet.text):
        dotted += [(module, name.strip()) for name in names.split(",")]
    for module, name in dotted:
        assert is_defined(module, name), f"{module}.{name}"


def check_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace trainers by classes that check their arguments and train nothing."""

    def make_checked_class(trainer: Any) -> type:
        def init(self: Any, *args: Any, **keywords: Any) -> None:
            arguments = signature.bind(*args, **keywords).arguments
            rewards = arguments.get("reward_funcs", arguments.get("reward_model"))
            assert all(map(callable, rewards if isinstance(rewards, list) else [rewards]))

        signature = inspect.signature(trainer)
        return type("Checked", (), {"__init__": init, "train": lambda self: None})

    for dotted in TRAINERS:
        module, name = dotted.rsplit(".", 1)
        owner = pytest.importorskip(module)
        monkeypatch.setattr(owner, name, make_checked_class(getattr(owner, name)))


SCRIPTED_PROBS: Any = FakeEngine.label_probs


async def label_probs(self: Any, prepared: Any, generation: Any, *args: Any) -> LabelProbs:
    if not args[-1][0].isdigit():  # a verifier's words
        found: LabelProbs = await SCRIPTED_PROBS(self, prepared, generation, *args)
        return found
    return LabelProbs(tuple((label, RATINGS[int(label) - 1]) for label in args[-1]))


def substitute_judges(text: str) -> str:
    for shown, run in SUBSTITUTES:
        text = text.replace(shown, run)
    return text


@pytest.mark.parametrize("page", sorted({s.page for s in SNIPPETS if s.language == "python"}))
def test_python(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    page_snippets = [snippet for snippet in SNIPPETS if snippet.page == page]
    if any("Trainer(" in snippet.text for snippet in page_snippets if snippet.language == "python"):
        check_trainers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # for modules that the page shows
    monkeypatch.setattr(protocols, "PROTOCOLS", dict(protocols.PROTOCOLS))
    Path("math_verify.py").write_text(MATH_VERIFY, "utf-8")
    space: dict[str, Any] = {"__name__": "__main__", "SCRIPTED": SCRIPT}
    for snippet in page_snippets:
        if name := re.match(r"# (\w+\.(?:py|yaml))", snippet.text):
            Path(name[1]).write_text(substitute_judges(snippet.text), "utf-8")
    for number, snippet in enumerate(s for s in page_snippets if s.language == "python"):
        key = page, number
        assert find_unbound_names(snippet.text) - set(space) == set(READERS.get(key, ()))
        space.update(READERS.get(key, {}))
        if key in NOT_RUN:
            continue
        if snippet.output is not None:
            monkeypatch.setattr(FakeEngine, "label_probs", label_probs)
        capsys.readouterr()
        exec(compile(substitute_judges(snippet.text), page, "exec"), space)
        if snippet.output is not None:
            printed = capsys.readouterr().out
            assert matches(printed, snippet.output), printed


@pytest.mark.parametrize("snippet", select_snippets("yaml"))
def test_run_files(snippet: Snippet) -> None:
    data = yaml.load(snippet.text.replace("!include", ""), yaml.SafeLoader)
    first = next(iter(data))
    if first == "name" or first in protocols.PROTOCOLS:
        check_format(data)
    elif first in EXTRACTS:
        extract, rest = EXTRACTS[first]
        others = yaml.safe_load((ROOT / rest).read_text("utf-8"))
        check(extract, others | data, snippet.page)
    elif (snippet.page, first) not in OTHER_PROGRAMS:
        kind: Any = WHOLE.get(first, jobs.RewardConfig)
        if first == "method":
            kind = METHODS[data["method"]]
        if list(data) == [first] and first in UNDER:
            kind, data = UNDER[first], data[first]
        check(kind, data, snippet.page)


def check_format(data: dict[str, Any]) -> None:
    """Check the keys of a judge format, whose templates are files that a page does not show."""
    kind = ScalarFormat if data.get("kind") == "scalar" else JudgeFormat
    for name, protocol in protocols.PROTOCOLS.items():
        fields = protocol.model_fields.items()
        assert set(data.pop(name, ())) <= {field.alias or name for name, field in fields}
    assert set(data) <= set(kind.model_fields)


def read_commands() -> Iterator[Any]:
    """Yield the lines of each page that call this package: of its blocks, and code in its text."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += sorted((ROOT / "autoj_reward" / "models").rglob("README.md"))
    for path in pages:
        text = path.read_text("utf-8")
        blocks = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
        commands = [block for language, block in blocks.findall(text) if language in ("", "sh")]
        lines = "".join(commands).replace("\\\n", " ").splitlines()
        lines += re.findall(r"`([^`]*? --config configs/[^`]+)`", blocks.sub("", text))
        for number, line in enumerate(line for line in lines if CALL.search(line)):
            yield pytest.param(" ".join(line.split()), id=f"{path.relative_to(ROOT)}-{number}")


CALL = re.compile(r"(?:^|\s|/)autoj [a-z]|-m (?:autoj_reward|experiments)\b")


class Reached(Exception):
    """A study read its flags and its config, and would now begin."""


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


@pytest.mark.parametrize("line", [*read_commands()])
def test_a_command_can_begin_on_a_machine_without_data(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flags and its config, with what the line sets, are those of the command."""
    monkeypatch.delenv("AUTOJ_DATA", raising=False)
    monkeypatch.chdir(ROOT)
    words = shlex.split(line.rstrip("&"), comments=True)
    assert [w for w in words if w.startswith("configs/") and not Path(w).is_file()] == []
    if studies := [word for word in words if word.startswith("experiments.")]:
        [name] = studies
        is_package = Path(name.replace(".", "/")).is_dir()
        module = importlib.import_module(f"{name}.__main__" if is_package else name)
        arguments = words[words.index(name) + 1 :]
        if hasattr(module, "make_parser"):
            module.make_parser().parse_args(arguments)
        else:
            assert module.main.__module__ == "experiments.study"  # else it would not stop
            monkeypatch.setattr("experiments.study.Study", stop)
            with pytest.raises(Reached):
                module.main(arguments)
        return
    is_call = re.compile(r"(.*/)?autoj(_reward\.cli)?").fullmatch
    arguments = words[[bool(is_call(word)) for word in words].index(True) + 1 :]
    flags = vars(cli.parser(arguments).parse_args(arguments))
    config = flags.get("config")
    if config and config.startswith("configs/"):
        load_config(kind_of(ROOT / config), config, flags.get("sets", ()))


@pytest.mark.parametrize("snippet", select_snippets("sh"))
def test_extras_that_are_installed_exist(snippet: Snippet) -> None:
    names = ",".join(re.findall(r"autoj-reward\[([\w,]+)\]", snippet.text))
    assert {*filter(None, names.split(","))} <= EXTRAS
    assert not re.search(r"pip install '?autoj-reward\b", snippet.text), "no release is on an index"
