"""The command line: a table of commands, and nothing that takes time to import.

Only the module of the command that is typed is imported, for its flags. The table is where the
packages meet: names as text, so that this package does not import `rollouts`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from autoj_reward.cli.flags import Command
from autoj_reward.cli.shell import explained
from autoj_reward.errors import did_you_mean

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
    "autoj_reward.cli.train": {
        "train judge": "train a judge: critiques, ratings, labelled pairs (paper, section 4.4)",
        "train scalar": "train a scalar reward model on labelled pairs (paper, section 6.4)",
    },
    "autoj_reward.cli.collect": {
        "collect": "ask a stronger model for judgements to train on",
    },
    "autoj_reward.cli.score": {
        "score": "rate the response of every row (query, response)",
        "compare": "compare the responses of every row (query, response_1, response_2)",
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
    "autoj_reward.cli.classify": {"classify": "name the scenario of every query"},
    "autoj_reward.cli.scenarios": {"scenarios": "list the scenarios, or show one"},
    "autoj_reward.cli.serve": {"serve": "serve a judge over HTTP"},
    "autoj_reward.cli.watch": {"watch": "show a run in the browser, while it runs or after"},
    "autoj_reward.cli.judge": {"judge new": "write a judge format to start from"},
    "autoj_reward.cli.journal": {
        "journal stats": "what a journal holds, and its size",
        "journal export": "every judgement as a JSON line",
        "journal compact": "the same judgements in less room",
    },
    "autoj_reward.cli.parse": {
        "parse": "show what a judge is shown and what is read in its texts",
    },
    "autoj_reward.cli.models": {"models": "list the models known by name"},
}
"""Where each command is, by what is typed, and what it does."""


class Parser(argparse.ArgumentParser):
    """A parser that answers an unknown command with the nearest one first."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(name) for name in action.choices]
            told = f"unknown name {value!r}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, f"{told} (known: {', '.join(known)})")


def parser(typed: Sequence[str]) -> argparse.ArgumentParser:
    """Every command by its name and a line; the one that is typed with its flags."""
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
            for flag, options in command.flags:
                made.add_argument(flag, **options)
    return top


def load(module: str, name: str) -> Command:
    """A command of a module; the function has the command's name."""
    found: Command = getattr(import_module(module), name.replace("-", "_"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: an error that is explained; 130: interrupted."""
    typed = sys.argv[1:] if arguments is None else arguments
    given = vars(parser(typed).parse_args(typed))
    run = given.pop("run")
    with _ending_in_order():
        return explained("autoj", lambda: run(**given))


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM ends the process by way of its clean-up, so that no replica outlives it."""

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
