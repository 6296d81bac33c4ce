"""Config blocks of models: engine, judge, policy and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from autoj_reward.config.load import Block
from autoj_reward.config.urls import Address, Headers
from autoj_reward.conversation import Shows
from autoj_reward.media import MediaRules
from autoj_reward.thinking import is_blank

Wrapper = Literal["auto", "chat", "llama2", "vicuna", "none"]
"""How a prompt becomes a chat turn."""
MAX_TEXT_CHARS = 2**20
"""Default limit of a text that is judged, in characters."""
Vote = Literal["mean", "median", "pessimistic"]
"""How the numbers of several critiques of a response make one."""
OverLong = Literal["truncate", "truncate_end", "truncate_start", "reject"]
"""What happens to a response that does not fit into the context."""
MAX_CRITIQUES = 64
"""Critiques of one response at most."""
PricedTokens = Literal["in", "cached", "out"]
"""Kinds of tokens that have a price of their own."""
OWN_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "model": (None,),
    "messages": (),
    "prompt": (),
    "n": (None, 1),
    "stream": (None, False),
}
"""Fields of a request that its reading rests on, each with the values that `extra_body` may set."""


class EngineConfig(Block):
    """The model to run, and the engine that runs it."""

    kind: Literal["vllm", "transformers", "openai", "fake"] = "vllm"
    """`vllm` runs the model here. `transformers` runs a scalar reward model that vLLM does not
    support. `openai` calls an OpenAI-compatible endpoint. `fake` is a scripted engine for tests and
    dry runs."""
    model: str = "default"
    """`default`, a name on the model hub, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub. null: its main branch."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type. `auto` is float32 on a CPU (verdicts do not change with the batch), bfloat16 on
    GPUs, and float16 on GPUs before Ampere."""
    quantization: str | None = None
    """vLLM's name of a quantization, such as `fp8_per_tensor`. null: as the model's files say."""
    max_model_len: int = Field(4096, ge=64)
    """Context length in tokens, prompt and output together."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that hold one copy of the model together."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for weights, KV cache and the working memory of a step. vLLM measures
    the whole GPU, so replicas that share a GPU set `kv_cache_gib` instead."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """KV cache of one replica on each of its GPUs, in GiB, whatever else is on the GPU. null: 2 on
    a CPU, and what `gpu_memory_utilization` leaves on a GPU."""
    max_sequences: int | None = Field(None, ge=1)
    """Sequences that an engine runs at once. null: set by device and KV cache
    (docs/run/capacity.md)."""
    max_batched_tokens: int | None = Field(None, ge=1)
    """Tokens that one engine step processes. null: set by device (docs/run/capacity.md)."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run."""
    base_url: Address | None = Field(None, repr=False)
    """URL of an endpoint. Results leave out its user, password and query."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's key."""
    api_key_file: str | None = None
    """File that holds the endpoint's key, in place of `api_key_env`. It is read again when the
    endpoint refuses the key."""
    api_key_command: str | None = None
    """Shell command that prints the endpoint's key, in place of `api_key_env`. It is run again when
    the endpoint refuses the key."""
    extra_headers: Headers = Field(default_factory=dict, repr=False)
    """Further HTTP headers of every request to an endpoint. A value `env:NAME` is that of the
    environment variable NAME. Values are never shown."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request to an endpoint, such as `reasoning_effort` or `provider`.
    They replace fields of the same name; null leaves one out."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Values for the model's chat template, such as `enable_thinking: false`. An endpoint gets them
    with each chat request; with `kind: vllm` or a `tokenizer` they go to the template here."""
    start_s: float = Field(10.0, gt=0)
    """Seconds in which an endpoint must first answer. Later failures are retried until the deadline
    of the judgement, `serve.deadline_s`."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Rate limit of the endpoint's account, in requests. The processes of one run share it. null:
    no limit."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Rate limit of the endpoint's account, in tokens. The processes of one run share it. null: no
    limit."""
    tokenizer: str | None = None
    """With `openai`, a local tokenizer of the served model. Prompts are then sent as token ids, so
    that no text can become a control token, and are cut to fit `max_model_len`."""
    script: dict[str, Any] = Field(default_factory=dict)
    """With `fake`, the behaviour of the scripted model."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> EngineConfig:
        if self.kind == "openai" and self.base_url is None:
            raise ValueError("base_url is for kind: openai, which needs it")
        # With another kind set, base_url is a leftover and harmless. Without a kind it was probably
        # forgotten, and the default would judge with another model.
        if self.base_url is not None and "kind" not in self.model_fields_set:
            raise ValueError("base_url is for kind: openai: set kind")
        sources = ("api_key_env", "api_key_file", "api_key_command")
        named = [name for name in sources if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} both name a key: keep one")
        for name, allowed in OWN_FIELDS.items():
            if name in self.extra_body and self.extra_body[name] not in allowed:
                raise ValueError(
                    f"extra_body sets {name}, which each request needs as it is: take it out"
                )
        return self

    @property
    def on_replicas(self) -> bool:
        """Whether the model runs on this package's replicas, so that it needs CPU cores or GPUs."""
        return self.kind in ("vllm", "transformers")

    @property
    def cuts_prompts(self) -> bool:
        """Whether prompts are tokenized here, and so cut to fit `max_model_len`."""
        return self.kind != "openai" or self.tokenizer is not None


