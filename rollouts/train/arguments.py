"""The arguments that a config hands on to a trainer of TRL, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from autoj_reward.errors import ConfigError


def named(name: str) -> Any:
    """Return what `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def require_arguments(key: str, given: Mapping[str, Any], arguments: str) -> None:
    """Raise ConfigError for a name that the trainer's class of arguments does not have.

    key: where the config has them. arguments: the class, as `module:name`. It is not made here: it
    would look for devices before they are shared out with the judge.
    """
    if not given:
        return
    known = [field.name for field in fields(named(arguments)) if field.init]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {key}.{near[0]}?" if near else "see TRL's documentation"
            raise ConfigError(
                f"unknown key '{key}.{name}': {arguments.partition(':')[2]} of TRL has no such "
                f"argument; {hint}"
            )
