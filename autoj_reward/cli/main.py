"""The `autoj` command: its table of commands, the flags that they share, and its exit codes.

Nothing here takes time to import, and only the module of the command that is typed is imported, for
its flags. The table is where the packages meet: names as text, so that this package does not import
`rollouts`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from autoj_reward.errors import AutojError, did_you_mean, from_extras

GROUPS = {
    "train": ("WHAT", "train a policy with the judge as its reward, or a judge"),
    "evaluate": ("TASK", "measure a judge by human labels and benchmarks"),
    "judge": ("WHAT", "make a judge format of your own"),
    "journal": ("WHAT", "look into a journal of judgements, export it or make it smaller"),
}
MODULES = {
    "rollouts.commands": {
        "best-of-n": "judge N responses a query, keep the best",
        "plan": "what a run takes of its GPUs; judgements a minute at most, and their cost",
        "train ppo": "proximal policy optimization (TRL's PPOTrainer)",
        "train grpo": "group-relative policy optimization (TRL's GRPOTrainer)",
        "train rloo": "REINFORCE leave-one-out (TRL's RLOOTrainer)",
        "train online-dpo": "pairs ordered by the judge (TRL's OnlineDPOTrainer)",
        "train rejection-sampling": "train on the best of N, round after round (TRL's SFTTrainer)",
    },
    "autoj_reward.cli.judging": {
        "score": "rate the response of every row (query, response)",
        "compare": "compare the responses of every row (query, response_1, response_2)",
        "rank": "judge the responses of every row beside each other (query, responses)",
        "serve": "serve a judge over HTTP",
    },
    "autoj_reward.cli.evaluate": {
        "evaluate eval-p": "agreement and consistency on Eval-P, overall and by scenario group",
        "evaluate eval-c": "critiques against reference critiques, as a grader sees them",
        "evaluate eval-r": "best-of-N by the judge's ratings, graded; ratings against grades",
        "evaluate ranking": "systems ranked by mean rating, against a leaderboard",
        "evaluate pairs": "agreement on pairs in the form of RewardBench, JudgeBench or LLMBar",
        "evaluate best-of-four": "the best among several responses, in RewardBench 2's form",
        "evaluate kappa": "agreement of judges with each other, from results on the same pairs",
        "evaluate leaderboard": "one HTML page of any number of results",
    },
    "autoj_reward.cli.data": {
        "collect": "ask a stronger model for judgements to train on",
        "scenarios": "list the scenarios, or show one",
        "classify": "name the scenario of every query",
        "train judge": "train a judge: critiques, ratings, labelled pairs (paper, section 4.4)",
        "train scalar": "train a scalar reward model on labelled pairs (paper, section 6.4)",
    },
    "autoj_reward.cli.inspection": {
        "watch": "show a run in the browser, while it runs or after",
        "journal stats": "what a journal holds, and its size",
        "journal export": "every judgement as a JSON line",
        "journal compact": "the same judgements in less room",
        "models": "list the models known by name",
        "judge new": "write a judge format to start from",
        "parse": "show what a judge is shown and what is read in its texts",
    },
}
"""Where each command is, by what is typed, and what it does."""

Flag = tuple[str, dict[str, Any]]


class Command(NamedTuple):
    """A command: a function with one argument for each flag, which returns the exit code."""

    run: Callable[..., int]
    flags: tuple[Flag, ...]


def flag(name: str, **options: Any) -> Flag:
    """Describe a flag, with the options of `add_argument`."""
    return name, options


def command(*flags: Flag) -> Callable[[Callable[..., int]], Command]:
    """Make a function a command with these flags. It imports what is heavy when it is called."""
    return lambda function: Command(function, flags)


def calling(target: str, *flags: Flag, **fixed: Any) -> Command:
    """Make a command of the function `module:name`, imported when the command is run.

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


class Parser(argparse.ArgumentParser):
    """A parser that answers an unknown command with the name that is nearest to it."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(name) for name in action.choices]
            told = f"unknown name {value!r}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, f"{told} (known: {', '.join(known)})")


def parser(typed: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser: every command with a line of help, and the typed one with its flags."""
    top = Parser(
        prog="autoj", description="LLM judges as reward models: rate, compare and select responses."
    )
    places = {"": top.add_subparsers(required=True, metavar="COMMAND")}
    words = [word for word in typed if not word.startswith("-")]
    named = [(module, *about) for module, own in MODULES.items() for about in own.items()]
    for module, name, text in named:
        group, _, last = name.rpartition(" ")
        if group not in places:
            metavar, about = GROUPS[group]
            inner = places[""].add_parser(group, help=about)
            places[group] = inner.add_subparsers(required=True, metavar=metavar)
        about = text[0].upper() + text[1:] + "."
        made = places[group].add_parser(last, help=text, description=about)
        if words[: len(name.split())] == name.split():
            command = load(module, last)
            made.set_defaults(run=command.run)
            for typed_as, options in command.flags:
                made.add_argument(typed_as, **options)
    return top


def load(module: str, name: str) -> Command:
    """Import a command from its module, where it stands under its name with `_` for `-`."""
    found: Command = getattr(import_module(module), name.replace("-", "_"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: an error that is explained; 130: interrupted."""
    typed = sys.argv[1:] if arguments is None else arguments
    given = vars(parser(typed).parse_args(typed))
    run = given.pop("run")
    with _ending_in_order():
        return explain_errors("autoj", lambda: run(**given))


def explain_errors(name: str, work: Callable[[], int]) -> int:
    """Call `work` and return its exit code; 1 for an error of this package; 130 if interrupted.

    The error is printed on one line that begins with `name`; of a group of errors, the first.
    """
    try:
        with from_extras():
            return work()
    except* AutojError as known:
        error: BaseException = known
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"{name}: error: {error}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on from here", file=sys.stderr)
        code = 130
    return code


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """End the process by way of its clean-up on SIGTERM, so that no replica outlives it."""

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
