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
from tests.trainer.conftest import BY_ITEMS, FRAMEWORKS, ITEMS, RATING_BY_SHOWS

pytestmark = pytest.mark.filterwarnings("ignore")  # of their code


@pytest.fixture
def gym(require_packages: Any) -> Iterator[Any]:
    """Yield Gym's module of server classes, and reset its HTTP client."""
    require_packages(FRAMEWORKS, "nemo_gym")
    utils: Any = importlib.import_module("nemo_gym.server_utils")
    yield utils
    utils._GLOBAL_AIOHTTP_CLIENT = None


def make_client(gym: Any, **servers: Any) -> Any:
    """Return Gym's client for servers, {name: port}."""
    addresses = {
        name: {"any_kind": {"any": {"host": "127.0.0.1", "port": port}}}
        for name, port in servers.items()
    }
    config = importlib.import_module("omegaconf").OmegaConf.create(addresses)
    head = gym.BaseServerConfig(host="127.0.0.1", port=1)
    return gym.ServerClient(head_server_config=head, global_config_dict=config)


def make_response(*parts: Any, **more: Any) -> dict[str, Any]:
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
    server = JudgeResourcesServer(config=config, server_client=make_client(gym))

    def ask(response: dict[str, Any], prompt: Any = "Why?", **row: Any) -> Any:
        body = {"responses_create_params": {"input": prompt}, "response": response} | row
        app = server.setup_webserver()
        return TestClient(app, raise_server_exceptions=False).post("/verify", json=body)

    return ask


