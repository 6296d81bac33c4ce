"""Engine that asks any OpenAI-compatible endpoint.

With `tokenizer` set (a folder or hub name that matches the served model), prompts go to
/completions as token ids. Control tokens in untrusted text are then impossible, and label
probabilities can be read at any slot.

Without it, messages go to /chat/completions and the endpoint tokenizes. Control tokens spelled out
in untrusted text are therefore broken up first. Label probabilities come from further requests of a
token or two if the endpoint continues an assistant's message (vLLM, SGLang). Otherwise they come
from the alternatives of the generated tokens, or are unavailable. The first contact finds out which
of these an endpoint offers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from autoj_reward.config import EngineConfig, OverLong
from autoj_reward.engine.alternatives import read_labels, read_written_slot
from autoj_reward.engine.answers import (
    read_generations,
    read_next_tokens,
    read_top_logprobs,
    read_whole_generation,
)
from autoj_reward.engine.base import (
    Alternatives,
    Generation,
    LabelProbs,
    Prepared,
    Sampling,
    extend_prompt,
    fit_prompt,
)
from autoj_reward.engine.endpoint import (
    CONTINUE_PARAMETERS,
    TEST_MESSAGES,
    Endpoint,
    EndpointFault,
)
from autoj_reward.engine.labels import slot_tokens, trie_probs
from autoj_reward.engine.refusals import OUTPUT_LIMIT, RESPONSE_FORMAT
from autoj_reward.errors import ConfigError, EngineUnavailable, InputRejected
from autoj_reward.formats.render import Part, RenderedPrompt, break_control_tokens, broken_up
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.logs import LOG
from autoj_reward.models.views import Abilities
from autoj_reward.types import Usage

T = TypeVar("T")
TOP = (20, 5)
"""Numbers of log-probabilities to request: the maximum of OpenAI and vLLM, then that of others."""
MAX_UNKNOWN_ENDS = 20
"""Words that are told at most."""
OK_TOKENS = 16
"""Maximum tokens of the answer to the first request."""
BEGUN = {"role": "assistant", "content": "The first letters of the alphabet are A, B, C,"}
"""Assistant's message that an endpoint is asked to continue, to test whether it can."""
GOES_ON_WITH = b"D"
CUT_OFF = {"role": "assistant", "content": "OK, OK, OK. Elephant, elephant, elephant, eleph"}
"""Assistant's message that ends within a word."""
WITHIN_A_TEXT = re.compile(rb"[a-df-np-z,.]")
"""Beginning of a token that goes on with that message. A new message begins otherwise: with a
capital, a digit or a mark, or with the words of the old one."""
LEAST_WITHIN = 0.5
"""Probability of such tokens together that shows that the message is continued."""
CHAT, COMPLETIONS = "/chat/completions", "/completions"


class _NoLogprobs(Exception):
    """Raised when the endpoint answers without log-probabilities."""


