"""The `autoj` command: its table of commands, common flags and exit codes.

Importing this module is fast. Only the module of the command that was typed is imported, for its
flags. The table names functions as text, so this package does not import `rollouts`.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from typing import Any, NamedTuple, TextIO

from autoj_reward.errors import AutojError, did_you_mean, from_extras

GROUPS = {
    "train": ("WHAT", "train a policy with a judge as its reward, or train a judge"),
    "evaluate": ("TASK", "evaluate a judge on human labels and benchmarks"),
    "judge": ("WHAT", "write your own judge format"),
    "rubrics": ("TASK", "write rubrics, and audit them before they are rewards"),
    "data": ("WHAT", "see how rows are read"),
    "journal": ("WHAT", "inspect, export or compact a journal of judgements"),
}
"""Groups of commands: metavar and help line."""
MODULES = {
    "rollouts.commands": {
        "best-of-n": "judge N responses per query and keep the best",
        "preview": "show what a judge sees and says for the first rows of a run file",
        "plan": "estimate the GPU memory of a run, or of a judge",
        "train ppo": "train with proximal policy optimization (TRL's PPOTrainer)",
        "train grpo": "train with group-relative policy optimization (TRL's GRPOTrainer)",
        "train rloo": "train with REINFORCE leave-one-out (TRL's RLOOTrainer)",
        "train online-dpo": "train on pairs ordered by the judge (TRL's OnlineDPOTrainer)",
        "train rejection-sampling": "train on the best of N in rounds (TRL's SFTTrainer)",
    },
    "autoj_reward.cli.rate": {
        "rate": "judge one response and show the verdict in the terminal",
    },
    "autoj_reward.cli.judging": {
        "score": "rate the response of every row (query, response)",
        "compare": "compare the two responses of every row (query, response_1, response_2)",
        "rank": "judge the responses of every row together (query, responses)",
        "serve": "serve a judge over HTTP",
    },
    "autoj_reward.cli.evaluate": {
        "check": "check a judge before a training: what it rewards by mistake",
        "calibrate": "fit a map from a judge's number to your labels, for reward.calibration",
        "evaluate eval-p": "measure agreement and consistency on Eval-P, by scenario group",
        "evaluate eval-r": "grade best-of-N by the judge's ratings; correlate ratings and grades",
        "evaluate pairs": "measure agreement on pairs, such as RewardBench, JudgeBench or LLMBar",
        "evaluate judges": "compare judges on your labelled rows: agreement, cost, what N buys",
        "evaluate best-of-four": "measure choices of the best of several responses (RewardBench 2)",
        "evaluate kappa": "measure how much judges agree, from results on the same pairs",
        "evaluate leaderboard": "write one HTML page from any number of results",
    },
    "autoj_reward.cli.data": {
        "collect": "collect judgements from a stronger model to train on",
        "scenarios": "list the scenarios, or show one",
        "classify": "classify every query by scenario",
        "data layouts": "list the layouts of rows that are read",
        "data show": "show what is read of the first rows, without a judge",
        "train judge": "train a judge on given texts, or on its own verdicts (sft, grpo, dpo)",
        "train judge sample": "pair right with wrong outputs of a judge, for method: dpo",
        "train scalar": "train a scalar reward model on labelled pairs (paper, section 6.4)",
    },
    "autoj_reward.cli.rubrics": {
        "rubrics generate": "write a rubric for every row (query), and test those of pairs",
        "rubrics audit": "measure each item of a rubric, and what trivial responses earn",
    },
    "autoj_reward.cli.inspection": {
        "watch": "show a run in the browser, during or after it",
        "journal stats": "print the number of judgements and the size of a journal",
        "journal export": "write every judgement as a JSON line",
        "journal compact": "make a journal's file as small as possible",
        "models": "list the known models",
        "judge new": "write a judge format to start from",
        "parse": "show what is read in texts that a judge wrote",
    },
}
"""Help line of every command, by the module that holds it."""

Flag = tuple[str, dict[str, Any]]
"""A flag: its name, and the options of `add_argument`."""


class Command(NamedTuple):
    """A command of `autoj`."""

    run: Callable[..., int]
    """Function with one argument for each flag. Returns the exit code."""
    flags: tuple[Flag, ...]
    """Flags of the command."""


def flag(name: str, **options: Any) -> Flag:
    """Describe a flag with the options of `add_argument`."""
    return name, options


def command(*flags: Flag) -> Callable[[Callable[..., int]], Command]:
    """Return a decorator that makes a function a command with these flags.

    The function should import slow modules only when it is called.
    """
    return lambda function: Command(function, flags)


def calling(target: str, *flags: Flag, **fixed: Any) -> Command:
    """Return a command that calls `module:name`. The module is imported when the command runs.

    fixed: arguments of the function in addition to those of the flags.
    """

    def run(**flag_values: Any) -> int:
        module, name = target.split(":")
        code: int = getattr(import_module(module), name)(**fixed, **flag_values)
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
    help="override one key of the run file, for example judge.model=GAIR/autoj-13b",
)
STRICT = flag(
    "--strict",
    action="store_true",
    help="stop at a bad input row or a config key that has no effect",
)
STRICT_ROWS = flag("--strict", action="store_true", help="stop at a bad input row")
STRICT_KEYS = flag("--strict", action="store_true", help="stop at a config key that has no effect")
INPUT = flag(
    "--input", required=True, metavar="FILE", dest="source", help="input, .jsonl, .csv or .parquet"
)
LAYOUT = flag(
    "--layout", metavar="NAME", help="how the rows are read (`autoj data layouts` lists the names)"
)
OUTPUT = flag("--output", required=True, metavar="FILE", help="output JSON lines, in input order")


class Parser(argparse.ArgumentParser):
    """Argument parser that suggests the nearest known name for an unknown command."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(name) for name in action.choices]
            message = f"unknown name {value!r}{did_you_mean(str(value), names)}"
            raise argparse.ArgumentError(action, f"{message} (known: {', '.join(names)})")


