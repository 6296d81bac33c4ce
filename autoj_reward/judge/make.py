"""Construction of engines and judges from a config."""

from __future__ import annotations

from autoj_reward.config import EngineConfig, JudgeConfig
from autoj_reward.engine.base import Engine, Scorer
from autoj_reward.errors import ConfigError
from autoj_reward.formats.schema import JudgeFormat, ScalarFormat
from autoj_reward.judge.generative import GenerativeJudge
from autoj_reward.judge.scalar import ScalarReward
from autoj_reward.models import ResolvedModel
from autoj_reward.models.settings import max_ongoing
from autoj_reward.models.spec import JudgeSpec


def make_engine(
    config: EngineConfig, model: ResolvedModel, wrapper: str, fmt: JudgeFormat | None = None
) -> Engine:
    """Return the engine that a config asks for, not yet started.

    fmt: the judge's format; None for a policy or teacher.
    """
    thinking = fmt.thinking if fmt else None
    marks = (thinking.open, thinking.close) if thinking else ()
    if config.kind == "transformers":
        raise ConfigError("kind transformers serves scalar reward models alone: set kind to vllm")
    if config.kind == "vllm":
        from autoj_reward.engine.vllm import VllmEngine

        return VllmEngine(config, model, wrapper, marks)
    if config.kind == "openai":
        from autoj_reward.engine.openai import OpenAIEngine

        if not isinstance(config, JudgeConfig):
            raise ConfigError(f"kind openai serves judges, and {config.model} is a policy")
        return OpenAIEngine(
            config,
            wrapper,
            marks,
            at_once=max_ongoing(config, 0),
            deadline_s=config.serve.deadline_s,
            asks_logprobs=config.distribution is not False,
        )
    from autoj_reward.engine.fake import FakeEngine

    return FakeEngine(config, fmt)


def make_scorer(config: EngineConfig, model: ResolvedModel, wrapper: str) -> Scorer:
    """Return the scalar reward model's engine that a config asks for, not yet started."""
    if config.kind == "vllm":
        from autoj_reward.engine.vllm import VllmScorer

        return VllmScorer(config, model, wrapper)
    if config.kind == "transformers":
        from autoj_reward.engine.classifier import TransformersScorer

        return TransformersScorer(config, model, wrapper)
    if config.kind == "openai":
        raise ConfigError(
            "an endpoint serves no scalar reward model: set kind to vllm or transformers"
        )
    from autoj_reward.engine.fake import FakeScorer

    return FakeScorer(config)


def make_judge(spec: JudgeSpec) -> GenerativeJudge | ScalarReward:
    """Return the judge of a spec; its engine is not started yet."""
    config, fmt = spec.config, spec.format
    if isinstance(fmt, ScalarFormat):
        scorer = make_scorer(config, spec.model, fmt.wrapper)
        return ScalarReward(config, fmt, scorer, spec.name)
    engine = make_engine(config, spec.model, spec.wrapper, fmt)
    return GenerativeJudge(config, fmt, engine, spec.name)
