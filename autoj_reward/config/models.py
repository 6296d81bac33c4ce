"""Config blocks of models: which model answers and on what, a judge, and a policy."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from autoj_reward.config.load import Block
from autoj_reward.config.urls import Address

Wrapper = Literal["auto", "chat", "llama2", "vicuna", "none"]
MAX_TEXT_CHARS = 2**20
OverLong = Literal["truncate", "truncate_end", "truncate_start", "reject"]


class EngineConfig(Block):
    """Which model answers, and on what."""

    kind: Literal["vllm", "transformers", "openai", "fake"] = "vllm"
    """`vllm` runs the model here; `transformers` runs a scalar reward model that vLLM does not
    know; `openai` asks an OpenAI-compatible endpoint; `fake` is a scripted engine for tests and dry
    runs."""
    model: str = "default"
    """`default`, a name on the model hub, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub. null: its main branch."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type. `auto` is float32 on a CPU (verdicts do not change with the batch), bfloat16 on
    GPUs, and float16 on those before Ampere."""
    quantization: str | None = None
    """vLLM's name of a quantization, such as `fp8_per_tensor`. null: as the model's files say."""
    max_model_len: int = Field(4096, ge=64)
    """Context in tokens, prompt and output together."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that hold one copy of the model together."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a GPU for weights, KV cache and what a step needs. vLLM measures the whole GPU for
    it, so replicas that share one state `kv_cache_gib`."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """KV cache of one replica, on each of its GPUs, whatever else they hold. null: 2 on a CPU, and
    what `gpu_memory_utilization` leaves on a GPU."""
    max_sequences: int | None = Field(None, ge=1)
    """Sequences that an engine runs at once. null: by device and KV cache
    (docs/run/capacity.md)."""
    max_batched_tokens: int | None = Field(None, ge=1)
    """Tokens of one step. null: by device (docs/run/capacity.md)."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run."""
    base_url: Address | None = Field(None, repr=False)
    """Address of an endpoint. Results leave out its user, password and query."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's key."""
    start_s: float = Field(10.0, gt=0)
    """Seconds in which an endpoint must first answer. Later failures are retried until the deadline
    of the judgement, `serve.deadline_s`."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Limit of an endpoint's account; the processes of one run divide it. null: no limit."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Limit of an endpoint's account; the processes of one run divide it. null: no limit."""
    tokenizer: str | None = None
    """With `openai`, a local tokenizer of the served model. Prompts then travel as token ids, so
    that no text can become a control token, and are cut to fit `max_model_len`."""
    script: dict[str, Any] = Field(default_factory=dict)
    """With `fake`, how the scripted model behaves."""

    @model_validator(mode="after")
    def _endpoint(self) -> EngineConfig:
        if self.kind == "openai" and self.base_url is None:
            raise ValueError("base_url is for kind: openai, which needs it")
        # Beside a kind that was written it is a leftover. Alone it more likely lacks its kind, and
        # the judge would be another model altogether.
        if self.base_url is not None and "kind" not in self.model_fields_set:
            raise ValueError("base_url is for kind: openai: set kind")
        return self

    @property
    def on_replicas(self) -> bool:
        """Whether the model runs on replicas of ours, so needs cores or GPUs."""
        return self.kind in ("vllm", "transformers")

    @property
    def cuts_prompts(self) -> bool:
        """Whether prompts are tokenized here, and so fitted into `max_model_len`."""
        return self.kind != "openai" or self.tokenizer is not None


class ReplicaConfig(Block):
    """Ray Serve replicas of a model."""

    replicas: int | Literal["auto"] = "auto"
    """Replicas. `auto` takes every GPU of the cluster, or one CPU replica without any."""
    max_replicas: int | None = Field(None, ge=1)
    """Replicas that Serve adds up to under load; it takes them away again down to `replicas`. null:
    always `replicas`."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of one replica; fractions share a GPU. null: one for each tensor-parallel rank if there
    are GPUs."""
    num_cpus: float | None = Field(None, ge=0)
    """CPU cores of one replica, as Ray counts them. null: 1 beside GPUs, 0.5 without."""
    max_ongoing: int | None = Field(None, ge=1)
    """Candidates that one replica takes at a time. null: by what its engine runs at once."""
    deadline_s: float = Field(1800.0, gt=0)
    """Seconds after which a candidate is given up as `unavailable`."""

    @model_validator(mode="after")
    def _count(self) -> ReplicaConfig:
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


