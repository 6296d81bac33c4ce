"""Rows that train judges: rated responses and human-labelled pairs, of any layout."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from autoj_reward.config import Block
from autoj_reward.config.load import SOURCE
from autoj_reward.data.graded import GradedData
from autoj_reward.errors import InputError
from autoj_reward.formats.read import ParseFailure
from autoj_reward.formats.schema import PLACEHOLDER, JudgeFormat, parse_comparison, parse_rating
from autoj_reward.io import checks as check
from autoj_reward.io.candidates import (
    VERDICTS,
    PairRow,
    naming_layout,
    pairs_in,
    prompt_of_row,
    refuse_media,
    response_of_row,
)
from autoj_reward.io.checks import BadField
from autoj_reward.io.items import Item
from autoj_reward.io.labels import read_label
from autoj_reward.io.layouts import GROUP, PAIR, SINGLE
from autoj_reward.io.reader import read_items
from autoj_reward.io.rows import Rows, read_all
from autoj_reward.io.splits import RowSplit
from autoj_reward.types import BadRow, Verdict

LABELS = (Verdict.FIRST, Verdict.SECOND, Verdict.TIE)
"""Verdicts for the labels 0, 1 and 2 of the authors' files."""


class DataFile(Block):
    """File of rows, of which a part may be read."""

    path: str
    """Path or `hf://` address, as for every input."""
    split: RowSplit | None = None
    """Rows that are read; null reads all."""


class DataFolder(Block):
    """Settings that say in which folder data files with a relative path are looked for."""

    folder: Path | None = None
    """Where relative paths start, except those from ./, which start in the working directory. null:
    beside the run file, else in the folder that the environment variable AUTOJ_DATA names."""

    _beside: Path = PrivateAttr(Path())

    @model_validator(mode="after")
    def _find_run_file(self, info: ValidationInfo) -> Self:
        if info.context:
            self._beside = Path(info.context[SOURCE]).parent
        return self

    @property
    def beside(self) -> Path:
        """Folder of the run file; the working directory without one."""
        return self._beside


class JudgeData(DataFolder):
    """Training and validation rows."""

    rated: tuple[str | DataFile, ...] = ()
    """Files of responses with a reference rating, each a path, or `path` and `split`."""
    compared: tuple[str | DataFile, ...] = ()
    """Files of human-labelled pairs, each a path, or `path` and `split`."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of all queries that are kept for validation."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Path of each field in the files of `rated` and `compared`, where a column has a name of its
    own, such as `prompt: question` or `response: output.text`."""
    layout: str | None = None
    """Layout of the rows of these files. null: that of each row, found from its columns."""
    exclude: tuple[str, ...] = ()
    """Files of pairs that measure the judge, whole: rows with one of their queries are left out."""
    graded: GradedData = GradedData()
    """Outputs of systems with a grade that orders them."""


@dataclass(frozen=True, slots=True)
class Rated:
    """Response with its reference rating."""

    source: str
    line: int
    query: str
    response: str
    rating: float
    judgement: str = ""
    """The critique that ends in this rating, or ""."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Pair of responses to one query with the human label."""

    source: str
    line: int
    query: str
    responses: tuple[str, str]
    label: Verdict
    """FIRST, SECOND or TIE."""
    judgement: str = ""
    """The text of a comparison that ends in this verdict, or ""."""
    margin: float | None = None
    """How much better the better response is, in units of the reward, 0 or more. None if the row
    has no margin or margins were not read."""


def data_path(data: DataFolder, name: str) -> str:
    """Return the path of a data file; see `DataFolder.folder` for where a relative one starts.

    Paths from `hf://` or `./` and absolute ones are returned unchanged. Raises InputError for a
    relative path without a file, if AUTOJ_DATA is not set either.
    """
    if name.startswith(("hf://", "./")) or Path(name).is_absolute():
        return name
    if data.folder:
        return str(data.folder / name)
    path = data.beside / name
    if path.exists():
        return str(path)
    # The run files of this package name files of a data set that stands elsewhere.
    folder = os.environ.get("AUTOJ_DATA")
    if not folder:
        raise InputError(
            f"no data file {path}: write the path as seen from the run file, or set data.folder "
            "in the config or the environment variable AUTOJ_DATA to where the data is"
        )
    return str(Path(folder) / name)


def data_files(data: JudgeData, *more: str) -> list[str]:
    """Return the paths of all data files and folders of the config, and of `more`.

    Raises InputError as `data_path` does.
    """
    graded = [data.graded.folder] if data.graded.folder else []
    files = [data_file(entry) for entry in (*data.rated, *data.compared)]
    names = [*(file.path for file in files), *data.exclude, *graded, *more]
    return [data_path(data, name) for name in names]


def data_file(entry: str | DataFile) -> DataFile:
    """Return an entry of a list of data files as a record. A path alone stands for the whole
    file."""
    return DataFile(path=entry) if isinstance(entry, str) else entry


