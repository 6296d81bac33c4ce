"""Judged rows as the leaderboard's browser shows them: plain text, and tags to filter by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoj_reward.io.page import num, visible

Titled = tuple[str, str]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """responses, judgements: texts with their titles. tags: what can be filtered by; facts: what
    cannot."""

    line: int
    group: str
    query: str
    responses: tuple[Titled, ...]
    judgements: tuple[Titled, ...]
    tags: tuple[str, ...]
    facts: tuple[str, ...]


def items_of(task: str, row: Row) -> Item:
    """The item of a row of a task; KeyError or TypeError if the row is not of that task."""
    build = {"eval-c": _critiques, "eval-r": _candidates, "best-of-four": _choice}.get(task, _pair)
    responses, judgements, tags, facts = build(row)
    return Item(
        int(row["line"]),
        visible(row["group"]),
        visible(row["query"]),
        tuple((visible(title), visible(text)) for title, text in responses),
        tuple((visible(title), visible(text)) for title, text in judgements),
        tuple(tags),
        tuple(visible(fact) for fact in facts),
    )


def _pair(row: Row) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    verdict, label = str(row["verdict"]), str(row["label"])
    tags = [verdict] if verdict in ("inconsistent", "failed", "tie") else []
    tags.append("agreement" if verdict == label else "disagreement")
    facts = [f"judge: {verdict}", f"human: {label}"]
    responses = [(f"response {n}", text) for n, text in enumerate(row["responses"], 1)]
    judgements = []
    rated_alone = not row["orders"]
    for n, judgement in enumerate(row["judgements"]):
        if rated_alone:
            title = f"response {n + 1}: rated {num(judgement['rating'])}"
            title += f", expected {num(judgement['expected'])}"
        else:
            said = _in_file_order(row["orders"][n], n)
            shown = "response 1 shown first" if n == 0 else "response 2 shown first"
            title = f"{shown}: {said or judgement['outcome']}"
        title += ", forced" * bool(judgement["forced"])
        judgements.append((title, judgement["critique"] or judgement["reason"] or "(no text)"))
    return responses, judgements, tags, facts


def _in_file_order(said: str | None, order: int) -> str | None:
    """A verdict in terms of the file's order, whichever order was shown."""
    names = {"first": "response 1", "second": "response 2"}
    if order == 1:
        names = {"first": "response 2", "second": "response 1"}
    return names.get(said, said) if said else None


def _critiques(row: Row) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    outcome = {"first": "win", "second": "lose"}.get(row["verdict"], str(row["verdict"]))
    critiques = zip(("critique of the judge", "reference critique"), row["responses"], strict=False)
    shown = "reference" if row["exchanged"] else "judge"
    return [("response", row["response"])], list(critiques), [outcome], [f"{shown} shown first"]


def _candidates(row: Row) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    chosen = row["chosen"]["configured"]
    responses = []
    for size, index in chosen.items():
        facts = f"rating {num(row['ratings'][index])}, grade {num(row['grades'][index])}"
        responses.append((f"best of {size}: candidate {index}, {facts}", row["responses"][index]))
    critiques = [
        (f"critique of candidate {index}", row["critiques"][index])
        for index in dict.fromkeys(chosen.values())
        if row["critiques"][index]
    ]
    others = {i for by_size in row["chosen"].values() for i in by_size.values()}
    tags = ["tie-break matters"] if others - set(chosen.values()) else []
    return responses, critiques, tags, [str(row["base"])]


def _choice(row: Row) -> tuple[list[Titled], list[Titled], list[str], list[str]]:
    correct, ratings = int(row["correct"]), row["ratings"]
    responses = [
        (f"{'correct' if n < correct else 'wrong'}: rated {num(ratings[n])}", text)
        for n, text in enumerate(row["responses"])
    ]
    known = [rating for rating in ratings if rating is not None]
    best = {n for n, rating in enumerate(ratings) if known and rating == max(known)}
    right = bool(best) and all(n < correct for n in best)
    tags = ["agreement" if right else "disagreement"]
    tags += ["failed"] if len(known) < len(ratings) else []
    return responses, [], tags, [f"{correct} correct of {len(ratings)}"]
