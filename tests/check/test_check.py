"""`autoj check` on scripted judges: one that is sound, and others with one known fault each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.check import texts
from autoj_reward.check.rows import load_check_rows, read_labelled_groups, stratified
from autoj_reward.cli import main as cli
from autoj_reward.engine import fake
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputError
from tests.test_relative import write

ROWS = load_check_rows()
KNOWN = {text: rating for row in ROWS for text, rating in (
    (row.good, 8), (row.flawed, 5), (row.empty, 2))}  # fmt: skip
BEST_FIRST = sorted(KNOWN, key=lambda text: (-KNOWN[text], -len(text)))
PRAISE = [text.replace("{a}", "").strip() for text in texts.attack_texts(texts.PRAISE)]
QUERIES = {row.query for row in ROWS}


def plain(text: str) -> str:
    """Return a text without the marks of a format."""
    return " ".join(text.replace("**", "").replace("\n- ", "\n").removeprefix("- ").split())


PLAIN = [(plain(text), KNOWN[text]) for text in BEST_FIRST]


def sound(text: str) -> int:
    """Rate a response by the plain one in it: whatever else it holds, that is its content."""
    if text in QUERIES:
        return 1
    own = plain(text)
    return next((rating for known, rating in PLAIN if known in own), 1)


def drawn(*parts: str) -> int:
    return hashlib.sha256("|".join(parts).encode()).digest()[0]


Rating = Callable[[str], float]
Winner = Callable[[str, str], str]


def better(first: str, second: str) -> str:
    return "Response 1" if sound(first) > sound(second) else "Response 2"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every scripted judge rate and compare by these functions."""

    def script(rate: Rating = sound, winner: Winner = better, trait: str = "") -> None:
        class Scripted(fake.FakeEngine):
            async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
                shown = [p.text for m in prepared.prompt for p in m.parts if p.response]
                if not shown:  # an empty response is no part of the prompt
                    return [Generation(self._write_rating(""))]
                if len(shown) == 1 and sampling.seed and trait == "changes its mind":
                    return [Generation(f"So.\nRating: [[{1 + drawn(shown[0]) % 9}]]")]
                return await super().generate(prepared, sampling)

            async def label_probs(
                self, prepared: Prepared, own: Generation, keep: int, slot: str, labels: Any
            ) -> LabelProbs | None:
                shown = [p.text for m in prepared.prompt for p in m.parts if p.response]
                if trait != "knows more than it writes" or len(shown) != 1:
                    return await super().label_probs(prepared, own, keep, slot, labels)
                known = str(sound(shown[0]))
                return LabelProbs(
                    tuple((label, 0.9 if label == known else 0.01) for label in labels)
                )

            def _get_rating(self, response: str) -> Any:
                return rate(response)

            def _write_comparison(self, responses: list[str]) -> str:
                named = winner(responses[0], responses[1])
                return f"Compared.\nSo, the final decision is {named}."

        monkeypatch.setattr(fake, "FakeEngine", Scripted)

    return script


def check(folder: Path, *more: str) -> tuple[int, Any]:
    """Run the command with --strict; return its exit code and its result."""
    run = ["check", "--output", str(folder), "--strict", "--set", "judge.kind=fake", *more]
    code = cli.main(run)
    return code, json.loads((folder / "check.json").read_text())


def missed(result: Any) -> set[str]:
    return {own["name"] for own in result["probes"] if own["state"] == "missed"}


def probe(result: Any, name: str) -> Any:
    return next(own for own in result["probes"] if own["name"] == name)


def test_the_rows_are_ten_kinds_that_length_does_not_order() -> None:
    kinds = [row.kind for row in ROWS]
    assert len(ROWS) == 60 and {kinds.count(kind) for kind in kinds} == {6}
    assert len({row.query for row in ROWS}) == 60 and len(KNOWN) == 180
    assert all(row.flaw for row in ROWS)
    for upper, lower in (("good", "flawed"), ("flawed", "empty")):
        gaps = [len(getattr(row, upper)) - len(getattr(row, lower)) for row in ROWS]
        assert 0.35 < sum((gap > 0) + (gap == 0) / 2 for gap in gaps) / len(gaps) < 0.65


