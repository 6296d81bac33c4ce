"""`autoj rate`: one verdict in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoj_reward.cli import main as cli

QUERY, RESPONSE = "Why is the sky blue?", "It scatters light."


def rate(*arguments: str, script: str = "{}") -> int:
    judge = f"judge={{kind: fake, script: {script}}}"
    return cli.main(["rate", *arguments, "--set", judge])


def test_a_rating_is_shown_with_its_critique_and_distribution(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert rate(QUERY, RESPONSE, script=f"{{ratings: {{'{RESPONSE}': 7}}}}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Rating: [[7]]" in lines
    [number] = [line for line in lines if line.startswith("rating")]
    assert number.startswith("rating 7, expected 6.")
    bars = {line.split()[0]: len(line.split()[2]) for line in lines if "█" in line}
    assert max(bars, key=bars.__getitem__) == "7"


def test_a_judgement_that_fails_says_why_and_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert rate(QUERY, RESPONSE, script=f"{{fail: {{'{RESPONSE}': rejected}}}}") == 1
    assert "no rating: input_rejected: the script says so" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "verdict"),
    [("No.", "RESPONSE is better"), (f"{RESPONSE} And more.", "--against is better")],
)
def test_two_responses_are_compared_in_both_orders(
    other: str, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text(other, encoding="utf-8")
    assert rate(QUERY, RESPONSE, "--against", f"@{tmp_path / 'other.txt'}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## RESPONSE shown first",
        "## --against shown first",
    ]
    assert lines[-1] == f"both orders: {verdict}"


def test_each_criterion_gets_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    criteria = ["--rubric", 'Says "light"', "--rubric", 'Says "dust"']
    assert rate(QUERY, RESPONSE, *criteria, "--format", "rubric-item") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "Says" in line] == ["0.95", "0.05"]
    assert lines[-1] == "score 0.500"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url names no model"),
        (["--against", "No.", "--rubric", "Is kind"], "leave out one"),
        (["--against", "@missing.txt"], "missing.txt"),
        (["--rubric", "Is kind"], "set judge.format to one that shows it"),
    ],
)
def test_what_cannot_be_asked_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["rate", QUERY, RESPONSE, *arguments, "--set", "judge.kind=fake"]) == 1
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors
