from __future__ import annotations

import pytest

from experiments.compare.critique_health import Health, examine, summarise

SOUND = (
    "The response names the right city and gives a reason. It leaves out when the law was passed, "
    "which the user asked for, and its second paragraph drifts into travel advice. A short list of "
    "dates would have served better.\n\nRating: [[6]]"
)
PROMPT = (
    "Grade the response:\n[Query]: Which city is the capital, and since when?\n[Response]: Bonn."
)


def make_words(count: int, start: int = 0) -> str:
    """Return words that all differ."""
    return " ".join(f"w{n}" for n in range(start, start + count))


def test_a_sound_critique() -> None:
    health = examine(SOUND, PROMPT)
    assert (health.words, health.repetition) == (42, 0.0)
    assert (health.loops, health.copies, health.hit_limit) == (False, False, False)
    assert health.copied == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("... [[ ]] ***", 0),
        ("It's re-used, 10.5!", 6),
        ("答案很好 indeed", 5),
        ("snake_case", 2),
    ],
)
def test_words(text: str, words: int) -> None:
    assert examine(text, "").words == words


@pytest.mark.parametrize(
    ("text", "share"),
    [
        pytest.param("one two three", 0.0, id="too short"),
        pytest.param("one two three four", 0.0, id="one 4-gram"),
        # 4-grams: abcd bcda cdab dabc abcd: the last is a repeat.
        pytest.param("a b c d a b c d", 1 / 5, id="one of five"),
        pytest.param("A b, c d! a B c D", 1 / 5, id="case and marks do not count"),
        pytest.param("x x x x x x", 2 / 3, id="one word"),
    ],
)
def test_repetition(text: str, share: float) -> None:
    assert examine(text, "").repetition == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        pytest.param("", False, id="nothing"),
        pytest.param(make_words(300), False, id="no repeats"),
        pytest.param(make_words(50) + " good point" * 6, True, id="twelve words of two"),
        pytest.param(make_words(50) + " good point" * 5, False, id="ten words of two"),
        pytest.param("very " * 11, False, id="one word eleven times"),
        pytest.param("very " * 12, True, id="one word twelve times"),
        pytest.param(f"{make_words(60)} " * 3, True, id="longest unit"),
        pytest.param(f"{make_words(61)} " * 3, False, id="unit too long"),
        pytest.param(f"{make_words(30)} " * 2, False, id="only twice"),
        pytest.param(f"{make_words(30)} " * 3 + make_words(7), True, id="cut within the fourth"),
        pytest.param(
            f"{make_words(30)} " * 2 + make_words(29), False, id="the third is not complete"
        ),
        pytest.param(
            f"{make_words(9)} " * 3 + make_words(40, 90) + "\nRating: [[5]]",
            True,
            id="then it got out",
        ),
        pytest.param(" ".join(f"point {n} is weak" for n in range(9)), False, id="a list"),
    ],
)
def test_loops(text: str, loops: bool) -> None:
    assert examine(text, "").loops is loops


def test_a_long_cycle_is_a_loop_only_at_the_limit() -> None:
    # 200 words, three times: 593 8-grams of which 200 are distinct.
    text = f"{make_words(200)} " * 3
    assert not examine(text, "").loops
    assert examine(text, "", hit_limit=True).loops
    assert not examine(make_words(600), "", hit_limit=True).loops


@pytest.mark.parametrize(
    ("own_words", "run", "copied", "copies"),
    [
        pytest.param(200, 39, 39, False, id="39 of 239"),
        pytest.param(200, 40, 40, True, id="40 of 240"),
        pytest.param(8, 8, 8, True, id="half"),
        pytest.param(9, 8, 8, False, id="under half"),
        pytest.param(0, 7, 7, False, id="too short to tell"),
        pytest.param(0, 0, 0, False, id="nothing written"),
    ],
)
def test_copies(own_words: int, run: int, copied: int, copies: bool) -> None:
    critique = f"{make_words(own_words, 1000)} {make_words(run)}"
    health = examine(critique, f"Other text. {make_words(100)} and more.")
    assert (health.words, health.copied, health.copies) == (own_words + run, copied, copies)


def test_scattered_words_are_no_copy() -> None:
    prompt = make_words(100)
    critique = " ".join(f"w{n} mine{n}" for n in range(100))
    assert examine(critique, prompt).copied == 1


def test_a_summary() -> None:
    healths = [
        Health(10, False, 0.5, False, 0, False),
        Health(40, True, 0.25, True, 40, True),
        Health(0, False, 0.0, False, 0, False),
        Health(20, True, 0.25, False, 20, True),
    ]
    means = {"words": 17.5, "repetition": 0.25, "loops": 0.25, "copies": 0.5, "hit_limit": 0.5}
    assert summarise(healths) == {"n": 4} | means
    nothing = summarise([])
    assert nothing.pop("n") == 0 and set(nothing.values()) == {None}
