"""Scripted judge, generative or scalar, for dry runs and for tests of logic, faults and scale.

It shows nothing about vLLM's behaviour.

The script (config key `script`) may hold:
  ratings: {response text: judge text or rating}; by default the response length sets the rating.
    They are the scores of a group, too. Verdicts are written as the judge's format has them. A list
    has one for each seed in turn, as a model that is sampled.
  direct: {response text: rating} read at the slot right after the prompt; by default all ratings
    are equally likely there.
  words: a rating that a program can check: 10 for a response of that many words, one less for
    every word more or less, at least 1.
  verdicts: `longer` (default) or `first`: which response of a pair wins.
  comparisons: {response text: judge text} for pairs that hold this response; or a list, as above.
  items: {criterion: text} of rubrics. A criterion holds if the response has this text, in any case;
    by default the criterion's part in double quotes, else all of it. The answer is then the item's
    first choice, else its last, whatever their shares.
  rubrics: {query: the rubric that is written for it, as items or as text}. By default an item for
    each of the three longest words that stand in the better response and neither in the worse one
    nor in the query, and a pitfall for the longest word of the worse one alone. Without a pair the
    words are those of the reference answer, else of the query.
  thinking: the judge's thinking, written between its format's marks; a word is a token.
  fail: {response text: unavailable | unparsable | truncated | rejected | hang}.
  fail_share: {one of these faults: share of responses that get it}, chosen by the response's hash.
  latency_s: seconds per answer. With `latency_spread` it is the median of a log-normal
    distribution with that sigma, drawn by the response's hash.
  concurrent: maximum answers in flight; the others wait, as for an engine at capacity.
  logprobs: false makes label probabilities unavailable, as for a plain chat endpoint.
  log: a file to which every answered response is appended as a JSON line.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from autoj_reward.config import EngineConfig, OverLong
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling, Score
from autoj_reward.errors import EngineUnavailable, InputRejected
from autoj_reward.formats.protocols import LABEL
from autoj_reward.formats.render import RenderedPrompt, responses_in
from autoj_reward.formats.sample import OutputLayout, find_layout
from autoj_reward.formats.schema import JudgeFormat, load_format
from autoj_reward.formats.slots import Slot
from autoj_reward.io.files import text_digest
from autoj_reward.models.views import Abilities
from autoj_reward.rubric_items import read_items
from autoj_reward.types import CHECKLIST, GROUP, PAIRWISE, SINGLE, JudgeInput, Usage, Verdict

REMARKS = " Nothing but the script decides."
"""Remarks after a comparison's verdict, if the format's judges write any."""


class _Script:
    """Base class of the scripted engines: reads the script, limits concurrency, raises faults."""

    def __init__(self, config: EngineConfig) -> None:
        self._script: dict[str, Any] = config.script
        self._limit = config.max_model_len
        self._turn = asyncio.Semaphore(self._script.get("concurrent", sys.maxsize))

    async def start(self) -> None:
        """Do nothing: there is no model to load."""

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        words = sum(len(message.text.split()) for message in prompt)
        if words + max_tokens > self._limit and over_long == "reject":
            raise InputRejected(f"the prompt has {words} words, over the script's limit")
        return Prepared(prompt, truncated=words + max_tokens > self._limit, tail="")

    async def _wait_for_turn(self, responses: list[str]) -> tuple[str | None, float]:
        """Wait for a turn and the scripted latency, then apply the scripted fault.

        Raises or hangs if the fault says so. Otherwise returns (fault or None, seconds waited for a
        turn).
        """
        started = time.monotonic()
        async with self._turn:
            queued = time.monotonic() - started
            await asyncio.sleep(latency_s(self._script, responses[0]))
        fault = next((f for r in responses if (f := self._fault(r))), None)
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "unavailable":
            raise EngineUnavailable("the script says so")
        if fault == "rejected":
            raise InputRejected("the script says so")
        return fault, queued

    def _fault(self, response: str) -> str | None:
        faults: dict[str, str] = self._script.get("fail", {})
        if response in faults:
            return faults[response]
        shares = self._script.get("fail_share", {})
        draw = _draw(response) if shares else 1.0
        for fault, share in shares.items():
            if draw < share:
                return str(fault)
            draw -= share
        return None

    def _log(self, responses: list[str]) -> None:
        if log := self._script.get("log"):
            with open(log, "a", encoding="ascii") as file:
                file.write(json.dumps(responses) + "\n")

    def _get_rating(self, response: str, seed: int | None = None) -> Any:
        """Return the scripted rating of a response, or the judge's whole text."""
        default = self._rate_length(len(response))
        if "words" in self._script:
            default = max(1, 10 - abs(len(response.split()) - self._script["words"]))
        return _choose_by_seed(self._script.get("ratings", {}).get(response, default), seed)

    def _rate_length(self, characters: int) -> float:
        return 1 + characters % 10

    async def check(self) -> None:
        """Do nothing: a script never dies."""

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""


