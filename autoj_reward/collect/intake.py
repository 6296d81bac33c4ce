"""What of the sources is worth asking a teacher about: usable rows kept, the others by reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from autoj_reward.collect.english import is_english
from autoj_reward.collect.near_duplicates import NearDuplicates
from autoj_reward.collect.sources import Preference
from autoj_reward.evaluate.rows import Fields, read_strict
from autoj_reward.io import checks as check
from autoj_reward.io.files import text_digest
from autoj_reward.types import Verdict

QUERY_FIELDS = ("query", "prompt", "instruction")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is left out, and why."""

    row: Preference
    reason: str


@dataclass(frozen=True, slots=True)
class Intake:
    """Rows to go on with in their order, and those left out."""

    rows: tuple[Preference, ...]
    dropped: tuple[Dropped, ...]


def take_in(
    rows: Iterable[Preference], measured: Sequence[str], near_duplicate: float | None
) -> Intake:
    """Drop what is not English, contradicts itself, was seen before, or measures judges.

    measured: queries that evaluate, exact and near ones of which are dropped. near_duplicate:
    Jaccard similarity that counts as the same, None for exact texts (case and white space aside).
    Raises ConfigError if near duplicates cannot be found on this machine.
    """
    kept: list[Preference] = []
    dropped: list[Dropped] = []
    rows = list(rows)
    contradicted = _contradicted(rows)
    seen: set[str] = set()
    exact = {_plain(query) for query in measured}
    near_row = NearDuplicates(near_duplicate) if near_duplicate else None
    near_query = NearDuplicates(near_duplicate) if near_duplicate else None
    if near_query:
        for query in sorted(exact):
            near_query.add(query)
    for row in tqdm(rows, desc="filters", disable=None):
        key, text = _key(row), "\n".join((row.query, *sorted(row.responses)))
        if row.english is False or (row.english is None and not is_english(text)):
            reason = "not_english"
        elif not all(response.strip() for response in row.responses):
            reason = "empty_response"
        elif _plain(row.responses[0]) == _plain(row.responses[1]):
            reason = "equal_responses"
        elif key in contradicted:
            reason = "labels_contradict"
        elif key in seen:
            reason = "duplicate"
        elif _plain(row.query) in exact:
            reason = "measured"
        elif near_query and near_query.near(row.query):
            reason = "nearly_measured"
        elif near_row and near_row.near(text):
            reason = "near_duplicate"
        else:
            kept.append(row)
            seen.add(key)
            if near_row:
                near_row.add(text)
            continue
        dropped.append(Dropped(row, reason))
    return Intake(tuple(kept), tuple(dropped))


def measured_queries(paths: Iterable[str]) -> list[str]:
    """The queries of evaluation files, whatever of `query`, `prompt` or `instruction` holds them.

    A file that evaluates must be read whole: raises InputError that names rows without a query.
    """

    def query(line: int, row: Fields) -> str:
        return check.text(row, next((f for f in QUERY_FIELDS if f in row), QUERY_FIELDS[0]))

    return [text for path in paths for text in read_strict(path, query)]


def _contradicted(rows: Iterable[Preference]) -> set[str]:
    """Keys of pairs whose copies carry different labels."""
    labels: dict[str, set[Verdict]] = defaultdict(set)
    for row in rows:
        if row.label is not None:
            in_order = _plain(row.responses[0]) <= _plain(row.responses[1])
            labels[_key(row)].add(row.label if in_order else row.label.swapped())
    return {key for key, found in labels.items() if len(found) > 1}


def _key(row: Preference) -> str:
    """The same for copies of a pair in either order."""
    text = "\0".join((_plain(row.query), *sorted(map(_plain, row.responses))))
    return text_digest(text).hex()


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
