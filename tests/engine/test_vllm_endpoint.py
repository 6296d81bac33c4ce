"""vLLM's own OpenAI server with the default judge, used through chat and through token ids."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.client.session import open_judge
from autoj_reward.config import JudgeConfig, RewardConfig
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import resolve
from autoj_reward.rubric_items import read_items
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import CHECKLIST, Candidate, Comparison, JudgeInput, Judgement
from tests.engine.asking import judge_in_process
from tests.engine.by_hand import label_probs
from tests.engine.commands import CHECKS, check_command
from tests.engine.server import openai_server
from tests.judgements import reading
from tests.test_relative import write
from tests.test_rubric_generate import require_schema

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUERY = "Name three things to do on a rainy afternoon."
RESPONSES = ("Read a book, bake bread, or call an old friend.", "banana banana banana")
SERVED = JudgeConfig(max_model_len=2048, kv_cache_gib=0.5, max_sequences=8)
EXACT = 2e-4
"""By how much probabilities may differ: 20 alternatives of a token leave out the rest."""
MODES = ("by chat", "by token ids")


class ModeResult(NamedTuple):
    """Results for RESPONSES in one mode."""

    rewards: list[float | None]
    """Rewards with default settings."""
    written: list[Judgement]
    cut: list[Judgement]
    """Judgements with critiques of three tokens, so that every verdict is read at a forced slot."""
    direct: list[Judgement]
    """Ratings right after the prompt."""
    compared: Comparison
    """Comparison of the two responses."""
    log: list[str]


@pytest.fixture(scope="module")
def folder() -> str:
    return resolve(JudgeConfig()).path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with openai_server(SERVED, "judge", log) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def results(url: str, folder: str) -> dict[str, ModeResult]:
    """Return the results of each mode; the modes run one after the other."""
    modes = zip(MODES, (None, folder), strict=True)
    return {mode: ask(url, tokenizer) for mode, tokenizer in modes}


def ask(url: str, tokenizer: str | None) -> ModeResult:
    judge = JudgeConfig(
        kind="openai",
        model="judge",
        base_url=url,
        format="autoj-en",
        tokenizer=tokenizer,
        max_model_len=2048,
    )
    candidates = [Candidate(QUERY, response) for response in RESPONSES]

    async def ask_more() -> tuple[list[Judgement], list[Judgement], Comparison]:
        async with open_judge(judge.model_copy(update={"max_tokens": 3})) as client:
            cut = await client.rate(candidates)
            direct = await client.rate(candidates, direct=True)
            [comparison] = await client.compare([(QUERY, *RESPONSES)])
        return cut, direct, comparison

    with record_log() as log:
        with RewardModel(RewardConfig(judge=judge)) as model:
            rewards = model.rewards_now(candidates)
        cut, direct, comparison = asyncio.run(ask_more())
    judgements = [reward.judgement for reward in rewards if reward.judgement]
    return ModeResult(
        [reward.value for reward in rewards], judgements, cut, direct, comparison, log
    )


@contextmanager
def record_log() -> Iterator[list[str]]:
    """Record the lines that this package logs within this context."""
    lines: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("autoj_reward")
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)


@pytest.mark.parametrize("mode", MODES)
def test_a_trainer_gets_expected_ratings_with_default_settings(
    results: dict[str, ModeResult], mode: str
) -> None:
    result = results[mode]
    assert len(result.written) == 2
    for judgement in result.written:
        assert judgement.ok and not judgement.forced, judgement.reason
        assert judgement.critique.endswith(f"[[{judgement.view('rating'):g}]]")
    assert result.rewards == [judgement.view("expected") for judgement in result.written]
    assert None not in result.rewards and result.rewards[0] != result.rewards[1]
    about = {
        "by chat": "requests of a token or two at the slot",
        "by token ids": "read at the slot",
    }
    [notice] = [line for line in result.log if "distributions: " in line]
    assert f"view expected, distributions: {about[mode]}" in notice and "2 of 2" in notice


@pytest.mark.parametrize("mode", MODES)
def test_distributions_are_those_of_transformers(
    results: dict[str, ModeResult], mode: str, folder: str
) -> None:
    """Check the written verdict, the forced slot, and the slot right after the prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    fmt = load_format("autoj-en")
    force, result = fmt.protocol("single").force, results[mode]
    for n, response in enumerate(RESPONSES):
        prompt = PromptTokenizer(tokenizer, "chat").ids(
            render(JudgeInput("single", QUERY, (response,)), fmt)
        )
        for judgement, opening in (
            (result.written[n], result.written[n].critique.rpartition("[[")[0] + "[["),
            (result.cut[n], result.cut[n].critique + force),
            (result.direct[n], force.lstrip()),
        ):
            rating = reading(judgement)
            assert rating.distribution is not None
            ids = [*prompt, *tokenizer(opening, add_special_tokens=False)["input_ids"]]
            expected = label_probs(model, tokenizer, ids, dict(rating.distribution))
            assert dict(rating.distribution) == pytest.approx(expected, abs=EXACT), opening
            assert rating.unknown < EXACT
        assert result.cut[n].forced and not result.written[n].forced