def excluded_queries(data: JudgeData, fmt: JudgeFormat) -> set[str]:
    """Return the queries in the files of `exclude`; rows with one of them are not trained on."""
    queries: set[str] = set()
    for name in data.exclude:
        queries.update(row.query for row in read_compared(data_path(data, name), fmt).rows)
    return queries


def rated_files(data: JudgeData, fmt: JudgeFormat) -> Iterator[tuple[str, Rows[Rated]]]:
    """Yield the rows of each file of `rated`, with its name in the config."""
    for file in map(data_file, data.rated):
        path = data_path(data, file.path)
        yield file.path, read_rated(path, fmt, data.columns, data.layout, file.split)


def compared_files(
    data: JudgeData, fmt: JudgeFormat, *, margins: bool = False
) -> Iterator[Rows[Compared]]:
    """Yield the labelled pairs of each file of `compared`.

    margins: whether a pair also brings how much better its better response is, where the file says
    it.
    """
    for file in map(data_file, data.compared):
        path = data_path(data, file.path)
        yield read_compared(path, fmt, data.columns, data.layout, file.split, margins=margins)


def read_labelled(
    data: JudgeData, fmt: JudgeFormat
) -> tuple[list[Rated], list[Compared], dict[tuple[str, int], BadRow]]:
    """Read the rated responses and the pairs of all files, and the malformed rows by source and
    line."""
    rated: list[Rated] = []
    compared: list[Compared] = []
    bad: dict[tuple[str, int], BadRow] = {}
    for _, responses in rated_files(data, fmt):
        rated += responses.rows
        bad |= {(row.file, row.line): row for row in responses.bad}
    for pairs in compared_files(data, fmt):
        compared += pairs.rows
        bad |= {(row.file, row.line): row for row in pairs.bad}
    return rated, compared, bad


def trained_pairs(data: JudgeData, fmt: JudgeFormat) -> list[Compared]:
    """Read the well-formed pairs of the files of `compared`."""
    pairs: list[Compared] = []
    for rows in compared_files(data, fmt):
        pairs += rows.rows
    return pairs


