from __future__ import annotations

import math
import subprocess
import sys
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
from autoj_reward.io.files import to_plain
from autoj_reward.types import Candidate, Usage
from experiments.speed.bare import BareEngine, count_usage, empty_cache, find_slot, read_text
from experiments.speed.throughput import (
    ThroughputConfig,
    markdown,
    measure_prefix,
    serve_over_http,
    sum_rounds,
)
from experiments.speed.work import (
    WARM_UP,
    Side,
    SideRound,
    alternate,
    made_candidates,
    make_client_side,
    ratio_by_round,
    turns,
)
from experiments.study import Study

ROOT = Path(__file__).parents[3]
FAKE = JudgeConfig(kind="fake")


def make_round(seconds: float, judgements: int = 4, critiques_s: float | None = None) -> SideRound:
    usage = Usage(10 * judgements, 5 * judgements, 2 * judgements)
    return SideRound(seconds, judgements, judgements - 1, usage, critiques_s)


def make_result(**parts: Any) -> dict[str, Any]:
    config = ThroughputConfig(output=Path("out"))
    record: dict[str, Any] = to_plain(Study(config, "c").head() | parts)
    return record


# --- the work -----------------------------------------------------------------------------------


def test_every_candidate_is_new_and_every_mark_is_other_work() -> None:
    first, other = made_candidates("1a", 5, 8), made_candidates("1b", 5, 8)
    assert len(first) == len(set(first)) == 40
    assert len({c.prompt.text for c in first}) == 5
    assert not {c.prompt.text for c in first} & {c.prompt.text for c in other}
    assert [c.response for c in first] == [c.response for c in other]
    assert first == made_candidates("1a", 5, 8)


async def test_sides_take_turns_and_none_sees_the_same_work_twice() -> None:
    calls: list[tuple[str, list[Candidate]]] = []

    def make_side(name: str) -> Side:
        async def judge(candidates: list[Candidate]) -> SideRound:
            calls.append((name, candidates))
            return make_round(1.0, len(candidates))

        return judge

    sides = {name: make_side(name) for name in "xyz"}
    rounds_by_side = await alternate(sides, 3, lambda mark: made_candidates(mark, 1, 6))
    assert "".join(name for name, _ in calls) == "xyz" + "xyz" + "yzx" + "zxy"
    assert [len(candidates) for _, candidates in calls] == [WARM_UP] * 3 + [6] * 9
    queries = [candidates[0].prompt.text for _, candidates in calls]
    assert len(set(queries)) == len(queries)
    assert {name: len(rounds) for name, rounds in rounds_by_side.items()} == {
        "x": 3,
        "y": 3,
        "z": 3,
    }


def test_ratios_are_medians_over_the_rounds() -> None:
    assert ratio_by_round([3, 4, 11], [2, 4, 10]) == 1.1  # of 1.5, 1, 1.1
    assert [*turns("ab", 2)] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


async def test_the_service_by_handle_and_by_http_judges_everything() -> None:
    candidates = made_candidates("1a", 2, 8)
    async with open_judge(FAKE) as handle, serve_over_http(handle) as http:
        rounds = [await make_client_side(client)(candidates) for client in (handle, http)]
        direct, remote = await handle.rate(candidates), await http.rate(candidates)
    for side_round in rounds:
        assert (side_round.judgements, side_round.rated) == (16, 16)
        assert side_round.usage.tokens_out == sum(j.usage.tokens_out for j in direct) > 0
        assert side_round.seconds > 0
    assert [j.rating for j in direct] == [j.rating for j in remote]


# --- figures and tables -------------------------------------------------------------------------


def test_figures_of_rounds() -> None:
    figures = sum_rounds(
        [make_round(2), make_round(8), make_round(4)], [make_round(1), make_round(2), make_round(4)]
    )
    assert figures == {
        "seconds": 4,
        "rounds_s": [2, 8, 4],
        "ratio": 2,
        "judgements": 4,
        "rated": 0.75,
        "tokens_in": 10,
        "hit_rate": 0.5,
        "tokens_out": 2,
    }
    text = markdown(make_result(paths=[{"path": "service"} | figures]))
    row = "| service | 4 | 4.00 s (2.00, 8.00, 4.00) | 2.000 | 10 | 0.50 | 2 | 0.75 |"
    assert row in text and "Prefix" not in text


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
    generation = Generation(text, tuple(tokens.continuation(text) if text else ()))
    slot = find_slot(tokens, load_format("autoj-en"), [1, 2, 3], generation)
    assert slot.written is written
    assert slot.context[:3] == [1, 2, 3]
    assert tokens.tokenizer.decode(slot.context[3:]).endswith(before)
    assert tokens.tokenizer.decode(slot.labels["10"]) == "10"


def test_labels_of_one_and_of_two_tokens() -> None:
    labels = {"1": (11,), "2": (12,), "10": (11, 10)}
    assert inner_nodes(labels) == {(): [11, 12], (11,): [10]}
    logprobs = {(): {11: math.log(0.5), 12: math.log(0.25)}, (11,): {10: math.log(0.2), 99: -0.1}}
    assert dict(probabilities(labels, logprobs)) == pytest.approx({"1": 0.4, "2": 0.25, "10": 0.1})


def make_output(
    ids: list[int], logprobs: list[dict[int, float]] | None = None, cached: int = 2
) -> Any:
    token_logprobs = [
        {i: SimpleNamespace(logprob=p) for i, p in row.items()} for row in logprobs or []
    ]
    completion = SimpleNamespace(text="t", token_ids=ids, logprobs=token_logprobs)
    return SimpleNamespace(
        prompt_token_ids=[1, 2, 3], num_cached_tokens=cached, outputs=[completion]
    )