class PricedConfig(EngineConfig):
    """An engine whose tokens may have a price."""

    price: dict[PricedTokens, NonNegativeFloat] | Literal["genai-prices"] | None = None
    """US dollars for a million tokens: `in`, `out` and, where they cost less, those from the
    provider's cache (`cached`). `genai-prices`: by the model's name, from that package (extra
    `prices`). null: costs are counted in tokens alone."""

    @field_validator("price")
    @classmethod
    def _check_price(cls, price: Any) -> Any:
        if isinstance(price, dict) and not {"in", "out"} <= price.keys():
            raise ValueError("a price needs `in` and `out`, in US dollars for a million tokens")
        return price


class ReplicaConfig(Block):
    """Ray Serve replicas of a model."""

    replicas: int | Literal["auto"] = "auto"
    """Number of replicas. `auto` uses every GPU of the cluster, or starts one CPU replica if there
    is none."""
    max_replicas: int | None = Field(None, ge=1)
    """Upper limit of autoscaling. Serve adds replicas under load and removes them again down to
    `replicas`. null: always `replicas`."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of one replica. A fraction shares a GPU. null: one for each tensor-parallel rank if
    there are GPUs."""
    num_cpus: float | None = Field(None, ge=0)
    """CPU cores that Ray reserves for one replica. null: 1 with GPUs, 0.5 without."""
    max_ongoing: int | None = Field(None, ge=1)
    """Limit on candidates in flight on one replica. null: set by the number of sequences that its
    engine runs at once."""
    deadline_s: float = Field(1800.0, gt=0)
    """Seconds, retries included, after which a candidate ends as `unavailable`."""

    @model_validator(mode="after")
    def _check_count(self) -> ReplicaConfig:
        if isinstance(self.replicas, int) and self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: it must be at least 1, or auto")
        if self.max_replicas is not None and (
            self.replicas == "auto" or self.max_replicas < self.replicas
        ):
            raise ValueError(
                f"max_replicas is {self.max_replicas} and replicas {self.replicas}: give replicas "
                "a number no larger, the least"
            )
        return self


