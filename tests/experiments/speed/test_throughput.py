from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, load_config
from autoj_reward.engine.base import Generation
from autoj_reward.engine.labels import inner_nodes, probabilities
from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.io.plain import plain
from autoj_reward.types import Candidate, Usage
from experiments.speed.throughput import sides, slots
from experiments.speed.throughput.__main__ import main
from experiments.speed.throughput.bare import BareEngine, Slot, own_text, slot_of, used
from experiments.speed.throughput.config import ThroughputConfig
from experiments.speed.throughput.edge import over_http
from experiments.speed.throughput.naive import NaiveReward
from experiments.speed.throughput.tables import against, render, told
from experiments.speed.throughput.work import (
    WARM_UP,
    Side,
    Spent,
    alternate,
    by_client,
    candidates,
    spread,
)
from experiments.study import Study

ROOT = Path(__file__).parents[3]
FAKE = JudgeConfig(kind="fake")


def spent(seconds: float, judgements: int = 4, critiques_s: float | None = None) -> Spent:
    usage = Usage(10 * judgements, 5 * judgements, 2 * judgements)
    return Spent(seconds, judgements, judgements - 1, usage, critiques_s)


def result(**parts: Any) -> dict[str, Any]:
    config = ThroughputConfig(output=Path("out"))
    found: dict[str, Any] = plain(Study(config, "c").head() | parts)
    return found


# --- the work -----------------------------------------------------------------------------------


def test_every_candidate_is_new_and_every_mark_is_other_work() -> None:
    one, other = candidates("1a", 5, 8), candidates("1b", 5, 8)
    assert len(one) == len(set(one)) == 40
    assert len({c.query for c in one}) == 5
    assert not {c.query for c in one} & {c.query for c in other}
    assert [c.response for c in one] == [c.response for c in other]
    assert one == candidates("1a", 5, 8)


@pytest.mark.parametrize(("words", "long"), [(0, 14), (3, 14), (14, 14), (30, 30), (450, 450)])
def test_a_query_is_as_long_as_told_and_never_shorter_than_its_question(
    words: int, long: int
) -> None:
    [one] = candidates("1a", 1, 1, words)
    assert len(one.query.split()) == long


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (1, "0"),
        (2, "0 5"),
        (4, "0 2 5 7"),
        (10, "0 1 2 3 4 5 6 7 8 9"),
        (99, "0 1 2 3 4 5 6 7 8 9"),
    ],
)
def test_a_part_of_the_work_is_spread_over_it(count: int, found: str) -> None:
    given = [Candidate("q", str(n)) for n in range(10)]
    assert " ".join(c.response for c in spread(given, count)) == found


async def test_sides_take_turns_and_none_sees_the_same_work_twice() -> None:
    calls: list[tuple[str, list[Candidate]]] = []

    def side(name: str) -> Side:
        async def judge(given: list[Candidate]) -> Spent:
            calls.append((name, given))
            return spent(1.0, len(given))

        return judge

    steps: list[None] = []
    found = await alternate(
        {name: side(name) for name in "xyz"},
        3,
        lambda mark: candidates(mark, 1, 6),
        lambda: steps.append(None),
    )
    assert "".join(name for name, _ in calls) == "xyz" + "xyz" + "yzx" + "zxy"
    assert [len(given) for _, given in calls] == [WARM_UP] * 3 + [6] * 9
    queries = [given[0].query for _, given in calls]
    assert len(set(queries)) == len(queries)
    assert {name: len(rounds) for name, rounds in found.items()} == {"x": 3, "y": 3, "z": 3}
    assert len(steps) == 9


async def test_the_service_by_handle_and_by_http_judges_everything() -> None:
    given = candidates("1a", 2, 8)
    async with open_judge(FAKE) as handle, over_http(handle) as http:
        found = [await by_client(client)(given) for client in (handle, http)]
        direct, remote = await handle.rate(given), await http.rate(given)
    for one in found:
        assert (one.judgements, one.rated) == (16, 16)
        assert one.usage.tokens_out == sum(j.usage.tokens_out for j in direct) > 0
        assert one.seconds > 0
    assert [j.rating for j in direct] == [j.rating for j in remote]