def test_tokens_of_outputs_are_added() -> None:
    assert count_usage([make_output([5, 6]), make_output([7], cached=0)]) == Usage(6, 2, 3)
    assert read_text(make_output([5, 6])) == Generation("t", (5, 6))


class Model:
    """Stand-in for vllm.LLM that answers every prompt with the same critique and distribution.

    Its prefix cache holds the first half of every prompt that it has read.
    """

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

    def generate(self, prompts: list[dict[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        self.calls.append(len(prompts))
        sampling_params = params if isinstance(params, list) else [params] * len(prompts)
        return [
            self._generate_one(g["prompt_token_ids"], p)
            for g, p in zip(prompts, sampling_params, strict=True)
        ]

    def _generate_one(self, prompt: list[int], params: dict[str, Any]) -> Any:
        cached = len(prompt) // 2 if self.full else 0
        self.full = not params.get("skip_reading_prefix_cache")
        ids = self._encode(self._text)[: params["max_tokens"]]
        token_ids = params.get("logprob_token_ids", range(params.get("logprobs", 0)))
        row = {i: math.log((i % 7 + 1) / 100) for i in token_ids}
        output = make_output(ids, [row] * len(ids), cached)
        output.prompt_token_ids, output.outputs[0].text = prompt, self._text
        return output


def bare_engine(smollm2: Any, text: str) -> tuple[BareEngine, Model]:
    model = Model(smollm2, text)
    config = JudgeConfig(format="autoj-en", wrapper="chat", max_tokens=64)
    return BareEngine(config, model, dict), model


CRITIQUE = "Brief, but right.\nRating: [[7]]"


async def test_the_bare_engine_asks_for_everything_at_once(smollm2: Any) -> None:
    bare, model = bare_engine(smollm2, CRITIQUE)
    candidates = made_candidates("1a", 1, 5)
    whole = await bare.judge(candidates)
    assert model.calls == [5, 10]  # the critiques; two nodes of each slot, since "10" is two tokens
    written = len(bare.tokens.continuation(CRITIQUE))
    assert (whole.judgements, whole.rated) == (5, 5)
    assert whole.usage.tokens_out == 5 * written + 10
    assert whole.critiques_s is not None and 0 < whole.critiques_s <= whole.seconds
    assert whole.usage.tokens_cached > 0
    assert (await bare.judge(candidates, cached=False)).usage.tokens_cached == 0
    alone = await bare.judge(candidates, critique=False)
    assert (alone.usage.tokens_out, alone.critiques_s) == (10, None)


def test_a_cache_is_emptied_or_the_measurement_ends(
    smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = bare_engine(smollm2, CRITIQUE)
    states = iter([False, True])
    monkeypatch.setattr(model, "reset_prefix_cache", lambda: next(states))
    empty_cache(model)
    monkeypatch.setattr(model, "reset_prefix_cache", lambda: False)
    monkeypatch.setattr("experiments.speed.bare.TRIES", 1)
    with pytest.raises(EngineError, match="still has work"):
        empty_cache(model)


async def test_the_prefix_rows_and_their_table(smollm2: Any, tmp_path: Path) -> None:
    bare, _ = bare_engine(smollm2, CRITIQUE)
    settings = {"candidates": 6, "rounds": 2, "long_words": 100}
    rows = await measure_prefix(
        load_config(ThroughputConfig, write_config(tmp_path, **settings)), bare
    )
    assert [row["judging"][:6] for row in rows] == ["critiq", "rating"] * 2
    assert all(0 < row["hit_rate"] < 0.5 and row["ratio"] > 0 for row in rows)
    assert rows[0]["query_tokens"] < 60 < 100 < rows[2]["query_tokens"]
    text = markdown(make_result(prefix=rows))
    assert text.count("| rating alone |") == text.count("| critique and rating |") == 2


# --- the command --------------------------------------------------------------------------------


def write_config(folder: Path, **settings: Any) -> str:
    path = folder / "throughput.yaml"
    path.write_text(yaml.safe_dump({"output": str(folder / "out")} | settings))
    return str(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"judge": {"kind": "fake"}}, "kind vllm", id="no engine"),
        pytest.param({"judge": {"format": "scalar"}}, "generative judge", id="scalar"),
        pytest.param({"judge": {"critique": False}}, "one greedy critique", id="no critique"),
        pytest.param({"judge": {"temperature": 0.5}}, "one greedy critique", id="sampled"),
        pytest.param({"judge": {"serve": {"replicas": 2}}}, "one replica", id="replicas"),
    ],
)
def test_a_judge_that_the_paths_cannot_share_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(ThroughputConfig, write_config(tmp_path, **settings))


@pytest.mark.engine
def test_the_prefix_part_on_an_engine(policy: str, tmp_path: Path) -> None:
    judge = {"model": policy, "format": "autoj-en", "wrapper": "chat", "max_tokens": 8}
    judge |= {"max_model_len": 1024, "kv_cache_gib": 0.1}
    settings = {"judge": judge, "queries": 1, "candidates": 4, "rounds": 1}
    path = write_config(tmp_path, long_words=200, **settings)
    # In a process of its own: vLLM's engine leaves sockets and warnings behind.
    command = [sys.executable, "-m", "experiments.speed.throughput", "--config", path]
    command += ["--parts", "prefix"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("rating alone") == 2
    assert (tmp_path / "out/throughput.md").read_text().strip() in process.stdout
