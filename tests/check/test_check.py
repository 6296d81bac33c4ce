"""`autoj check` on scripted judges: one that is sound, and others with one known fault each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.check import texts
from autoj_reward.check.rows import load_check_rows, stratified
from autoj_reward.cli import main as cli
from autoj_reward.engine import fake
from autoj_reward.engine.base import Generation, LabelProbs, Prepared, Sampling
from autoj_reward.errors import InputError
from autoj_reward.evaluate.labelled_groups import read_labelled_groups
from tests.test_relative import write

ROWS = load_check_rows()
KNOWN = {text: rating for row in ROWS for text, rating in (
    (row.good, 8), (row.flawed, 5), (row.empty, 2))}  # fmt: skip
BEST_FIRST = sorted(KNOWN, key=lambda text: (-KNOWN[text], -len(text)))
PRAISE = [text.replace("{a}", "").strip() for text in texts.attack_texts(texts.PRAISE)]
QUERIES = {row.query for row in ROWS}


def strip_marks(text: str) -> str:
    """Return a text without the marks of a format."""
    return " ".join(text.replace("**", "").replace("\n- ", "\n").removeprefix("- ").split())


PLAIN = [(strip_marks(text), KNOWN[text]) for text in BEST_FIRST]


def rate_content(text: str) -> int:
    """Rate a response by the plain one in it: whatever else it holds, that is its content."""
    if text in QUERIES:
        return 1
    content = strip_marks(text)
    return next((rating for plain_text, rating in PLAIN if plain_text in content), 1)


def draw_byte(*parts: str) -> int:
    return hashlib.sha256("|".join(parts).encode()).digest()[0]


Rating = Callable[[str], float]
Winner = Callable[[str, str], str]


def pick_better(first: str, second: str) -> str:
    return "Response 1" if rate_content(first) > rate_content(second) else "Response 2"


@pytest.fixture
def script_judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every scripted judge rate and compare by these functions."""

    def script_engine(
        rate: Rating = rate_content, winner: Winner = pick_better, trait: str = ""
    ) -> None:
        class Scripted(fake.FakeEngine):
            async def generate(self, prepared: Prepared, sampling: Sampling) -> list[Generation]:
                responses = [p.text for m in prepared.prompt for p in m.parts if p.response]
                if not responses:  # an empty response is no part of the prompt
                    return [Generation(self._write_rating("", None))]
                if len(responses) == 1 and sampling.seed and trait == "changes its mind":
                    return [Generation(f"So.\nRating: [[{1 + draw_byte(responses[0]) % 9}]]")]
                return await super().generate(prepared, sampling)

            async def label_probs(
                self, prepared: Prepared, generation: Generation, keep: int, slot: str, labels: Any
            ) -> LabelProbs | None:
                responses = [p.text for m in prepared.prompt for p in m.parts if p.response]
                if trait != "knows more than it writes" or len(responses) != 1:
                    return await super().label_probs(prepared, generation, keep, slot, labels)
                rating = str(rate_content(responses[0]))
                return LabelProbs(
                    tuple((label, 0.9 if label == rating else 0.01) for label in labels)
                )

            def _get_rating(self, response: str, seed: int | None = None) -> Any:
                return rate(response)

            def _write_comparison(self, responses: list[str], seed: int | None) -> str:
                decision = winner(responses[0], responses[1])
                return f"Compared.\nSo, the final decision is {decision}."

        monkeypatch.setattr(fake, "FakeEngine", Scripted)

    return script_engine


def check(folder: Path, *more: str) -> tuple[int, Any]:
    """Run the command with --strict; return its exit code and its result."""
    run = ["check", "--output", str(folder), "--strict", "--set", "judge.kind=fake", *more]
    code = cli.main(run)
    return code, json.loads((folder / "check.json").read_text())


def list_missed(result: Any) -> set[str]:
    return {probe["name"] for probe in result["probes"] if probe["state"] == "missed"}


def find_probe(result: Any, name: str) -> Any:
    return next(probe for probe in result["probes"] if probe["name"] == name)


def test_the_rows_are_ten_kinds_that_length_does_not_order() -> None:
    kinds = [row.kind for row in ROWS]
    assert len(ROWS) == 60 and {kinds.count(kind) for kind in kinds} == {6}
    assert len({row.query for row in ROWS}) == 60 and len(KNOWN) == 180
    assert all(row.flaw for row in ROWS)
    for upper, lower in (("good", "flawed"), ("flawed", "empty")):
        gaps = [len(getattr(row, upper)) - len(getattr(row, lower)) for row in ROWS]
        assert 0.35 < sum((gap > 0) + (gap == 0) / 2 for gap in gaps) / len(gaps) < 0.65


