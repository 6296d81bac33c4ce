"""How a command says which flags it takes, and the flags that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

Flag = tuple[str, dict[str, Any]]


class Command(NamedTuple):
    """What is run, with one argument for each flag, and returns the exit code."""

    run: Callable[..., int]
    flags: tuple[Flag, ...]


def flag(name: str, **options: Any) -> Flag:
    """A flag, with the options of `add_argument`."""
    return name, options


def command(*flags: Flag) -> Callable[[Callable[..., int]], Command]:
    """Make a function a command with these flags. It imports what is heavy when it is called."""
    return lambda function: Command(function, flags)


def calling(target: str, *flags: Flag, **fixed: Any) -> Command:
    """The command that runs the function `module:name`, imported when it is run.

    fixed: arguments beside those of the flags.
    """

    def run(**given: Any) -> int:
        module, name = target.split(":")
        code: int = getattr(import_module(module), name)(**fixed, **given)
        return code

    return Command(run, flags)


CONFIG = flag("--config", metavar="FILE", help="YAML run file")
RUN = flag("--config", metavar="FILE", required=True, help="YAML run file")
SET = flag(
    "--set",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    dest="sets",
    help="override one value, for example judge.model=GAIR/autoj-13b",
)
STRICT = flag(
    "--strict",
    action="store_true",
    help="a bad input row, or a config key that has no effect, is an error, at once",
)
STRICT_ROWS = flag("--strict", action="store_true", help="a bad input row is an error, at once")
STRICT_KEYS = flag(
    "--strict", action="store_true", help="a config key that has no effect is an error"
)
INPUT = flag("--input", required=True, metavar="FILE", dest="source", help=".jsonl or .parquet")
OUTPUT = flag("--output", required=True, metavar="FILE", help="JSON lines, same order")