def test_both_modes_agree(results: dict[str, ModeResult]) -> None:
    chat, ids = (results[mode] for mode in MODES)
    for kind in ("written", "cut", "direct"):
        for by_chat, by_ids in zip(getattr(chat, kind), getattr(ids, kind), strict=True):
            assert (by_chat.critique, by_chat.view("rating")) == (
                by_ids.critique,
                by_ids.view("rating"),
            )
            assert by_chat.view("expected") == pytest.approx(by_ids.view("expected"), abs=1e-2)
    assert chat.compared.verdict is ids.compared.verdict
    for by_chat, by_ids in zip(chat.compared.orders, ids.compared.orders, strict=True):
        assert by_chat.forced and by_chat.verdict is by_ids.verdict
        assert dict(by_chat.confidence or ()) == pytest.approx(
            dict(by_ids.confidence or ()), abs=EXACT
        )


@pytest.mark.parametrize("command", CHECKS)
def test_a_command_judges_all_rows(
    command: str, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that nobody knows by name gets the prompts for chat models."""
    judge = {"kind": "openai", "model": "judge", "base_url": url, "max_tokens": 4}
    about = "judge:general:.*, distributions: requests of a token or two at the slot"
    check_command(command, judge, tmp_path, lambda: capfd.readouterr().err, about)


@pytest.mark.parametrize("mode", MODES)
def test_the_server_keeps_a_writer_of_rubrics_to_the_schema(
    url: str, folder: str, tmp_path: Path, mode: str
) -> None:
    writer = {"kind": "openai", "base_url": url, "model": "judge", "temperature": 1.0}
    writer |= {"tokenizer": folder, "max_model_len": 2048} if mode == "by token ids" else {}
    rows = write(tmp_path / "rows.jsonl", [{"query": QUERY}, {"query": "Why do leaves fall?"}])
    run = ["rubrics", "generate", "--input", rows, "--output", str(tmp_path / "rubrics.jsonl")]
    sets = (f"writer={json.dumps(writer)}", "judge.kind=fake", "max_items=3")
    with record_log() as log:
        assert cli.main([*run, *(word for key in sets for word in ("--set", key))]) == 0
    assert not [line for line in log if "response_format" in line]
    require_schema(tmp_path, rows=2, max_items=3)


ITEMS = read_items(
    [
        "Names at least two things to do",
        "Repeats a single word",
        {"criterion": "Answers the question", "choices": {"not": 0, "partly": 0.5, "fully": 1}},
    ]
)
SCORING = 1e-3
"""By what share probabilities of items may differ from vLLM's own, which are small here."""


def test_probabilities_of_rubric_items_are_those_of_generative_scoring(
    url: str, folder: str, tmp_path: Path
) -> None:
    """Compare this package's engine with vLLM's own endpoint, on the same token ids.

    A judgement of an item without a critique is one read at the slot right after the prompt.
    """
    from transformers import AutoTokenizer

    tokens, fmt = AutoTokenizer.from_pretrained(folder), load_format("rubric-item")
    inputs = [
        JudgeInput(CHECKLIST, QUERY, (response,), items=(item,))
        for response in RESPONSES
        for item in ITEMS
    ]
    judge = SERVED.model_copy(update={"format": fmt.name, "critique": False})
    [judgements] = judge_in_process(
        tmp_path, (judge.model_dump(mode="json", exclude_unset=True), inputs)
    )
    for judge_input, judgement in zip(inputs, judgements, strict=True):
        [item], [item_reading] = judge_input.items, judgement["readings"]
        prompt = PromptTokenizer(tokens, "chat").ids(render(judge_input, fmt))
        answers = {share: tokens.encode(f"Criterion 1: {name}") for name, share in item.choices}
        [opening] = {tuple(ids[:-1]) for ids in answers.values()}  # each answer is one token
        labels = {share: ids[-1] for share, ids in answers.items()}
        ids = [*prompt, *opening]
        scores = {f"{share:g}": score(url, ids, labels, share, softmax=False) for share in labels}
        assert dict(item_reading["distribution"]) == pytest.approx(scores, rel=SCORING), (
            item.criterion
        )
        # The share that counts for the score is renormalised over the answers.
        alone = sum(share * score(url, ids, labels, share, softmax=True) for share in labels)
        assert item_reading["expected"] == pytest.approx(alone, rel=SCORING), item.criterion


def score(url: str, ids: list[int], labels: dict[float, int], share: float, softmax: bool) -> float:
    """Return the probability of a label after the ids, by vLLM's /generative_scoring.

    softmax: whether it is renormalised over the labels.
    """
    shares = sorted(labels, key=lambda key: key != share)  # the endpoint scores the first
    body = {
        "model": "judge",
        "query": ids[:-1],
        "items": [ids[-1:]],
        "label_token_ids": [labels[key] for key in shares],
        "apply_softmax": softmax,
    }
    request = urllib.request.Request(
        f"{url.removesuffix('/v1')}/generative_scoring",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        [entry] = json.load(answer)["data"]
    return float(entry["score"])
