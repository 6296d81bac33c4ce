from __future__ import annotations

import random

import pytest
import torch

from autoj_reward.evaluate.graded import Graded, Output
from autoj_reward.training.judge.faults import FAULTS, echo, faulty
from autoj_reward.training.judge.groups import SPREAD, WORSE, GroupSampler, Ranked, longer_wins
from autoj_reward.training.judge.ranking import ranking_loss

TEXT = "The first step is easy. Then mix it well!\nAt last, bake for an hour. Enjoy your cake."


def count(text: str) -> int:
    return len(text.split())


def outputs(seed: int, size: int = 60) -> Graded:
    """Longer outputs score higher, as GPT-4 has it."""
    rng = random.Random(seed)
    found = []
    for n in range(size):
        words = rng.randint(5, 200)
        found.append(Output(f"s{n}", "word " * words, min(0.0, words / 50 - 6 + rng.gauss(0, 2))))
    return Graded("f", seed, f"Query {seed}?", tuple(found))


def groups(longest: int = 500) -> list[Ranked]:
    sampler = GroupSampler(size=4, ratio=1.3, longest=longest, count=count)
    rng = random.Random(0)
    return [g for seed in range(40) for g in sampler.groups(outputs(seed), 3, ["off topic"], rng)]


def test_a_group_is_of_nearly_one_length_and_of_wide_scores() -> None:
    found = groups(longest=150)
    assert len(found) > 60
    for group in found:
        lengths = [count(text) for text in group.responses[:4]]
        assert max(lengths) <= 1.3 * min(lengths) + 8 and max(lengths) <= 150
        assert max(group.scores[:4]) - min(group.scores[:4]) >= SPREAD


def test_length_predicts_little_within_groups() -> None:
    own = [Ranked("", 0, "", g.responses[:4], g.scores[:4]) for g in groups()]
    pairs = [(a, b) for n in range(40) for a, b in [random.Random(n).sample(outputs(n).outputs, 2)]]
    mixed = [Ranked("", 0, "", (a.text, b.text), (a.score, b.score)) for a, b in pairs]
    assert longer_wins(mixed, count) > 0.65
    assert longer_wins(own, count) < 0.6


def test_a_faulty_response_is_the_worst_of_its_group() -> None:
    bad = [group for group in groups() if len(group.responses) == 5]
    assert bad
    assert all(g.scores[4] == min(g.scores[:4]) - WORSE for g in bad)


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    made = {FAULTS[name](TEXT, random.Random(seed)) for seed in range(20)}
    assert len(made) > 1 and TEXT not in made and all(text.strip() for text in made)


@pytest.mark.parametrize("text", ["x", "No end", "?!", "a\nb", "ä" * 3000])
@pytest.mark.parametrize("seed", range(12))
def test_any_text_can_be_made_faulty(text: str, seed: int) -> None:
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
    wanted = -(p * torch.sigmoid(x).log() + (1 - p) * torch.sigmoid(-x).log())
    found = ranking_loss(torch.tensor([4.0, 2.0]), torch.tensor([-1.0, -2.0]), 1.5)
    assert found.item() == pytest.approx(wanted.item())
