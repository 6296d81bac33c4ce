"""Fixtures for the tests of the evaluation tools' adapters: those of the trainers' adapters."""

from __future__ import annotations

from tests.trainer.conftest import named as named
from tests.trainer.conftest import theirs as theirs