async def test_the_edge_is_gone_after_an_error() -> None:
    async with open_judge(FAKE) as handle:
        with pytest.raises(ValueError, match="stop"):
            async with over_http(handle):
                raise ValueError("stop")
        assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


# --- ratios and tables --------------------------------------------------------------------------


def test_ratios_are_medians_over_the_rounds_and_by_judgement() -> None:
    ceiling = [spent(2), spent(4), spent(10)]
    assert against(ceiling, ceiling) == 1
    assert against([spent(3), spent(4), spent(11)], ceiling) == 1.1  # of 1.5, 1, 1.1
    assert against([spent(3, 2), spent(4, 2), spent(10, 2)], ceiling) == 2  # of 3, 2, 2


def test_what_is_told_of_rounds() -> None:
    found = told([spent(2), spent(8), spent(4)])
    assert found == {
        "seconds": 4,
        "rounds_s": [2, 8, 4],
        "judgements": 4,
        "per_second": 1,
        "rated": 0.75,
        "tokens_in": 10,
        "hit_rate": 0.5,
        "tokens_out": 2,
    }


def test_the_table_of_the_paths() -> None:
    part = sides.paths(
        {
            sides.CEILING: [spent(10, critiques_s=8), spent(20, critiques_s=16)],
            "naive": [spent(20, 2), spent(40, 2)],
        }
    )
    assert part["critiques_s"] == 12
    assert [row["ratio"] for row in part["rows"]] == [1, 4]
    assert [row["to_critiques"] for row in part["rows"]] == [1.25, 5]
    text = render(result(paths=part))
    assert (
        "| naive | 2 | 30.00 s (20.00, 40.00) | 0.08 | 4.000 | 5.000 | 10 | 0.50 | 2 | 0.50 |"
        in text
    )
    assert "Prefix" not in text


@pytest.mark.parametrize(
    ("gpus", "devices", "expected"),
    [
        pytest.param(0, "all cores, shared", 2, id="cores"),
        pytest.param(1, "1 GPUs", 2, id="one GPU"),
        pytest.param(8, "2 GPUs", 1, id="a GPU each"),
    ],
)
def test_what_two_replicas_can_give(gpus: int, devices: str, expected: float) -> None:
    one, two = sides.replicas({1: [spent(5), spent(5)], 2: [spent(9), spent(10)]}, gpus)
    assert (one["ratio"], two["ratio"]) == (1, 1.9)
    assert (two["devices"], two["expected"], one["expected"]) == (devices, expected, 1)


# --- the bare engine's logic --------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokens(smollm2: Any) -> PromptTokenizer:
    return PromptTokenizer(smollm2, "chat")


@pytest.mark.parametrize(
    ("text", "before", "written"),
    [
        pytest.param("Brief, but right.\nRating: [[7]]", "right.\nRating: [[", True, id="written"),
        pytest.param("Brief, but right.", "right.\nRating: [[", False, id="forced"),
        pytest.param("", "Rating: [[", False, id="empty"),
    ],
)
def test_the_slot_is_where_the_judge_reads_it(
    tokens: PromptTokenizer, text: str, before: str, written: bool
) -> None:
    own = Generation(text, tuple(tokens.continuation(text) if text else ()))
    slot = slot_of(tokens, load_format("autoj-en"), [1, 2, 3], own)
    assert slot.written is written
    assert slot.context[:3] == [1, 2, 3]
    assert tokens.tokenizer.decode(slot.context[3:]).endswith(before)
    assert tokens.tokenizer.decode(slot.labels["10"]) == "10"


