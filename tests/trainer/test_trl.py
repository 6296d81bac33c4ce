"""The stock TRL trainers with a scripted judge: their contracts with the adapters, not learning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TrainerCallback,
)

from autoj_reward.client.client import JudgeClient
from autoj_reward.config import (
    AuditConfig,
    FailureConfig,
    JudgeConfig,
    PartConfig,
    RelativeConfig,
    ReplicaConfig,
    RewardConfig,
    RubricConfig,
    ShapingConfig,
)
from autoj_reward.errors import AuditAlarm, BudgetExceeded, ConfigError, InputError
from autoj_reward.trainer.ppo import PPOReward, prompt_table
from autoj_reward.trainer.prompts import Turn
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.trainer.trl import OnlineDPOReward
from autoj_reward.types import Candidate
from tests.tiny import llama, saved
from tests.trainer.conftest import RATING_BY_SHOWS, TURNS, WORK

QUERIES = ["Why is the sky blue?", "Name a river.", "Say hello.", "Count to three."]


def make_tiny_model(kind: Any, tokenizer: Any, **more: Any) -> Any:
    return llama(tokenizer, kind, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    smollm2.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, pad_token="<|endoftext|>", padding_side="left")


@pytest.fixture(scope="module")
def policy(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    return str(saved(make_tiny_model(LlamaForCausalLM, tokenizer), tokenizer, folder))


@pytest.fixture
def reward() -> Iterator[RewardModel]:
    with RewardModel(RewardConfig(judge=JudgeConfig(kind="fake"))) as model:
        yield model


def read_log(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.training
@pytest.mark.parametrize("conversational", [False, True])
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_grpo_and_rloo(
    algorithm: str, conversational: bool, tmp_path: Path, policy: str, reward: RewardModel
) -> None:
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    config_class, trainer_class = {
        "grpo": (GRPOConfig, GRPOTrainer),
        "rloo": (RLOOConfig, RLOOTrainer),
    }[algorithm]
    prompts = [[{"role": "user", "content": q}] if conversational else q for q in QUERIES]
    trainer = trainer_class(
        model=policy,
        reward_funcs=reward.trl(),
        args=config_class(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            max_steps=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts, "reference": ["x"] * 4}),
    )
    trainer.train()
    assert read_log(trainer, "judge/ok") == [1.0, 1.0]
    assert read_log(trainer, "rewards/judge/mean") == pytest.approx(
        read_log(trainer, "judge/shaped")
    )


@pytest.mark.training
@pytest.mark.parametrize("shows", RATING_BY_SHOWS)
def test_grpo_rewards_completions_with_tool_messages(
    shows: Any, tmp_path: Path, policy: str
) -> None:
    from trl import GRPOConfig, GRPOTrainer

    script = {"ratings": {"good": 9, WORK: 7}}
    config = RewardConfig(judge=JudgeConfig(kind="fake", shows=shows, script=script), view="rating")
    prompt = [{"role": "user", "content": QUERIES[0]}]
    with RewardModel(config) as reward:
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=reward.trl(),
            args=GRPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True),
            train_dataset=Dataset.from_dict({"prompt": [prompt]}),
        )
        # What TRL calls once the tools have answered. A tiny policy calls none by itself.
        answer = [{"role": "assistant", "content": "good"}]
        prompts, completions = [prompt] * 2, [TURNS, answer]
        rewards = trainer._calculate_rewards([{}, {}], prompts, completions, [[1], [1]])
    assert rewards.flatten().tolist() == [RATING_BY_SHOWS[shows], 9.0]


RUBRICS = {
    QUERIES[0]: [{"criterion": 'Has "m"', "points": 3}, {"criterion": 'Has "p"', "points": 1}],
    QUERIES[1]: [{"criterion": 'Has "s"', "points": 2}, {"criterion": 'Has "o"', "points": -1}],
    QUERIES[2]: [{"criterion": 'Has "l"', "choices": {"fully": 1, "barely": 0.5}}],
    QUERIES[3]: [{"criterion": f'Has "{letter}"'} for letter in "cdu"],
}


def score_by_rubric(query: str, response: str) -> float:
    """Return the score of a response by its query's rubric, as a program reads it."""
    m, p, s, o, ell, c, d, u = (letter in response.lower() for letter in "mpsolcdu")
    return {
        QUERIES[0]: (3 * m + p) / 4,
        QUERIES[1]: max(0, (2 * s - o) / 2),
        QUERIES[2]: 1.0 if ell else 0.5,
        QUERIES[3]: (c + d + u) / 3,
    }[query]


