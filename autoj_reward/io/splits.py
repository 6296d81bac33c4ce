"""Splits of a file's rows by a hash of their texts."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field, model_validator

from autoj_reward.config import Block
from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, show
from autoj_reward.io.paths import explain_missing, find


class RowSplit(Block):
    """Rows of a file that a hash of their texts draws.

    Every reader of the file gets the same rows, in whatever order they stand.
    """

    by: tuple[str, ...] = Field(min_length=1)
    """Columns, or paths, whose texts are hashed together, in this order."""
    into: int = Field(ge=2)
    """Number of parts. The SHA-1 hash modulo this number is the part of a row."""
    take: tuple[int, ...] = Field(min_length=1)
    """Parts whose rows are read, counted from 0."""

    @model_validator(mode="after")
    def _require_parts(self) -> RowSplit:
        for part in self.take:
            if not 0 <= part < self.into:
                raise ValueError(f"take: {part} is no part of 0 to {self.into - 1}")
        return self

    def takes(self, row: Any) -> bool:
        """Return whether a row is read. Raises BadField for one without the texts."""
        fields = check.own_fields(row)
        digest = hashlib.sha1(usedforsecurity=False)
        for path in self.by:
            value = find(fields, path)
            if value is None:
                raise BadField(path, f"the split is by it: {explain_missing(fields, path)}")
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise BadField(path, f"the split is by texts and whole numbers: {show(value)}")
            # Text that is not UTF-8 has a hash too; the row's own checks name it.
            digest.update(str(value).encode("utf-8", "surrogatepass"))
        return int.from_bytes(digest.digest()) % self.into in self.take
