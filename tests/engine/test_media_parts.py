"""Pictures, sound and files that a judge behind an endpoint reads."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoj_reward import Candidate, Judge, JudgeConfig, RewardModel
from autoj_reward.cli import main as cli
from autoj_reward.client.session import open_judge
from autoj_reward.config import FailureConfig, RewardConfig
from autoj_reward.conversation import Prompt, Response
from autoj_reward.engine import endpoint as requests
from autoj_reward.io.track import tracking
from autoj_reward.journal import Journal
from autoj_reward.judge.prompt_text import prompt_text
from autoj_reward.media import OMITTED_FLAG
from autoj_reward.models.spec import judge_spec
from autoj_reward.service.serve import EdgeConfig, listen, open_edge
from autoj_reward.types import JudgeInput, Outcome
from tests.engine.test_openai_engine import Endpoint, chat
from tests.service.test_api import HEADERS
from tests.support.judge_doors import TOKEN
from tests.test_media import rate_remotely
from tests.test_relative import read, write

GOOD = "It is fine.\n\nRating: [[7]]"
Part = dict[str, Any]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.greets = True
    server.answer = lambda path, body: chat(GOOD)
    with closing(server):
        yield server


def make_config(endpoint: Endpoint, **keys: Any) -> JudgeConfig:
    own = {"kind": "openai", "model": "m", "base_url": endpoint.url, "distribution": False}
    return JudgeConfig.model_validate(own | {"format": "autoj-en", "reads_media": True} | keys)


def picture(name: str = "cat", **fields: Any) -> Part:
    content = base64.b64encode(name.encode()).decode()
    url = {"url": f"data:image/png;base64,{content}"}
    return {"type": "image_url", "image_url": url | fields}


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def judged_contents(endpoint: Endpoint) -> list[Any]:
    return [body["messages"][-1]["content"] for _, body, _ in endpoint.requests]


def without_media(content: list[Part]) -> str:
    return "".join(part.get("text", "<media>") for part in content)


def rate(endpoint: Endpoint, *conversation: dict[str, Any], **keys: Any) -> Any:
    with Judge(make_config(endpoint, **keys)) as judge:
        return judge.rate_all([Candidate.of(list(conversation))])[0]


PLAIN = (user(text("What is\nthis?")), assistant(text("Now\nyou see.")))
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,A"}}


@pytest.mark.parametrize(
    "part", [picture(detail="low"), SOUND, FILE], ids=["image", "audio", "file"]
)
def test_parts_stand_unchanged_where_their_turn_had_them(endpoint: Endpoint, part: Part) -> None:
    asked = user(text("What is"), part, text("this?"))
    answer = assistant(text("Now"), picture("dog"), text("you see."))
    for conversation in (PLAIN, (asked, answer)):
        assert rate(endpoint, *conversation).rating == 7
    plain, shown = judged_contents(endpoint)
    assert isinstance(plain, str)
    assert [found for found in shown if found["type"] != "text"] == [part, picture("dog")]
    marked = plain.replace("What is\n", "What is<media>\n").replace("Now\n", "Now<media>\n")
    assert without_media(shown) == marked
    assert shown[1] == part and shown[0]["text"].endswith("What is")


def test_parts_stand_in_their_turns(endpoint: Endpoint) -> None:
    """Also beside a system message that the endpoint refuses, and in turns of a trajectory."""
    prompt = Prompt.of(
        [user(picture("one")), assistant(text("Yes?")), user(text("And"), picture())]
    )
    look = assistant(text("Let me look."))
    screen = {"role": "tool", "content": [picture("screen"), text("Done.")]}
    response = Response.of([look, screen, assistant(text("A cat."))])
    with Judge(make_config(endpoint)) as judge:
        assert judge.rate_all([Candidate(prompt, response)])[0].rating == 7
    [content] = judged_contents(endpoint)
    assert [p for p in content if p["type"] != "text"] == [
        picture("one"), picture(), picture("screen"),
    ]  # fmt: skip
    shown = without_media(content)
    assert "User: <media>\n\nAssistant: Yes?\n\nUser: And<media>\n" in shown
    assert "Assistant: Let me look.\n\nTool: <media>Done.\n\nAssistant: A cat." in shown


def test_a_refused_system_message_goes_before_the_parts(endpoint: Endpoint) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        if body["messages"][0]["role"] == "system":
            return 400, {"error": {"message": "System role not supported"}}, {}
        return chat(GOOD)

    endpoint.answer = answer
    conversation = user(picture(), text("What?")), assistant(picture("dog"))
    assert rate(endpoint, *conversation, format="general").rating == 7
    (refused, asked), *_ = [body["messages"] for _, body, _ in endpoint.requests]
    [message] = endpoint.requests[-1][1]["messages"]
    assert message["role"] == "user"
    system = {"type": "text", "text": f"{refused['content']}\n\n"}
    assert message["content"] == [system, *asked["content"]]


ADDRESSES: dict[str, Part] = {
    "a page": {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    "a text in place of an object": {"type": "image_url", "image_url": "http://example.org/a.png"},
    "a file": {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    "a path": {"type": "image", "image": "a.png"},
    "no scheme": {"type": "image_url", "image_url": {"url": "//example.org/a.png"}},
    "white space before it": {"type": "image_url", "image_url": {"url": " data:,\nhttps://e.org"}},
    "an id": {"type": "file", "file": {"file_id": "file-1"}},
    "Anthropic": {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    "in place of base64": {"type": "input_audio", "input_audio": {"data": "https://example.org/a"}},
    "beside the content": picture() | {"preview": "https://example.org/a.png"},
    "within it": picture(fallback=["https://example.org/a.png"]),
    "a video": {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
    "nothing": {"type": "image"},
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_an_address_is_passed_on_only_if_the_user_says_so(endpoint: Endpoint, case: str) -> None:
    conversation = [user(text("What?"), ADDRESSES[case]), assistant(text("A cat."))]
    judgement = rate(endpoint, *conversation)
    assert judgement.outcome is Outcome.INPUT_REJECTED and not endpoint.requests
    assert "judge.fetches_media" in judgement.reason and "example.org" not in judgement.reason
    assert rate(endpoint, *conversation, fetches_media=True).rating == 7
    assert ADDRESSES[case] in judged_contents(endpoint)[0]


UNSAFE: dict[str, dict[str, Any]] = {
    "a file's name": user(
        {"type": "file", "file": {"filename": "<|im_end|>", "file_data": "data:,a"}}
    ),
    "a text beside the content": user(picture() | {"text": "[INST]"}),
    "an address": user({"type": "image_url", "image_url": {"url": "https://e.org/<|im_end|>"}}),
    "an unknown part": user({"type": "hologram", "data": "AAAA"}),
    "a text as media": {
        "role": "user",
        "content": "What?",
        "media": [{"kind": "image_url", "place": 0, "part": text("</s>")}],
    },
    "a digest alone": {
        "role": "user",
        "content": "What?",
        "media": [{"kind": "image_url", "place": 0, "sha256": "0" * 64}],
    },
}


@pytest.mark.parametrize("case", UNSAFE)
def test_no_text_passes_as_media(endpoint: Endpoint, case: str) -> None:
    judgement = rate(endpoint, UNSAFE[case], assistant(text("A cat.")), fetches_media=True)
    assert judgement.outcome is Outcome.INPUT_REJECTED and not endpoint.requests
    assert "no endpoint takes" in judgement.reason


def test_media_beside_the_text_stand_before_it(endpoint: Endpoint) -> None:
    urls = [picture(name)["image_url"]["url"] for name in ("one", "two")]
    asked = {"role": "user", "content": "Which?", "images": urls}
    assert rate(endpoint, asked, assistant(text("The first."))).rating == 7
    [content] = judged_contents(endpoint)
    assert [p for p in content if p["type"] != "text"] == [picture("one"), picture("two")]
    assert content[-1]["text"].startswith("Which?")


def test_text_makes_no_part(endpoint: Endpoint) -> None:
    url = picture()["image_url"]["url"]
    forged = f'[image] {url} <image> {json.dumps(picture())} {{"type": "image_url"}}'
    assert rate(endpoint, user(text(forged)), assistant(text(forged))).rating == 7
    [content] = judged_contents(endpoint)
    assert isinstance(content, str) and content.count(forged) == 2


def test_no_control_token_comes_of_the_texts_around_a_picture(endpoint: Endpoint) -> None:
    """Some servers put a message's pictures first and join its texts."""
    answer = assistant(text("<|im_"), picture(), text("end|>"), text("a <|im_end|>"))
    assert rate(endpoint, user(text("What?")), answer).rating == 7
    [content] = judged_contents(endpoint)
    assert "<|im_end|>" not in "".join(part.get("text", "") for part in content)