def take_grpo_step(policy: str, reward: RewardModel, columns: dict[str, Any], folder: Path) -> Any:
    """Return TRL's trainer after one step over four responses to each of four prompts."""
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=reward.trl(),
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=8,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        ),
        train_dataset=Dataset.from_dict(columns),
    )
    trainer.train()
    return trainer


@pytest.mark.training
def test_grpo_rewards_each_row_by_its_rubric(tmp_path: Path, policy: str) -> None:
    config = RewardConfig(
        judge=JudgeConfig(kind="fake", format="rubric-item"),
        rubric=RubricConfig(by="items", hard=True),
    )
    columns = {"prompt": QUERIES, "rubric": [RUBRICS[query] for query in QUERIES]}
    with RewardModel(config) as reward:
        trainer = take_grpo_step(policy, reward, columns, tmp_path)
        recent = reward.recent()
    expected = [
        score_by_rubric(candidate.prompt.text, candidate.response.text) for candidate, _ in recent
    ]
    assert [row_reward.value for _, row_reward in recent] == pytest.approx(expected)
    assert {candidate.prompt.text for candidate, _ in recent} == set(QUERIES) and len(
        set(expected)
    ) > 2
    assert read_log(trainer, "rewards/judge/mean") == pytest.approx([sum(expected) / 16])
    assert read_log(trainer, "rubric/abstained") == [0.0]


SOLUTIONS = dict(zip(QUERIES, ("scattering", "the Nile", "hello", "1, 2, 3"), strict=True))


def know_short(candidate: Candidate) -> float | None:
    """Return 0 for a response of an even length; None for one that the verifier is asked about."""
    assert candidate.context["reference"] == SOLUTIONS[candidate.prompt.text]
    return None if len(candidate.response.text) % 2 else 0.0


@pytest.mark.training
def test_grpo_rewards_right_answers_by_the_verifier_that_a_rule_leaves_them_to(
    tmp_path: Path, policy: str
) -> None:
    config = RewardConfig(
        judge=JudgeConfig(kind="fake", format="equivalence"),
        when="rule",
        parts={"rule": PartConfig(function=f"{__name__}:know_short")},
        columns={"reference": "solution"},
    )
    columns = {"prompt": QUERIES, "solution": [SOLUTIONS[query] for query in QUERIES]}
    with RewardModel(config) as reward:
        trainer = take_grpo_step(policy, reward, columns, tmp_path)
        recent = reward.recent()
    asked = [len(candidate.response.text) % 2 for candidate, _ in recent]
    assert 0 < sum(asked) < 16
    for (_, row_reward), is_asked in zip(recent, asked, strict=True):
        if is_asked:
            assert row_reward.value == row_reward.judgement.expected
            assert row_reward.value is not None and 0 < row_reward.value < 1
        else:
            assert row_reward.value == 0.0 and row_reward.parts["judge"] is None
    values = [row_reward.value or 0.0 for _, row_reward in recent]
    assert read_log(trainer, "rewards/judge/mean") == pytest.approx([sum(values) / 16])
    assert read_log(trainer, "parts/judge_abstains") == [1 - sum(asked) / 16]


def make_online_dpo(
    trainer_class: Any, judge: Any, tokenizer: Any, folder: Path, **more: Any
) -> Any:
    """Return an online DPO trainer of two pairs per step, the same in every run."""
    from trl.experimental.online_dpo import OnlineDPOConfig

    args = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "max_new_tokens": 8,
        "max_steps": 1,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
    } | more
    return trainer_class(
        model=make_tiny_model(LlamaForCausalLM, tokenizer),
        reward_funcs=judge,
        args=OnlineDPOConfig(**args),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": QUERIES}),
    )