def latency_s(script: Mapping[str, Any], response: str) -> float:
    """Return the seconds that an answer to this response takes, without its wait for a turn."""
    median = float(script.get("latency_s", 0))
    spread = float(script.get("latency_spread", 0))
    z = NormalDist().inv_cdf(min(max(_draw(response), 1e-6), 1 - 1e-6)) if spread else 0.0
    return median * math.exp(spread * z)


def _choose_by_seed(scripted: Any, seed: int | None) -> Any:
    """Return what the script says at a seed: one entry of a list, or the same at each."""
    return scripted[(seed or 0) % len(scripted)] if isinstance(scripted, list) else scripted


def _draw(response: str) -> float:
    """Return a number in 0..1 that is uniform over responses and fixed for each."""
    return int.from_bytes(text_digest(response)[:8], "big") / 2**64


class FakeEngine(_Script):
    """Scripted generative judge or policy; the module's docstring describes the script."""

    problem = ""

    def __init__(self, config: EngineConfig, fmt: JudgeFormat | None = None) -> None:
        """Make a judge that writes in a format, Auto-J's by default. A policy needs none."""
        super().__init__(config)
        self._format = fmt or load_format("autoj-en")
        self._layouts: dict[str, OutputLayout | None] = {}

    @property
    def abilities(self) -> Abilities:
        has_probs = bool(self._script.get("logprobs", True))
        return Abilities(
            has_probs, has_probs, "scripted" if has_probs else "none: the script tells none"
        )

    async def contact(
        self, sampling: Sampling, capabilities: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return {}

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        if sampling.json_schema and self._format.first_schema is None:
            return [await self._write_rubric(prepared.prompt)]
        responses = list(responses_in(prepared.prompt).values())
        answers = self._answer_items(prepared.prompt)
        if not responses and answers:
            responses = [""]  # an empty response is no part of the prompt
        if not responses:
            query, k = prepared.prompt[-1].text, sampling.index
            text = f"{query} / answer {k} " + "word " * k
            return [Generation(text, logprob=-float(k + 1))]
        fault, queued = await self._wait_for_turn(responses)
        if fault in ("unparsable", "truncated"):
            usage, finished = Usage(queued_s=queued), fault == "unparsable"
            return [Generation("a critique without an end", finished=finished, usage=usage)]
        self._log(responses)
        if shown := self._count_group(prepared.prompt):
            text = self._write_scores(prepared.prompt, shown, sampling.seed)
        elif answers:
            text = self._write_answers(answers)
        elif len(responses) == 1:
            text = self._write_rating(responses[0], sampling.seed)
        else:
            text = self._write_comparison(responses, sampling.seed)
        if self._format.thinking and not prepared.tail:
            return [self._write_thinking(text, sampling.max_tokens, queued)]
        return [Generation(text, usage=Usage(10, 0, len(text.split()), queued_s=queued))]

    async def _write_rubric(self, prompt: RenderedPrompt) -> Generation:
        """Write the rubric that the script names for the query, or one of words."""
        texts = {p.name: p.text for message in prompt for p in message.parts if p.name}
        fault, queued = await self._wait_for_turn([texts["query"]])
        self._log([texts["query"]])
        rubric = self._script.get("rubrics", {}).get(texts["query"], _make_items_of_words(texts))
        text = rubric if isinstance(rubric, str) else json.dumps({"rubric": rubric})
        usage = Usage(10, 0, len(text.split()), queued_s=queued)
        written_chars = len(text) // 2 if fault else len(text)
        return Generation(text[:written_chars], finished=fault != "truncated", usage=usage)

    def _write_thinking(self, text: str, max_tokens: int, queued: float) -> Generation:
        """Return the scripted thinking, followed by the text if `max_tokens` hold the thinking."""
        marks = self._format.thinking
        assert marks is not None  # else there is no thinking to write
        opened, closed = marks.open, marks.close
        words = self._script.get("thinking", "").split()
        usage = Usage(10, 0, min(max_tokens, len(words)), queued_s=queued)
        if len(words) > max_tokens:
            return Generation(" ".join([opened, *words[:max_tokens]]), finished=False, usage=usage)
        return Generation(" ".join([opened, *words, closed, text]), usage=usage)

    def extend_prompt(self, prepared: Prepared, generation: Generation, text: str) -> Prepared:
        return replace(prepared, tail=f"{prepared.tail}{generation.text}{text}")

    def _write_rating(self, response: str, seed: int | None) -> str:
        rating = self._get_rating(response, seed)
        if isinstance(rating, str):
            return rating
        reason = f"Scripted critique of {len(response)} characters."
        return self._write_verdicts(SINGLE, reason, [self._find_label(rating)])

    def _rate_length(self, characters: int) -> float:
        scale = self._format.scale
        return scale.value(scale.labels[characters % len(scale.labels)])

    def _find_label(self, rating: Any) -> str:
        """Return a rating as the format spells it. A number off the scale stays as it is."""
        scale = self._format.scale
        labels = (label for label in scale.labels if scale.value(label) == rating)
        return next(labels, str(rating))

    def _write_verdicts(self, protocol: str, reason: str, labels: Sequence[str]) -> str:
        """Write a reason and the verdicts in the format's slots; the reason alone where no slot
        can be written."""
        if protocol not in self._format.protocols:
            return reason
        slots = self._make_slots(protocol, len(labels))
        if protocol not in self._layouts:
            samples = [slot.labels[0] for slot in slots]
            self._layouts[protocol] = find_layout(slots, samples)
        layout = self._layouts[protocol]
        return layout.write(reason, slots, labels) if layout else reason

    def _make_slots(self, protocol: str, count: int) -> Sequence[Slot]:
        if protocol != CHECKLIST:
            return self._format.slots(protocol, count if protocol == GROUP else None)
        items = read_items([f"Item {n}" for n in range(count)])
        return self._format.slots_of(JudgeInput(protocol, "", ("",), items=items))

    def _count_group(self, prompt: RenderedPrompt) -> int:
        """Return the number of responses that a prompt shows as a group; 0 if it shows none."""
        if GROUP not in self._format.protocols:
            return 0
        protocol = self._format.protocol(GROUP)
        texts = {part.text for message in prompt for part in message.parts if part.trusted}
        places = range(1, protocol.most_responses + 1)
        return sum(protocol.around(place, 1)[0] in texts for place in places)

    def _write_scores(self, prompt: RenderedPrompt, count: int, seed: int | None) -> str:
        """Score the responses of a group; an empty one is no part of the prompt."""
        responses = responses_in(prompt)
        texts = [responses.get(f"response_{n}", "") for n in range(1, count + 1)]
        labels = [self._find_label(self._get_rating(text, seed)) for text in texts]
        return self._write_verdicts(GROUP, "Scripted critique of a group.", labels)

    def _write_answers(self, answers: Mapping[str, str]) -> str:
        reason = "Scripted critique by criteria."
        return self._write_verdicts(CHECKLIST, reason, list(answers.values()))

    def _answer_items(self, prompt: RenderedPrompt) -> dict[str, str]:
        """Return the answer to each rubric item by its number; empty for a prompt without items.

        An item's parts are its criterion, then its choices.
        """
        item_texts: dict[str, list[str]] = {}
        for part in (p for message in prompt for p in message.parts):
            if part.name.startswith("item_"):
                item_texts.setdefault(part.name.removeprefix("item_"), []).append(part.text)
        if not item_texts:
            return {}
        response = next(iter(responses_in(prompt).values()), "")
        scripted_texts: dict[str, str] = self._script.get("items", {})
        answers = {}
        for number, (criterion, choices) in item_texts.items():
            quoted = re.search(r'"([^"]+)"', criterion)
            text = scripted_texts.get(criterion, quoted[1] if quoted else criterion)
            best, *_, worst = choices.split(" / ")
            answers[number] = best if text.lower() in response.lower() else worst
        return answers

    def _write_comparison(self, responses: list[str], seed: int | None) -> str:
        comparisons: dict[str, Any] = self._script.get("comparisons", {})
        if scripted_texts := [comparisons[r] for r in responses if r in comparisons]:
            return str(_choose_by_seed(scripted_texts[0], seed))
        first = self._script.get("verdicts") == "first" or len(responses[0]) > len(responses[1])
        verdict = Verdict.FIRST if first else Verdict.SECOND
        if not first and len(responses[0]) == len(responses[1]):
            verdict = Verdict.TIE
        sizes = " and ".join(str(len(response)) for response in responses)
        reason = f"1. Scripted factors:\n- length: The responses have {sizes} characters."
        protocol = self._format.pairwise
        if protocol is None:
            return reason
        labels = protocol.spell(verdict, self._format.scale)
        remarks = f".{REMARKS}" if protocol.remarks else ""
        return self._write_verdicts(PAIRWISE, reason, labels) + remarks

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        if not self._script.get("logprobs", True) or "without an end" in generation.text:
            return None
        written = generation.text[keep:].removeprefix(slot)
        if not generation.text:
            response = next(iter(responses_in(prepared.prompt).values()), "")
            written = f"{self._find_label(self._script.get('direct', {}).get(response))}]"
            for number, answer in self._answer_items(prepared.prompt).items():
                force = self._format.protocol(CHECKLIST).force.replace(LABEL, number)
                if slot.endswith(force.lstrip()):
                    written = answer
        shares = [0.9 if _says(written, label) else 0.1 / len(labels) for label in labels]
        return LabelProbs(tuple(zip(labels, shares, strict=True)), Usage(10, 10, 1))


def _make_items_of_words(texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Return rubric items that name words of the texts, for `items` of this judge to find."""
    words = {name: re.findall(r"[a-z]{4,}", text.lower()) for name, text in texts.items()}
    good, bad, query = words.get("chosen", []), words.get("rejected", []), words["query"]
    good = good or words.get("reference", [])
    if not good:
        good, query = query, []
    items = []
    for kind, most, side_words, other_words in (
        ("essential", 3, good, bad),
        ("pitfall", 1, bad, good),
    ):
        unique_words = [
            word for word in dict.fromkeys(side_words) if word not in (*other_words, *query)
        ]
        longest = sorted(unique_words, key=len, reverse=True)[:most]
        items += [{"criterion": f'Says "{word}"', "kind": kind} for word in longest]
    return items


@lru_cache(maxsize=1024)
def _says(written: str, label: str) -> bool:
    return re.match(re.escape(label) + r"(?!\w|\.\d)", written) is not None


class FakeScorer(_Script):
    """Scripted scalar reward model: the score is the rating, and NaN for a fault."""

    async def score(self, prepared: Prepared) -> Score:
        [response] = responses_in(prepared.prompt).values()
        fault, queued = await self._wait_for_turn([response])
        self._log([response])
        value = float("nan") if fault else float(self._get_rating(response))
        return Score(value, Usage(10, queued_s=queued))