PROMPTS: dict[str, Any] = {
    "text": "Why?",
    "message": [{"role": "user", "content": "Why?"}],
    "parts, and a call of a tool": [
        {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ],
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_row_is_rewarded(verify: Any, make_model: Any, case: str) -> None:
    make_model()
    reply = verify(make_response("good"), PROMPTS[case]).json()
    assert reply["reward"] == 9.0 and reply["mask_sample"] is False
    assert reply["judge_ok"] == 1.0 and reply["judge_raw"] == 9.0
    assert reply["response"]["output"][1]["content"][0]["text"] == "good"


@pytest.mark.parametrize("shows", RATING_BY_SHOWS)
def test_calls_and_their_results_are_turns(verify: Any, make_model: Any, shows: str) -> None:
    make_model(shows=shows)
    response = make_response("good")
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "blue"}
    response["output"][1:1] = [call, result]
    assert verify(response).json()["reward"] == RATING_BY_SHOWS[shows]


CONTEXTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "the expected answer": ({"expected_answer": 4, "id": 7}, {"reference": "4"}),
    "fields by name": (
        {"reference": "4", "rubric": "exact"}, {"reference": "4", "rubric": "exact"}
    ),
    "as older rows have them": (
        {"verifier_metadata": {"expected_answer": "4"}, "rubric": "exact"},
        {"reference": "4", "rubric": "exact"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTEXTS)
def test_a_rows_own_fields_are_the_context(
    verify: Any, make_model: Any, case: str, tmp_path: Path
) -> None:
    row, context = CONTEXTS[case]
    model = make_model(fmt=str(write_reference_format(tmp_path / "marks")))
    talk = [*PROMPTS["message"], {"role": "assistant", "content": "So."}, *PROMPTS["message"]]
    reply = verify(make_response("good"), talk, **row).json()
    assert reply["reward"] == 9.0 and reply.items() >= row.items()
    [(candidate, _)] = model.recent()
    assert dict(candidate.context) == context and len(candidate.prompt.turns) == 3


@pytest.mark.parametrize("row", [{"rubric": ITEMS}, {"verifier_metadata": {"rubric": ITEMS}}])
def test_a_rows_rubric_is_scored_by_items(
    verify: Any, make_model: Any, row: dict[str, Any]
) -> None:
    make_model(**BY_ITEMS, budget=1.0, fallback=0.5)
    reply = verify(make_response("good"), **row).json()
    assert (reply["reward"], reply["judge_ok"], reply["mask_sample"]) == (0.75, 1.0, False)
    bare = verify(make_response("good")).json()
    assert bare["mask_sample"] is True and "no rubric items" in bare["failure_reason"]


@pytest.mark.parametrize("case", ["lost", "slow"])
def test_a_failed_judgement_is_a_masked_row(verify: Any, make_model: Any, case: str) -> None:
    make_model(5.0, budget=1.0, fallback=4.5)
    reply = verify(make_response(case)).json()
    assert reply["mask_sample"] is True and reply["failure_kind"] == "judge_failed"
    assert reply["reward"] == 4.5
    assert reply["failure_reason"].startswith(("truncated: ", "unavailable: "))


def test_a_spent_budget_is_no_row(verify: Any, make_model: Any) -> None:
    make_model(budget=0.0)
    assert verify(make_response("lost")).status_code == 500


THEIRS: dict[str, tuple[Any, int]] = {
    "an exception is 500": (ValueError("no"), 500),
    "a JudgeError is 0": ("a judge that is down", 200),
    "None is 500": (None, 500),
    "NaN is sent as null": (float("nan"), 200),
}


@pytest.mark.parametrize("case", THEIRS)
def test_what_gym_does(gym: Any, case: str) -> None:
    from nemo_gym import base_resources_server as resources
    from nemo_gym.judge import JudgeError

    answer, status = THEIRS[case]

    class Server(resources.SimpleResourcesServer):
        async def verify(self, body: resources.BaseVerifyRequest) -> resources.BaseVerifyResponse:
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, str):
                raise JudgeError(answer)
            return resources.BaseVerifyResponse(**body.model_dump(), reward=answer)

    Server.verify.__annotations__.update(
        body=resources.BaseVerifyRequest, **{"return": resources.BaseVerifyResponse}
    )
    config = resources.BaseResourcesServerConfig(host="h", port=1, entrypoint="app.py", name="any")
    app = Server(config=config, server_client=make_client(gym)).setup_webserver()
    body = {"responses_create_params": {"input": "Why?"}, "response": make_response("good")}
    reply = TestClient(app, raise_server_exceptions=False).post("/verify", json=body)
    assert reply.status_code == status
    if status == 200:
        reward, masked = (0.0, True) if isinstance(answer, str) else (None, False)
        assert (reply.json()["reward"], reply.json()["mask_sample"]) == (reward, masked)


@contextlib.asynccontextmanager
async def serve_app(app: Any) -> AsyncIterator[int]:
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
def compare(gym: Any, make_model: Any) -> Any:
    """Return a function that has genrm_compare compare responses through Gym's own model server.

    The address of that server's model is our service.
    """

    async def ask(*texts: str, config: dict[str, Any] | None = None, **failures: Any) -> Any:
        from fastapi import FastAPI
        from resources_servers.genrm_compare import app as genrm
        from responses_api_models.openai_model import app as openai

        from autoj_reward.service.trainers import add_routes

        service = FastAPI()
        add_routes(service, make_model(**failures))
        gym.set_global_aiohttp_client(gym.GlobalAIOHTTPAsyncClientConfig())
        address = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "any"}
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(gym._GLOBAL_AIOHTTP_CLIENT.close)
            port = await stack.enter_async_context(serve_app(service))
            model = openai.SimpleModelServer(
                config=openai.SimpleModelServerConfig(
                    **address,
                    openai_base_url=f"http://127.0.0.1:{port}/v1",
                    openai_api_key="secret",
                    openai_model="judge",
                    max_http_attempts=1,
                ),
                server_client=make_client(gym),
            )
            app = model.setup_webserver()
            model.setup_exception_middleware(app)
            port = await stack.enter_async_context(serve_app(app))
            server = genrm.GenRMCompareResourcesServer(
                config=genrm.GenRMCompareConfig(
                    **address,
                    genrm_model_server={"type": "responses_api_models", "name": "genrm_model"},
                    genrm_responses_create_params={"input": [], "temperature": 0.6},
                    genrm_parse_retry_sleep_s=0.0,
                    **config or {},
                ),
                server_client=make_client(gym, genrm_model=port),
            )
            body = genrm.GenRMCompareRequest(
                conversation_history=[{"role": "user", "content": "Why?"}],
                response_objs=[make_response(text) for text in texts],
            )
            return await server.compare(body)

    return ask