def test_labels_of_one_and_of_two_tokens() -> None:
    labels = {"1": (11,), "2": (12,), "10": (11, 10)}
    assert inner_nodes(labels) == {(): [11, 12], (11,): [10]}
    read = {(): {11: math.log(0.5), 12: math.log(0.25)}, (11,): {10: math.log(0.2), 99: -0.1}}
    assert dict(probabilities(labels, read)) == pytest.approx({"1": 0.4, "2": 0.25, "10": 0.1})


def output(ids: list[int], logprobs: list[dict[int, float]] | None = None, cached: int = 2) -> Any:
    told = [{i: SimpleNamespace(logprob=p) for i, p in row.items()} for row in logprobs or []]
    own = SimpleNamespace(text="t", token_ids=ids, logprobs=told)
    return SimpleNamespace(prompt_token_ids=[1, 2, 3], num_cached_tokens=cached, outputs=[own])


def test_tokens_of_outputs_are_added() -> None:
    assert used([output([5, 6]), output([7], cached=0)]) == Usage(6, 2, 3)
    assert own_text(output([5, 6])) == Generation("t", (5, 6))


@pytest.mark.parametrize(
    ("slot", "found"),
    [
        pytest.param(Slot([1, 2, 5, 6], {"7": (7,), "8": (8,)}, True), {7: 0.5}, id="read"),
        pytest.param(Slot([1, 2, 5, 6], {"7": (7,)}, False), None, id="forced"),
        pytest.param(Slot([1, 2, 5, 9], {"7": (7,)}, True), None, id="other tokens before it"),
        pytest.param(Slot([1, 2, 5, 6, 7], {"7": (7,)}, True), None, id="past the end"),
    ],
)
def test_what_one_pass_knows_of_a_slot(slot: Slot, found: dict[int, float] | None) -> None:
    rows: list[dict[int, float]] = [{5: 0.0}, {6: 0.0}, {7: -0.6931471805599453, 3: -2.0}]
    own = output([5, 6, 7], rows).outputs[0]
    assert slots.in_one_pass(slot, 2, own) == (pytest.approx(found) if found else None)


def test_the_table_of_the_slots() -> None:
    seconds = {slots.ALONE: [1.0, 2.0], slots.TWO_PASS: [1.2, 2.2], slots.TOP: [2.0, 4.0]}
    found: dict[str, slots.Found] = {
        slots.ALONE: [None, None],
        slots.TWO_PASS: [{7: 0.5, 8: 0.1}, {7: 0.25}],
        slots.TOP: [{7: 0.375}, None],
    }
    alone, two, top = slots.rows(seconds, found)
    assert (alone["ratio"], alone["slots"], alone["difference"]) == (1, 0, None)
    assert (two["ratio"], two["slots"], two["difference"]) == (pytest.approx(1.15), 2, 0)
    assert (top["ratio"], top["slots"], top["difference"]) == (2, 1, 0.125)
    part = {"rows": [alone, two, top]}
    text = render(result(slots=part))
    assert f"| {slots.TWO_PASS} | 1.70 s (1.20, 2.20) | 1.150 | 2 of 2 | 0 |" in text
    assert "in the same round, median over the rounds" in text