class JudgeConfig(PricedConfig):
    """A judge: an engine, the format that the model was trained on, and how it decodes."""

    format: str = "auto"
    """Name of a judge format of the package, a path to a format file, or `auto` (by model name).
    `scalar` makes the model a scalar reward model that uses its own chat template; of the keys that
    a judge adds to an engine, only `shows`, `shows_media`, `shows_thinking`, `thinking_marks`,
    `max_text_chars`, `over_long` and `serve` then count."""
    wrapper: Wrapper = "auto"
    """Template that makes the input a chat turn. `auto` goes by model name, else `chat`."""
    critique: bool = True
    """Whether the judge writes a critique before its rating. false reads the rating right after the
    prompt: one token instead of hundreds."""
    direct: bool = False
    """Whether the expected rating right after the prompt is also read, in addition to the
    critique."""
    distribution: bool | None = None
    """Whether the probabilities of all ratings are read with the rating. null: where that costs a
    token or two, and where the view or a tie-break rule needs them. An endpoint that sends them
    only with the critique sends hundreds of kB more."""
    critiques: int = Field(1, ge=1, le=MAX_CRITIQUES)
    """Critiques sampled for each response; `vote` makes one rating of theirs. More than one needs a
    temperature above 0."""
    vote: Vote = "mean"
    """How the ratings of several critiques make one: their `mean`, their `median`, or a soft
    minimum (`pessimistic`), which is lower the more the critiques disagree."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature; 0 takes the most probable token each time."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: tokens are sampled from the most probable ones that together have this
    probability."""
    frequency_penalty: float | None = Field(None, ge=0, le=2)
    """Amount that a token's logit loses for each time that the critique already contains it. It
    keeps small judges out of loops. null: from the model's entry in `judges.yaml`, else 0."""
    max_tokens: int = Field(1024, ge=1)
    """Longest critique, in tokens."""
    attempts: int = Field(1, ge=1, le=10)
    """Times that the judge is asked at most for one critique. A reply that ended normally and holds
    no verdict is asked for again, with another seed, where no slot can be forced (most endpoints)
    and no response holds a planted verdict. More than one needs a temperature above 0."""
    thinking_tokens: int = Field(1024, ge=1)
    """Longest thinking block before each critique, in tokens, for a judge whose format has one. At
    the limit the block is closed and the judge goes on to its verdict."""
    seed: int = 0
    """Sampling seed."""
    criteria: Literal["auto"] | None = None
    """`auto` fills the format's field `criteria` from the query's scenario, unless the input brings
    its own. null: only inputs fill it."""
    shows: Shows | None = None
    """What the judge reads of a response that has several turns: the assistant's last message
    (`final`), all that the assistant says (`assistant`), or all turns with tool calls and tool
    results (`trajectory`). null: `assistant` for TRL; `final` for verifiers, NeMo Gym, SkyRL and
    rows whose `messages` hold the response; all decoded tokens for verl; `trajectory` for a
    response that a row or request gives as messages."""
    shows_thinking: bool = False
    """Whether the judge reads a policy's thinking. false: a leading block of it, and what a message
    holds as `reasoning_content`, are cut before the judge is asked. A response without anything
    else has the outcome `no_answer`."""
    thinking_marks: dict[str, str] | None = None
    """Marks around a policy's thinking: what opens a block, and what closes it. An empty opening
    mark says that the prompt's template opens each block, as in `{"": "</think>"}`. null: the
    common marks (docs/rewards/thinking.md)."""
    reads_media: bool = False
    """Whether the model behind an endpoint reads pictures, sound and files. Content parts then pass
    unchanged, each in its place in the prompt. What the endpoint refuses is `input_rejected`. Needs
    `kind: openai` without a `tokenizer`; other judges read text alone."""
    fetches_media: bool = False
    """Whether addresses of media are passed to the endpoint, which then fetches what is there.
    false: only data: addresses and base64 are. Nothing is ever fetched here."""
    shows_media: Literal["reject", "omit"] = "reject"
    """What becomes of pictures, sound and files that the judge is not sent: their input is rejected
    (`reject`), or a mark such as `[image]` stands in their place, and the judgement has the flag
    `media_omitted` (`omit`)."""
    max_text_chars: int = Field(MAX_TEXT_CHARS, ge=1)
    """Longest text (query, response or context field) that is judged, in characters. An input with
    a longer text is rejected, in process and by a service."""
    over_long: OverLong = "truncate"
    """What happens to a response that does not fit into the context: cut its middle (`truncate`),
    its end (`truncate_end`) or its start (`truncate_start`), or `reject` it. A trajectory first
    loses turns from its middle."""
    serve: ReplicaConfig = ReplicaConfig()
    """The judge's replicas."""
    trace: bool = False
    """Whether the processes that ask and run this judge record OpenTelemetry spans of its calls and
    judgements. They go to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."""

    @property
    def media(self) -> MediaRules:
        """Which media the judge is sent."""
        reads = self.reads_media and self.kind == "openai" and self.tokenizer is None
        return MediaRules(reads, reads and self.fetches_media, self.shows_media == "omit")

    @field_validator("thinking_marks")
    @classmethod
    def _check_marks(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for opening, closing in (value or {}).items():
            if is_blank(closing) or (opening and is_blank(opening)):
                raise ValueError(f"thinking_marks: {opening!r} and {closing!r} mark no block")
        return value

    @model_validator(mode="after")
    def _check_media(self) -> JudgeConfig:
        if self.fetches_media and not self.reads_media:
            raise ValueError("fetches_media is for a judge that reads media: set reads_media")
        return self

    @model_validator(mode="after")
    def _check_sampling(self) -> JudgeConfig:
        if self.vote != "mean" and self.critiques == 1:
            raise ValueError(
                f"vote is {self.vote} and critiques is 1, so there is nothing to vote on: set "
                "critiques to 3 or more, or leave vote out"
            )
        if self.critiques > 1 and self.temperature == 0:
            raise ValueError(
                f"critiques is {self.critiques} at temperature 0, which gives the same critique "
                "each time: set a temperature, for example 0.7"
            )
        if self.attempts > 1 and self.temperature == 0:
            raise ValueError(
                f"attempts is {self.attempts} at temperature 0, which gives the same reply each "
                "time: set a temperature, for example 0.7"
            )
        return self


class PolicyConfig(EngineConfig):
    """The policy that samples responses (paper, section 6.3: 32 for each query at temperature
    1)."""

    wrapper: Wrapper = "auto"
    """Template that makes a query a chat turn. `auto` goes by model name, else `chat`."""
    n: int = Field(32, ge=1, le=1024)
    """Responses sampled for each query."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 takes the most probable token each time."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: tokens are sampled from the most probable ones that together have this
    probability."""
    max_tokens: int = Field(512, ge=1)
    """Longest response, in tokens."""
    seed: int = 0
    """Sampling seed."""
    system: str | None = None
    """System message before each query. null: none."""
    serve: ReplicaConfig = ReplicaConfig()
    """The policy's replicas."""
