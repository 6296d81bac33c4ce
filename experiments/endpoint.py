"""A stub of an OpenAI-compatible endpoint around one small chat model, for examples on a laptop.

    python -m experiments.endpoint [FOLDER] [--port 8000]

FOLDER: a model's; by default the built-in SmolLM2-135M-Instruct. One request at a time, on
transformers: `/v1/completions` by text or token ids, with the top log-probabilities of one token,
and `/v1/chat/completions`. For anything but an example serve the model with vLLM.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from autoj_reward.models.built_in import build


class Model:
    """A causal model that answers one body at a time."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.net: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.turn = threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        chat = path.endswith("/chat/completions")
        ids: Any = body.get("prompt")
        if chat:
            ids = self.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        elif isinstance(ids, str):
            ids = self.tokenizer(ids)["input_ids"]
        with self.turn, torch.inference_mode():
            choices = [self._reads(ids, body)] if body.get("logprobs") else self._says(ids, body)
        if chat:
            choices = [
                {"message": {"content": c["text"]}, "finish_reason": c["finish_reason"]}
                for c in choices
            ]
        return {"choices": choices, "usage": {"prompt_tokens": len(ids)}}

    def _reads(self, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        scores = self.net(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        top = scores.topk(body["logprobs"])
        named = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        table = {self.tokenizer.decode([i]): value for i, value in named}
        text = self.tokenizer.decode([int(top.indices[0])])
        return {"text": text, "finish_reason": "length", "logprobs": {"top_logprobs": [table]}}

    def _says(self, ids: list[int], body: dict[str, Any]) -> list[dict[str, Any]]:
        if body.get("seed") is not None:
            torch.manual_seed(body["seed"])
        warm = body.get("temperature", 1.0)
        options = {"do_sample": True, "temperature": warm, "top_p": 1.0, "top_k": 0}
        outputs = self.net.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=body.get("max_tokens", 256),
            num_return_sequences=body.get("n", 1),
            pad_token_id=self.tokenizer.pad_token_id or 0,
            **(options if warm else {"do_sample": False}),
        )
        ended = self.tokenizer.eos_token_id
        return [
            {
                "text": self.tokenizer.decode(output[len(ids) :], skip_special_tokens=True),
                "finish_reason": "stop" if ended in output[len(ids) :].tolist() else "length",
            }
            for output in outputs
        ]


def server(model: Model, port: int) -> ThreadingHTTPServer:
    """An HTTP server on 127.0.0.1, not yet serving."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(model.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(typed: list[str]) -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", nargs="?", help="a model's folder")
    arguments.add_argument("--port", type=int, default=8000)
    given = arguments.parse_args(typed)
    folder = given.folder or str(build("smollm2-135m-instruct"))
    serving = server(Model(folder), given.port)
    print(f"{folder}\nhttp://127.0.0.1:{serving.server_port}/v1", flush=True)
    serving.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
