"""NeMo Gym's own servers with a scripted judge: `verify`, and `genrm_compare` through a service."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.reference_format import write_reference_format
from tests.trainer.conftest import BY_ITEMS, FRAMEWORKS, ITEMS, SHOWN

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code


@pytest.fixture
def gym(theirs: Any) -> Iterator[Any]:
    """Yield Gym's module of server classes, and reset its HTTP client."""
    theirs(FRAMEWORKS, "nemo_gym")
    utils: Any = importlib.import_module("nemo_gym.server_utils")
    yield utils
    utils._GLOBAL_AIOHTTP_CLIENT = None


def client(gym: Any, **servers: Any) -> Any:
    """Return Gym's client for servers, {name: port}."""
    at = {
        name: {"any_kind": {"any": {"host": "127.0.0.1", "port": port}}}
        for name, port in servers.items()
    }
    config = importlib.import_module("omegaconf").OmegaConf.create(at)
    head = gym.BaseServerConfig(host="127.0.0.1", port=1)
    return gym.ServerClient(head_server_config=head, global_config_dict=config)


def said(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return a response of the policy."""
    content = [{"type": "output_text", "text": part, "annotations": []} for part in parts]
    message = {"type": "message", "role": "assistant", "status": "completed", "id": "m"}
    thought = {"type": "reasoning", "id": "r", "summary": []}
    return {
        "id": "r", "object": "response", "created_at": 0.0, "model": "policy", "tools": [],
        "output": [thought, message | {"content": content}],
        "parallel_tool_calls": False, "tool_choice": "none",
    } | more  # fmt: skip


@pytest.fixture
def verify(gym: Any) -> Any:
    """Return a function that has our resources server verify a row, over Gym's own routes."""
    from autoj_reward.trainer.nemo_gym import JudgeResourcesServer, JudgeServerConfig

    config = JudgeServerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="judge")
    server = JudgeResourcesServer(config=config, server_client=client(gym))

    def ask(response: dict[str, Any], asked: Any = "Why?", **row: Any) -> Any:
        body = {"responses_create_params": {"input": asked}, "response": response} | row
        app = server.setup_webserver()
        return TestClient(app, raise_server_exceptions=False).post("/verify", json=body)

    return ask


ASKED: dict[str, Any] = {
    "text": "Why?",
    "message": [{"role": "user", "content": "Why?"}],
    "parts, and a call of a tool": [
        {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ],
}


@pytest.mark.parametrize("case", ASKED)
def test_a_row_is_rewarded(verify: Any, named: Any, case: str) -> None:
    named()
    found = verify(said("good"), ASKED[case]).json()
    assert found["reward"] == 9.0 and found["mask_sample"] is False
    assert found["judge_ok"] == 1.0 and found["judge_raw"] == 9.0
    assert found["response"]["output"][1]["content"][0]["text"] == "good"


@pytest.mark.parametrize("shows", SHOWN)
def test_calls_and_their_results_are_turns(verify: Any, named: Any, shows: str) -> None:
    named(shows=shows)
    response = said("good")
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "blue"}
    response["output"][1:1] = [call, result]
    assert verify(response).json()["reward"] == SHOWN[shows]


