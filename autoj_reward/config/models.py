"""Which model answers, on what, and how it is asked: judges and policies."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from autoj_reward.config.block import Block
from autoj_reward.config.urls import Address

Wrapper = Literal["auto", "chat", "llama2", "vicuna", "none"]
MAX_TEXT_CHARS = 2**20
OverLong = Literal["truncate", "truncate_end", "truncate_start", "reject"]


class EngineConfig(Block):
    """Which model answers, and on what.

    kind: `vllm` runs the model here; `transformers` runs a scalar reward model that vLLM does not
        know; `openai` asks an OpenAI-compatible endpoint; `fake` is a scripted engine for tests and
        dry runs.
    model: `default`, a name on the model hub, or a local folder.
    dtype: `auto` is float32 on a CPU (verdicts do not change with the batch), bfloat16 on GPUs, and
        float16 on those before Ampere.
    max_model_len: context in tokens, prompt and output together.
    gpu_memory_utilization: share of a GPU for weights, KV cache and what a step needs. vLLM
        measures the whole GPU for it, so replicas that share one state `kv_cache_gib`.
    kv_cache_gib: KV cache of one replica, on each of its GPUs, whatever else they hold. None: 2 on
        a CPU, and what `gpu_memory_utilization` leaves on a GPU.
    max_sequences, max_batched_tokens: sequences that an engine runs at once, and tokens of one
        step; None: by device and KV cache (docs/capacity.md).
    base_url, api_key_env: endpoint address, of which results leave out user, password and query,
        and the environment variable that holds its key.
    start_s: seconds in which an endpoint must first answer; later failures are retried until the
        deadline of the judgement, `serve.deadline_s`.
    requests_per_minute, tokens_per_minute: limits of an endpoint's account; the processes of one
        run divide them. None: no limit.
    tokenizer: with `openai`, a local tokenizer for the served model. Prompts then travel as token
        ids, so that no text can become a control token, and are cut to fit `max_model_len`.
    script: for `fake`: how the scripted judge behaves.
    """

    kind: Literal["vllm", "transformers", "openai", "fake"] = "vllm"
    model: str = "default"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: str | None = None
    max_model_len: int = Field(4096, ge=64)
    tensor_parallel: int = Field(1, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    kv_cache_gib: float | None = Field(None, gt=0)
    max_sequences: int | None = Field(None, ge=1)
    max_batched_tokens: int | None = Field(None, ge=1)
    trust_remote_code: bool = False
    base_url: Address | None = Field(None, repr=False)
    api_key_env: str | None = None
    start_s: float = Field(10.0, gt=0)
    requests_per_minute: float | None = Field(None, gt=0)
    tokens_per_minute: float | None = Field(None, gt=0)
    tokenizer: str | None = None
    script: dict[str, Any] = Field(default_factory=dict)

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
    """Ray Serve replicas. `auto` takes every GPU of the cluster, or one CPU replica without any.

    max_replicas: Serve adds replicas up to so many under load, and takes them away again down to
        `replicas`. None: always `replicas`.
    num_gpus, num_cpus: resources of one replica; fractions share a GPU. None: one GPU per
        tensor-parallel rank if there are GPUs, and half a CPU core otherwise.
    max_ongoing: candidates that one replica takes at a time; None: by what its engine runs at once.
    deadline_s: seconds after which a candidate is given up as `unavailable`.
    """

    replicas: int | Literal["auto"] = "auto"
    max_replicas: int | None = Field(None, ge=1)
    num_gpus: float | None = Field(None, ge=0)
    num_cpus: float | None = Field(None, ge=0)
    max_ongoing: int | None = Field(None, ge=1)
    deadline_s: float = Field(1800.0, gt=0)

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
    """The judge: an engine, the format it was trained on, and how it decodes.

    format: a judge format of the package, a path to a format file, or `auto` (by model name).
        `scalar` makes the model a scalar reward model that reads its own chat template; of the
        keys below only `max_text_chars`, `over_long` and `serve` then count.
    wrapper: how the input becomes a chat turn; `auto` goes by model name, else `chat`.
    critiques: k critiques a response; their ratings are averaged. k > 1 needs a temperature.
    critique: False asks for the rating right after the prompt: one token instead of hundreds.
    frequency_penalty: what a token's logit loses for each time that the critique has it already,
        which keeps small judges out of loops. None: by the model's entry in `judges.yaml`, else 0.
    thinking_tokens: how long a judge whose format has a thinking block may think before each
        critique; then the block is closed, and it goes on to its verdict.
    direct: beside the critique also read the expected rating right after the prompt.
    distribution: whether the probabilities of all ratings are read beside the rating. None: where
        that costs a token or two, and where the view or a tie-break needs them; an endpoint that
        sends them only with the critique sends hundreds of kB more.
    criteria: `auto` fills the format's field `criteria` from the query's scenario, where an input
        does not bring its own; None leaves it to the inputs.
    max_text_chars: characters of the longest text (query, response, context field) that is judged;
        an input with a longer one is rejected, in process as by a service.
    over_long: what happens to a response that does not fit: cut its middle (`truncate`), its end
        (`truncate_end`) or its start (`truncate_start`), or reject.
    """

    format: str = "auto"
    wrapper: Wrapper = "auto"
    critique: bool = True
    direct: bool = False
    distribution: bool | None = None
    critiques: int = Field(1, ge=1, le=64)
    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    frequency_penalty: float | None = Field(None, ge=0, le=2)
    max_tokens: int = Field(1024, ge=1)
    thinking_tokens: int = Field(1024, ge=1)
    seed: int = 0
    criteria: Literal["auto"] | None = None
    max_text_chars: int = Field(MAX_TEXT_CHARS, ge=1)
    over_long: OverLong = "truncate"
    serve: ReplicaConfig = ReplicaConfig()

    @model_validator(mode="after")
    def _sampling(self) -> JudgeConfig:
        if self.critiques > 1 and self.temperature == 0:
            raise ValueError(
                f"critiques is {self.critiques} at temperature 0, which gives the same critique "
                "each time: set a temperature, for example 0.7"
            )
        return self


class PolicyConfig(EngineConfig):
    """The policy that samples n responses a query (paper, section 6.3: n = 32, temperature 1).

    wrapper: how a query becomes a chat turn; `auto` goes by model name, else `chat`.
    """

    wrapper: Wrapper = "auto"
    n: int = Field(32, ge=1, le=1024)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    seed: int = 0
    system: str | None = None
    serve: ReplicaConfig = ReplicaConfig()
