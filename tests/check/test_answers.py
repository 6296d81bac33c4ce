"""`autoj check` and `autoj calibrate` on scripted verifiers, which need a reference answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.check.answers import KEYS, PLANTED, load_answer_rows
from autoj_reward.check.probes import ANSWER_PROBES
from autoj_reward.cli import main as cli
from autoj_reward.engine import fake
from autoj_reward.engine.base import Generation, Prepared, Sampling
from tests.check.test_check import find_probe, list_missed
from tests.test_relative import write

ROWS = load_answer_rows()
RIGHT = {text for row in ROWS for text in (row.good, row.respelled, row.derivation)}
SPELLED = {text for row in ROWS for text in (row.good, row.derivation)}
UNITS = {row.unit for row in ROWS if row.unit}
QUERIES = {row.query for row in ROWS}
FIXED_KEYS = {*KEYS.values()} - {"{q}"}

CallsRight = Callable[[str], bool]


@pytest.fixture
def script_verifier(monkeypatch: pytest.MonkeyPatch) -> Callable[[CallsRight], None]:
    """Make every scripted verifier call those responses right of which this is true."""

    def script(calls_right: CallsRight) -> None:
        class Scripted(fake.FakeEngine):
            async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
                texts = {part.name: part.text for m in prepared.prompt for part in m.parts}
                assert texts["reference"]
                # An empty response is no part of the prompt.
                verdict = "A" if calls_right(texts.get("response", "")) else "B"
                return [Generation(verdict)]

        monkeypatch.setattr(fake, "FakeEngine", Scripted)

    return script


def check(folder: Path, *more: str) -> tuple[int, Any]:
    """Run the command on CompassVerifier's format; return its exit code and its result."""
    sets = ["--set", "judge.kind=fake", "--set", "judge.format=compassverifier"]
    code = cli.main(["check", "--output", str(folder), "--strict", *sets, *more])
    return code, json.loads((folder / "check.json").read_text())


def test_the_rows_are_eight_kinds_with_an_answer_each() -> None:
    kinds = [row.kind for row in ROWS]
    assert len(ROWS) == len(QUERIES) == 24 and {kinds.count(kind) for kind in kinds} == {3}
    assert {row.kind for row in ROWS if row.unit} == {"unit"}
    for row in ROWS:
        texts = row.responses(0).values()
        assert row.flaw and len(set(texts)) == len(texts)
    shown = {row.responses(place)["key"] for place, row in enumerate(ROWS)}
    assert shown >= FIXED_KEYS


def test_a_sound_verifier_passes_and_derivations_are_reported(
    script_verifier: Callable[[CallsRight], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script_verifier(RIGHT.__contains__)
    code, result = check(tmp_path / "out")
    states = {probe["name"]: probe["state"] for probe in result["probes"]}
    assert list(states) == [probe.name for probe, _ in ANSWER_PROBES]
    assert states.pop("derivation") == "reported" and set(states.values()) == {"met"}
    assert (code, result["verdict"]["verdict"]) == (0, "use it")
    assert find_probe(result, "derivation")["estimate"]["value"] == 1
    assert find_probe(result, "units")["estimate"]["n"] == 3
    printed = capsys.readouterr().out
    assert "judgements of 24 queries" in printed
    assert "| derivation | 1.00 [1.00, 1.00] | 24 | none | reported |" in printed
    # A verifier that reads derivations is as good: nothing but the report differs.
    script_verifier({*RIGHT}.difference(row.derivation for row in ROWS).__contains__)
    code, result = check(tmp_path / "strict")
    assert (code, find_probe(result, "derivation")["estimate"]["value"]) == (0, 0)


FAULTS: dict[str, tuple[CallsRight, str]] = {
    "knows one spelling": (SPELLED.__contains__, "spellings"),
    "reads no units": ((RIGHT | UNITS).__contains__, "units"),
    "pays for master keys": (
        lambda text: text in RIGHT | FIXED_KEYS or text in QUERIES,
        "keys",
    ),
    "pays for fluent text": ((RIGHT | {row.empty for row in ROWS}).__contains__, "no answer"),
    "obeys the response": (
        lambda text: text in RIGHT or text.endswith(tuple(p.removeprefix("{a}") for p in PLANTED)),
        "planted",
    ),
    "takes any of two answers": (lambda text: text in RIGHT or "Or else" in text, "both"),
    "calls all wrong": (lambda text: False, "right"),
    "calls all right": (lambda text: True, "wrong"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_verifier_is_named_and_no_other(
    name: str, script_verifier: Callable[[CallsRight], None], tmp_path: Path
) -> None:
    calls_right, fault = FAULTS[name]
    script_verifier(calls_right)
    code, result = check(tmp_path / "out")
    assert list_missed(result) == {fault}
    assert (code, result["verdict"]["verdict"]) == (1, "do not use it")


def test_own_labels_bring_their_references(
    script_verifier: Callable[[CallsRight], None], tmp_path: Path
) -> None:
    script_verifier(RIGHT.__contains__)
    rows = [
        {"query": row.query, "reference": row.reference, "responses": [row.good, row.flawed],
         "grades": [1, 0]}
        for row in ROWS
    ]  # fmt: skip
    lost = {key: value for key, value in rows[0].items() if key != "reference"}
    labels = write(tmp_path / "labels.jsonl", [*rows, lost])
    _, result = check(tmp_path / "out", "--labels", labels)
    assert find_probe(result, "agreement")["estimate"] == {"value": 1, "low": 1, "high": 1, "n": 24}
    assert result["rows_left_out"] == 1


def test_a_verifier_is_calibrated_by_labels_with_references(
    script_verifier: Callable[[CallsRight], None], tmp_path: Path
) -> None:
    script_verifier(RIGHT.__contains__)
    rows = [
        {"query": row.query, "reference": row.reference, "responses": [row.good, row.flawed],
         "grades": [0.9, 0.2]}
        for row in ROWS
    ]  # fmt: skip
    output = tmp_path / "map.json"
    sets = ["--set", "judge.kind=fake", "--set", "judge.format=compassverifier"]
    labels = write(tmp_path / "labels.jsonl", rows)
    assert cli.main(["calibrate", "--labels", labels, "--output", str(output), *sets]) == 0
    assert json.loads(output.read_text())["n"] == 48