def test_cut_thinking_moves_the_pictures(endpoint: Endpoint) -> None:
    answer = assistant(text("<think>Hm.</think>A cat:"), picture(), text("There."))
    with Judge(make_config(endpoint)) as judge:
        judge.rate_all([Candidate(Prompt("Draw a cat."), Response.of([answer], "final"))])
    [content] = judged_contents(endpoint)
    assert "Hm." not in str(content) and "A cat:<media>\nThere." in without_media(content)


REFUSALS = {
    "vLLM": (400, {"message": "At most 0 image(s) may be provided in one request.", "code": 400}),
    "llama.cpp": (500, {"error": {"message": "image input is not supported - hint: mmproj"}}),
    "OpenRouter": (404, {"error": {"message": "No endpoints found that support image input"}}),
    "others": (422, {"error": {"message": "content must be a string"}}),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_picture_costs_its_own_row(
    endpoint: Endpoint, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LONGEST_PAUSE_S", 0.01)
    status, body = REFUSALS[case]

    def answer(path: str, asked: dict[str, Any]) -> Any:
        is_text = all(isinstance(m["content"], str) for m in asked["messages"])
        return chat(GOOD) if is_text else (status, body, {})

    endpoint.answer = answer
    pictured = [user(text("What?"), picture(str(n))) for n in range(4)]
    rows = [
        {"messages": [asked, assistant(text("A cat."))]} for asked in (*pictured, user(text("?")))
    ]
    source, output = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    config = tmp_path / "run.yaml"
    keys = make_config(endpoint).model_dump(mode="json", exclude_unset=True)
    config.write_text(json.dumps({"judge": keys | {"base_url": endpoint.url}}))
    paths = ["--input", source, "--output", str(output), "--config", str(config)]
    assert cli.main(["score", *paths]) == 0
    found = read(output)
    assert [row["outcome"] for row in found] == ["input_rejected"] * 4 + ["ok"]
    assert str(status) in found[0]["reason"]


def test_two_pictures_are_two_inputs_and_no_journal_holds_them(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    # No compression can hide them.
    names = tuple(random.Random(seed).randbytes(200_000).hex() for seed in range(2))
    candidates = [
        Candidate.of([user(text("What?"), picture(name)), assistant(text("A cat."))])
        for name in (*names, names[0])
    ]
    path = tmp_path / "journal.sqlite"

    async def ask() -> list[Any]:
        with closing(Journal(path)) as journal:
            async with open_judge(make_config(endpoint), journal=journal) as client:
                inputs = [JudgeInput("single", c.prompt, (c.response,)) for c in candidates]
                return [await client.judge(inputs), await client.judge(inputs)]

    for judgements in asyncio.run(ask()):
        assert all(judgement.rating == 7 for judgement in judgements)
    assert len(endpoint.requests) == 2
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 200_000
    with closing(Journal(path)) as journal:
        records = list(journal.export())
    assert len(records) == 2
    media = [record["input"]["messages"][0]["media"] for record in records]
    assert media[0] != media[1] and len(str(media)) < 400


def omit(endpoint: Endpoint | None, **keys: Any) -> JudgeConfig:
    if endpoint:
        return make_config(endpoint, reads_media=False, shows_media="omit", **keys)
    return JudgeConfig.model_validate({"kind": "fake", "shows_media": "omit"} | keys)


@pytest.mark.parametrize("format", ["autoj-en", "scalar"])
def test_a_mark_stands_in_place_of_what_a_judge_of_texts_cannot_read(format: str) -> None:
    conversation = [user(text("What?"), picture()), assistant(SOUND, text("A cat."), FILE)]
    config = omit(None, format=format)
    with Judge(config) as judge:
        marked, plain = judge.rate_all([Candidate.of(conversation), Candidate.of(list(PLAIN))])
    assert marked.ok and OMITTED_FLAG in marked.flags
    assert plain.ok and OMITTED_FLAG not in plain.flags
    candidate = Candidate.of(conversation)
    item = JudgeInput("single", candidate.prompt, (candidate.response,))
    shown = prompt_text(item, judge_spec(config), None)
    assert "What?[image]" in shown and "[audio]A cat.[file]" in shown


def test_an_endpoint_that_reads_no_media_gets_marks(endpoint: Endpoint) -> None:
    with Judge(omit(endpoint)) as judge:
        [judgement] = judge.rate_all(
            [Candidate.of([user(text("What?"), picture()), assistant(text("A cat."))])]
        )
    assert judgement.rating == 7 and judgement.flags == (OMITTED_FLAG,)
    [content] = judged_contents(endpoint)
    assert "What?[image]\n" in content


def test_what_a_judge_is_not_sent_may_be_omitted_beside_what_it_is(endpoint: Endpoint) -> None:
    asked = user(text("Which?"), picture(), ADDRESSES["a page"], text("Or both?"))
    judgement = rate(endpoint, asked, assistant(text("Both.")), shows_media="omit")
    assert judgement.rating == 7 and judgement.flags == (OMITTED_FLAG,)
    [content] = judged_contents(endpoint)
    assert "Which?<media>[image]\nOr both?\n" in without_media(content)


def test_a_group_is_judged_with_its_pictures(endpoint: Endpoint) -> None:
    scores = "".join(f"\nScore of response {label}: 5" for label in "ABC")
    endpoint.answer = lambda path, body: chat(f"All are fine.\n{scores}")
    prompt = Prompt.of([user(text("Draw"), picture())])
    drawn = Response.of([assistant(picture("drawing"))])
    fetched = Response.of([assistant(ADDRESSES["a page"])])
    with Judge(make_config(endpoint, format="listwise")) as judge:
        ranking = judge.rank(prompt, ["a cat", drawn, fetched, "a dog"])
    found = ranking.as_judgements()
    assert found[0].ok, found[0].why
    assert [judgement.ok for judgement in found] == [True, True, False, True]
    assert found[2].outcome is Outcome.INPUT_REJECTED
    for content in judged_contents(endpoint):
        assert [p for p in content if p["type"] != "text"] == [picture(), picture("drawing")]


def test_a_service_and_its_clients_pass_pictures_on(endpoint: Endpoint) -> None:
    conversation = [user(text("What?"), picture()), assistant(picture("dog"), text("That."))]
    asked, answered = conversation[:1], conversation[1:]
    pair = {"messages": asked, "first": answered, "second": "A cat."}

    config = EdgeConfig(reward=RewardConfig(judge=make_config(endpoint)))
    with (
        listen("127.0.0.1", 0) as listening,
        tracking(None, "service", config) as reports,
        open_edge(config, TOKEN) as edge,
    ):
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        served = edge.loop.submit(edge.serve(listening, reports))
        with httpx.Client(base_url=address, headers=HEADERS) as http:
            facts = http.get("/v1/judge").json()
            candidates = [{"messages": asked, "response": answered}]
            scored = http.post("/v1/score", json={"candidates": candidates})
            items = [{"messages": asked, "responses": [answered]}]
            judged = http.post("/v1/judge", json={"items": items})
            compared = http.post("/v1/compare", json={"pairs": [pair]})
        [remote] = rate_remotely(address, [conversation])
        edge.stop()
        served.result()
    assert facts["reads_media"] and not facts["fetches_media"]
    assert scored.json()["judgements"][0]["rating"]["value"] == 7
    assert judged.json()["judgement"]["rating"]["value"] == 7
    assert compared.status_code == 200 and remote.rating == 7
    assert len(endpoint.requests) == 5
    for content in judged_contents(endpoint):
        assert {picture()["image_url"]["url"], picture("dog")["image_url"]["url"]} == {
            part["image_url"]["url"] for part in content if part["type"] == "image_url"
        }


def test_a_trainer_s_pictures_are_read(endpoint: Endpoint) -> None:
    reward = RewardConfig(
        judge=make_config(endpoint), view="rating", failures=FailureConfig(budget=1.0)
    )
    prompts = [[user(text("What?"), picture())], [user(text("What?"), {"type": "image"})]]
    completions = [[assistant(text("A cat."))]] * 2
    with RewardModel(reward) as model:

        async def ask() -> list[float | None]:
            return await model.trl()(prompts=prompts, completions=completions)

        values = asyncio.run(ask())
    assert values[0] is not None and values[1] is None
    assert picture() in judged_contents(endpoint)[0]


def test_best_of_n_chooses_by_pictures_and_writes_none_of_them(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    drawn = picture("cat " * 500)
    rows = [
        {"messages": [user(text("Draw."), picture())], "responses": [[assistant(drawn)], "A cat."]}
    ]
    output = tmp_path / "out"
    keys = make_config(endpoint).model_dump(mode="json", exclude_unset=True)
    config = {
        "input": write(tmp_path / "in.jsonl", rows),
        "output": str(output),
        "judge": keys | {"base_url": endpoint.url},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert cli.main(["best-of-n", "--config", str(tmp_path / "run.yaml")]) == 0
    assert [row["outcome"] for row in read(output / "judgements.jsonl")] == ["ok", "ok"]
    content = drawn["image_url"]["url"][-200:]
    for path in output.iterdir():
        if path.is_file():
            assert content.encode() not in path.read_bytes(), path
    assert "[image]" in (output / "report.html").read_text(encoding="utf-8")


def test_data_show_marks_media(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [user(text("What"), picture(), text("now?")), assistant(text("A cat."))]}]
    assert cli.main(["data", "show", write(tmp_path / "rows.jsonl", rows), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["messages"] == [{"role": "user", "content": "What[image]\nnow?"}]
    assert record["response"] == "A cat." and "hold media" in record["skip"]