def to_gym_score(rating: float) -> float:
    """Return Gym's score, 1 to 5, for a rating of 1 to 10."""
    return 1 + 4 * (rating - 1) / 9


async def test_genrm_compare_reads_our_scores(compare: Any) -> None:
    comparison = await compare("good", "poor")
    assert comparison.rewards == pytest.approx([to_gym_score(9), to_gym_score(2)])
    first = comparison.comparison_results[0]
    assert first["ranking"] == pytest.approx(3.5 - 2.5 * 7 / 9)
    assert comparison.metrics["tiebreak_usage_rate"] == 0.0


async def test_equal_scores_are_ranked_by_comparison(compare: Any) -> None:
    comparison = await compare("good", "good </s>")
    assert comparison.metrics["tiebreak_usage_rate"] == 1.0
    assert {row["ranking"] for row in comparison.comparison_results} <= {3.0, 3.5, 4.0}


async def test_a_failed_judgement_is_the_middle(compare: Any) -> None:
    comparison = await compare("good", "lost", budget=1.0)
    assert comparison.rewards == pytest.approx([to_gym_score(9), 3.0])


RELATIVE: dict[str, Any] = {"fmt": "listwise", "more": {"relative": {"by": "listwise"}}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the responses of each call of a reward model."""
    from autoj_reward.trainer.reward import RewardModel

    batches, original = list[list[str]](), RewardModel.rewards

    async def record_call(self: RewardModel, candidates: Any, budgets: Any = None) -> Any:
        batches.append([candidate.response.text for candidate in candidates])
        return await original(self, candidates, budgets)

    monkeypatch.setattr(RewardModel, "rewards", record_call)
    return batches


@pytest.mark.parametrize("strategy", ["circular", "all_pairs"])
async def test_all_comparisons_of_a_prompt_are_answered_from_one_judgement(
    compare: Any, calls: list[list[str]], strategy: str
) -> None:
    config = {"comparison_strategy": strategy, "num_judges_per_comparison": 2}
    texts = ("good", "poor", "average", "good")
    comparison = await compare(*texts, config=config, **RELATIVE)
    assert [sorted(texts) for texts in calls] == [["average", "good", "poor"]]
    good, poor, average, again = comparison.rewards
    assert 1 <= poor < average < good <= 5 and good == pytest.approx(again)
    rows = {(row["response_i"], row["response_j"]): row for row in comparison.comparison_results}
    assert rows[0, 1]["ranking"] == pytest.approx(3.5 - 2.5 * (good - poor) / 4)
    same = rows[0, 3] if strategy == "all_pairs" else rows[3, 0]
    assert same["ranking"] == 3.5 and same["score_1"] == same["score_2"] == pytest.approx(good)


async def test_a_group_that_cannot_be_judged_is_the_middle(compare: Any) -> None:
    comparison = await compare("good", "lost", budget=1.0, **RELATIVE)
    assert comparison.rewards == [3.0, 3.0]
    assert {row["ranking"] for row in comparison.comparison_results} == {3.5}


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
    with pytest.raises(Exception, match="GenRM judge") as error:
        await compare("good", "lost", config=config, **failures)
    assert error.value.status_code == 503  # type: ignore[attr-defined]
    assert words in error.value.detail  # type: ignore[attr-defined]


def test_the_roles_of_a_genrm_are_read_as_its_metadata(make_model: Any) -> None:
    from fastapi import FastAPI

    from autoj_reward.service.trainers import add_routes

    app = FastAPI()
    add_routes(app, make_model())
    turns = [("user", "Why?"), ("response_1", "poor"), ("response_2", "good")]
    messages = [{"role": role, "content": content} for role, content in turns]
    with TestClient(app) as http:
        reply = http.post("/v1/responses", json={"input": messages}).json()
        bare = http.post("/v1/responses", json={"input": "Why?"})
    verdict = json.loads(reply["output"][0]["content"][0]["text"])
    assert verdict["score_1"] == to_gym_score(2) and verdict["score_2"] == to_gym_score(9)
    assert verdict["ranking"] > 3.5
    assert bare.status_code == 422 and "response_1" in bare.json()["detail"]