class JudgeConfig(EngineConfig):
    """The judge: an engine, the format it was trained on, and how it decodes."""

    format: str = "auto"
    """A judge format of the package, a path to a format file, or `auto` (by model name). `scalar`
    makes the model a scalar reward model that reads its own chat template; of the keys of a judge
    only `max_text_chars`, `over_long` and `serve` then count."""
    wrapper: Wrapper = "auto"
    """How the input becomes a chat turn. `auto` goes by model name, else `chat`."""
    critique: bool = True
    """Whether the judge writes a critique first. false asks for the rating right after the prompt:
    one token instead of hundreds."""
    direct: bool = False
    """Whether the expected rating right after the prompt is read too, beside the critique."""
    distribution: bool | None = None
    """Whether the probabilities of all ratings are read beside the rating. null: where that costs a
    token or two, and where the view or a tie-break needs them; an endpoint that sends them only
    with the critique sends hundreds of kB more."""
    critiques: int = Field(1, ge=1, le=64)
    """Critiques of a response; their ratings are averaged. More than one needs a temperature."""
    temperature: float = Field(0.0, ge=0)
    """Temperature of sampling; 0 takes the most probable token each time."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Probability of the most probable tokens that are sampled from."""
    frequency_penalty: float | None = Field(None, ge=0, le=2)
    """What a token's logit loses for each time that the critique has it already, which keeps small
    judges out of loops. null: by the model's entry in `judges.yaml`, else 0."""
    max_tokens: int = Field(1024, ge=1)
    """Longest critique, in tokens."""
    thinking_tokens: int = Field(1024, ge=1)
    """Tokens that a judge whose format has a thinking block may think before each critique; then
    the block is closed, and it goes on to its verdict."""
    seed: int = 0
    """Seed of sampling."""
    criteria: Literal["auto"] | None = None
    """`auto` fills the format's field `criteria` from the query's scenario, where an input does not
    bring its own. null leaves it to the inputs."""
    max_text_chars: int = Field(MAX_TEXT_CHARS, ge=1)
    """Characters of the longest text (query, response, context field) that is judged. An input with
    a longer one is rejected, in process as by a service."""
    over_long: OverLong = "truncate"
    """What happens to a response that does not fit: cut its middle (`truncate`), its end
    (`truncate_end`) or its start (`truncate_start`), or `reject`."""
    serve: ReplicaConfig = ReplicaConfig()
    """The replicas that it runs on."""

    @model_validator(mode="after")
    def _sampling(self) -> JudgeConfig:
        if self.critiques > 1 and self.temperature == 0:
            raise ValueError(
                f"critiques is {self.critiques} at temperature 0, which gives the same critique "
                "each time: set a temperature, for example 0.7"
            )
        return self


class PolicyConfig(EngineConfig):
    """The policy that samples responses (paper, section 6.3: 32 a query at temperature 1)."""

    wrapper: Wrapper = "auto"
    """How a query becomes a chat turn. `auto` goes by model name, else `chat`."""
    n: int = Field(32, ge=1, le=1024)
    """Responses a query."""
    temperature: float = Field(1.0, ge=0)
    """Temperature of sampling; 0 takes the most probable token each time."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Probability of the most probable tokens that are sampled from."""
    max_tokens: int = Field(512, ge=1)
    """Longest response, in tokens."""
    seed: int = 0
    """Seed of sampling."""
    system: str | None = None
    """Text of a system turn before each query. null: none."""
    serve: ReplicaConfig = ReplicaConfig()
    """The replicas that it runs on."""