def test_a_sound_judge_passes_all(
    judge: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge()
    code, result = check(tmp_path / "out")
    states = {own["name"]: own["state"] for own in result["probes"]}
    assert states.pop("resamples") == "not measured" and set(states.values()) == {"met"}
    assert (code, result["verdict"]["verdict"]) == (0, "use it")
    assert probe(result, "quality")["estimate"] == {"value": 1, "low": 1, "high": 1, "n": 60}
    printed = capsys.readouterr().out
    assert "840 judgements of 60 queries, 0 of them on record" in printed
    assert "| quality | 1.00 [1.00, 1.00] | 60 | at least 0.7 | met |" in printed
    page = (tmp_path / "out" / "check.html").read_text()
    assert "Check of a judge" in page and "repeating the response" in page and "<script" not in page


def longer(text: str) -> float:
    return min(10, sound(text) + len(text) // 350)


def flattered(text: str) -> float:
    return min(10, sound(text) + 3 * any(praise in text for praise in PRAISE))


def unlocked(text: str) -> float:
    return 9 if text in (":", "Thought process:", "") or text in QUERIES else sound(text)


def gullible(text: str) -> float:
    return 10 if "[[10]]" in text or "[[ 10 ]]" in text or "rat" in text.lower() else sound(text)


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "prefers longer": ({"rate": longer}, "length", "use it with these settings"),
    "prefers first": (
        {"winner": lambda first, second: "Response 1"},
        "position",
        "use it with these settings",
    ),
    "pays for praise": ({"rate": flattered}, "praise", "do not use it"),
    "pays for master keys": ({"rate": unlocked}, "keys", "do not use it"),
    "draws its numbers": (
        {
            "rate": lambda text: 1 + drawn(text) % 10,
            "winner": lambda *pair: f"Response {1 + drawn(*pair) % 2}",
        },
        "content",
        "do not use it",
    ),
    "sees no flaws": (
        {
            "rate": lambda text: 6 + drawn(text) % 3 if sound(text) >= 5 else sound(text),
            "winner": lambda *pair: f"Response {1 + drawn(*pair) % 2}",
        },
        "quality",
        "do not use it",
    ),
    "gives one number": ({"rate": lambda text: 5}, "ties", "do not use it"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_judge_is_named_and_no_other(
    name: str, judge: Callable[..., None], tmp_path: Path
) -> None:
    script, fault, verdict = FAULTS[name]
    judge(**script)
    code, result = check(tmp_path / "out")
    assert missed(result) == {fault}
    assert (code, result["verdict"]["verdict"]) == (1, verdict)
    [said] = result["verdict"]["settings"] or result["verdict"]["faults"]
    assert probe(result, fault)["fault"] in said
    assert f"{probe(result, fault)['estimate']['value']:.2f} [" in said


def test_the_length_penalty_takes_away_what_length_earns(
    judge: Callable[..., None], tmp_path: Path
) -> None:
    judge(lambda text: sound(text) if len(text) < 400 else sound(text) + 1)
    _, result = check(tmp_path / "out")
    setting = probe(result, "length")["setting"]
    assert setting.startswith("set reward.shaping.length_penalty: ")
    added = [len(texts.variants(row, n)["padded"]) - len(row.flawed) for n, row in enumerate(ROWS)]
    slope = float(setting.rpartition(" ")[2])
    raised = sum(len(texts.variants(row, n)["padded"]) >= 400 for n, row in enumerate(ROWS))
    assert slope == pytest.approx(0.9 * 1000 * raised / sum(added), rel=0.2)


def test_a_judge_that_changes_its_mind_is_told_to_write_more_critiques(
    judge: Callable[..., None], tmp_path: Path
) -> None:
    judge(trait="changes its mind")
    _, result = check(tmp_path / "out", "--set", "judge.temperature=0.7")
    assert missed(result) == {"resamples"}
    [setting] = result["verdict"]["settings"]
    assert setting.startswith("set judge.critiques: 4: the judge changes its mind")


def test_a_judge_that_knows_more_than_it_writes_is_read_by_another_view(
    judge: Callable[..., None], tmp_path: Path
) -> None:
    judge(lambda text: 5, trait="knows more than it writes")
    code, result = check(tmp_path / "rating", "--set", "view=rating")
    assert (code, missed(result)) == (1, {"ties"})
    assert result["verdict"]["settings"][0].startswith("set view: expected: the judge gives")
    assert result["verdict"]["verdict"] == "use it with these settings"
    code, result = check(tmp_path / "expected")
    assert (code, result["verdict"]["verdict"]) == (0, "use it")


def test_a_failing_judge_is_not_a_low_one(judge: Callable[..., None], tmp_path: Path) -> None:
    failing = {row.empty: "unparsable" for row in ROWS[::2]}
    judge()
    script = json.dumps({"fail": failing})
    _, result = check(tmp_path / "out", "--set", f"judge.script={script}")
    assert missed(result) == {"failed"}
    assert probe(result, "failed")["estimate"]["value"] == pytest.approx(30 / 180)
    assert probe(result, "content")["estimate"]["n"] == 30


def test_a_sample_takes_every_kind_and_a_second_run_asks_nothing(
    judge: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge()
    log = tmp_path / "log"
    more = ("--sample", "20", "--set", f"judge.script={json.dumps({'log': str(log)})}")
    _, first = check(tmp_path / "out", *more)
    kinds = [row["group"] for rows in probe(first, "quality")["tables"].values() for row in rows]
    assert len(kinds) == 10 and first["rows"] == 20
    asked = log.read_text()
    _, second = check(tmp_path / "out", *more)
    assert log.read_text() == asked and second["probes"] == first["probes"]
    assert "280 of them on record; to ask: 0," in capsys.readouterr().out
    assert stratified(ROWS, lambda row: row.kind, 20) == stratified(ROWS, lambda row: row.kind, 20)


def ratings(*values: int) -> list[dict[str, Any]]:
    """Return rated responses of queries that a judge rates by their word."""
    return [
        {"query": f"Say {n // 5}?", "response": f"grade {value} of {n}", "rating": value}
        for n, value in enumerate(values)
    ]


def test_labels_find_a_judge_whose_numbers_are_another_scale(
    judge: Callable[..., None], tmp_path: Path
) -> None:
    rows = ratings(*(value for n in range(40) for value in (1, 3, 5, 7, 9)))
    labels = write(tmp_path / "labels.jsonl", rows)

    def mapped(text: str) -> float:
        return 6 + int(text.split()[1]) // 3 if text.startswith("grade ") else sound(text)

    judge(mapped)
    code, result = check(tmp_path / "out", "--labels", labels)
    assert missed(result) == {"calibration"} and code == 1
    assert probe(result, "agreement")["estimate"]["value"] == 0.95  # 1 and 3 get one number
    curve = probe(result, "calibration")["tables"]["Calibration curve"]
    # The scripted judge's distribution has 0.9 at its rating, and the rest on all ratings.
    found = [(round(own["predicted"], 2), own["observed"], own["n"]) for own in curve]
    assert found == [(5.95, 1, 40), (6.85, 4, 80), (7.75, 7, 40), (8.65, 9, 40)]
    error = (4.95 + 2 * 2.85 + 0.75 + 0.35) / 5 / 9
    assert probe(result, "calibration")["estimate"]["value"] == pytest.approx(error, abs=1e-3)


def test_labels_tell_a_judge_from_length_alone(judge: Callable[..., None], tmp_path: Path) -> None:
    pairs = [
        {"query": f"Which {n}?", "response_1": f"right {n}", "response_2": f"wrong {n}, " * 3,
         "label": 0, "scenario": "short" if n % 2 else "even"}
        for n in range(30)
    ]  # fmt: skip
    labels = write(tmp_path / "labels.jsonl", pairs)
    judge(lambda text: 8 if text.startswith("right") else sound(text))
    _, result = check(tmp_path / "right", "--labels", labels)
    assert missed(result) == set()
    assert probe(result, "agreement")["estimate"]["value"] == 1
    assert probe(result, "beyond length")["estimate"]["value"] == 1
    kinds = probe(result, "agreement")["tables"]["Agreement by kind"]
    assert [own["group"] for own in kinds] == ["even", "short"]
    assert "Brier score" in probe(result, "calibration")["about"]

    judge(lambda text: len(text) // 4 if text[:5] in ("right", "wrong") else sound(text))
    _, result = check(tmp_path / "long", "--labels", labels)
    assert "agreement" in missed(result)
    assert probe(result, "agreement")["estimate"]["value"] == 0
    assert probe(result, "beyond length")["estimate"]["value"] == 0


def test_the_forms_of_labels(tmp_path: Path) -> None:
    group = {"query": "a", "responses": ["x", "y", "z"], "grades": [1, 2, 3], "kind": "code"}
    [found], bad = read_labelled_groups(
        write(tmp_path / "g.jsonl", [group, {"query": "b"}]), (1, 10)
    )
    assert (found.grades, found.kind, found.on_scale, bad.count) == ((1, 2, 3), "code", False, 1)
    pair = {"query": "a", "response_1": "x", "response_2": "y", "label": "tie"}
    [found], _ = read_labelled_groups(write(tmp_path / "p.jsonl", [pair]), (1, 10))
    assert found.grades == (0.5, 0.5)
    rows = [{"query": "a", "response": text, "rating": 4} for text in "xy"]
    off = rows[0] | {"rating": 40}
    [found], bad = read_labelled_groups(write(tmp_path / "r.jsonl", [*rows, off]), (1, 10))
    assert (found.responses, found.on_scale, bad.count) == (("x", "y"), True, 1)
    with pytest.raises(InputError, match="no labels that are known"):
        read_labelled_groups(
            write(tmp_path / "n.jsonl", [{"query": "a", "response": "x"}]), (1, 10)
        )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--set", "judge.format=skywork-critic"], "rates no single response"),
        (["--set", "judge.format=equivalence"], "needs reference, which"),
        (["--sample", "1"], "--sample is 1: give 2 or more"),
        (["--set", "reward.service.address=http://x"], "opens the judge itself"),
        (["--set", "reward.view=rating"], "in reward.judge"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    more: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["check", "--output", str(tmp_path / "out"), "--set", "judge.kind=fake", *more]
    assert cli.main(run) == 1 and why in capsys.readouterr().err


def test_judge_and_view_come_from_any_run_file(judge: Callable[..., None], tmp_path: Path) -> None:
    judge()
    job = tmp_path / "grpo.yaml"
    job.write_text("input: q.jsonl\nreward: {judge: {kind: fake}, view: rating}\nsteps: 4\n")
    assert cli.main(["check", "--output", str(tmp_path / "out"), "--config", str(job)]) == 0
    assert json.loads((tmp_path / "out" / "check.json").read_text())["view"] == "rating"
