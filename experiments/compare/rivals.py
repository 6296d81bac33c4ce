"""Rivals of a judge: cheap predictors of the same ratings, which a judge must beat.

Rivals are fitted on training rows only. Strengths and layers are chosen by cross-validation among
these, with all rows of a query in the same fold.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from autoj_reward.config import JudgeConfig
from autoj_reward.data.labelled import Rated
from autoj_reward.errors import InputError
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import load_format
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.models import ResolvedModel, format_and_wrapper, resolve
from autoj_reward.types import JudgeInput

ALPHAS = tuple(float(alpha) for alpha in np.logspace(-2, 5, 15))
"""Strengths of the ridge regression to choose from."""
FOLDS = 5
"""Number of folds of the cross-validation."""
SAVE_EVERY = 64
"""Number of rows after which hidden states are saved."""
Reader = Callable[[list[int]], NDArray[np.float32]]
"""Function from a prompt's token ids to its states."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for every row that is measured."""

    values: tuple[float, ...]
    alpha: float | None = None
    """Chosen strength of the ridge regression, if there is one."""
    layer: int | None = None
    """Chosen layer, if there is one."""


def predict_by_length(rows: Sequence[Rated]) -> Prediction:
    """Predict the response's length in characters."""
    return Prediction(tuple(float(len(row.response)) for row in rows))


def predict_by_mean(training: Sequence[Rated], rows: Sequence[Rated]) -> Prediction:
    """Predict the mean training rating for every row."""
    return Prediction((float(np.mean([row.rating for row in training])),) * len(rows))


def predict_by_tfidf(training: Sequence[Rated], rows: Sequence[Rated]) -> Prediction:
    """Predict by ridge regression on the TF-IDF of the response's words and pairs of words."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
    model = make_pipeline(words, make_ridge(training))
    model.fit([row.response for row in training], [row.rating for row in training])
    return _predict(model, [row.response for row in rows])


def predict_by_probe(
    training: Sequence[Rated],
    rows: Sequence[Rated],
    states: NDArray[np.float32],
    layers: Sequence[int],
) -> Prediction:
    """Predict by ridge regression on the hidden states of the layer that cross-validates best.

    `states` holds the training rows, then the measured rows: [rows, layers, width]. `layers` are
    those to consider, 0 being the embeddings; all layers if the model has none of them.
    """
    considered_layers = [layer for layer in layers if layer < states.shape[1]] or range(
        states.shape[1]
    )
    models = {}
    for layer in considered_layers:
        model = make_pipeline(StandardScaler(), make_ridge(training))
        models[layer] = model.fit(states[: len(training), layer], [row.rating for row in training])
    best = max(models, key=lambda layer: float(models[layer][-1].best_score_))
    return _predict(models[best], states[len(training) :, best], best)


def read_hidden_states(
    rows: Sequence[Rated], config: JudgeConfig, folder: Path
) -> NDArray[np.float32]:
    """Return a model's hidden states for the rows' rating prompts, [rows, layers + 1, width].

    Each is the mean over the prompt's tokens, in float32. Layer 0 is the embeddings. They are saved
    in a file of the folder and never computed again, also after an interrupted run.
    """
    source = resolve(config)
    prompts = make_rating_prompts(rows, config, source.path)
    cache = folder / f"hidden_states-{_digest(source.identity)[:16]}.npz"
    return cache_states(
        prompts, cache, lambda: partial(_average_states, _load_model(config, source))
    )


def cache_states(
    prompts: Sequence[list[int]], cache: Path, reader: Callable[[], Reader]
) -> NDArray[np.float32]:
    """Read each prompt once and return the states, [prompts, ...].

    They are saved in the cache file during the run, so that an interrupted one resumes. `reader` is
    called only if a prompt is missing from the cache.
    """
    keys = [_digest(str(ids)) for ids in prompts]
    states = _load_states(cache)
    missing = {key: ids for key, ids in zip(keys, prompts, strict=True) if key not in states}
    if missing:
        read_ids = reader()
        for count, key in enumerate(tqdm(missing, "hidden states", unit="row"), 1):
            states[key] = read_ids(missing[key])
            if count % SAVE_EVERY == 0 or count == len(missing):
                _save_states(cache, states)
    return np.stack([states[key] for key in keys])


def make_ridge(training: Sequence[Rated]) -> RidgeCV:
    """Return a ridge regression with its strength chosen by cross-validation.

    All rows of a query are in one fold. Raises InputError if the rows have fewer than two queries.
    """
    queries = [row.query for row in training]
    folds = min(FOLDS, len(set(queries)))
    if folds < 2:
        raise InputError(
            f"{len(training)} training rows of {folds} queries: the rivals need two or more "
            "queries that are not held out; give more rows, or leave the part rivals out"
        )
    splits = list(GroupKFold(folds).split(queries, groups=queries))
    return RidgeCV(ALPHAS, cv=splits, scoring="neg_mean_squared_error")


def _predict(model: Pipeline, features: Any, layer: int | None = None) -> Prediction:
    values = tuple(float(value) for value in model.predict(features))
    return Prediction(values, float(model[-1].alpha_), layer)


def make_rating_prompts(rows: Sequence[Rated], config: JudgeConfig, path: str) -> list[list[int]]:
    """Return the token ids of each row's rating prompt, made with the tokenizer in `path`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, revision=config.revision)
    name, wrapper = format_and_wrapper(config)
    fmt, tokens = load_format(name), PromptTokenizer(tokenizer, wrapper)
    inputs = [JudgeInput("single", row.query, (row.response,)) for row in rows]
    return [tokens.fit(render(item, fmt), config.max_model_len)[1] for item in inputs]


def _load_model(config: JudgeConfig, source: ResolvedModel) -> Any:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(source.path, revision=config.revision, dtype=torch.float32)
    return model.to(source.device).eval()


def _average_states(model: Any, ids: list[int]) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        output = model(
            torch.tensor([ids], device=model.device), output_hidden_states=True, use_cache=False
        )
        means = torch.stack([states[0].mean(dim=0) for states in output.hidden_states])
    return np.asarray(means.cpu().numpy(), dtype=np.float32)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _load_states(cache: Path) -> dict[str, NDArray[np.float32]]:
    if not cache.is_file():
        return {}
    with np.load(cache) as arrays:
        return dict(zip(arrays["keys"].tolist(), arrays["states"], strict=True))


def _save_states(cache: Path, states: dict[str, NDArray[np.float32]]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    beside = cache.with_suffix(".tmp")
    with beside.open("wb") as file:
        np.savez(file, keys=np.array(list(states)), states=np.stack(list(states.values())))
    os.replace(beside, cache)