def test_a_sound_judge_passes_all(
    script_judge: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script_judge()
    code, result = check(tmp_path / "out")
    states = {probe["name"]: probe["state"] for probe in result["probes"]}
    assert states.pop("resamples") == "not measured" and set(states.values()) == {"met"}
    assert (code, result["verdict"]["verdict"]) == (0, "use it")
    assert find_probe(result, "quality")["estimate"] == {"value": 1, "low": 1, "high": 1, "n": 60}
    printed = capsys.readouterr().out
    assert "840 judgements of 60 queries, 0 of them on record" in printed
    assert "| quality | 1.00 [1.00, 1.00] | 60 | at least 0.7 | met |" in printed
    page = (tmp_path / "out" / "check.html").read_text()
    assert "Check of a judge" in page and "repeating the response" in page and "<script" not in page


def rate_by_length(text: str) -> float:
    return min(10, rate_content(text) + len(text) // 350)


def rate_by_praise(text: str) -> float:
    return min(10, rate_content(text) + 3 * any(praise in text for praise in PRAISE))


def rate_by_keys(text: str) -> float:
    return 9 if text in (":", "Thought process:", "") or text in QUERIES else rate_content(text)


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "prefers longer": ({"rate": rate_by_length}, "length", "use it with these settings"),
    "prefers first": (
        {"winner": lambda first, second: "Response 1"},
        "position",
        "use it with these settings",
    ),
    "pays for praise": ({"rate": rate_by_praise}, "praise", "do not use it"),
    "pays for master keys": ({"rate": rate_by_keys}, "keys", "do not use it"),
    "draws its numbers": (
        {
            "rate": lambda text: 1 + draw_byte(text) % 10,
            "winner": lambda *pair: f"Response {1 + draw_byte(*pair) % 2}",
        },
        "content",
        "do not use it",
    ),
    "sees no flaws": (
        {
            "rate": lambda text: (
                6 + draw_byte(text) % 3 if rate_content(text) >= 5 else rate_content(text)
            ),
            "winner": lambda *pair: f"Response {1 + draw_byte(*pair) % 2}",
        },
        "quality",
        "do not use it",
    ),
    "gives one number": ({"rate": lambda text: 5}, "ties", "do not use it"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_of_a_judge_is_named_and_no_other(
    name: str, script_judge: Callable[..., None], tmp_path: Path
) -> None:
    script, fault, verdict = FAULTS[name]
    script_judge(**script)
    code, result = check(tmp_path / "out")
    assert list_missed(result) == {fault}
    assert (code, result["verdict"]["verdict"]) == (1, verdict)
    [advice] = result["verdict"]["settings"] or result["verdict"]["faults"]
    assert find_probe(result, fault)["fault"] in advice
    assert f"{find_probe(result, fault)['estimate']['value']:.2f} [" in advice


def test_the_length_penalty_takes_away_what_length_earns(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    script_judge(lambda text: rate_content(text) if len(text) < 400 else rate_content(text) + 1)
    _, result = check(tmp_path / "out")
    setting = find_probe(result, "length")["setting"]
    assert setting.startswith("set reward.shaping.length_penalty: ")
    added = [len(texts.variants(row, n)["padded"]) - len(row.flawed) for n, row in enumerate(ROWS)]
    slope = float(setting.rpartition(" ")[2])
    raised = sum(len(texts.variants(row, n)["padded"]) >= 400 for n, row in enumerate(ROWS))
    assert slope == pytest.approx(0.9 * 1000 * raised / sum(added), rel=0.2)


def test_a_judge_that_changes_its_mind_is_told_to_write_more_critiques(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    script_judge(trait="changes its mind")
    _, result = check(tmp_path / "out", "--set", "judge.temperature=0.7")
    assert list_missed(result) == {"resamples"}
    [setting] = result["verdict"]["settings"]
    assert setting.startswith("set judge.critiques: 4: the judge changes its mind")


def test_a_judge_that_knows_more_than_it_writes_is_read_by_another_view(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    script_judge(lambda text: 5, trait="knows more than it writes")
    code, result = check(tmp_path / "rating", "--set", "view=rating")
    assert (code, list_missed(result)) == (1, {"ties"})
    assert result["verdict"]["settings"][0].startswith("set view: expected: the judge gives")
    assert result["verdict"]["verdict"] == "use it with these settings"
    code, result = check(tmp_path / "expected")
    assert (code, result["verdict"]["verdict"]) == (0, "use it")


def test_a_failing_judge_is_not_a_low_one(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    failing = {row.empty: "unparsable" for row in ROWS[::2]}
    script_judge()
    script = json.dumps({"fail": failing})
    _, result = check(tmp_path / "out", "--set", f"judge.script={script}")
    assert list_missed(result) == {"failed"}
    assert find_probe(result, "failed")["estimate"]["value"] == pytest.approx(30 / 180)
    assert find_probe(result, "content")["estimate"]["n"] == 30


def test_a_sample_takes_every_kind_and_a_second_run_asks_nothing(
    script_judge: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script_judge()
    log = tmp_path / "log"
    more = ("--sample", "20", "--set", f"judge.script={json.dumps({'log': str(log)})}")
    _, first = check(tmp_path / "out", *more)
    kinds = [
        row["group"] for rows in find_probe(first, "quality")["tables"].values() for row in rows
    ]
    assert len(kinds) == 10 and first["rows"] == 20
    first_log = log.read_text()
    _, second = check(tmp_path / "out", *more)
    assert log.read_text() == first_log and second["probes"] == first["probes"]
    assert "280 of them on record; to ask: 0," in capsys.readouterr().out
    assert stratified(ROWS, lambda row: row.kind, 20) == stratified(ROWS, lambda row: row.kind, 20)


def make_rated_rows(*values: int) -> list[dict[str, Any]]:
    """Return rated responses of queries that a judge rates by their word."""
    return [
        {"query": f"Say {n // 5}?", "response": f"grade {value} of {n}", "rating": value}
        for n, value in enumerate(values)
    ]


def test_labels_find_a_judge_whose_numbers_are_another_scale(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    rows = make_rated_rows(*(value for n in range(40) for value in (1, 3, 5, 7, 9)))
    labels = write(tmp_path / "labels.jsonl", rows)

    def rate_on_other_scale(text: str) -> float:
        return 6 + int(text.split()[1]) // 3 if text.startswith("grade ") else rate_content(text)

    script_judge(rate_on_other_scale)
    code, result = check(tmp_path / "out", "--labels", labels)
    assert list_missed(result) == {"calibration"} and code == 1
    assert find_probe(result, "agreement")["estimate"]["value"] == 0.95  # 1 and 3 get one number
    curve = find_probe(result, "calibration")["tables"]["Calibration curve"]
    # The scripted judge's distribution has 0.9 at its rating, and the rest on all ratings.
    points = [(round(point["predicted"], 2), point["observed"], point["n"]) for point in curve]
    assert points == [(5.95, 1, 40), (6.85, 4, 80), (7.75, 7, 40), (8.65, 9, 40)]
    error = (4.95 + 2 * 2.85 + 0.75 + 0.35) / 5 / 9
    assert find_probe(result, "calibration")["estimate"]["value"] == pytest.approx(error, abs=1e-3)


def test_labels_tell_a_judge_from_length_alone(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    pairs = [
        {"query": f"Which {n}?", "response_1": f"right {n}", "response_2": f"wrong {n}, " * 3,
         "label": 0, "scenario": "short" if n % 2 else "even"}
        for n in range(30)
    ]  # fmt: skip
    labels = write(tmp_path / "labels.jsonl", pairs)
    script_judge(lambda text: 8 if text.startswith("right") else rate_content(text))
    _, result = check(tmp_path / "right", "--labels", labels)
    assert list_missed(result) == set()
    assert find_probe(result, "agreement")["estimate"]["value"] == 1
    assert find_probe(result, "beyond length")["estimate"]["value"] == 1
    kinds = find_probe(result, "agreement")["tables"]["Agreement by kind"]
    assert [row["group"] for row in kinds] == ["even", "short"]
    assert "Brier score" in find_probe(result, "calibration")["about"]

    script_judge(
        lambda text: len(text) // 4 if text[:5] in ("right", "wrong") else rate_content(text)
    )
    _, result = check(tmp_path / "long", "--labels", labels)
    assert "agreement" in list_missed(result)
    assert find_probe(result, "agreement")["estimate"]["value"] == 0
    assert find_probe(result, "beyond length")["estimate"]["value"] == 0


def test_the_forms_of_labels(tmp_path: Path) -> None:
    group = {"query": "a", "responses": ["x", "y", "z"], "grades": [1, 2, 3], "kind": "code"}
    [labelled_group], bad = read_labelled_groups(
        write(tmp_path / "g.jsonl", [group, {"query": "b"}]), (1, 10)
    )
    assert (labelled_group.grades, labelled_group.kind, labelled_group.on_scale, bad.count) == (
        (1, 2, 3),
        "code",
        False,
        1,
    )
    pair = {"query": "a", "response_1": "x", "response_2": "y", "label": "tie"}
    [labelled_group], _ = read_labelled_groups(write(tmp_path / "p.jsonl", [pair]), (1, 10))
    assert labelled_group.grades == (0.5, 0.5)
    rows = [{"query": "a", "response": text, "rating": 4} for text in "xy"]
    off = rows[0] | {"rating": 40}
    [labelled_group], bad = read_labelled_groups(write(tmp_path / "r.jsonl", [*rows, off]), (1, 10))
    assert (
        tuple(r.text for r in labelled_group.responses),
        labelled_group.on_scale,
        bad.count,
    ) == (("x", "y"), True, 1)
    with pytest.raises(InputError, match="no labels that are known"):
        read_labelled_groups(
            write(tmp_path / "n.jsonl", [{"query": "a", "response": "x"}]), (1, 10)
        )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--set", "judge.format=skywork-critic"], "rates no single response"),
        (["--set", "judge.format=nemotron-genrm-principle"], "needs principle, which"),
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


def test_judge_and_view_come_from_any_run_file(
    script_judge: Callable[..., None], tmp_path: Path
) -> None:
    script_judge()
    job = tmp_path / "grpo.yaml"
    job.write_text("input: q.jsonl\nreward: {judge: {kind: fake}, view: rating}\nsteps: 4\n")
    assert cli.main(["check", "--output", str(tmp_path / "out"), "--config", str(job)]) == 0
    assert json.loads((tmp_path / "out" / "check.json").read_text())["view"] == "rating"