def parser(typed: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with all commands. Only the typed command has its flags."""
    top = Parser(
        prog="autoj", description="LLM judges as reward models: rate, compare and select responses."
    )
    places = {"": top.add_subparsers(required=True, metavar="COMMAND")}
    subparsers: dict[str, Parser] = {}
    commands = [
        (module, *about)
        for module, module_commands in MODULES.items()
        for about in module_commands.items()
    ]
    typed_name = find_command(typed, [name for _, name, _ in commands])
    for module, name, text in commands:
        group, _, last = name.rpartition(" ")
        if group in subparsers and group not in places:
            # A command that has commands of its own, and also runs without one.
            places[group] = subparsers[group].add_subparsers(metavar="[STEP]", help="a step before")
        if group not in places:
            metavar, about = GROUPS[group]
            inner = places[""].add_parser(group, help=about)
            places[group] = inner.add_subparsers(required=True, metavar=metavar)
        about = text[0].upper() + text[1:] + "."
        subparser = places[group].add_parser(last, help=text, description=about)
        subparsers[name] = subparser
        # The flags of a command's own commands are loaded with it: typed after its flags, such a
        # command must not run without those that it needs.
        if f"{name} ".startswith(f"{typed_name} "):
            command = load(module, last)
            subparser.set_defaults(run=command.run)
            for typed_as, options in command.flags:
                subparser.add_argument(typed_as, **options)
    return top


def find_command(typed: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the longest name of a command that the typed words begin with, or None."""
    words = list(takewhile(lambda word: not word.startswith("-"), typed))
    found = [name for name in names if words[: len(name.split())] == name.split()]
    return max(found, key=len, default=None)


def load(module: str, name: str) -> Command:
    """Import a command from its module. Its attribute is its name with `_` for `-`."""
    loaded_command: Command = getattr(import_module(module), name.replace("-", "_"))
    return loaded_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 an explained error, 130 interrupted.

    If nobody reads its output any more, as after `| head`, it exits with 141, like other tools.
    """
    typed = sys.argv[1:] if arguments is None else arguments
    with _end_with_reader():
        flag_values = vars(parser(typed).parse_args(typed))
        run = flag_values.pop("run")
        with _exit_in_order():
            return explain_errors("autoj", lambda: run(**flag_values))


def explain_errors(name: str, work: Callable[[], int]) -> int:
    """Call `work` and return its exit code: 1 for an error of this package, 130 if interrupted.

    The error is printed on one line that begins with `name`. Of a group of errors the first is
    printed.
    """
    try:
        with from_extras():
            return work()
    except* AutojError as error_group:
        error: BaseException = error_group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"{name}: error: {error}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on from here", file=sys.stderr)
        code = 130
    return code


@contextmanager
def _end_with_reader() -> Iterator[None]:
    """Exit quietly once the reader of stdout or stderr has gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, since the interpreter would report a lost reader at its exit
    except BaseException as error:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _has_lost_reader(stream)]
        if not (closed and _is_broken_pipe(error)):
            raise
        for stream in closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _is_broken_pipe(error: BaseException) -> bool:
    """Return whether an error, or one of a group of errors, is a write that nobody reads."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_broken_pipe, error.exceptions))
    return isinstance(error, BrokenPipeError)


def _has_lost_reader(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextmanager
def _exit_in_order() -> Iterator[None]:
    """Exit through the process's clean-up on SIGTERM, so that no replica outlives it."""

    def stop(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