def train_and_diff(trainer: Any) -> torch.Tensor:
    """Train, and return the change of the weights."""
    before = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).clone()
    trainer.train()
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()) - before


@pytest.mark.training
def test_online_dpo(tmp_path: Path, tokenizer: Any, reward: RewardModel) -> None:
    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    trainer = make_online_dpo(
        DecidedPairsTrainer, OnlineDPOReward(reward).compare, tokenizer, tmp_path
    )
    assert train_and_diff(trainer).any()
    assert read_log(trainer, "objective/scores") == [0.5]
    assert read_log(trainer, "judge/undecided") == [0.0]


@pytest.mark.training
def test_online_dpo_with_pairs_judged_together(tmp_path: Path, tokenizer: Any) -> None:
    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    relative = RelativeConfig(by="comparisons", schedule="all")
    with RewardModel(RewardConfig(judge=JudgeConfig(kind="fake"), relative=relative)) as model:
        judge = OnlineDPOReward(model).judge
        trainer = make_online_dpo(DecidedPairsTrainer, judge, tokenizer, tmp_path)
        assert train_and_diff(trainer).any()
    assert read_log(trainer, "objective/scores") == pytest.approx([0.5])
    assert read_log(trainer, "judge/undecided") == [0.0]


UNDECIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "inconsistent": ("compare", {"judge": JudgeConfig(kind="fake", script={"verdicts": "first"})}),
    "ties": ("judge", {"judge": JudgeConfig(kind="fake"), "shaping": ShapingConfig(scale=0)}),
    "failures": (
        "judge",
        {
            "judge": JudgeConfig(kind="fake", script={"fail_share": {"unparsable": 1.0}}),
            "failures": FailureConfig(budget=1),
        },
    ),
}


@pytest.mark.training
@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@pytest.mark.parametrize("case", UNDECIDED)
def test_undecided_pairs_teach_nothing(
    case: str, loss: str, tmp_path: Path, tokenizer: Any
) -> None:
    from trl.experimental.online_dpo import OnlineDPOTrainer

    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    function, config = UNDECIDED[case]
    with RewardModel(RewardConfig(**config)) as model:
        judge = getattr(OnlineDPOReward(model), function)
        more = {"max_steps": 2, "loss_type": loss, "missing_eos_penalty": 1.0}
        trainer = make_online_dpo(DecidedPairsTrainer, judge, tokenizer, tmp_path, **more)
        assert not train_and_diff(trainer).any()
        assert read_log(trainer, "judge/undecided") == [1.0, 1.0]
        stock = make_online_dpo(OnlineDPOTrainer, judge, tokenizer, tmp_path)
        with pytest.raises(ConfigError, match=r"as if its first response had won.*DecidedPairs"):
            stock.train()


@pytest.mark.training
def test_decided_pairs_teach_what_they_teach_in_the_stock_trainer(
    tmp_path: Path, tokenizer: Any
) -> None:
    from trl.experimental.online_dpo import OnlineDPOTrainer

    from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

    def measure_gain(trainer_class: Any, *rewards: float) -> torch.Tensor:
        def judge(**columns: Any) -> list[float]:
            return list(rewards)

        plain = {"optim": "sgd", "max_grad_norm": 0.0, "bf16": False}
        return train_and_diff(make_online_dpo(trainer_class, judge, tokenizer, tmp_path, **plain))

    both_gains = measure_gain(OnlineDPOTrainer, 1, 0, 0, 1)
    # A tie teaches TRL that first is better.
    torch.testing.assert_close(
        measure_gain(OnlineDPOTrainer, 1, 0, 1, 0), measure_gain(OnlineDPOTrainer, *[1] * 4)
    )
    torch.testing.assert_close(measure_gain(DecidedPairsTrainer, 1, 0, 0, 1), both_gains)
    first_gain, second_gain = (
        measure_gain(DecidedPairsTrainer, 1, 5, 0, 5),
        measure_gain(DecidedPairsTrainer, 5, 0, 5, 1),
    )
    assert first_gain.any() and second_gain.any()
    torch.testing.assert_close(first_gain + second_gain, both_gains, atol=1e-6, rtol=1e-4)


class Ppo:
    """A PPO run of the tiny policy."""

    def __init__(
        self,
        tokenizer: Any,
        reward: RewardModel,
        folder: Path,
        queries: Sequence[str] = QUERIES,
        **more: Any,
    ) -> None:
        from trl.experimental.ppo import PPOConfig, PPOTrainer

        models: dict[str, Any] = {"ref_model": make_tiny_model(LlamaForCausalLM, tokenizer)}
        models |= {name: more.pop(name) for name in ("peft_config", "ref_model") if name in more}
        args = {
            "output_dir": str(folder),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "num_mini_batches": 1,
            "total_episodes": 8,
            "num_ppo_epochs": 1,
            "response_length": 8,
            "stop_token": "eos",
            "missing_eos_penalty": 1.0,
            "report_to": [],
            "use_cpu": True,
            "num_sample_generations": 0,
            "save_strategy": "no",
        } | more
        prompts = [[{"role": "user", "content": q}] for q in [*queries] * 8]
        rows = [
            {"input_ids": tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"]}
            for p in prompts
        ]
        self.judge = PPOReward(reward, tokenizer, prompt_table(rows, prompts))
        self.trainer = PPOTrainer(
            args=PPOConfig(**args),
            processing_class=tokenizer,
            model=make_tiny_model(LlamaForCausalLM, tokenizer),
            **models,
            reward_model=self.judge,
            value_model=make_tiny_model(LlamaForSequenceClassification, tokenizer, num_labels=1),
            train_dataset=Dataset.from_list(rows),
        )


@pytest.mark.training
@pytest.mark.parametrize("kind", ["plain", "peft", "bf16", "saving"])
def test_ppo(kind: str, tmp_path: Path, tokenizer: Any, reward: RewardModel) -> None:
    from peft import LoraConfig

    more = {
        "plain": {},
        "peft": {"peft_config": LoraConfig(r=2, task_type="CAUSAL_LM"), "ref_model": None},
        "bf16": {"bf16": True},
        "saving": {"save_strategy": "steps", "save_steps": 1},
    }[kind]
    run = Ppo(tokenizer, reward, tmp_path, **more)
    # TRL 1.10's PPO lacks what transformers 5.19 looks up when it saves.
    run.trainer.is_distributed_loading_by_transformers = False
    run.trainer.train()
    scores = read_log(run.trainer, "objective/scores")
    assert len(scores) == 2 and all(-1 <= score <= 10 for score in scores)
    assert run.judge.figures["judge/ok"] == 1.0
    # A response of 8 random tokens has no end: its reward is 1 lower.
    rewards = [
        row_reward.value for _, row_reward in reward.recent() if row_reward.value is not None
    ]
    assert sum(scores) / 2 == pytest.approx(sum(rewards) / 8 - 1)
    assert (tmp_path / "checkpoint-2").exists() == (kind == "saving")


def test_ppo_reads_queries_and_responses_out_of_padded_rows(
    tokenizer: Any, reward: RewardModel
) -> None:
    from trl.experimental.utils import get_reward

    prompts: list[Turn] = ["Why?", [{"role": "user", "content": "Name a river."}]]
    ids = [
        tokenizer("Q: Why? A:")["input_ids"],
        tokenizer.apply_chat_template(prompts[1], add_generation_prompt=True)["input_ids"],
    ]
    responses = [tokenizer(" Because of light.")["input_ids"], tokenizer("Po")["input_ids"]]
    responses[1] += [tokenizer.eos_token_id]
    width, length = max(map(len, ids)), max(map(len, responses))
    rows = [
        [0] * (width - len(p)) + p + s + [0] * (length - len(s))
        for p, s in zip(ids, responses, strict=True)
    ]
    judge = PPOReward(reward, tokenizer, {tuple(i): p for i, p in zip(ids, prompts, strict=True)})
    _, scores, _ = get_reward(judge, torch.tensor(rows), tokenizer.pad_token_id, width)
    candidates = [Candidate("Why?", " Because of light."), Candidate("Name a river.", "Po")]
    rewards = reward.rewards_now(candidates)
    assert scores.tolist() == pytest.approx([r.value for r in rewards])
    assert rewards[0].raw != rewards[1].raw
    assert [
        judge.judge._read_candidate(p + s) for p, s in zip(ids, responses, strict=True)
    ] == candidates


def test_ppo_judges_what_trl_trains_on(tokenizer: Any, reward: RewardModel) -> None:
    """TRL masks a response from its first pad token on, and cuts it after its first end token."""
    from trl.experimental.utils import get_reward

    ids = tokenizer("Q: Why? A:")["input_ids"]
    response_ids, verdict_ids = (
        tokenizer(" Light.")["input_ids"],
        tokenizer(" Rating: [[10]]")["input_ids"],
    )
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    tails = [[pad, *verdict_ids, end], [pad, pad, *verdict_ids], [end, pad, *verdict_ids]]
    rows = [[pad, *ids, *response_ids, *tail] for tail in tails]
    rows.append([pad, *ids, pad, *response_ids, *verdict_ids])
    rows = [row + [pad] * (max(map(len, rows)) - len(row)) for row in rows]
    judge = PPOReward(reward, tokenizer, {tuple(ids): "Why?"})
    get_reward(judge, torch.tensor(rows), pad, len(ids) + 1)
    assert [candidate.response.text for candidate, _ in reward.recent()] == [" Light."] * 3 + [""]


@pytest.mark.training
def test_ppo_on_queries_that_spell_the_pad_token(
    tmp_path: Path, tokenizer: Any, reward: RewardModel
) -> None:
    pad = tokenizer.pad_token
    queries = [f"What is {pad}?", f"{pad} What is that?", "What is ?", " What is that?"]
    Ppo(tokenizer, reward, tmp_path, queries, total_episodes=32).trainer.train()
    judged_queries = [candidate.prompt.text for candidate, _ in reward.recent()]
    assert sorted(judged_queries) == sorted(queries * 8)


def test_ppo_refuses_what_it_cannot_read(tokenizer: Any, smollm2: Any, reward: RewardModel) -> None:
    with pytest.raises(ConfigError, match="pad token of its own"):
        PPOReward(reward, smollm2, {(5, 6): "q"})
    with pytest.raises(ConfigError, match="beginning of another"):
        PPOReward(reward, tokenizer, {(5, 6): "q", (5, 6, 7): "q2", (8,): "z"})
    whitened = RewardConfig(judge=JudgeConfig(kind="fake"), shaping=ShapingConfig(whiten="group"))
    with pytest.raises(ConfigError, match=r"whiten is group.*PPO samples one response of a query"):
        PPOReward(RewardModel(whitened), tokenizer, {(5, 6): "q"})
    with pytest.raises(ConfigError, match="needs the prompts"):
        PPOReward(reward, tokenizer, {})
    judge = PPOReward(reward, tokenizer, {(5, 6): "q"})
    with pytest.raises(InputError, match="no prompt of the dataset opens"):
        judge.judge(torch.tensor([[5, 9]]), torch.tensor([[True, True]]))


def make_failing_config(share: float, fault: str, **judge: Any) -> RewardConfig:
    """Return the config of a judge that fails on a share of all responses, chosen by their hash."""
    return RewardConfig(
        judge=JudgeConfig(kind="fake", script={"fail_share": {fault: share}}, **judge),
        view="rating",
    )


def make_trainer(
    algorithm: str, policy: str, tokenizer: Any, reward: RewardModel, folder: Path, steps: int
) -> Any:
    """Return a stock trainer of 32 responses per step."""
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
    from trl.experimental.online_dpo import OnlineDPOConfig

    args = {
        "output_dir": str(folder),
        "max_steps": steps,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
    }
    prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in QUERIES] * 4})
    if algorithm == "ppo":
        sizes: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
        return Ppo(tokenizer, reward, folder, total_episodes=32 * steps, **sizes).trainer
    if algorithm == "online-dpo":
        from autoj_reward.trainer.online_dpo import DecidedPairsTrainer

        return DecidedPairsTrainer(
            model=make_tiny_model(LlamaForCausalLM, tokenizer),
            reward_funcs=OnlineDPOReward(reward).judge,
            args=OnlineDPOConfig(**args, per_device_train_batch_size=16, max_new_tokens=8),
            processing_class=tokenizer,
            train_dataset=prompts,
        )
    config_class, trainer_class = {
        "grpo": (GRPOConfig, GRPOTrainer),
        "rloo": (RLOOConfig, RLOOTrainer),
    }[algorithm]
    trainer = trainer_class(
        model=policy,
        reward_funcs=reward.trl(),
        args=config_class(
            **args, per_device_train_batch_size=32, num_generations=8, max_completion_length=8
        ),
        train_dataset=prompts,
    )
    trainer.add_callback(CheckAdvantages(algorithm, trainer))
    return trainer


