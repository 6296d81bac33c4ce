"""Queries as strategies meet them: recorded ones, outputs of ranked systems, simulated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from autoj_reward.evaluate.intervals import Array
from autoj_reward.evaluate.labelled import JudgeData, data_path
from autoj_reward.evaluate.rows import drawn
from autoj_reward.evaluate.systems import read_leaderboard, read_outputs
from autoj_reward.types import Candidate, JudgeInput, Judgement, Outcome, Rating, Usage, Verdict
from experiments.compare.ablation.rewards import Group, matches
from experiments.compare.panel import Answers
from experiments.compare.selection_budget.config import NoisyJudge, Simulation, Systems
from experiments.compare.selection_budget.strategies import Answer, Scene, finalists


def recorded(groups: Sequence[Group], answers: Mapping[str, Answers]) -> list[Scene]:
    """Graded candidates with what is on record of them, by judge of the ablation.

    The ablation reads the slot before the critique with a judge of its own; that reading is what a
    `direct` input gets here.
    """
    scenes = []
    for group in groups:
        pairs = zip(group.responses, group.logprobs, strict=True)
        judges = {"greedy": _replayed(answers["greedy"], answers["direct"])}
        if "sampled" in answers:
            judges["sampled"] = _replayed(answers["sampled"], answers["direct"])
        if "scalar" in answers:
            judges["scalar"] = answers["scalar"].__getitem__
        candidates = tuple(Candidate(group.query, text, logprob) for text, logprob in pairs)
        scenes.append(Scene(candidates, np.array(group.gold, dtype=float), judges))
    return scenes


def _replayed(full: Answers, direct: Answers) -> Answer:
    def answer(item: JudgeInput) -> Judgement:
        return direct[JudgeInput(item.query, item.responses)] if item.direct else full[item]

    return answer


def read_systems(config: Systems, data: JudgeData, seed: int) -> list[Group]:
    """The outputs to each instruction drawn, with their systems' figures as gold.

    data: where relative paths start. Raises InputError for bad rows, and systems without a figure.
    """
    outputs = read_outputs(data_path(data, config.outputs))
    known = read_leaderboard(data_path(data, config.leaderboard), config.column, outputs)
    gold = tuple(known[system] for system in outputs)
    return [
        Group(text, tuple(own[text] for own in outputs.values()), (None,) * len(gold), gold)
        for text in drawn(list(next(iter(outputs.values()))), config.instructions, seed)
    ]


def final_matches(scenes: Sequence[Scene], count: int) -> list[JudgeInput]:
    """Every match that a knock-out among the best `count` by the direct reading may play."""
    tops = [(scene.candidates[0].query, finalists(scene, count)) for scene in scenes]
    return list(dict.fromkeys(matches([Group(query, top, (), ()) for query, top in tops])))


def simulated(config: Simulation, judge: NoisyJudge, k: int, seed: int) -> list[Scene]:
    """Independent queries; a judge of the same noise meets the same queries under one seed."""
    return [_simulated(config, judge, k, seed, row) for row in range(config.queries)]


def _simulated(config: Simulation, judge: NoisyJudge, k: int, seed: int, row: int) -> Scene:
    rng, n = np.random.default_rng([seed, row]), config.candidates
    gold, shared, apart, scalar = rng.normal(size=(4, n))
    fresh = judge.full * np.sqrt(judge.resampled) * rng.normal(size=(k, n))
    lasting = judge.full * np.sqrt(1 - judge.resampled) * shared
    rho = judge.correlation
    cheap = gold + judge.cheap * (rho * shared + np.sqrt(1 - rho**2) * apart)
    spread = config.length_spread
    mean_log = np.log(config.critique_tokens) - spread**2 / 2
    lengths = np.maximum(1, rng.lognormal(mean_log, spread, size=(k, n)).round())
    told = rng.random(size=(n, n)) < judge.comparison
    query = f"query {row}"
    candidates = tuple(Candidate(query, f"response {i}") for i in range(n))
    drawn = {
        "cheap": cheap,
        "full": gold + lasting + fresh,
        "lengths": lengths,
        "told": told,
        "scalar": gold + config.scalar * scalar,
    }
    own = _Simulated(config, judge, gold, drawn)
    judged, scored = cache(own.answer), cache(own.score)
    return Scene(candidates, gold, {"greedy": judged, "sampled": judged, "scalar": scored})


class _Simulated:
    """What a simulated judge and a simulated scalar model answer for one query."""

    def __init__(
        self, config: Simulation, judge: NoisyJudge, gold: Array, drawn: Mapping[str, Array]
    ) -> None:
        self._config, self._judge, self._gold, self._drawn = config, judge, gold, drawn
        self._prompt = config.prefix_tokens + config.response_tokens

    def answer(self, item: JudgeInput) -> Judgement:
        indices = [int(text.split()[1]) for text in item.responses]
        if item.kind == "pairwise":
            i, j = indices
            right = bool(self._drawn["told"][i, j])
            first = (self._gold[i] > self._gold[j]) == right
            verdict = Verdict.FIRST if first else Verdict.SECOND
            usage = self._usage(self._config.response_tokens, self._config.critique_tokens)
            return Judgement(Outcome.OK, verdict=verdict, usage=usage)
        [own] = indices
        if item.direct:
            value = float(self._drawn["cheap"][own])
            usage = self._usage(0, 0)
        else:
            value = float(self._drawn["full"][item.sample, own])
            usage = self._usage(0, int(self._drawn["lengths"][item.sample, own]))
        # The slot's own spread is the noise that is stated for the cheap reading.
        sides = tuple((repr(value + sign * self._judge.cheap), 0.5) for sign in (-1, 1))
        return Judgement(Outcome.OK, rating=Rating(value, sides, value), usage=usage)

    def _usage(self, more: int, written: int) -> Usage:
        """The query's part of the prompt comes from the cache, and so does all of it where the slot
        after a critique is read; the reading itself writes one token."""
        prompt, fresh = self._prompt + more, self._config.response_tokens + more
        again = prompt + written if written else 0
        return Usage(prompt + again, prompt - fresh + again, written + 1)

    def score(self, item: JudgeInput) -> Judgement:
        value = float(self._drawn["scalar"][int(item.responses[0].split()[1])])
        return Judgement(
            Outcome.OK, rating=Rating(value, None, value, direct=value), usage=self._usage(0, -1)
        )
