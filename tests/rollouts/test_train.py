"""`autoj train` with a tiny policy and a scripted judge: every algorithm, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

from autoj_reward.config import (
    BestOfNConfig,
    JudgeConfig,
    PolicyConfig,
    RelativeConfig,
    RewardConfig,
    check,
)
from autoj_reward.errors import BudgetExceeded, ConfigError, InputError
from autoj_reward.io.claims import CLAIM
from autoj_reward.journal import Journal, SampledResponses
from autoj_reward.replicas.replica import policy_name
from autoj_reward.trainer.reward import RewardModel
from autoj_reward.types import Candidate
from rollouts.best_of_n import job as best_of_n
from rollouts.train import main as training
from rollouts.train.learner import mark_opened_thinking
from rollouts.train.ppo import prompt_order
from rollouts.train.rejection_sampling import (
    RejectionSamplingConfig,
    TrainingRows,
    chosen_rows,
    job_of_round,
)

ROOT = Path(__file__).parents[2]
QUERIES = ["Why is the sky blue?", "Name a river.", "Say hello.", "Count to three."]


@pytest.fixture
def config_file(tmp_path: Path, policy: str) -> Path:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"query": q}) + "\n" for q in QUERIES), encoding="utf-8")
    config = {
        "input": str(queries),
        "output": str(tmp_path / "run"),
        "learner": {"model": policy, "max_prompt_tokens": 64, "max_response_tokens": 8},
        "reward": {"judge": {"kind": "fake"}, "view": "rating"},
        "steps": 4,
        "batch_size": 4,
        "device_batch_size": 4,
        "group": 2,
        "learning_rate": 1e-3,
        "save_steps": 2,
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def load_weights(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def read_scalars(folder: Path) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for path in sorted(folder.glob("events*")):
        events = EventAccumulator(str(path))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            values.setdefault(tag, []).extend(e.value for e in events.Scalars(tag))
    return values


@pytest.mark.training
@pytest.mark.parametrize(
    ("algorithm", "share"), [("grpo", 2), ("rloo", 2), ("online-dpo", 1), ("ppo", 1)]
)
def test_a_run_is_stopped_and_goes_on(
    algorithm: str, share: int, config_file: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """share: the queries are so many times those that four steps ask."""
    run = config_file.parent / "run"
    queries = [f"{query} {n}" for query in QUERIES for n in range(4)]
    lines = "".join(json.dumps({"query": query}) + "\n" for query in queries)
    (config_file.parent / "queries.jsonl").write_text(lines, encoding="utf-8")
    # The judge dies in the third step, after the checkpoint of the second.
    judged_queries: list[str] = []
    monkeypatch.setattr(
        training, "RewardModel", _make_listening_model(judged_queries, deaf_after=2)
    )
    with pytest.raises(BudgetExceeded, match="goes on from the last checkpoint"):
        training.main(algorithm, str(config_file))
    assert not (run / "policy").exists()
    assert "finished" not in json.loads((run / CLAIM).read_text())
    monkeypatch.setattr(training, "RewardModel", _make_listening_model(judged_queries))
    assert training.main(algorithm, str(config_file)) == 0
    assert json.loads((run / CLAIM).read_text())["finished"]
    # No step is done twice, and none is left out.
    assert len(set(judged_queries)) == len(queries) / share
    assert set(Counter(judged_queries).values()) == {1 if algorithm == "ppo" else 2}
    assert not torch.equal(load_weights(run / "policy"), load_weights(Path(policy)))
    metrics = read_scalars(run / "logs")
    assert set(metrics["judge/ok"]) == {1.0} and "judge/tokens_out" in metrics
    journal = Journal(run / "journal.sqlite")
    assert {row["input"]["query"] for row in journal.export()} <= set(queries)
    journal.close()


@pytest.mark.training
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_checkpoint_that_was_cut_off_is_passed_over(
    algorithm: str,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, sets = config_file.parent / "run", ["save_steps=1"]
    # The judge dies in the third step, and the checkpoint of the second is not whole.
    monkeypatch.setattr(training, "RewardModel", _make_listening_model([], deaf_after=2))
    with pytest.raises(BudgetExceeded, match="goes on from the last checkpoint"):
        training.main(algorithm, str(config_file), sets)
    assert not (run / "policy").exists()
    _damage_checkpoint(run)
    monkeypatch.setattr(training, "RewardModel", _make_listening_model([]))
    assert training.main(algorithm, str(config_file), sets) == 0
    assert "-1\n" in capsys.readouterr().err.partition("goes on from ")[2]
    assert (run / "policy").is_dir()


def _damage_checkpoint(run: Path) -> None:
    """Leave the newest checkpoint as a kill would, halfway through writing it."""
    if (run / "ppo-2").is_dir():
        (run / "ppo-2").rename(run / ".ppo-2")
        (run / ".ppo-2/policy/config.json").unlink()
    else:
        (run / "checkpoint-2/trainer_state.json").write_text("")
        assert (run / "checkpoint-1/whole.json").is_file()


def _make_listening_model(queries: list[str], deaf_after: int | None = None) -> Any:
    """A reward model that lists the queries of its batches, and dies after so many of them."""

    class Listening(RewardModel):
        calls = 0

        def listen(self, candidates: Any) -> None:
            self.calls += 1
            if deaf_after is not None and self.calls > deaf_after:
                raise BudgetExceeded("the judge has died")
            queries.extend(candidate.prompt.text for candidate in candidates)

        def rewards_now(self, candidates: Any) -> Any:
            self.listen(candidates)
            return super().rewards_now(candidates)

        async def rewards(self, candidates: Any, budgets: Any = None) -> Any:
            self.listen(candidates)
            return await super().rewards(candidates, budgets)

    return Listening


@pytest.mark.parametrize(("rows", "batch"), [(8, 4), (5, 4), (3, 8)], ids=str)
def test_a_resumed_ppo_reads_what_an_uninterrupted_one_reads_next(rows: int, batch: int) -> None:
    whole = prompt_order(rows, 7, 0, 6 * batch)
    assert len(whole) == 6 * batch
    for start in range(0, len(whole) - rows + 1, rows):
        assert sorted(whole[start : start + rows]) == list(range(rows))
    for finished_steps in range(6):
        assert (
            prompt_order(rows, 7, finished_steps * batch, 6 * batch)
            == whole[finished_steps * batch :]
        )
    assert prompt_order(rows, 8, 0, 6 * batch) != whole


@pytest.mark.training
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_default_judge_rewards_the_135m_policy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sets = [f"output={run}", "steps=1", "batch_size=4", "learner.max_response_tokens=16"]
    command = [sys.executable, "-m", "autoj_reward.cli", "train", "grpo"]
    flags = [word for setting in sets for word in ("--set", setting)]
    result = subprocess.run(
        [*command, "--config", "configs/trainers/grpo.yaml", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    metrics = read_scalars(run / "logs")
    assert metrics["judge/ok"] == [1.0] and 1 <= metrics["judge/raw"][0] <= 10
    assert metrics["judge/wait_seconds"][0] > 0
    assert (run / "policy" / "model.safetensors").is_file()


@pytest.mark.training
def test_rejection_sampling(tmp_path: Path, config_file: Path, policy: str) -> None:
    settings = json.loads(config_file.read_text(encoding="utf-8"))
    config = {
        "input": settings["input"],
        "output": str(tmp_path / "rejection"),
        "policy": {"kind": "fake", "model": policy, "n": 4},
        "judge": {"kind": "fake"},
        "view": "rating",
        "rounds": 2,
        "sft": {"batch_size": 2, "learning_rate": 1e-3, "save_steps": 1},
    }
    path = tmp_path / "rejection.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert training.main("rejection-sampling", str(path)) == 0
    first, second = (tmp_path / "rejection" / f"round-{n}" for n in (1, 2))
    rows = [json.loads(line) for line in (first / "sft.jsonl").read_text().splitlines()]
    assert [row["prompt"][0]["content"] for row in rows] == QUERIES
    assert rows[0]["source"]["policy"] == policy and rows[0]["source"]["of"] == 4
    pairs = [json.loads(line) for line in (first / "pairs.jsonl").read_text().splitlines()]
    assert all(p["source"]["rejected_value"] < p["source"]["value"] for p in pairs)
    assert not torch.equal(load_weights(first / "policy"), load_weights(second / "policy"))
    written_at = (second / "policy" / "model.safetensors").stat().st_mtime_ns
    assert training.main("rejection-sampling", str(path)) == 0
    assert (second / "policy" / "model.safetensors").stat().st_mtime_ns == written_at


def test_rejection_sampling_trains_under_the_prompt_it_samples_under(
    tmp_path: Path, config_file: Path, policy: str
) -> None:
    job = BestOfNConfig(
        input=json.loads(config_file.read_text(encoding="utf-8"))["input"],
        output=tmp_path / "job",
        policy=PolicyConfig(kind="fake", model=policy, n=3, system="Be brief."),
        judge=JudgeConfig(kind="fake", script={"ratings": {"good": 9, "fair": 6, "poor": 2}}),
        view="rating",
    )
    assert job.policy is not None
    # The second query's best was cut off, and the third's worst.
    finished = [(True, True, True), (False, True, True), (True, True, False), (True, False, False)]
    journal = Journal(job.output / "journal.sqlite")
    for query, ended in zip(QUERIES, finished, strict=True):
        samples = SampledResponses(("good", "fair", "poor"), (None,) * 3, ended, 9)
        journal.put_samples(policy_name(job.policy), query, samples)
    journal.close()
    best_of_n.run_job(job)
    rows = chosen_rows(job, 0.0, "p", 1)
    kept_queries = [QUERIES[0], QUERIES[2], QUERIES[3]]
    system = {"role": "system", "content": "Be brief."}
    prompts = [[system, {"role": "user", "content": query}] for query in kept_queries]
    assert [row["prompt"] for row in rows.sft] == prompts
    assert {row["completion"][0]["content"] for row in rows.sft} == {"good"}
    assert [row["prompt"] for row in rows.pairs] == prompts[:2]
    assert [row["rejected"][0]["content"] for row in rows.pairs] == ["poor", "fair"]
    assert rows.cut == 1
    assert chosen_rows(job, 100.0, "p", 1) == TrainingRows((), (), 0)


@pytest.mark.parametrize(
    "choice",
    [
        {"tie_break": ["first"], "shortlist": 2},
        {"relative": {"by": "comparisons"}},
        {"rubric": {"by": "items"}, "judge": {"kind": "fake", "format": "rubric-item"}},
        {"panel": {"second": {"judge": {"kind": "fake"}}}, "reduce": "mean"},
    ],
    ids=["shortlist", "relative", "rubric", "panel"],
)
def test_rejection_sampling_chooses_by_the_same_block_as_best_of_n(
    tmp_path: Path, choice: dict[str, Any]
) -> None:
    data = {"input": "in.jsonl", "output": str(tmp_path), "policy": {"kind": "fake", "model": "p"}}
    config = check(RejectionSamplingConfig, data | choice, "run.yaml")
    job = job_of_round(config, "q", 2)
    for name in choice:
        assert (
            getattr(job, name) == getattr(config, name) != BestOfNConfig.model_fields[name].default
        )
    assert job.policy is not None and job.policy.model == "q"


def test_rejection_sampling_trains_on_the_best_of_a_ranking(
    tmp_path: Path, config_file: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"query": "q", "responses": ["a", "a long one", "some"]}) + "\n")
    job = BestOfNConfig(
        input=str(source),
        output=tmp_path / "job",
        judge=JudgeConfig(kind="fake"),
        relative=RelativeConfig(by="comparisons"),
    )
    job = job.model_copy(update={"view": best_of_n.build_job(job).choice.view})
    best_of_n.run_job(job)
    rows = chosen_rows(job, 0.0, "p", 1)
    assert [row["completion"][0]["content"] for row in rows.sft] == ["a long one"]
    assert [row["rejected"][0]["content"] for row in rows.pairs] == ["a"]


TYPOS = {
    "grpo": ("num_iteration", "trainer.num_iterations"),
    "rloo": ("num_iteration", "trainer.num_iterations"),
    "ppo": ("kl_coeff", "trainer.kl_coef"),
    "online-dpo": ("max_new_token", "trainer.max_new_tokens"),
}


@pytest.mark.parametrize("algorithm", TYPOS)
def test_a_typo_under_trainer_is_found_before_anything_starts(
    algorithm: str, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedError(Exception):
        """The judge would start now."""

    def start_judge(*_: Any) -> Any:
        raise StartedError

    monkeypatch.setattr(training, "beside_judge", start_judge)
    typo, right_key = TYPOS[algorithm]
    output = config_file.parent / "typo"
    sets = (f"output={output}", "seed=1")
    with pytest.raises(ConfigError, match=f"'trainer.{typo}'.*did you mean {right_key}\\?"):
        training.main(algorithm, str(config_file), (*sets, f"trainer.{typo}=2"))
    assert not output.exists()
    with pytest.raises(StartedError):
        training.main(algorithm, str(config_file), (*sets, f"{right_key}=2"))


def test_thinking_that_the_policys_template_opens_is_known_to_each_judge(smollm2: Any) -> None:
    judge = {"kind": "fake", "script": {"ratings": {"good": 9}}}
    own = judge | {"thinking_marks": {"<a>": "</a>"}}
    parts = {"own": {"judge": own}, "rule": {"function": "math:sqrt"}}
    config = RewardConfig.model_validate(
        {"judge": judge, "view": "rating", "parts": parts, "audit": {"judge": judge}}
    )
    assert mark_opened_thinking(config, smollm2) == config
    template = smollm2.chat_template
    opening = SimpleNamespace(
        apply_chat_template=lambda *args, **more: smollm2.apply_chat_template(
            *args, chat_template=f"{template}<think>\n", **more
        )
    )
    marked = mark_opened_thinking(config, opening)
    assert marked.parts == config.parts and marked.audit and config.audit
    assert marked.audit.judge == marked.judge != config.judge
    alone = marked.model_copy(update={"parts": {}, "audit": None})
    with RewardModel(alone) as model:
        answers = "So.</think>good", "<think>So.</think>good", "So."
        rewards = model.rewards_now([Candidate("Why?", answer) for answer in answers])
    assert [reward.value for reward in rewards] == [9.0, 9.0, 1.0]
    assert rewards[-1].judgement.outcome == "no_answer"


def test_a_typo_under_sft_trainer_is_found_before_anything_starts(
    tmp_path: Path, policy: str
) -> None:
    config = {
        "input": "rows.jsonl",
        "output": str(tmp_path / "out"),
        "policy": {"model": policy},
        "sft": {"trainer": {"warmup_step": 1}},
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"did you mean sft\.trainer\.warmup_steps\?"):
        training.main("rejection-sampling", str(path))
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_trained(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain_error(kind: type[Exception], *sets: str) -> str:
        with pytest.raises(kind) as caught:
            training.main("grpo", str(config_file), sets)
        return str(caught.value)

    assert "every prompt is over" in explain_error(InputError, "learner.max_prompt_tokens=2")
    run = f"output={config_file.parent / 'other'}"
    assert "no multiple of" in explain_error(ConfigError, run, "device_batch_size=3")
    assert "another config" in explain_error(ConfigError, run, "seed=5")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start it with `autoj serve`" in explain_error(
        ConfigError, f"output={config_file.parent / 'third'}"
    )
    with pytest.raises(ConfigError, match="runs in one process"):
        training.main("rejection-sampling", str(config_file))
