from __future__ import annotations

from autoj_reward.io.markup import section, table


def test_a_table() -> None:
    assert table(("a", "b"), [("1", "2")]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_text_of_others_cannot_break_a_table() -> None:
    assert table(("a",), [("x | y\nz",)])[2] == "| x \\| y z |"


def test_sections_without_rows_are_left_out() -> None:
    assert section("Empty", [("a", "b")]) == []
    assert section("One", [("a",), ("1",)], "Note.") == [
        "## One", "", "| a |", "| --- |", "| 1 |", "", "Note.", "",
    ]  # fmt: skip
