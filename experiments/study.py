"""What the commands of all experiments share: --config and --set, explained errors, exit codes."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from autoj_reward.config import Block, load_config
from autoj_reward.errors import AutojError, ConfigError

T = TypeVar("T", bound=Block)


def parts_flag(parts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """--parts of a command that can be run in parts, for `run_command`."""
    return {"--parts": {"metavar": "A,B", "help": f"some of: {', '.join(parts)}"}}


def named_parts(
    named: str | None, possible: Sequence[str], told: str = "this config has the parts"
) -> tuple[str, ...]:
    """The parts that --parts names, in the order of the possible ones; all without the flag.

    told: stands before the possible ones in the ConfigError for a part that is none of them.
    """
    if named is None:
        return tuple(possible)
    names = [name.strip() for name in named.split(",")]
    if strange := [name for name in names if name not in possible]:
        raise ConfigError(f"--parts {', '.join(strange)}: {told} {', '.join(possible)}")
    return tuple(part for part in possible if part in names)


def run_command(
    module: str,
    about: str | None,
    kind: type[T],
    work: Callable[[T, argparse.Namespace, str], str | None],
    arguments: Sequence[str] | None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Parse the flags, load the config, work, and print what `work` returns.

    module: what stands behind `python -m`. about: the module's docstring, shown by --help.
    work: gets the config, the flags and the command as it was typed. flags: beside --config and
    --set, name to options of add_argument. Returns the exit code: 0, 1 for an error that is
    explained, 130 if interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML run file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help="override one value of the config",
    )
    for name, options in (flags or {}).items():
        parser.add_argument(name, **options)
    found = parser.parse_args(given)
    name = module.rpartition(".")[2]
    try:
        config = load_config(kind, found.config, found.sets)
        said = work(config, found, shlex.join(["python", "-m", module, *given]))
    except AutojError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if said:
        print(said)
    return 0
