"""Groups judged beside each other, at every door: Python, a service, the command line, best-of-N
jobs and trainers' rewards."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward import Candidate, Judge, JudgeConfig, RewardModel
from autoj_reward.cli import main as cli
from autoj_reward.client import judging
from autoj_reward.client.session import open_judge
from autoj_reward.config import (
    BestOfNConfig,
    FailureConfig,
    RankConfig,
    RelativeConfig,
    ReplicaConfig,
    RewardConfig,
    ServiceConfig,
    check,
)
from autoj_reward.errors import ConfigError, InputError
from autoj_reward.journal import Journal
from autoj_reward.service.api import make_app
from autoj_reward.service.gateway import Limits
from autoj_reward.trainer.parts import Reward
from autoj_reward.trainer.ppo import PPOReward
from autoj_reward.trainer.prompts import candidate
from autoj_reward.trainer.trl import GRPOReward, OnlineDPOReward
from autoj_reward.types import Outcome
from tests.service.test_api import HEADERS, metric, serving

RATINGS = {"good": 9, "fair": 5, "poor": 2}
TEXTS = ["poor", "good", "fair", "good"]
LISTWISE = RelativeConfig(by="listwise")
PAIRS_BODY = {"by": "comparisons"}
PAIRS = RelativeConfig(by="comparisons", schedule="all")


def make_judge(fmt: str = "listwise", **script: Any) -> JudgeConfig:
    return JudgeConfig(kind="fake", format=fmt, script={"ratings": RATINGS} | script)


def require_order(scores: Any) -> None:
    poor, good, fair, again = scores
    assert good == again and 0 <= poor < fair < good <= 1


# --- Python


def test_a_judge_ranks_listwise_or_by_comparisons() -> None:
    with Judge(make_judge()) as listwise:
        ranking = listwise.rank("Why?", TEXTS)
        require_order(ranking.scores)
        assert len(ranking.orders) == 2 and not ranking.matches
        with pytest.raises(InputError, match="a group of 1"):
            listwise.rank("Why?", ["good"])
        with pytest.raises(ConfigError, match="such as general, or set"):
            listwise.rank("Why?", TEXTS, relative=PAIRS)
    with Judge(make_judge("autoj-en")) as pairs:  # the longer response wins, by script
        ranking = pairs.rank("Why?", ["a", "aa", "aaa"])
        first, second, third = ranking.scores
        assert first and second and third and first < second < third
        with pytest.raises(ConfigError, match="such as listwise"):
            pairs.rank("Why?", TEXTS, relative=LISTWISE)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"by": "listwise", "schedule": "all"}, "by is listwise, which does not use schedule"),
        ({"by": "listwise", "orders": "both"}, "listwise judges 1 or more orders"),
        ({"by": "listwise", "orders": 0}, "listwise judges 1 or more orders"),
        ({"by": "comparisons", "orders": 3}, "comparisons take both or alternate"),
        ({"by": "comparisons", "schedule": "all", "neighbours": 2}, "neighbours is of the"),
        ({"by": "comparisons", "rounds": 3}, "'relative.rounds', which was removed: the schedule"),
        ({"by": "comparisons", "pivot": "best"}, "'relative.pivot', which was removed: choose"),
        ({"by": "comparisons", "schedule": "swiss"}, "'all', 'circular' or 'reference' (value: 's"),
    ],
)
def test_keys_that_cannot_count_are_refused(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(RankConfig, {"relative": how}, "run.yaml")
    assert why in str(error.value)


# --- a service


def test_a_service_ranks_a_group_and_serves_clients_that_do() -> None:
    import httpx

    async def ask() -> None:
        async with open_judge(make_judge()) as judge_client:
            app = make_app(judge_client, "secret")
            with serving(app) as port:
                address = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(base_url=address, headers=HEADERS) as client:
                    body = {"query": "Why?", "responses": TEXTS}
                    ranking = (await client.post("/v1/rank", json=body)).json()
                    wrong = body | {"relative": {"by": "comparisons"}}
                    refusal = await client.post("/v1/rank", json=wrong)
                    costly = body | {"relative": {"by": "listwise", "orders": 10**9}}
                    too_many = await client.post("/v1/rank", json=costly)
                    gone = body | {"relative": {"by": "comparisons", "schedule": "swiss"}}
                    removed = await client.post("/v1/rank", json=gone)
                    lone = await client.post("/v1/rank", json=body | {"responses": ["a"]})
                remote = await asyncio.to_thread(_rank_remotely, address)
            require_order(ranking["scores"])
            assert len(ranking["orders"]) == len(ranking["judgements"]) == 2
            assert refusal.status_code == 422 and "pairwise protocol" in refusal.json()["detail"]
            assert removed.status_code == 422 and "circular" in removed.json()["detail"]
            assert lone.status_code == too_many.status_code == 422
            assert "a request may cost 1024" in too_many.json()["detail"]
            require_order(remote)
            assert metric(app, "autoj_judgements_total", kind="group", outcome="ok") == 4

    asyncio.run(ask())


@pytest.mark.parametrize("fmt", ["listwise", "autoj-en"])
def test_a_text_that_cannot_be_judged_costs_itself_or_its_query(fmt: str) -> None:
    import httpx

    half = "half \ud83d"

    async def ask() -> None:
        async with open_judge(make_judge(fmt)) as judge_client:
            app = make_app(judge_client, "secret")
            transport = httpx.ASGITransport(app.guard)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://service", headers=HEADERS
            ) as client:

                async def rank(query: str, *responses: str) -> dict[str, Any]:
                    body = json.dumps({"query": query, "responses": responses})
                    answer = await client.post("/v1/rank", content=body)
                    assert answer.status_code == 200, answer.text
                    ranking: dict[str, Any] = answer.json()
                    return ranking

                whole, part = await rank("Why?", *TEXTS), await rank("Why?", half, *TEXTS)
                assert part["scores"] == [None, *whole["scores"]]
                assert "lone surrogate" in part["reasons"][0]
                none = await rank(half, *TEXTS)
                assert none["scores"] == [None] * 4
                assert all("lone surrogate" in reason for reason in none["reasons"])

    asyncio.run(ask())


def test_a_service_gathers_a_group_from_callers_that_send_one_response_each() -> None:
    import httpx

    async def ask() -> None:
        async with open_judge(make_judge()) as judge_client:
            app = make_app(judge_client, "secret")
            with serving(app) as port:
                address = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(base_url=address, headers=HEADERS) as client:

                    async def score(text: str, deadline_s: float = 60, **more: Any) -> Any:
                        body: dict[str, Any] = {"group_id": "g", "group_size": 4} | more
                        body["candidates"] = [{"query": "Why?", "response": text}]
                        headers = {"X-Deadline-S": str(deadline_s)}
                        return await client.post("/v1/score", json=body, headers=headers)

                    whole = await asyncio.gather(*map(score, TEXTS))
                    part = await asyncio.gather(
                        *(score(text, 4, group_id="h") for text in ("poor", "good"))
                    )
                    wrong = [
                        await score("good", relative={"by": "comparisons"}),
                        await score("good", group_size=None),
                        await score("good", group_id=None, group_size=None, relative=PAIRS_BODY),
                    ]
            require_order([answer.json()["judgements"][0]["rating"]["value"] for answer in whole])
            [flags] = {tuple(answer.json()["judgements"][0]["flags"]) for answer in part}
            assert flags == ("partial_group",)
            assert [answer.status_code for answer in wrong] == [422] * 3
            assert "pairwise protocol" in wrong[0].json()["detail"]
            assert metric(app, "autoj_group_members_total", answer="complete") == 4
            assert metric(app, "autoj_judgements_total", kind="group", outcome="ok") == 4

    asyncio.run(ask())


def make_members(*texts: str) -> list[Candidate]:
    """Return a group whose other members may come in other calls."""
    return [replace(candidate(TALK, text), group_id="g", group_size=len(texts)) for text in texts]


TALK = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Why what?"},
    {"role": "user", "content": "Why is the sky blue?"},
]


@pytest.fixture
def ask_service(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that has a trainer's reward model ask a service; see `RewardModel`."""
    monkeypatch.setenv("AUTOJ_TOKEN", "secret")

    def ask(
        candidates: list[Candidate], limits: Limits | None = None, deadline_s: float = 60.0
    ) -> list[Reward]:
        async def serve() -> list[Reward]:
            async with open_judge(make_judge()) as judge_client:
                with serving(make_app(judge_client, "secret", limits)) as port:
                    own_judge = make_judge().model_copy(
                        update={"serve": ReplicaConfig(deadline_s=deadline_s)}
                    )
                    service = ServiceConfig(address=f"http://127.0.0.1:{port}")
                    with RewardModel(make_reward_config(judge=own_judge, service=service)) as model:
                        return await model.rewards(candidates)

        return asyncio.run(serve())

    return ask


