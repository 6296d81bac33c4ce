"""One HTML page of any number of results: `autoj evaluate leaderboard`.

It needs nothing but itself: no network, and only its own script runs, by its hash. Whatever a file
or a model wrote is text, escaped here or set as text by the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoj_reward.errors import ConfigError, InputError
from autoj_reward.evaluate.intervals import Figures
from autoj_reward.evaluate.leaderboard_tables import section
from autoj_reward.evaluate.results import ROWS, beside, load, load_rows
from autoj_reward.io.files import require_apart, write_text
from autoj_reward.io.markup import data_block, esc, num, page, plural, visible
from autoj_reward.io.plain import to_json

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


def leaderboard(results: Sequence[str], output: str, limit: int) -> int:
    """Write the page."""
    if limit < 0:
        raise ConfigError(f"--limit {limit}: give 0 or more")
    require_apart([*results, *(beside(path, ROWS) for path in results)], [output])
    loaded = [(path, load(path)) for path in results]
    for path, found in loaded:
        if not isinstance(found.get("overall"), dict):
            raise InputError(f"{path}: a result of {found['task']} has no overall figures to show")
    rows = [load_rows(path) for path, _ in loaded]
    items = [
        _items(path, str(found["task"]), own[:limit])
        for (path, found), own in zip(loaded, rows, strict=True)
    ]
    left = sum(max(0, len(own) - limit) for own in rows)
    write_text(output, render(loaded, items, left))
    print(f"{plural(len(loaded), 'result')}: {output}")
    return 0


def render(
    loaded: Sequence[tuple[str, Figures]], items: Sequence[Sequence[Item]], left: int
) -> str:
    """The page. loaded: results by file name. items: their judged rows. left: rows left out."""
    titles = [f"{found['name']} · {found['task']} · {Path(path).stem}" for path, found in loaded]
    data = [
        {"title": title, "items": [to_json(item) for item in own]}
        for title, own in zip(titles, items, strict=True)
        if own
    ]
    same: dict[tuple[str, str], list[tuple[str, Figures]]] = {}
    for path, found in loaded:
        same.setdefault((str(found["task"]), _rows_of(found)), []).append((Path(path).stem, found))
    note = f"{plural(left, 'judged row')} left out of this page; the files hold all of them."
    return page(
        "autoj_reward.evaluate",
        "leaderboard",
        subtitle=esc(f"{plural(len(loaded), 'result')}; 95 % intervals are bootstrapped."),
        sections="".join(section(task, rows, own) for (task, rows), own in same.items()),
        notes=f'<p class="muted small">{note}</p>' if left else "",
        data=data_block(data),
    )


def _rows_of(found: Figures) -> str:
    """What tells whether two results are of the same rows: the data's digest, and the sample."""
    sources = found.get("sources") or {}
    settings = found.get("settings") or {}
    source = sources.get("data") or sources.get("table") or {}
    name = Path(str(source.get("path", ""))).name
    digest = str(source.get("sha256", ""))[:12]
    sample = settings.get("sample")
    drawn = f"{sample} drawn with seed {settings.get('seed')}" if sample else ""
    return " · ".join(part for part in (name, digest, drawn) if part)


def _items(path: str, task: str, rows: Sequence[dict[str, Any]]) -> list[Item]:
    try:
        return [items_of(task, row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: the rows beside it are not those of an evaluation: {error!r}; evaluate again"
        ) from error


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
