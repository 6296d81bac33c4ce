"""Fixtures for the tests of the evaluation tools' adapters: those of the trainers' adapters."""

from __future__ import annotations

from tests.trainer.conftest import make_model as make_model
from tests.trainer.conftest import require_packages as require_packages
