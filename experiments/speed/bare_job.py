"""A bare best-of-N loop: the reads and writes of a job on the scripted judge, and nothing else.

    python -m experiments.speed.bare_job FOLDER

It reads FOLDER/in.jsonl, computes each candidate's key, takes recorded judgements from an SQLite
file, commits new ones query by query, and writes the two result files of a job to FOLDER/out.
It renders no prompt, parses no text, retries nothing and writes no summary.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

BARE_JUDGE = "bare"
BARE_SCALE = range(1, 11)


def judge_by_script(response: str) -> dict[str, Any]:
    """Return the fields of a judgement, with the numbers of the scripted judge."""
    rating = 1 + len(response) % 10
    probs = [0.9 if label == rating else 0.1 / len(BARE_SCALE) for label in BARE_SCALE]
    mass = sum(probs)
    shares = [math.exp(-label) * p for label, p in zip(BARE_SCALE, probs, strict=True)]
    return {
        "outcome": "ok",
        "reason": "",
        "rating": float(rating),
        "expected": sum(label * p for label, p in zip(BARE_SCALE, probs, strict=True)) / mass,
        "direct": None,
        "pessimistic": -math.log(sum(shares) / mass),
        "outside": 1 - mass,
        "distribution": {str(label): p for label, p in zip(BARE_SCALE, probs, strict=True)},
        "forced": False,
        "critique": f"Scripted critique of {len(response)} characters.\nRating: [[{rating}]]",
        "flags": [],
        "tokens_in": 20,
        "tokens_cached": 10,
        "tokens_out": 8,
        "latency_s": 0.0,
        "queued_s": 0.0,
        "judge": BARE_JUDGE,
    }


def make_key(query: str, response: str) -> str:
    """Return the key of a judgement."""
    return hashlib.sha256(json.dumps([BARE_JUDGE, query, response]).encode()).hexdigest()


def judge_row(db: sqlite3.Connection, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the judgements of a row's responses. Those without a record are judged and stored."""
    keys = [make_key(row["query"], response) for response in row["responses"]]
    marks = ",".join("?" * len(keys))
    records = dict(
        db.execute(f"SELECT key, judgement FROM judgements WHERE key IN ({marks})", keys)
    )
    judgements, new = [], []
    for key, response in zip(keys, row["responses"], strict=True):
        if key in records:
            judgements.append(json.loads(records[key]))
        else:
            judgements.append(judge_by_script(response))
            new.append((key, row["query"], response, json.dumps(judgements[-1])))
    db.execute("BEGIN")
    db.executemany("INSERT OR REPLACE INTO judgements VALUES (?, ?, ?, ?)", new)
    db.execute("COMMIT")
    return judgements


def find_best_index(judgements: Sequence[Mapping[str, Any]], logprobs: Sequence[float]) -> int:
    """Return the index of the highest rating; the highest log-probability breaks ties."""
    return max(range(len(judgements)), key=lambda i: (judgements[i]["rating"], logprobs[i]))


def run_bare_job(folder: Path) -> None:
    """Judge the rows of `in.jsonl` and write the result files."""
    output = folder / "out"
    output.mkdir()
    db = sqlite3.connect(output / "journal.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS judgements "
        "(key TEXT PRIMARY KEY, query TEXT, response TEXT, judgement TEXT)"
    )
    with (
        closing(db),
        (folder / "in.jsonl").open() as rows,
        (output / "selections.jsonl").open("w") as selections,
        (output / "judgements.jsonl").open("w") as judgements,
    ):
        for line, text in enumerate(rows, 1):
            row = json.loads(text)
            row_judgements = judge_row(db, row)
            best = find_best_index(row_judgements, row["logprobs"])
            choice = {"response": row["responses"][best]} | row_judgements[best]
            ratings = [judgement["rating"] for judgement in row_judgements]
            selection = {"line": line, "query": row["query"], "index": best}
            selections.write(json.dumps(selection | choice | {"ratings": ratings}) + "\n")
            candidates = zip(row["responses"], row["logprobs"], row_judgements, strict=True)
            for index, (response, logprob, judgement) in enumerate(candidates):
                candidate = {"line": line, "index": index, "response": response}
                judgements.write(
                    json.dumps(candidate | {"policy_logprob": logprob} | judgement) + "\n"
                )


if __name__ == "__main__":
    run_bare_job(Path(sys.argv[1]))