class CheckAdvantages(TrainerCallback):
    """Check after every step that a failed judgement has advantage 0.

    The others must have the advantages of a group without it.
    """

    def __init__(self, algorithm: str, trainer: Any) -> None:
        self.algorithm, self.trainer = algorithm, trainer
        self.failed = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        logs = self.trainer._logs
        [rewards] = logs["rewards"].values()
        rewards, advantages = torch.tensor(list(rewards)), torch.tensor(list(logs["advantages"]))
        for group, group_advantages in zip(
            rewards.view(-1, 8), advantages.view(-1, 8), strict=True
        ):
            ok = ~group.isnan()
            self.failed += int((~ok).sum())
            valid = group[ok]
            if self.algorithm == "grpo":
                expected = (valid - valid.mean()) / (valid.std() + 1e-4)
            else:
                expected = valid - (valid.sum() - valid) / (len(valid) - 1)
            torch.testing.assert_close(group_advantages[ok], expected, rtol=1e-3, atol=1e-3)
            assert not group_advantages[~ok].any()


MESSAGES = [{"role": "user", "content": "Why?"}]


@pytest.mark.parametrize(
    ("rows", "prompts", "table"),
    [
        ([{"input_ids": [1, 2]}], ["Why?"], {(1, 2): "Why?"}),
        ([{"input_ids": [1, 2], "prompt": MESSAGES}], "prompt", {(1, 2): MESSAGES}),
        ([{"input_ids": torch.tensor([1, 2]), "question": "Why?"}], "question", {(1, 2): "Why?"}),
    ],
    ids=["a list", "messages of a column", "tensors"],
)
def test_a_ppo_prompt_table_is_made_of_what_a_dataset_has(
    rows: list[dict[str, Any]], prompts: Any, table: dict[Any, Any]
) -> None:
    assert prompt_table(rows, prompts) == table
    dataset = Dataset.from_list([{**row, "input_ids": [1, 2]} for row in rows])
    assert prompt_table(dataset.with_format("numpy", ["input_ids"], True), prompts) == table


