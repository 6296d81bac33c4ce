"""What the commands print and write, compared word for word; and a journal of an earlier version.

`AUTOJ_GOLDEN=write` in the environment rewrites the files of `tests/golden`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli

GOLDEN = Path(__file__).parents[1] / "golden"
WRITE = os.environ.get("AUTOJ_GOLDEN") == "write"
OF_THE_RUN = {
    "at",
    "command",
    "judgements_per_second",
    "latency_s",
    "machine",
    "output_tokens_per_second",
    "queued_s",
    "seconds",
    "versions",
}
"""Keys whose values differ in every run."""
FINGERPRINT = re.compile(r"(default:(?:autoj-en|rubric-item|scalar)):[0-9a-f]{16}")
SECONDS = re.compile(r"[0-9.]+ \| – \|$")
"""Seconds in the engine in a row of the table of costs, before dollars that are not known."""
FAKE = ["--set", "judge.kind=fake"]
DRAWN = [*FAKE, "--set", "bootstrap=20"]
GRADED = [*DRAWN, "--set", "grader.kind=fake"]


def join_jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SINGLES = join_jsonl(
    {"id": 7, "query": "Why?", "response": "Because it is so.", "rating": 3},
    {"query": "How?", "response": "no number"},
    {"query": "", "response": "x"},
    {"query": "When?", "response": "down"},
)
PAIRS = join_jsonl(
    {"query": "Why?", "response_1": "Because.", "response_2": "Because it is so."},
    {"query": "How?", "response_1": "equal", "response_2": "alike"},
    {"query": "When?", "response_1": "down", "response_2": "now"},
)
QUERIES = join_jsonl(
    {"query": "q1", "responses": ["a", "bb", "ccc"], "id": "one"},
    {"query": "q2", "responses": ["dd", "ee"], "logprobs": [-4, -3]},
    {"query": "q3", "responses": ["f", "g!", "h"]},
    {"query": 5},
)
EVAL_P = join_jsonl(
    *(
        {
            "scenario": scenario,
            "label": n % 3,
            "prompt": f"{scenario} {n}",
            "response 1": f"long answer {n}",
            "response 2": f"short {n}",
        }
        for scenario in ("planning", "writing_email")
        for n in range(3)
    )
)
EVAL_R = join_jsonl(
    *(
        {
            "scenario": "planning",
            "prompt": f"query {n}",
            "outputs": {"one": {"outputs": [f"a {n}", f"bb {n}", f"ccc {n}", f"ddd {n}"]}},
        }
        for n in (1, 2)
    )
)
BEST_OF_FOUR = join_jsonl(
    *(
        {
            "id": f"{kind}:{n}" if subset == "Ties" else f"{subset}{n}",
            "prompt": f"{subset} {kind} {n}",
            "subset": subset,
            "chosen": ["long answer"] * (2 if kind == "tied" else 1),
            "rejected": ["a", "bb", "ccc"],
        }
        for subset, kind in (("Math", ""), ("Ties", "ref"), ("Ties", "tied"))
        for n in (1, 2)
    )
)
LLMBAR = join_jsonl(
    *({"input": f"q{n}", "output_1": "long one", "output_2": "b", "label": n} for n in (1, 2))
)
CHOSEN = join_jsonl({"prompt": "Why?", "chosen": "Because it is.", "rejected": "So."})
FOR_RUBRICS = join_jsonl(
    {"query": "Where is it?", "chosen": "It arrives tomorrow.", "rejected": "Please wait."},
    {"query": "Why?", "reference": "Rayleigh scattering.", "id": 3},
    {"query": "How?"},
    {"query": "When?", "chosen": "Now.", "rejected": 5},
)
JUDGE = "judge: {kind: fake, script: {fail: {no number: unparsable, down: unavailable}}}\n"
JOB = """
input: {folder}/q.jsonl
output: {folder}/out
judge: {kind: fake, script: {ratings: {a: 3, bb: 8, ccc: 5, dd: 6, ee: 6, f: 4, g!: 4, h: 2}}}
"""
COLLECT = """
protocol: pairwise
teacher: {kind: fake, price: {in: 1, out: 2}}
sources: [{path: ./chosen.jsonl, name: synthetic_gptj}]
output: {folder}/out
near_duplicate: null
"""
JUDGES = """
bootstrap: 20
judges:
  written: {judge: {kind: fake}, view: rating}
  compares: {judge: {kind: fake, max_tokens: 300}, protocol: pairwise}
  scalar: {judge: {kind: fake, format: scalar}}