class Model:
    """A vllm.LLM that writes the same critique to every prompt and knows one distribution; its
    prefix cache holds the first half of every prompt once it has read one."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer, self._text = tokenizer, text
        self._encode = PromptTokenizer(tokenizer, "chat").continuation
        self.full = False
        self.calls: list[int] = []

    def get_tokenizer(self) -> Any:
        return self._tokenizer

    def reset_prefix_cache(self) -> bool:
        self.full = False
        return True

    def generate(self, given: list[dict[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        self.calls.append(len(given))
        each = params if isinstance(params, list) else [params] * len(given)
        return [self._one(g["prompt_token_ids"], p) for g, p in zip(given, each, strict=True)]

    def _one(self, prompt: list[int], params: dict[str, Any]) -> Any:
        cached = len(prompt) // 2 if self.full else 0
        self.full = not params.get("skip_reading_prefix_cache")
        ids = self._encode(self._text)[: params["max_tokens"]]
        asked = params.get("logprob_token_ids", range(params.get("logprobs", 0)))
        row = {i: math.log((i % 7 + 1) / 100) for i in asked}
        found = output(ids, [row] * len(ids), cached)
        found.prompt_token_ids, found.outputs[0].text = prompt, self._text
        return found


def bare_engine(smollm2: Any, text: str) -> tuple[BareEngine, Model]:
    model = Model(smollm2, text)
    config = JudgeConfig(format="autoj-en", wrapper="chat", max_tokens=64)
    return BareEngine(config, model, dict), model


CRITIQUE = "Brief, but right.\nRating: [[7]]"


async def test_the_bare_engine_asks_for_everything_at_once(smollm2: Any) -> None:
    bare, model = bare_engine(smollm2, CRITIQUE)
    given = candidates("1a", 1, 5)
    whole = await bare.judge(given)
    assert model.calls == [5, 10]  # the critiques; two nodes of each slot, since "10" is two tokens
    written = len(bare.tokens.continuation(CRITIQUE))
    assert (whole.judgements, whole.rated) == (5, 5)
    assert whole.usage.tokens_out == 5 * written + 10
    assert whole.critiques_s is not None and 0 < whole.critiques_s <= whole.seconds
    assert whole.usage.tokens_cached > 0
    assert (await bare.judge(given, cached=False)).usage.tokens_cached == 0
    alone = await bare.judge(given, critique=False)
    assert (alone.usage.tokens_out, alone.critiques_s) == (10, None)


async def test_the_loop_takes_a_batch_a_call_and_rates_by_the_text(smollm2: Any) -> None:
    bare, model = bare_engine(smollm2, CRITIQUE)
    found = await bare.loop(candidates("1a", 1, 5), batch=2)
    assert model.calls == [2, 2, 1]
    assert (found.judgements, found.rated) == (5, 5)
    bare, _ = bare_engine(smollm2, "Brief, but right.")
    assert (await bare.loop(candidates("1a", 1, 5), batch=8)).rated == 0


def test_a_cache_that_cannot_be_emptied_is_an_error(
    smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, model = bare_engine(smollm2, CRITIQUE)
    states = iter([False, True])
    monkeypatch.setattr(model, "reset_prefix_cache", lambda: next(states))
    bare.forget()
    monkeypatch.setattr(model, "reset_prefix_cache", lambda: False)
    monkeypatch.setattr("experiments.speed.throughput.bare.TRIES", 1)
    with pytest.raises(EngineError, match="still has work"):
        bare.forget()


def small(tmp_path: Path) -> ThroughputConfig:
    given = {"candidates": 6, "rounds": 2, "long_words": 100}
    return load_config(ThroughputConfig, written(tmp_path, **given))


async def test_one_pass_and_two_read_the_same_slot(smollm2: Any, tmp_path: Path) -> None:
    bare, _ = bare_engine(smollm2, CRITIQUE)
    found = await slots.measure(small(tmp_path), bare, lambda: None)
    by_way = {row["reading"]: row for row in found["rows"]}
    assert [row["judgements"] for row in found["rows"]] == [12] * 4
    assert by_way[slots.TWO_PASS]["slots"] == by_way[slots.NAMED]["slots"] == 12
    assert by_way[slots.NAMED]["difference"] == 0
    bare, _ = bare_engine(smollm2, "Brief, but right.")
    found = await slots.measure(small(tmp_path), bare, lambda: None)
    assert [row["slots"] for row in found["rows"]] == [0, 12, 0, 0]


async def test_the_prefix_rows_and_their_table(smollm2: Any, tmp_path: Path) -> None:
    bare, _ = bare_engine(smollm2, CRITIQUE)
    found = await sides.measure_prefix(small(tmp_path), bare, lambda: None)
    assert [row["judging"][:6] for row in found["rows"]] == ["critiq", "rating"] * 2
    assert all(0 < row["hit_rate"] < 0.5 and row["ratio"] > 0 for row in found["rows"])
    assert found["rows"][0]["query_tokens"] < 60 < 100 < found["rows"][2]["query_tokens"]
    text = render(result(prefix=found))
    assert text.count("| rating alone |") == text.count("| critique and rating |") == 2


# --- transformers -------------------------------------------------------------------------------


async def test_transformers_generate_judges_a_part_of_the_work(policy: str) -> None:
    config = JudgeConfig(model=policy, wrapper="chat", format="autoj-en", max_tokens=5)
    naive = NaiveReward(config, batch=2, count=3)
    given = candidates("1a", 1, 6)
    found = await naive.judge(given)
    assert (found.judgements, found.rated) == (3, 0)
    prompts, usage = [given[n] for n in (0, 2, 4)], found.usage
    together, _ = naive._generate(prompts[:2])
    alone = [naive._generate([one])[0][0] for one in prompts[:2]]
    assert together == alone  # padding on the left changes nothing
    assert usage.tokens_in == sum(naive._generate([one])[1].tokens_in for one in prompts)
    assert 0 < usage.tokens_out <= 15


# --- the command --------------------------------------------------------------------------------


def written(folder: Path, **given: Any) -> str:
    path = folder / "throughput.yaml"
    path.write_text(yaml.safe_dump({"output": str(folder / "out")} | given))
    return str(path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"judge": {"kind": "fake"}}, "kind vllm", id="no engine"),
        pytest.param({"judge": {"format": "scalar"}}, "generative judge", id="scalar"),
        pytest.param({"judge": {"critique": False}}, "one greedy critique", id="no critique"),
        pytest.param({"judge": {"temperature": 0.5}}, "one greedy critique", id="sampled"),
        pytest.param({"judge": {"serve": {"replicas": 2}}}, "one replica", id="replicas"),
    ],
)
def test_a_judge_that_the_paths_cannot_share_is_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(ThroughputConfig, written(tmp_path, **given))


def test_an_unknown_part_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", written(tmp_path), "--parts", "paths,slow"]) == 1
    assert "this config has the parts paths, prefix, slots, replicas" in capsys.readouterr().err
    config = load_config(ThroughputConfig, ROOT / "configs/experiments/throughput.yaml")
    assert config.wanted("slots, paths") == ("paths", "slots")
    assert config.judge_on(2).serve.replicas == 2


def test_parts_are_written_as_they_end(
    smollm2: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bare, _ = bare_engine(smollm2, CRITIQUE)
    monkeypatch.setattr(BareEngine, "start", lambda config: nullcontext(bare))
    monkeypatch.setattr("experiments.speed.throughput.__main__._environment", lambda: None)
    path = written(tmp_path, candidates=4, rounds=1, long_words=100)
    assert main(["--config", path, "--parts", "slots,prefix"]) == 0
    text = (tmp_path / "out/throughput.md").read_text()
    assert text in capsys.readouterr().out
    assert text.index("## Prefix cache") < text.index("## Log-probabilities at the rating slot")
    found = json.loads((tmp_path / "out/throughput.json").read_text())
    assert [len(found[part]["rows"]) for part in ("prefix", "slots")] == [4, 4]


@pytest.mark.engine
def test_all_parts_of_a_bare_engine(policy: str, tmp_path: Path) -> None:
    judge = {"model": policy, "format": "autoj-en", "wrapper": "chat", "max_tokens": 8}
    judge |= {"max_model_len": 1024, "kv_cache_gib": 0.1}
    given = {"judge": judge, "queries": 1, "candidates": 4, "rounds": 1, "naive_candidates": 2}
    path = written(tmp_path, long_words=200, **given)
    # In a process of its own: vLLM's engine leaves sockets and warnings behind.
    command = [sys.executable, "-m", "experiments.speed.throughput", "--config", path]
    command += ["--parts", "prefix,slots"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rating alone") == 2
    assert "one pass: logprob_token_ids" in done.stdout
    assert (tmp_path / "out/throughput.md").read_text().strip() in done.stdout