@pytest.mark.parametrize(
    ("rows", "prompts", "words"),
    [
        ([{"prompt": "Why?"}], "prompt", r"row 0 .* no list of token ids .*has prompt.*tokenize"),
        ([{"input_ids": [1]}], "prompt", r"row 0 .* has no 'prompt' \(it has input_ids\)"),
        ([{"input_ids": [1]}], ["a", "b"], "2 prompts for 1 rows"),
    ],
)
def test_a_ppo_prompt_table_without_ids_or_prompts_is_refused(
    rows: list[dict[str, Any]], prompts: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        prompt_table(rows, prompts)


def test_prompts_that_ppo_cannot_tell_apart_are_refused_before_the_judge_starts(
    tokenizer: Any,
) -> None:
    closed = RewardModel(JudgeConfig(kind="openai", model="m", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(ConfigError, match="one prompt is the beginning of another"):
        PPOReward(closed, tokenizer, {(1, 2): "Why?", (1, 2, 3): "Why not?"})


def test_two_ppo_prompts_with_the_same_ids_are_refused(tokenizer: Any, reward: RewardModel) -> None:
    rows = [{"input_ids": [1, 2]}, {"input_ids": [1, 2]}]
    assert prompt_table(rows, ["Why?", "Why?"]) == {(1, 2): "Why?"}
    with pytest.raises(ConfigError, match=r"same token ids.*'Why\?' and 'How\?'"):
        prompt_table(rows, ["Why?", "How?"])
    padded = {(1, 2): "Why?", (tokenizer.pad_token_id, 1, 2): "How?"}
    with pytest.raises(ConfigError, match="same token ids"):
        PPOReward(reward, tokenizer, padded)


ALGORITHMS = ["grpo", "rloo", "ppo", "online-dpo"]


@pytest.mark.training
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_judge_that_fails_now_and_then_leaves_training_running(
    algorithm: str, tmp_path: Path, policy: str, tokenizer: Any
) -> None:
    with RewardModel(make_failing_config(0.03, "unparsable")) as reward:
        trainer = make_trainer(algorithm, policy, tokenizer, reward, tmp_path, steps=8)
        trainer.train()
        recent = reward.recent()
    failed = sum(not row_reward.judgement.ok for _, row_reward in recent)
    assert len(recent) == 256 and 0 < failed < 20
    assert all(row_reward.value == row_reward.judgement.view("rating") for _, row_reward in recent)
    checks = [c for c in trainer.callback_handler.callbacks if isinstance(c, CheckAdvantages)]
    if checks:
        assert checks[0].failed == failed and reward.fallbacks == 0
    else:
        assert reward.fallbacks == (failed if algorithm == "ppo" else 0)


@pytest.mark.training
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("fault", ["unparsable", "hang"])
def test_a_judge_that_fails_often_stops_training(
    fault: str, algorithm: str, tmp_path: Path, policy: str, tokenizer: Any
) -> None:
    config = make_failing_config(0.3, fault, serve=ReplicaConfig(deadline_s=0.5))
    with RewardModel(config) as reward:
        trainer = make_trainer(algorithm, policy, tokenizer, reward, tmp_path, steps=8)
        with pytest.raises(BudgetExceeded, match=r"the failure budget is 0\.05 of 1000"):
            trainer.train()


class AwaitAudit(TrainerCallback):
    """Wait after every step until the audits in flight have ended."""

    def __init__(self, reward: RewardModel) -> None:
        self.reward = reward

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        async def wait_for_audits(client: JudgeClient) -> None:
            assert self.reward.audit
            await asyncio.gather(*self.reward.audit.in_flight)

        self.reward.run(wait_for_audits).result()


@pytest.mark.training
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_alarm_of_the_audit_stops_training(
    algorithm: str, tmp_path: Path, policy: str, tokenizer: Any
) -> None:
    """A judge that pays for two of the four master keys ends a training of eight steps."""
    keys = dict.fromkeys([":", "Thought process:"], 10)
    second = JudgeConfig(kind="fake", script={"words": 5})
    audit = AuditConfig(judge=second, view="rating", canaries_every=32, stop=True)
    judge = JudgeConfig(kind="fake", script={"ratings": keys})
    with RewardModel(RewardConfig(judge=judge, view="rating", audit=audit)) as reward:
        trainer = make_trainer(algorithm, policy, tokenizer, reward, tmp_path, steps=8)
        trainer.add_callback(AwaitAudit(reward))
        with pytest.raises(AuditAlarm, match=r"canary is 0\.\d+, over 0\.2"):
            trainer.train()
        assert 3 <= trainer.state.global_step < 8
