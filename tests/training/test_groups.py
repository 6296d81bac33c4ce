from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch

from autoj_reward.data.graded import GRADER, Graded, GradedData, GradedOutput
from autoj_reward.data.labelled import JudgeData
from autoj_reward.errors import InputError
from autoj_reward.training.groups import (
    FAULTS,
    SPREAD,
    WORSE,
    GroupSampler,
    GroupsConfig,
    Ranked,
    echo,
    faulty,
    ranked_groups,
)
from autoj_reward.training.judge.trainer import ranking_loss

TEXT = "The first step is easy. Then mix it well!\nAt last, bake for an hour. Enjoy your cake."


def count_words(text: str) -> int:
    return len(text.split())


def make_outputs(seed: int, size: int = 60) -> Graded:
    """Longer outputs score higher, as GPT-4 has it."""
    rng = random.Random(seed)
    rows = []
    for n in range(size):
        words = rng.randint(5, 200)
        rows.append(
            GradedOutput(f"s{n}", "word " * words, min(0.0, words / 50 - 6 + rng.gauss(0, 2)))
        )
    return Graded("f", seed, f"Query {seed}?", tuple(rows))


def make_groups(**config: float) -> list[Ranked]:
    sampler = GroupSampler(GroupsConfig(**{"longest": 500, **config}), count_words)
    rng = random.Random(0)
    return [g for seed in range(40) for g in sampler.groups(make_outputs(seed), ["off topic"], rng)]


def share_longer_wins(ranked: Sequence[Ranked]) -> float:
    """Share of the groups' pairs whose longer response has the higher score."""
    won = []
    for group in ranked:
        rows = sorted(zip(map(count_words, group.responses[:4]), group.scores[:4], strict=True))
        won += [high > low for (short, low), (long, high) in combinations(rows, 2) if short != long]
    return sum(won) / len(won)


def test_a_group_is_of_nearly_one_length_and_of_wide_scores() -> None:
    ranked = make_groups(longest=150)
    assert len(ranked) > 60
    for group in ranked:
        lengths = [count_words(text) for text in group.responses[:4]]
        assert max(lengths) <= 1.3 * min(lengths) + 8 and max(lengths) <= 150
        assert max(group.scores[:4]) - min(group.scores[:4]) >= SPREAD


def test_length_predicts_little_within_groups_of_one_length() -> None:
    assert (
        share_longer_wins(make_groups()) < 0.6 < 0.65 < share_longer_wins(make_groups(any_length=1))
    )


def test_a_share_of_the_groups_has_any_length() -> None:
    def share_wide(ranked: list[Ranked]) -> float:
        lengths = [[count_words(text) for text in group.responses[:4]] for group in ranked]
        return sum(max(counts) > 1.3 * min(counts) + 8 for counts in lengths) / len(ranked)

    assert share_wide(make_groups()) == 0
    assert 0.3 < share_wide(make_groups(any_length=0.5)) < 0.8
    assert share_wide(make_groups(any_length=1)) > 0.9


GROUP = {"query": "Why?", "responses": ["Because.", "No."], "scores": [0, -2.5]}


def read_files(tmp_path: Path, rows: list[object]) -> list[tuple[bool, Ranked]]:
    file = tmp_path / "groups.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(tmp_path / "preferences.jsonl.gz", "wt") as preferences:
        entry = {"annotator": GRADER, "instruction": "Q", "second": "s", "preference": 0.5}
        preferences.write(json.dumps(entry) + "\n")
    with gzip.open(tmp_path / "outputs.jsonl.gz", "wt") as texts:
        texts.write(json.dumps({"instruction": "Q", "outputs": {"s": "One."}}) + "\n")
    data = JudgeData(graded=GradedData(folder=str(tmp_path), test=0, validation=0))
    return list(ranked_groups(data, GroupsConfig(files=(str(file),)), 0, count_words, []))


def test_files_bring_more_groups_to_train_on(tmp_path: Path) -> None:
    [(validates, group)] = read_files(tmp_path, [GROUP])
    assert not validates
    assert group == Ranked(
        str(tmp_path / "groups.jsonl"), 1, "Why?", ("Because.", "No."), (0.0, -2.5)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"scores": [1]}, "1 numbers for 2 responses", id="one-score-for-two"),
        pytest.param({"responses": ["x"], "scores": [1]}, "two or more", id="one-response"),
        pytest.param({"scores": None}, "two or more, and their scores", id="no-scores"),
        pytest.param({"scores": ["a", 1]}, "not a number", id="a-word"),
        pytest.param({"query": " "}, "query", id="blank-query"),
    ],
)
def test_a_bad_group_is_named_by_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=rf"groups.jsonl:2: .*{message}"):
        read_files(tmp_path, [GROUP, GROUP | change])


def test_a_faulty_response_is_the_worst_of_its_group() -> None:
    bad = [group for group in make_groups() if len(group.responses) == 5]
    assert bad
    assert all(g.scores[4] == min(g.scores[:4]) - WORSE for g in bad)


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    texts = {FAULTS[name](TEXT, random.Random(seed)) for seed in range(20)}
    assert len(texts) > 1 and TEXT not in texts and all(text.strip() for text in texts)


@pytest.mark.parametrize("text", ["x", "No end", "?!", "a\nb", "ä" * 3000], ids=lambda t: t[:6])
def test_any_text_can_be_made_faulty(text: str) -> None:
    for seed in range(12):
        assert faulty("Why?", text, ["Another one."], random.Random(seed)).strip()


def test_a_loop_keeps_the_length_and_an_echo_says_the_query() -> None:
    for seed in range(9):
        looped = FAULTS["loop"](TEXT, random.Random(seed))
        assert len(TEXT) <= len(looped) <= 3 * len(TEXT)
    assert set(echo("Why?", TEXT).splitlines()) == {"Why?"}


def test_the_loss_wants_the_order_and_is_the_same_in_any_order() -> None:
    scores = torch.tensor([-6.0, -3.0, -0.5])
    right, wrong = torch.tensor([2.0, 4.0, 7.0]), torch.tensor([7.0, 4.0, 2.0])
    assert ranking_loss(right, scores, 1.5) < ranking_loss(wrong, scores, 1.5)
    turned = torch.tensor([2, 0, 1])
    assert ranking_loss(right[turned], scores[turned], 1.5) == pytest.approx(
        ranking_loss(right, scores, 1.5).item(), rel=1e-4
    )
    # Of two, the logistic loss at 2 points of rating and 1 decade of score.
    p = torch.sigmoid(torch.tensor(1.0))
    x = torch.tensor(3.0)
    expected = -(p * torch.sigmoid(x).log() + (1 - p) * torch.sigmoid(-x).log())
    loss = ranking_loss(torch.tensor([4.0, 2.0]), torch.tensor([-1.0, -2.0]), 1.5)
    assert loss.item() == pytest.approx(expected.item())