def test_a_trainers_members_are_gathered_by_its_service(ask_service: Any) -> None:
    """Conversations too; what the service would read in another way abstains."""
    require_order([result.value for result in ask_service(make_members(*TEXTS))])
    ended = [*TALK, {"role": "assistant", "content": "It"}]
    unread = replace(candidate(ended, "good"), group_id="g", group_size=2)
    [result] = ask_service([unread])
    assert result.value is None and "ends with the assistant" in result.judgement.reason


def test_a_member_is_sent_again_until_its_deadline(ask_service: Any) -> None:
    [result] = ask_service(make_members("good", "poor")[:1], Limits(requests=0), 0.5)
    assert result.judgement.outcome is Outcome.UNAVAILABLE
    assert "no answer within 0.5 s; last: " in result.judgement.reason
    assert "429" in result.judgement.reason


def test_members_that_come_alone_need_a_service(reward: RewardModel) -> None:
    with pytest.raises(ConfigError, match=r"name it in reward\.service"):
        reward.rewards_now(make_members("good", "poor"))


def _rank_remotely(address: str) -> Any:
    os.environ["AUTOJ_TOKEN"] = "secret"
    try:
        with Judge.connect(address, judge=make_judge()) as remote:
            return remote.rank("Why?", TEXTS).scores
    finally:
        del os.environ["AUTOJ_TOKEN"]


