"""Classifiers on a language model: linear ones on what it reads, and one that says the name."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from autoj_reward.config import EngineConfig
from autoj_reward.judge.make import make_engine
from autoj_reward.models import resolve
from autoj_reward.prompts.tokens import PromptTokenizer
from autoj_reward.scenarios import load_scenarios
from autoj_reward.scenarios.generative import GenerativeClassifier, classify_prompt
from autoj_reward.scenarios.linear import Classified
from experiments.scenario_classifier.config import ScenarioClassifierConfig
from experiments.scenario_classifier.data import Labelled
from experiments.scenario_classifier.figures import macro_f1
from experiments.scenario_classifier.fit import folds

ALPHAS = (10.0, 100.0, 1000.0, 10000.0)
NOBODY = "no scenario"
"""What stands for an answer that names none: always wrong."""
BATCH = 256
OPENING = 20
"""Tokens."""


def probe(
    training: Sequence[Labelled],
    asked: Sequence[Labelled],
    config: ScenarioClassifierConfig,
) -> tuple[list[Classified], dict[str, Any]]:
    """Ridge classification on `vectors`; what it says of the rows asked. Alpha is that of the best
    cross-validation within the training rows."""
    features = vectors([*training, *asked], config)
    known = features[: len(training)]
    truth = np.array([row.scenario for row in training])
    of_fold = folds(training, config.folds)
    everything = np.arange(len(training))
    reached: dict[float, float] = {}
    for alpha in tqdm(ALPHAS, desc="choices", disable=None):
        said = np.empty(len(training), dtype=object)
        for fold in range(config.folds):
            inside, outside = of_fold != fold, of_fold == fold
            said[outside] = _ridge(alpha).fit(known[inside], truth[inside]).predict(known[outside])
        reached[alpha] = macro_f1(list(truth), list(said))(everything) or 0.0
    alpha = max(reached, key=lambda choice: reached[choice])
    names = _ridge(alpha).fit(known, truth).predict(features[len(training) :])
    return [Classified(str(name), math.nan, str(name)) for name in names], {
        "alpha": alpha,
        "cross_validated": reached[alpha],
    }


def vectors(rows: Sequence[Labelled], config: ScenarioClassifierConfig) -> NDArray[np.float32]:
    """Token embeddings of the base: the mean over the query, and over its opening, side by side;
    [rows, width]."""
    from transformers import AutoModel, AutoTokenizer

    path = resolve(EngineConfig(model=config.base)).path
    tokenizer = AutoTokenizer.from_pretrained(path)
    table = AutoModel.from_pretrained(path).get_input_embeddings().weight.detach().numpy()
    found = []
    for row in rows:
        ids = _ids(row.query, tokenizer) or [tokenizer.eos_token_id]
        means = [table[part].mean(axis=0) for part in (ids[: config.max_tokens], ids[:OPENING])]
        found.append(np.concatenate(means))
    return np.stack(found).astype(np.float32)


async def finetuned(
    asked: Sequence[Labelled], model: str
) -> tuple[list[Classified], dict[str, Any]]:
    """The answers of a model trained on the published prompt, on vLLM."""
    config = EngineConfig(model=model)
    resolved = resolve(config)
    engine = make_engine(config, resolved, "none")
    await engine.start()
    try:
        classifier = GenerativeClassifier(
            engine, _tokens(resolved.path).tokenizer, load_scenarios()
        )
        started = time.monotonic()
        names: list[str | None] = []
        for start in tqdm(range(0, len(asked), BATCH), desc="queries", disable=None):
            batch = [row.query for row in asked[start : start + BATCH]]
            names += await classifier.classify(batch)
        seconds = time.monotonic() - started
    finally:
        await engine.close()
    return [Classified(name or NOBODY, math.nan, name or NOBODY) for name in names], {
        "named_none": names.count(None),
        "ms_per_query": 1000 * seconds / max(1, len(names)),
    }


def prompt_ids(query: str, tokens: PromptTokenizer, most: int) -> list[int]:
    """Token ids of the published prompt, a query in it that is too long being cut in its middle."""
    ids = tokens.ids(classify_prompt(query))
    if len(ids) <= most:
        return ids
    fixed = len(tokens.ids(classify_prompt("")))
    return tokens.ids(classify_prompt(middle_cut(query, tokens.tokenizer, most - fixed - 8)))


def middle_cut(query: str, tokenizer: Any, room: int) -> str:
    """The two ends of a query in that many tokens, an ellipsis between them."""
    ids = _ids(query, tokenizer)
    head, tail = ids[: room // 2], ids[-(room // 2) :]
    return str(tokenizer.decode(head)) + "..." + str(tokenizer.decode(tail))


def _ids(text: str, tokenizer: Any) -> list[int]:
    found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(found["input_ids"])


def _tokens(path: str) -> PromptTokenizer:
    from transformers import AutoTokenizer

    return PromptTokenizer(AutoTokenizer.from_pretrained(path), "none")


def _ridge(alpha: float) -> Any:
    return make_pipeline(StandardScaler(), RidgeClassifier(alpha, class_weight="balanced"))
