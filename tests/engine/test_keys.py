"""Keys and headers of an endpoint: where they come from, what happens when one expires, and that
nobody sees them."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.config import JudgeConfig
from autoj_reward.config.load import check
from autoj_reward.errors import ConfigError
from autoj_reward.models.spec import judge_spec
from tests.engine.dialects import GOOD_TEXT, as_lines
from tests.engine.test_openai_engine import Answer, Endpoint, ask, chat, config, start_engine

OLD, NEW = "sk-old-1234567890", "sk-new-1234567890"


class Locked(Endpoint):
    """Endpoint that accepts one key."""

    def __init__(self) -> None:
        super().__init__()
        self.key = OLD
        self.answer = self._answer_with_key

    def _answer_with_key(self, path: str, body: dict[str, Any]) -> Answer:
        _, _, headers = self.requests[-1]
        if headers.get("Authorization") != f"Bearer {self.key}":
            shown = headers.get("Authorization", "none")
            return 401, {"error": {"message": f"token expired: {shown}"}}, {}
        return chat(GOOD_TEXT)


@pytest.fixture
def locked() -> Any:
    endpoint = Locked()
    yield endpoint
    endpoint.close()


def write_key(folder: Path, key: str) -> Path:
    path = folder / "key"
    path.write_text(f"{key}\n", encoding="utf-8")
    return path


async def test_a_key_in_a_file_is_read_again_when_it_expires(
    locked: Locked, tmp_path: Path
) -> None:
    path = write_key(tmp_path, OLD)
    async with start_engine(config(locked, api_key_file=str(path))) as engine:
        await ask(engine)
        write_key(tmp_path, NEW)
        locked.key = NEW
        [generation] = await ask(engine)
    assert generation.text == GOOD_TEXT
    keys = [headers["Authorization"] for _, _, headers in locked.requests]
    assert keys == [f"Bearer {key}" for key in (OLD, OLD, NEW)]


async def test_one_reader_at_a_time_runs_the_command_for_all_requests(
    locked: Locked, tmp_path: Path
) -> None:
    path, runs = write_key(tmp_path, OLD), tmp_path / "runs"
    command = f"echo run >> {runs}; cat {path}"
    async with start_engine(config(locked, api_key_command=command)) as engine:
        write_key(tmp_path, NEW)
        locked.key = NEW
        found = await asyncio.gather(*(ask(engine, f"hi {n}") for n in range(8)))
    assert [generation.text for [generation] in found] == [GOOD_TEXT] * 8
    assert runs.read_text().splitlines() == ["run", "run"]


async def test_the_same_key_again_ends_the_run_with_the_remedy(
    locked: Locked, tmp_path: Path
) -> None:
    path = write_key(tmp_path, OLD)
    locked.key = NEW
    async with start_engine(config(locked, api_key_file=str(path))) as engine:
        with pytest.raises(ConfigError, match=r"refuses the key.*api_key_file.*goes on") as caught:
            await ask(engine)
    assert OLD not in str(caught.value) and "[hidden]" in str(caught.value)
    assert len(locked.requests) == 1


async def test_a_new_key_that_is_refused_again_and_again_ends_the_run(
    locked: Locked, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    command = f"echo x >> {runs}; echo sk-$(wc -l < {runs})"
    async with start_engine(config(locked, api_key_command=command)) as engine:
        with pytest.raises(ConfigError, match="refuses the key"):
            await ask(engine)
    assert len(locked.requests) == 3


def test_the_same_command_goes_on_after_a_key_expired(
    locked: Locked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_key(tmp_path, OLD)
    rows = [{"query": "Why?", "response": f"Because {n}."} for n in range(6)]
    (tmp_path / "in.jsonl").write_text(as_lines(rows), encoding="utf-8")
    judge: dict[str, Any] = {"kind": "openai", "model": "m", "base_url": locked.url}
    judge |= {"api_key_file": str(path), "serve": {"max_ongoing": 1}}
    command = ["score", "--input", str(tmp_path / "in.jsonl")]
    command += ["--output", str(tmp_path / "out.jsonl"), "--set", f"judge={json.dumps(judge)}"]
    answer, judged = locked.answer, list[str]()

    def expire(path: str, body: dict[str, Any]) -> Answer:
        judged.append(path)
        locked.key = NEW if len(judged) > 4 else OLD
        return answer(path, body)

    locked.answer = expire
    assert cli.main(command) == 1
    assert "then the same command goes on" in capsys.readouterr().err
    write_key(tmp_path, NEW)
    judged_before = len(judged)
    assert cli.main(command) == 0
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["rating"] for line in lines] == [7] * 6
    # Of the four requests before the key expired, the first one was no judgement.
    assert len(judged) - judged_before == 1 + (6 - 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_key_file": "{folder}/none"}, "none: cannot be read: No such file"),
        ({"api_key_file": "{folder}/empty"}, "empty: the file is empty"),
        ({"api_key_command": "exit 3"}, "ended with status 3"),
        ({"api_key_command": "true"}, "printed no key"),
        ({"api_key_command": "printf 'a\\nb'"}, "no HTTP header can carry"),
        ({"extra_headers": {"X-Key": "env:AUTOJ_NO_SUCH"}}, "extra_headers.X-Key names AUTOJ_NO"),
        ({"api_key_env": "sk-a-key-itself"}, "put the key into a variable"),
    ],
)
async def test_a_key_that_cannot_be_read_is_told_at_the_start(
    endpoint: Endpoint, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    (tmp_path / "empty").touch()
    filled = json.loads(json.dumps(settings).replace("{folder}", str(tmp_path)))
    with pytest.raises(ConfigError, match=words) as caught:
        async with start_engine(config(endpoint, **filled)):
            pass
    assert "sk-a-key-itself" not in str(caught.value)
    assert endpoint.requests == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_key_env": "A", "api_key_file": "b"}, "api_key_env and api_key_file both name a key"),
        ({"extra_headers": {"X": ["hunter2"]}}, "extra_headers.X: Input should be a valid string"),
        ({"extra_headers": {"X": "hunter2\n"}}, "the value of X holds characters"),
        ({"extra_headers": {"X Y": "hunter2"}}, "'X Y' is no name of an HTTP header"),
        ({"extra_body": {"messages": []}}, "extra_body sets messages"),
        ({"extra_body": {"stream": True}}, "extra_body sets stream"),
    ],
)
def test_keys_that_a_config_refuses(settings: dict[str, Any], words: str) -> None:
    data = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"} | settings
    with pytest.raises(ConfigError, match=words) as caught:
        check(JudgeConfig, data, "run.yaml")
    assert "hunter2" not in str(caught.value)


async def test_headers_are_sent_and_never_shown(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUTOJ_TEST_HEADER", "from-the-environment")
    headers = {"X-Team": "literal-s3cret", "api-key": "env:AUTOJ_TEST_HEADER"}
    endpoint.script((503, "no literal-s3cret from-the-environment", {}), chat("done"))
    judge = config(endpoint, extra_headers=headers)
    with caplog.at_level(logging.DEBUG, "autoj_reward"):
        async with start_engine(judge) as engine:
            await ask(engine)
    sent = endpoint.requests[-1][2]
    assert (sent["X-Team"], sent["api-key"]) == ("literal-s3cret", "from-the-environment")
    shown = caplog.text + repr(judge) + judge.model_dump_json()
    assert "no [hidden] [hidden]" in shown and "env:AUTOJ_TEST_HEADER" in shown
    assert "s3cret" not in shown and "from-the" not in shown


def name_judge(**more: Any) -> str:
    data = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    return judge_spec(JudgeConfig.model_validate(data | more)).name


def test_a_rotated_key_judges_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"extra_headers": {"X-Key": "env:AUTOJ_TEST_HEADER"}}
    names = set()
    for key in (OLD, NEW):
        monkeypatch.setenv("AUTOJ_TEST_HEADER", key)
        names.add(name_judge(**headers, api_key_env="AUTOJ_TEST_HEADER"))
    assert names == {name_judge(**headers, api_key_command="echo sk")}
    changed = [
        name_judge(),
        name_judge(**headers),
        name_judge(extra_headers={"X-Team": "a"}),
        name_judge(extra_headers={"X-Team": "b"}),
        name_judge(extra_body={"reasoning_effort": "low"}),
        name_judge(chat_template_kwargs={"enable_thinking": False}),
        name_judge(temperature=0.5),
        name_judge(temperature=0.5, attempts=3),
    ]
    assert len(set(changed)) == len(changed)