# --- the command line


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_autoj_rank_names_bad_rows_and_asks_for_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"query": "Why?", "responses": TEXTS, "id": 7},
        {"query": "Lone?", "responses": ["good"]},
        {"query": "Who?", "responses": ["poor", "", "good"]},
    ]
    source, output = write(tmp_path / "groups.jsonl", rows), str(tmp_path / "ranked.jsonl")
    log = tmp_path / "asked"
    script = json.dumps({"ratings": RATINGS, "log": str(log)})
    run = ["rank", "--input", source, "--output", output, "--set", "judge.kind=fake"]
    run += ["--set", "judge.format=listwise", "--set", f"judge.script={script}"]
    assert cli.main(run) == 0
    printed = capsys.readouterr().out
    assert "2 rows: 2 ok; 1 left out" in printed
    why, who = read(output)
    require_order(why["scores"])
    assert (why["id"], why["best"], why["outcome"]) == (7, 1, "ok")
    assert (
        who["best"] == 2
        and [set(order) for order in why["orders"]] == [{"shown", "scores", "forced"}] * 2
    )
    logged_prompts = log.read_text()
    Path(output).unlink()
    assert cli.main(run) == 0
    assert read(output) == [why, who] and log.read_text() == logged_prompts


# --- best-of-N


def test_a_best_of_n_job_chooses_by_scores(tmp_path: Path) -> None:
    rows = [{"query": "Why?", "responses": TEXTS}, {"query": "Lone?", "responses": ["poor"]}]
    source, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out"
    config = {
        "input": source,
        "output": str(output),
        "judge": make_judge().model_dump(mode="json"),
        "relative": {"by": "listwise", "orders": 3},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert cli.main(["best-of-n", "--config", str(tmp_path / "run.yaml")]) == 0
    why, lone = read(output / "selections.jsonl")
    assert (why["response"], why["tied"], why["rule"]) == ("good", [1, 3], "first")
    require_order(why["relative"]["scores"])
    assert why["ratings"] == why["relative"]["scores"]
    assert (lone["response"], lone["rule"], lone["outcome"]) == ("poor", "only", "input_rejected")
    assert (output / "report.html").is_file()


GROUP_OF_8 = [f"{n} " + "x" * (n * 3 % 8) for n in range(8)]
METHODS: dict[str, dict[str, Any]] = {
    "listwise": {"by": "listwise", "orders": 8},
    "pairs": {"by": "comparisons", "schedule": "all"},
}
RESULT = {"best-of-n": "selections.jsonl", "rank": "ranked.jsonl"}


class GroupJob:
    """A run of one group of eight, as the command's user starts it."""

    def __init__(self, folder: Path, command: str, method: str) -> None:
        folder.mkdir()
        output = folder / "out"
        self.log, self.result = folder / "asked", output / RESULT[command]
        self.journal = output / "journal.sqlite"
        output.mkdir()
        if command == "rank":
            self.journal = Path(f"{self.result}.journal.sqlite")
        source = write(folder / "in.jsonl", [{"query": "Why?", "responses": GROUP_OF_8}])
        fmt = "listwise" if method == "listwise" else "autoj-en"
        slow = make_judge(fmt, log=str(self.log), latency_s=0.5)
        judge_data = slow.model_dump(mode="json", exclude_defaults=True)
        config: dict[str, Any] = {"judge": judge_data, "relative": METHODS[method]}
        places = ["--input", source, "--output", str(self.result)]
        if command == "best-of-n":
            config |= {"input": source, "output": str(output)}
            places = []
        (folder / "run.yaml").write_text(json.dumps(config))
        self.arguments = [command, "--config", str(folder / "run.yaml"), *places]

    def run(self) -> None:
        assert cli.main(self.arguments) == 0

    def kill_midway(self, after: int) -> None:
        """Start the run, one judgement at a time, and kill it once so many are in the journal."""
        alone = ["--set", "judge.serve.max_ongoing=1"]
        command = [sys.executable, "-m", "autoj_reward.cli", *self.arguments, *alone]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            until = time.monotonic() + 600
            while len(self.read_recorded_responses()) < after:
                assert process.poll() is None, process.communicate()[1].decode()
                assert time.monotonic() < until
                time.sleep(0.01)
        finally:
            process.kill()
            process.communicate()

    def read_recorded_responses(self) -> list[list[str]]:
        """Return the responses of each recorded judge input, in the order shown."""
        if not self.journal.exists():
            return []
        with closing(Journal(self.journal)) as journal:
            return [record["input"]["responses"] for record in journal.export()]

    def read_logged_responses(self) -> list[list[str]]:
        return read(self.log) if self.log.exists() else []  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("command", RESULT)
def test_a_run_killed_within_a_group_goes_on(tmp_path: Path, command: str, method: str) -> None:
    whole, job = (
        GroupJob(tmp_path / "whole", command, method),
        GroupJob(tmp_path / "own", command, method),
    )
    whole.run()
    job.kill_midway(after=2)
    recorded_responses, before = job.read_recorded_responses(), len(job.read_logged_responses())
    assert (
        2 <= len(recorded_responses) < len(whole.read_recorded_responses())
        and not job.result.exists()
    )
    job.run()
    [row], [expected_row] = read(job.result), read(whole.result)
    assert row | {"judge": None} == expected_row | {"judge": None}  # its script names its own log
    later_responses = job.read_logged_responses()[before:]
    assert [responses for responses in later_responses if responses in recorded_responses] == []
    assert len(recorded_responses) + len(later_responses) == len(whole.read_recorded_responses())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("command", RESULT)
def test_a_complete_journal_starts_no_judge(
    tmp_path: Path,
    command: str,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = GroupJob(tmp_path / "job", command, method)
    job.run()
    first = capsys.readouterr().err
    assert f"{judging.SCORED_BY[METHODS[method]['by']]}, distributions" in first
    rows = read(job.result)
    job.result.unlink()
    monkeypatch.setattr(judging, "open_judge", None)
    job.run()
    assert read(job.result) == rows
    for progress in (first, capsys.readouterr().err):
        assert (
            "judging: 100%" in progress
            and f"{len(job.read_recorded_responses())}/{len(job.read_recorded_responses())}"
            in progress
        )


def test_progress_ends_at_100_percent_below_its_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies are compared once, and a Swiss tournament may end before its last round."""
    source = write(tmp_path / "in.jsonl", [{"query": "Why?", "responses": TEXTS}])
    config = {
        "input": source,
        "output": str(tmp_path / "out"),
        "judge": make_judge("autoj-en").model_dump(mode="json", exclude_defaults=True),
        "relative": {"by": "comparisons", "schedule": "all"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert cli.main(["best-of-n", "--config", str(tmp_path / "run.yaml")]) == 0
    assert "judging: 100%" in (progress := capsys.readouterr().err) and " 6/6 " in progress


@pytest.mark.parametrize("more", [{"shortlist": 2}, {"view": "rating"}])
def test_what_relative_stands_in_place_of_is_refused_beside_it(more: dict[str, Any]) -> None:
    data = {"input": "i", "output": "o", "relative": {"by": "comparisons"}} | more
    with pytest.raises(ConfigError, match="leave"):
        check(BestOfNConfig, data, "run.yaml")


# --- trainers


def make_reward_config(**more: Any) -> RewardConfig:
    data = {"judge": make_judge(fail={"lost": "truncated"}), "relative": LISTWISE} | more
    return RewardConfig(failures=FailureConfig(budget=0.9), **data)


@pytest.fixture
def reward() -> Iterator[RewardModel]:
    with RewardModel(make_reward_config()) as model:
        yield model


def make_batch(*groups: list[str]) -> dict[str, Any]:
    prompts = [f"Query {n}" for n, group in enumerate(groups) for _ in group]
    return {"prompts": prompts, "completions": [text for group in groups for text in group]}


def test_grpo_gets_scores_within_each_group(reward: RewardModel) -> None:
    logged: dict[str, float] = {}
    batch = make_batch(TEXTS, ["good", "lost"], ["fair", "fair"])
    scores = asyncio.run(GRPOReward(reward).judge(**batch, log_metric=logged.__setitem__))
    require_order(scores[:4])
    assert scores[4:6] == [None, None]  # their judgement failed
    assert scores[6:] == [0.5, 0.5]
    assert logged["judge/truncated"] == pytest.approx(2 / 8)
    assert "judge/order_spread" in logged and "judge/position_correlation" in logged


def test_online_dpo_gets_the_scores_of_each_pair(reward: RewardModel) -> None:
    prompts, first = ["Query 0", "Query 1", "Query 2"], ["good", "lost", "fair"]
    scores = OnlineDPOReward(reward).judge(
        prompts * 2, [*first, "poor", "good", "fair"], ties_left_out=True
    )
    better, lost, tied, worse, without, copy = scores
    assert better is not None and worse is not None and 0 <= worse < better <= 1
    assert (lost, without) == (None, None) and tied == copy == 0.5


def test_a_group_of_one_is_an_error_that_names_the_key(reward: RewardModel) -> None:
    with pytest.raises(ConfigError, match=r"reward\.relative is set.*one response of 'Query 1'"):
        GRPOReward(reward).judge_sync(**make_batch(["good", "poor"], ["fair"]))


def test_a_response_whose_company_is_unusable_abstains(reward: RewardModel) -> None:
    pair = [Candidate("Why?", "good"), Candidate("Why?", "bad", unusable="no text")]
    results = reward.rewards_now(pair)
    assert [result.value for result in results] == [None, None]
    assert "cannot be judged" in results[0].judgement.reason


def test_half_a_surrogate_pair_costs_its_response_alone(reward: RewardModel) -> None:
    batch = make_batch([*TEXTS, "half \ud83d"], ["good", "poor"])
    scores = asyncio.run(GRPOReward(reward).judge(**batch))
    require_order(scores[:4])
    assert scores[4] is None and None not in scores[5:]
    queries = [Candidate("half \ud83d", text) for text in TEXTS[:2]]
    results = reward.rewards_now([*queries, *(Candidate("Why?", text) for text in TEXTS)])
    assert [result.judgement.outcome for result in results[:2]] == [Outcome.INPUT_REJECTED] * 2
    require_order([result.value for result in results[2:]])


def test_groups_of_other_queries_under_one_id_abstain(reward: RewardModel) -> None:
    mixed = [Candidate(query, "good", group_id="g") for query in ("Why?", "Who?")]
    assert [result.judgement.outcome for result in reward.rewards_now(mixed)] == [
        Outcome.INPUT_REJECTED
    ] * 2


def test_a_relative_judge_is_a_part_beside_others() -> None:
    parts = {"pairs": {"judge": make_judge("autoj-en"), "relative": PAIRS, "weight": 3.0}}
    config = make_reward_config(relative=None, judge=make_judge("autoj-en"), parts=parts)
    with RewardModel(config) as model:
        results = model.rewards_now(
            [Candidate("Why?", text) for text in ("poor", "longest", "mid")]
        )
    for result in results:
        rating, win_rate = result.parts["judge"], result.parts["pairs"]
        assert rating is not None and win_rate is not None and result.raw is not None
        assert result.raw == pytest.approx(((rating - 1) / 9 + 3 * win_rate) / 4)
    poor, longest, mid = (result.parts["pairs"] for result in results)
    assert mid and poor and longest and mid < poor < longest  # the longer one wins, by script


def test_a_judge_that_cannot_is_refused_before_anything_is_learned() -> None:
    with pytest.raises(ConfigError, match=r"reward\.relative\.by is listwise"):
        RewardModel(make_reward_config(judge=make_judge("autoj-en"))).open()


def test_trainers_without_groups_refuse(reward: RewardModel) -> None:
    with pytest.raises(ConfigError, match=r"reward\.relative.*PPO samples one response"):
        PPOReward(reward, None, {})