def is_held_out(query: str, share: float) -> bool:
    """Return whether a query is validation data. A hash decides, so every file agrees."""
    digest = hashlib.sha256(query.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def read_rated(
    source: str,
    fmt: JudgeFormat,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    split: RowSplit | None = None,
) -> Rows[Rated]:
    """Read the rated responses of a file. The result lists the bad rows, by line, apart.

    A row is also bad if its rating is off the format's scale, or differs from the rating in its
    judgement. columns, layout, split: as for `read_items`. Raises InputError if the source as a
    whole cannot be read.
    """

    def build(item: Item) -> Rated:
        if item.layout.path("rendered"):
            return _read_rated_message(source, item, fmt)
        refuse_media(item, "trainings")
        query, response = prompt_of_row(item).text, response_of_row(item, 0).text
        return Rated(source, item.line, query, response, _read_score(item, fmt))

    items = read_items(source, SINGLE, columns, layout, split=split)
    return read_all(items.mapped(naming_layout(build)))


def read_compared(
    source: str,
    fmt: JudgeFormat,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
    split: RowSplit | None = None,
    *,
    margins: bool = False,
) -> Rows[Compared]:
    """Read the human-labelled pairs of a file. The result lists the bad rows, by line, apart.

    Where a layout always puts the better response first, and in groups, the order is drawn from the
    texts. A group with scores or ranks gives several pairs. margins: read the margin of the rows
    that have one. columns, layout, split: as for `read_items`.
    """

    def build(item: Item) -> list[Compared]:
        if item.layout.path("rendered"):
            return [_read_compared_message(source, item, fmt)]
        refuse_media(item, "trainings")
        margin = item.margin if margins else None
        rows = []
        for pair in pairs_in(item):
            (first, second), label = drawn_order(pair)
            row = Compared(
                source, item.line, pair.prompt.text, (first, second), label, margin=margin
            )
            rows.append(row)
        return rows

    items = read_items(source, PAIR, columns, layout, split=split)
    return read_all(items.expanded(naming_layout(build)))


def _read_rated_message(source: str, item: Item, fmt: JudgeFormat) -> Rated:
    """Read a row of Auto-J's training files: the judge's prompt, and its text with the rating."""
    row = item.fields
    query, response = message_parts(row, item.found_at("rendered"), fmt, "single")
    judgement = check.text(row, "target_output", blank=False)
    parsed = parse_rating(judgement, fmt)
    if isinstance(parsed, ParseFailure):
        raise BadField("target_output", f"no rating at its end: {parsed.reason}")
    rating = parsed.rating
    if "pred_score" in row:
        rating = _check_rating(row["pred_score"], "pred_score", fmt)
    if parsed.rating != rating:
        raise BadField("pred_score", f"{rating:g}, but the text rates {parsed.rating:g}")
    return Rated(source, item.line, query, response, rating, judgement)


def _read_compared_message(source: str, item: Item, fmt: JudgeFormat) -> Compared:
    row = item.fields
    query, first, second = message_parts(row, item.found_at("rendered"), fmt, "pairwise")
    label = label_of(row, "gt_label")
    judgement = check.text(row, "target_output", blank=False)
    parsed = parse_comparison(judgement, fmt)
    if isinstance(parsed, ParseFailure):
        raise BadField("target_output", f"no verdict at its end: {parsed.reason}")
    if parsed.verdict != label:
        raise BadField("gt_label", f"{label}, but the text decides {parsed.verdict}")
    return Compared(source, item.line, query, (first, second), label, judgement)


def drawn_order(pair: PairRow) -> tuple[tuple[str, str], Verdict]:
    """Return the responses of a pair and the label, in an order that tells nothing of it.

    Where a layout always puts the better response first, the texts draw the order. So they do in
    a group, which is often sorted by its scores.
    """
    first, second = (response.text for response in pair.responses)
    sorted_by_label = pair.better_first or pair.item.kind == GROUP
    if sorted_by_label and is_held_out(first + second, 0.5):
        return (second, first), pair.label.swapped()
    return (first, second), pair.label


def swapped(row: Compared, fmt: JudgeFormat) -> Compared:
    """Return the pair in the other order, with "Response 1" and "Response 2" exchanged in its text.

    Raises InputError where the format's two labels have no word in common to exchange them by.
    """
    first, second = row.responses
    judgement = row.judgement
    if judgement:
        assert fmt.pairwise is not None  # the row was read by it
        first_label, second_label = (
            fmt.pairwise.labels["first"][0],
            fmt.pairwise.labels["second"][0],
        )
        word = os.path.commonprefix([first_label, second_label])  # noqa: RUF071 (characters are meant)
        if not word.strip():
            raise InputError(
                f"format {fmt.name}: cannot exchange {first_label!r} and {second_label!r} in a text"
            )
        ends = {
            first_label[len(word) :]: second_label[len(word) :],
            second_label[len(word) :]: first_label[len(word) :],
        }
        pattern = re.compile(
            f"({re.escape(word)})({'|'.join(map(re.escape, ends))})(?!\\w)", re.IGNORECASE
        )
        judgement = pattern.sub(lambda m: m[1] + ends[m[2]], judgement)
    return replace(row, responses=(second, first), label=row.label.swapped(), judgement=judgement)


def message_parts(row: dict[str, Any], field: str, fmt: JudgeFormat, kind: str) -> list[str]:
    """Split a row's rendered user message into query and responses, by the format's template.

    Raises BadField for a message of another template, or one that its texts make ambiguous.
    """
    message = check.text(row, field, blank=False)
    slot = fmt.protocol(kind)
    pieces = PLACEHOLDER.split(fmt.texts[slot.template])
    literals, names = pieces[::2], [slot.fields.get(name) for name in pieces[1::2]]
    if not (message.startswith(literals[0]) and message.endswith(literals[-1])):
        raise BadField(field, f"not the {kind} input of format {fmt.name}: {check.show(message)}")
    rest = message[len(literals[0]) : len(message) - len(literals[-1])]
    values = []
    for literal in literals[1:-1]:
        if rest.count(literal) != 1:
            raise BadField(
                field, f"{check.show(literal)} occurs {rest.count(literal)} times: not to be split"
            )
        value, _, rest = rest.partition(literal)
        values.append(value)
    parts = dict(zip(names, [*values, rest], strict=True))
    order = ["query", "response"] if kind == "single" else ["query", "response_1", "response_2"]
    if not parts["query"].strip():
        raise BadField(field, "the query is blank")
    return [parts[name] for name in order]


def _read_score(item: Item, fmt: JudgeFormat) -> float:
    """Return the rating of a row. Raises BadField if its scale is not the format's."""
    value = item.score
    paths = item.layout.path("score") or ("rating",)
    name = paths[0] if value is None else item.found_at("score")
    own_scale = (fmt.scale.low, fmt.scale.high)
    if item.layout.scale not in (None, own_scale):
        low, high = item.layout.scale or own_scale
        raise BadField(
            name,
            f"ratings of {low:g} to {high:g}, and format {fmt.name} rates {own_scale[0]:g} to "
            f"{own_scale[1]:g}: name a format with the scale of the data",
        )
    return _check_rating(item.find("score") if value is None else value, name, fmt)


def _check_rating(value: Any, name: str, fmt: JudgeFormat) -> float:
    try:
        rating = float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        rating = None
    if rating is None or not fmt.scale.admits(rating):
        scale = f"{fmt.scale.low} to {fmt.scale.high}"
        raise BadField(name, f"{check.show(value)} is no rating of the scale {scale}")
    return rating


def label_of(row: dict[str, Any], field: str) -> Verdict:
    """Read the label of a row, the authors' number or its name."""
    label = read_label("0, 1, 2", row.get(field), field)
    if label is None:
        raise BadField(field, f"{check.show(row.get(field))} is no label: one of 0, 1, 2")
    return VERDICTS.get(label, Verdict.TIE)