KNOWN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "the expected answer": ({"expected_answer": 4, "id": 7}, {"reference": "4"}),
    "fields by name": (
        {"reference": "4", "rubric": "exact"}, {"reference": "4", "rubric": "exact"}
    ),
    "as older rows have them": (
        {"verifier_metadata": {"expected_answer": "4"}, "rubric": "exact"},
        {"reference": "4", "rubric": "exact"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_a_rows_own_fields_are_the_context(
    verify: Any, named: Any, case: str, tmp_path: Path
) -> None:
    row, context = KNOWN[case]
    model = named(fmt=str(write_reference_format(tmp_path / "marks")))
    talk = [*ASKED["message"], {"role": "assistant", "content": "So."}, *ASKED["message"]]
    found = verify(said("good"), talk, **row).json()
    assert found["reward"] == 9.0 and found.items() >= row.items()
    [(asked, _)] = model.recent()
    assert dict(asked.context) == context and len(asked.context.turns) == 3


@pytest.mark.parametrize("row", [{"rubric": ITEMS}, {"verifier_metadata": {"rubric": ITEMS}}])
def test_a_rows_rubric_is_scored_by_items(verify: Any, named: Any, row: dict[str, Any]) -> None:
    named(**BY_ITEMS, budget=1.0, fallback=0.5)
    found = verify(said("good"), **row).json()
    assert (found["reward"], found["judge_ok"], found["mask_sample"]) == (0.75, 1.0, False)
    bare = verify(said("good")).json()
    assert bare["mask_sample"] is True and "no rubric items" in bare["failure_reason"]


@pytest.mark.parametrize("case", ["lost", "slow"])
def test_a_failed_judgement_is_a_masked_row(verify: Any, named: Any, case: str) -> None:
    named(5.0, budget=1.0, fallback=4.5)
    found = verify(said(case)).json()
    assert found["mask_sample"] is True and found["failure_kind"] == "judge_failed"
    assert found["reward"] == 4.5
    assert found["failure_reason"].startswith(("truncated: ", "unavailable: "))


def test_a_spent_budget_is_no_row(verify: Any, named: Any) -> None:
    named(budget=0.0)
    assert verify(said("lost")).status_code == 500


THEIRS: dict[str, tuple[Any, int]] = {
    "an exception is 500": (ValueError("no"), 500),
    "a JudgeError is 0": ("a judge that is down", 200),
    "None is 500": (None, 500),
    "NaN is sent as null": (float("nan"), 200),
}


@pytest.mark.parametrize("case", THEIRS)
def test_what_gym_does(gym: Any, case: str) -> None:
    from nemo_gym import base_resources_server as theirs
    from nemo_gym.judge import JudgeError

    answer, status = THEIRS[case]

    class Server(theirs.SimpleResourcesServer):
        async def verify(self, body: theirs.BaseVerifyRequest) -> theirs.BaseVerifyResponse:
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, str):
                raise JudgeError(answer)
            return theirs.BaseVerifyResponse(**body.model_dump(), reward=answer)

    Server.verify.__annotations__.update(
        body=theirs.BaseVerifyRequest, **{"return": theirs.BaseVerifyResponse}
    )
    config = theirs.BaseResourcesServerConfig(host="h", port=1, entrypoint="app.py", name="any")
    app = Server(config=config, server_client=client(gym)).setup_webserver()
    body = {"responses_create_params": {"input": "Why?"}, "response": said("good")}
    found = TestClient(app, raise_server_exceptions=False).post("/verify", json=body)
    assert found.status_code == status
    if status == 200:
        reward, masked = (0.0, True) if isinstance(answer, str) else (None, False)
        assert (found.json()["reward"], found.json()["mask_sample"]) == (reward, masked)


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """Serve an app on a free port of the loopback, in this event loop."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))  # a caller waits in its backlog
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def compare(gym: Any, named: Any) -> Any:
    """Return a function that has genrm_compare compare responses through Gym's own model server.

    The address of that server's model is our service.
    """

    async def ask(*texts: str, config: dict[str, Any] | None = None, **failures: Any) -> Any:
        from fastapi import FastAPI
        from resources_servers.genrm_compare import app as genrm
        from responses_api_models.openai_model import app as openai

        from autoj_reward.service.trainers import add_routes

        service = FastAPI()
        add_routes(service, named(**failures))
        gym.set_global_aiohttp_client(gym.GlobalAIOHTTPAsyncClientConfig())
        own = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "any"}
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(gym._GLOBAL_AIOHTTP_CLIENT.close)
            port = await stack.enter_async_context(serving(service))
            model = openai.SimpleModelServer(
                config=openai.SimpleModelServerConfig(
                    **own,
                    openai_base_url=f"http://127.0.0.1:{port}/v1",
                    openai_api_key="secret",
                    openai_model="judge",
                    max_http_attempts=1,
                ),
                server_client=client(gym),
            )
            app = model.setup_webserver()
            model.setup_exception_middleware(app)
            port = await stack.enter_async_context(serving(app))
            server = genrm.GenRMCompareResourcesServer(
                config=genrm.GenRMCompareConfig(
                    **own,
                    genrm_model_server={"type": "responses_api_models", "name": "genrm_model"},
                    genrm_responses_create_params={"input": [], "temperature": 0.6},
                    genrm_parse_retry_sleep_s=0.0,
                    **config or {},
                ),
                server_client=client(gym, genrm_model=port),
            )
            body = genrm.GenRMCompareRequest(
                conversation_history=[{"role": "user", "content": "Why?"}],
                response_objs=[said(text) for text in texts],
            )
            return await server.compare(body)

    return ask


def scores(rating: float) -> float:
    """Return Gym's score, 1 to 5, for a rating of 1 to 10."""
    return 1 + 4 * (rating - 1) / 9


async def test_genrm_compare_reads_our_scores(compare: Any) -> None:
    found = await compare("good", "poor")
    assert found.rewards == pytest.approx([scores(9), scores(2)])
    first = found.comparison_results[0]
    assert first["ranking"] == pytest.approx(3.5 - 2.5 * 7 / 9)
    assert found.metrics["tiebreak_usage_rate"] == 0.0


async def test_equal_scores_are_ranked_by_comparison(compare: Any) -> None:
    found = await compare("good", "good </s>")
    assert found.metrics["tiebreak_usage_rate"] == 1.0
    assert {row["ranking"] for row in found.comparison_results} <= {3.0, 3.5, 4.0}


async def test_a_failed_judgement_is_the_middle(compare: Any) -> None:
    found = await compare("good", "lost", budget=1.0)
    assert found.rewards == pytest.approx([scores(9), 3.0])


RELATIVE: dict[str, Any] = {"fmt": "listwise", "more": {"relative": {"by": "listwise"}}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the responses of each call of a reward model."""
    from autoj_reward.trainer.reward import RewardModel

    found, own = list[list[str]](), RewardModel.rewards

    async def seen(self: RewardModel, candidates: Any, budgets: Any = None) -> Any:
        found.append([one.response for one in candidates])
        return await own(self, candidates, budgets)

    monkeypatch.setattr(RewardModel, "rewards", seen)
    return found


@pytest.mark.parametrize("strategy", ["circular", "all_pairs"])
async def test_all_comparisons_of_a_prompt_are_answered_from_one_judgement(
    compare: Any, calls: list[list[str]], strategy: str
) -> None:
    config = {"comparison_strategy": strategy, "num_judges_per_comparison": 2}
    texts = ("good", "poor", "average", "good")
    found = await compare(*texts, config=config, **RELATIVE)
    assert [sorted(texts) for texts in calls] == [["average", "good", "poor"]]
    good, poor, average, again = found.rewards
    assert 1 <= poor < average < good <= 5 and good == pytest.approx(again)
    rows = {(row["response_i"], row["response_j"]): row for row in found.comparison_results}
    assert rows[0, 1]["ranking"] == pytest.approx(3.5 - 2.5 * (good - poor) / 4)
    same = rows[0, 3] if strategy == "all_pairs" else rows[3, 0]
    assert same["ranking"] == 3.5 and same["score_1"] == same["score_2"] == pytest.approx(good)


async def test_a_group_that_cannot_be_judged_is_the_middle(compare: Any) -> None:
    found = await compare("good", "lost", budget=1.0, **RELATIVE)
    assert found.rewards == [3.0, 3.0]
    assert {row["ranking"] for row in found.comparison_results} == {3.5}


async def test_two_equal_responses_are_the_middle(compare: Any) -> None:
    assert (await compare("good", "good", **RELATIVE)).rewards == [3.0, 3.0]


@pytest.mark.parametrize(
    ("config", "failures", "words"),
    [
        ({}, {"budget": 0.0}, "training stops"),
        ({"use_principle": True}, {}, "set use_principle to false"),
        ({"genrm_parse_retries": 0}, RELATIVE | {"budget": 0.0}, "training stops"),
    ],
    ids=["a spent budget", "a principle", "a budget spent by a group"],
)
async def test_what_the_service_refuses_ends_the_comparison_in_words(
    compare: Any, config: dict[str, Any], failures: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match="GenRM judge") as told:
        await compare("good", "lost", config=config, **failures)
    assert told.value.status_code == 503  # type: ignore[attr-defined]
    assert words in told.value.detail  # type: ignore[attr-defined]


def test_the_roles_of_a_genrm_are_read_as_its_metadata(named: Any) -> None:
    from fastapi import FastAPI

    from autoj_reward.service.trainers import add_routes

    app = FastAPI()
    add_routes(app, named())
    turns = [("user", "Why?"), ("response_1", "poor"), ("response_2", "good")]
    asked = [{"role": role, "content": content} for role, content in turns]
    with TestClient(app) as http:
        found = http.post("/v1/responses", json={"input": asked}).json()
        bare = http.post("/v1/responses", json={"input": "Why?"})
    verdict = json.loads(found["output"][0]["content"][0]["text"])
    assert verdict["score_1"] == scores(2) and verdict["score_2"] == scores(9)
    assert verdict["ranking"] > 3.5
    assert bare.status_code == 422 and "response_1" in bare.json()["detail"]
