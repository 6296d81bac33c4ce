"""TRL's async GRPO: its rollout worker rewards groups in a child process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.reward import judge_reward

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(600),  # the child imports TRL and vLLM
    pytest.mark.filterwarnings("ignore"),  # of their code
]


class Policy(ThreadingHTTPServer):
    """Server with vLLM's route for completions: it says each text once, then the last one."""

    daemon_threads = True

    def __init__(self, token_ids: list[list[int]]) -> None:
        self.texts = token_ids
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Completion)

    def next_text(self) -> list[int]:
        with self.lock:
            return self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]


class Completion(BaseHTTPRequestHandler):
    server: Policy

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        ids = self.server.next_text()
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def tokenizer(smollm2: Any, tmp_path: Path) -> Any:
    from transformers import AutoTokenizer

    smollm2.save_pretrained(tmp_path / "tokenizer")
    chat_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    # TRL reads responses of templates that it knows: both are ChatML.
    template = files("trl") / "chat_templates/qwen2_5.jinja"
    chat_tokenizer.chat_template = template.read_text("utf-8")
    return chat_tokenizer


@pytest.fixture
def url(tokenizer: Any) -> Iterator[str]:
    """Yield the address of a policy that says good, poor, and then only lost."""
    texts = [[*tokenizer(word)["input_ids"], tokenizer.eos_token_id] for word in TEXTS]
    with Policy(texts) as policy:
        threading.Thread(target=policy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{policy.server_port}"
        policy.shutdown()


TEXTS = "good", "poor", "lost"


def test_the_child_process_rewards_groups_until_its_budget_is_spent(
    make_model: Any, url: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import PartialState

    try:
        from trl.experimental.async_grpo import async_rollout_worker as module
    except ImportError:
        pytest.skip("TRL 1.10's async GRPO cannot be imported beside this vLLM: make test-trl")
    make_model(budget=0.4)
    PartialState()
    monkeypatch.setattr(module, "is_vllm_available", lambda **_: True)  # the policy is scripted
    worker = module.AsyncRolloutWorker(
        model_name="policy",
        dataset=[{"prompt": [{"role": "user", "content": "Why?"}]}],
        reward_funcs=[judge_reward],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=3,
        max_inflight_tasks=3,
        vllm_server_url=url,
        max_tokens=8,
    )
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=600) for _ in TEXTS]
        samples_by_text = {sample.completion[0]["content"]: sample for sample in samples}
        assert samples_by_text["good"].metrics["rewards/judge_reward"] == 9.0
        assert samples_by_text["poor"].metrics["reward"] == 2.0
        assert samples_by_text["good"].advantage == pytest.approx(1)
        assert samples_by_text["poor"].advantage == pytest.approx(-1)
        assert samples_by_text["lost"].advantage == 0  # left out of the group
        assert worker._failed_event.wait(timeout=600)
        # TRL looks for the child's error once, and it may arrive after the event.
        name, *_ = worker._exception_info_queue.get(timeout=600)
        assert name == "BudgetExceeded"
        with pytest.raises(RuntimeError, match="child has failed"):
            worker.check_health(stale_after_s=600)
    finally:
        worker.stop()