"""
INPUTS = {
    "s.jsonl": SINGLES,
    "p.jsonl": PAIRS,
    "q.jsonl": QUERIES,
    "eval_p.jsonl": EVAL_P,
    "eval_r.jsonl": EVAL_R,
    "four.jsonl": BEST_OF_FOUR,
    "llmbar.jsonl": LLMBAR,
    "chosen.jsonl": CHOSEN,
    "for_rubrics.jsonl": FOR_RUBRICS,
    "t.jsonl": join_jsonl({"text": "Fine.\nRating: [[7]]"}, {"text": "no slot"}, {"txt": "?"}),
    "judge.yaml": JUDGE,
    "job.yaml": JOB,
    "collect.yaml": COLLECT,
    "judges.yaml": JUDGES,
}
JOB_FILES = ["out/selections.jsonl", "out/judgements.jsonl", "out/summary.json"]
RESULT = ["o.json", "o.rows.jsonl"]
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "score": (
        "score --input {folder}/s.jsonl --output {folder}/o.jsonl --config {folder}/judge.yaml",
        [],
        ["o.jsonl", "o.jsonl.summary.json"],
    ),
    "compare": (
        "compare --input {folder}/p.jsonl --output {folder}/o.jsonl --config {folder}/judge.yaml",
        [],
        ["o.jsonl", "o.jsonl.summary.json"],
    ),
    "best-of-n": ("best-of-n --config {folder}/job.yaml", [], JOB_FILES),
    "best-of-n from a shortlist": (
        "best-of-n --config {folder}/job.yaml --set shortlist=2",
        [],
        JOB_FILES,
    ),
    "classify": (
        "classify --input {folder}/q.jsonl --output {folder}/o.jsonl --others-below 0.9",
        [],
        ["o.jsonl"],
    ),
    "rubrics generate": (
        "rubrics generate --input {folder}/for_rubrics.jsonl --output {folder}/o.jsonl "
        "--set judge.format=rubric-item",
        FAKE,
        ["o.jsonl", "o.jsonl.summary.json"],
    ),
    "parse": ("parse --input {folder}/t.jsonl", [], []),
    "scenarios": ("scenarios --show planning", [], []),
    "plan": ("plan --gpu h200 --model llama-2-13b --json", [], []),
    "collect": ("collect --config {folder}/collect.yaml --dry-run", [], []),
    "eval-p": (
        "evaluate eval-p --data {folder}/eval_p.jsonl --json {folder}/o.json",
        DRAWN,
        RESULT,
    ),
    "eval-r": (
        "evaluate eval-r --data {folder}/eval_r.jsonl --json {folder}/o.json --set sizes=[2,4]",
        GRADED,
        RESULT,
    ),
    "best-of-four": (
        "evaluate best-of-four --data {folder}/four.jsonl --json {folder}/o.json",
        DRAWN,
        RESULT,
    ),
    "pairs": (
        "evaluate pairs --data {folder}/llmbar.jsonl --json {folder}/o.json "
        "--set protocol=pointwise",
        DRAWN,
        RESULT,
    ),
    "judges": (
        "evaluate judges --data {folder}/eval_p.jsonl --json {folder}/o.json "
        "--config {folder}/judges.yaml",
        [],
        RESULT,
    ),
}


def write_inputs(folder: Path) -> None:
    for name, text in INPUTS.items():
        (folder / name).write_text(text.replace("{folder}", str(folder)), encoding="utf-8")


def drop_run_values(value: Any) -> Any:
    """Return the value without what differs between runs, and with floats of nine digits."""
    if isinstance(value, dict):
        return {k: drop_run_values(v) for k, v in value.items() if k not in OF_THE_RUN}
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return [drop_run_values(item) for item in value] if isinstance(value, list) else value


def read_written(path: Path) -> Any:
    top = path.parents[path.parent.name == "out"]
    text = path.read_text(encoding="utf-8").replace(str(top), "")
    text = FINGERPRINT.sub(r"\1:FINGERPRINT", text)
    if path.suffix == ".jsonl":
        return [drop_run_values(json.loads(line)) for line in text.splitlines()]
    return drop_run_values(json.loads(text)) if path.suffix == ".json" else text.splitlines()


def read_golden(name: str, result: Any) -> Any:
    """Return the golden value of a name. With AUTOJ_GOLDEN=write it is written first."""
    path = GOLDEN / name
    if WRITE:
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_command_says_and_writes_what_it_did(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    words, more, files = CASES[name]
    assert cli.main([*words.replace("{folder}", str(tmp_path)).split(), *more]) == 0
    lines = [
        SECONDS.sub("SECONDS | – |", line)
        for line in capsys.readouterr().out.replace(str(tmp_path), "").splitlines()
        if "judgements/s" not in line
    ]
    result = {"said": lines, "files": {file: read_written(tmp_path / file) for file in files}}
    assert result == read_golden(f"{name.replace(' ', '_')}.json", result)