class OpenAIEngine:
    """Generative engine over one OpenAI-compatible endpoint."""

    def __init__(
        self,
        config: EngineConfig,
        wrapper: str,
        marks: Sequence[str] = (),
        *,
        at_once: int,
        deadline_s: float,
        asks_logprobs: bool = True,
        first_pause_s: float = 0.5,
    ) -> None:
        """Create the engine; `start` must follow.

        marks: opening and closing marks of the judge's thinking block. at_once: maximum requests in
        flight. deadline_s: seconds for one request, including retries. asks_logprobs: whether to
        request log-probabilities. first_pause_s: seconds before the second attempt; the pause
        doubles with each attempt.
        """
        self.config, self.wrapper, self.marks = config, wrapper, marks
        self._asks_logprobs = asks_logprobs
        self._endpoint = Endpoint(config, at_once, deadline_s, first_pause_s)
        self.tokens: PromptTokenizer | None = None
        self._top = TOP[0] if config.tokenizer else 0
        self._goes_on = False
        self._unknown_ends: set[str] = set()

    @property
    def problem(self) -> str:
        return self._endpoint.problem

    @property
    def abilities(self) -> Abilities:
        if self._endpoint.lacks_logprobs or not self._top:
            return Abilities(False, False, "none: the endpoint tells no log-probabilities")
        if self.tokens is not None:
            return Abilities(True, True, "read at the slot by token ids")
        if self._goes_on:
            return Abilities(True, True, "requests of a token or two at the slot")
        description = f"the alternatives ({self._top}) of each token that the judge writes"
        return Abilities(True, False, description)

    async def start(self) -> None:
        """Create the session and the tokenizer, without any request to the endpoint."""
        await self._endpoint.open()
        if self.config.tokenizer:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.config.tokenizer)
            values = self.config.chat_template_kwargs
            self.tokens = PromptTokenizer(tokenizer, self.wrapper, self.marks, values)

    async def contact(self, sampling: Sampling, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        """Find out what the endpoint supports, and return it.

        Tests whether it answers within `start_s`, which parameters it accepts, and whether it
        returns log-probabilities and continues an assistant's message.
        """
        if capabilities:
            self._top, self._goes_on = int(capabilities["top"]), bool(capabilities["goes_on"])
            self._endpoint.instead = dict(capabilities["instead"])
        try:
            thinks = await self._send_first_request(sampling, bool(capabilities))
            if not capabilities:
                self._goes_on = (
                    not (thinks or self.marks or self.tokens) and await self._continues()
                )
        except EngineUnavailable as error:
            raise EngineUnavailable(
                f"{error}. Start the endpoint, or correct base_url; start_s is how long to wait"
            ) from error
        return {
            "top": self._top,
            "goes_on": self._goes_on,
            "instead": dict(self._endpoint.instead),
        }

    async def _send_first_request(self, sampling: Sampling, is_known: bool) -> bool:
        """Send a request of two words with the parameters of a judgement.

        Requests as many log-probabilities as the endpoint returns. Returns whether the model
        thought before its answer.
        """
        most = TOP[0] if self._asks_logprobs else 0
        sizes = [self._top] if is_known else [n for n in (*TOP, 0) if n <= most]
        max_tokens = min(OK_TOKENS, sampling.max_tokens)
        for top in sizes:
            try:
                try:
                    has_logprobs, thinks = await self._try(sampling, top, max_tokens)
                except ConfigError as error:
                    if isinstance(error, EndpointFault) or not OUTPUT_LIMIT.search(str(error)):
                        raise
                    # The model thinks, and so few tokens do not suffice.
                    max_tokens = sampling.max_tokens
                    has_logprobs, thinks = await self._try(sampling, top, max_tokens)
            except EndpointFault:
                raise
            except ConfigError:
                if top == sizes[-1]:
                    raise
            else:
                self._top = top if has_logprobs else 0
                return thinks
        raise AssertionError("the last size raises or returns")

    async def _try(self, sampling: Sampling, top: int, max_tokens: int) -> tuple[bool, bool]:
        """Return (whether log-probabilities were returned, whether the model thought)."""
        body = self._make_decoding_parameters(sampling) | self._make_logprob_parameters(top)
        if self.tokens is not None:
            body |= {"prompt": self.tokens.written("Say OK."), "max_tokens": 1}
            logprobs, _ = await self._post_first(COMPLETIONS, body, read_top_logprobs)
            return logprobs is not None, False
        body |= {"messages": TEST_MESSAGES, "max_tokens": max_tokens}
        answer = await self._post_first(CHAT, body, read_whole_generation)
        return bool(answer.tokens), bool(answer.reasoning)

    async def _post_first(
        self, path: str, body: dict[str, Any], read_answer: Callable[[dict[str, Any], float], T]
    ) -> T:
        """Send a request of the first contact, whose input is known to be acceptable."""
        return await self._endpoint.post(path, body, read_answer, self.config.start_s, tiny=True)

    def _make_logprob_parameters(self, top: int) -> dict[str, Any]:
        """Return the parameters that request `top` alternatives of each token."""
        if not top:
            return {}
        if self.tokens is not None:
            return {"logprobs": top, "return_tokens_as_token_ids": True}
        return {"logprobs": True, "top_logprobs": top}

    async def _continues(self) -> bool:
        """Return whether the endpoint continues an assistant's message.

        Its text must go on. Where the parameters make no difference to the number of prompt tokens,
        the endpoint may ignore them and continue all the same, as llama.cpp does: then a text
        decides that no new message begins with.
        """
        if not self._top:
            return False
        token, _, continued_tokens = await self._begin(BEGUN, CONTINUE_PARAMETERS)
        new_token, _, ended_tokens = await self._begin(BEGUN)
        # A new message is asked for by a longer prompt. It may begin like the rest of the old one.
        is_shorter = 0 < continued_tokens < (ended_tokens or math.inf)
        if is_shorter and (token != new_token or token.lstrip().startswith(GOES_ON_WITH)):
            return True
        _, alternatives, _ = await self._begin(CUT_OFF, CONTINUE_PARAMETERS)
        within = (logprob for text, logprob in alternatives if WITHIN_A_TEXT.match(text))
        return sum(map(math.exp, within)) >= LEAST_WITHIN

    async def _begin(
        self, message: dict[str, str], parameters: Mapping[str, Any] | None = None
    ) -> tuple[bytes, Alternatives, int]:
        """Return the first token of the answer to a message that the assistant has begun, its
        alternatives, and the number of tokens of the prompt.

        They are empty if the endpoint refuses the request.
        """
        body = {"messages": [*TEST_MESSAGES, message], "max_tokens": 1, "temperature": 0}
        body |= self._make_logprob_parameters(self._top) | dict(parameters or {})
        try:
            tokens, usage = await self._endpoint.post(
                CHAT, body, read_next_tokens, self.config.start_s, tiny=True, exact=True
            )
        except EndpointFault:
            raise
        except (ConfigError, InputRejected):
            return b"", (), 0
        token, alternatives = tokens[0] if tokens else (b"", ())
        return token, alternatives, usage.tokens_in

    async def prepare(
        self, prompt: RenderedPrompt, max_tokens: int, over_long: OverLong
    ) -> Prepared:
        if self.tokens is None:
            return Prepared(prompt)
        return fit_prompt(self.tokens, prompt, self.config.max_model_len, max_tokens, over_long)

    async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
        body = self._make_decoding_parameters(sampling) | {"max_tokens": sampling.max_tokens}
        abilities = self.abilities
        # Where a slot can be forced, an empty text is read there.
        read_answer = partial(
            read_generations, limit=sampling.max_tokens, needs_text=not abilities.slots
        )
        if self.tokens is None:
            path = CHAT
            body["messages"] = self._make_messages(prepared.prompt)
            if sampling.alternatives and abilities.written and not abilities.slots:
                body |= self._make_logprob_parameters(self._top)
        else:
            path = COMPLETIONS
            body["prompt"] = list(prepared.ids)
        generations = await self._endpoint.post(path, body, read_answer)
        for generation in generations:
            if generation.unknown_end:
                self._tell_unknown_end(path, generation.unknown_end)
        return generations

    def _tell_unknown_end(self, path: str, word: str) -> None:
        """Log once that an endpoint ends its texts with a word that nobody knows."""
        if word not in self._unknown_ends and len(self._unknown_ends) < MAX_UNKNOWN_ENDS:
            self._unknown_ends.add(word)
            LOG.warning(
                "%s ends texts with finish_reason %.40r, which is not known: such a text counts "
                "as finished if it has a verdict and is shorter than max_tokens",
                self._endpoint.address(path),
                word,
            )

    def _make_decoding_parameters(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {"temperature": sampling.temperature}
        if sampling.top_p < 1:  # some endpoints refuse it beside a temperature
            body["top_p"] = sampling.top_p
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.frequency_penalty:  # not every endpoint supports it
            body["frequency_penalty"] = sampling.frequency_penalty
        if sampling.json_schema:
            named_schema = {
                "name": "answer",
                "strict": True,
                "schema": json.loads(sampling.json_schema),
            }
            body[RESPONSE_FORMAT] = {"type": "json_schema", "json_schema": named_schema}
        return body

    def _make_messages(self, prompt: RenderedPrompt) -> list[dict[str, Any]]:
        return [{"role": m.role, "content": self._make_content(m.parts)} for m in prompt]

    def _make_content(self, parts: Sequence[Part]) -> str | list[dict[str, Any]]:
        """Return a message's content: a text, or content parts if media stand in it."""
        texts = [""]
        media = []
        for part in parts:
            if part.media:
                media.append(json.loads(part.media.part))
                texts.append("")
            elif part.trusted:
                texts[-1] += part.text
            else:
                texts[-1] += broken_up(break_control_tokens(part.text), self.marks)
        if not media:
            return texts[0]
        content: list[dict[str, Any]] = []
        for text, found in zip_longest(texts, media):
            content += [{"type": "text", "text": text}] if text else []
            content += [found] if found else []
        return content

    def extend_prompt(self, prepared: Prepared, generation: Generation, text: str) -> Prepared:
        assert self.tokens is not None  # without a tokenizer, no prompt has a tail
        return extend_prompt(self.tokens, prepared, generation, text)

    async def label_probs(
        self,
        prepared: Prepared,
        generation: Generation,
        keep: int,
        slot: str,
        labels: Sequence[str],
    ) -> LabelProbs | None:
        abilities = self.abilities
        if not abilities.written:
            return None
        try:
            if self.tokens is not None:
                context, ids_by_label = slot_tokens(
                    self.tokens, prepared, generation, keep, slot, labels
                )
                read_logprobs = partial(self._read_logprobs, prepared)
                return await trie_probs(context, ids_by_label, read_logprobs)
            if abilities.slots and not generation.reasoning:
                return await self._read_slot(prepared, generation.text[:keep] + slot, labels)
            slot_end = keep + len(slot)
            if generation.tokens and generation.text[keep:slot_end] == slot:
                return await read_labels(
                    labels, read_written_slot(generation.tokens, generation.text, slot_end)
                )
        except _NoLogprobs:
            return None
        except InputRejected:
            # With a text, the endpoint accepted the input and refuses only its slot.
            if not generation.text:
                raise
        return None

    async def _read_slot(
        self, prepared: Prepared, begun: str, labels: Sequence[str]
    ) -> LabelProbs | None:
        """Return the label probabilities after a text that the assistant has begun."""
        messages = self._make_messages(prepared.prompt)

        async def read_alternatives(text: str) -> tuple[Alternatives | None, Usage]:
            # The judge may quote the response, so control tokens are broken up here too. Templates
            # strip white space at the end. If it is a token of a label, as in "Response 1", the
            # judge must write it.
            message = {"role": "assistant", "content": break_control_tokens(begun + text).rstrip()}
            space = text[len(text.rstrip()) :]
            steps = 2 if space else 1
            body = {"messages": [*messages, message], "max_tokens": steps, "temperature": 0}
            body |= CONTINUE_PARAMETERS | self._make_logprob_parameters(self._top)
            tokens, usage = await prepared.ask_once(
                (message["content"], steps),
                lambda: self._endpoint.post(CHAT, body, read_next_tokens, exact=True),
            )
            if not tokens:
                raise _NoLogprobs
            if space and (len(tokens) < steps or tokens[0][0] != space.encode()):
                return None, usage
            return tokens[steps - 1][1], usage

        return await read_labels(labels, read_alternatives)

    async def _read_logprobs(
        self, prepared: Prepared, context: list[int], token_ids: list[int]
    ) -> tuple[dict[int, float], Usage]:
        body = {
            "prompt": context,
            "max_tokens": 1,
            "temperature": 0,
            **self._make_logprob_parameters(self._top),
        }
        top, usage = await prepared.ask_once(
            tuple(context),
            lambda: self._endpoint.post(COMPLETIONS, body, read_top_logprobs, exact=True),
        )
        if top is None:
            raise _NoLogprobs
        assert self.tokens is not None
        for name_of in (name_by_id, name_by_piece, name_by_text):
            names = {token: name_of(self.tokens.tokenizer, token) for token in token_ids}
            if logprobs := {token: top[name] for token, name in names.items() if name in top}:
                return logprobs, usage
        return {}, usage

    async def check(self) -> None:
        """Do nothing: each request detects by itself whether the endpoint answers."""

    async def close(self) -> None:
        await self._endpoint.close()


def name_by_id(_: Any, token: int) -> str:
    """Return vLLM's name of a token when it is asked for token ids."""
    return f"token_id:{token}"


def name_by_piece(tokenizer: Any, token: int) -> str:
    """Return vLLM's name of a token when it does not support token ids.

    The name keeps the space that decoding a SentencePiece token alone drops.
    """
    piece = tokenizer.convert_ids_to_tokens(token)
    spaces = len(piece) - len(piece.lstrip("\u2581"))
    text = name_by_text(tokenizer, token)
    return " " * max(spaces, len(text) - len(text.lstrip(" "))) + text.lstrip(" ")


def name_by_text(tokenizer: Any, token: int) -> str:
    """Return other endpoints' name of a token."""
    return str(tokenizer.decode([token]))
