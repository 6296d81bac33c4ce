"""Command line of the paper's evaluations.

    python -m experiments.paper eval-c --data C.jsonl --json OUT --config F
    python -m experiments.paper ranking --data FOLDER --leaderboard L.csv --json OUT --config F

docs/results/paper.md says what they measure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from autoj_reward.cli.evaluate import DATA, RESULT, file
from autoj_reward.cli.main import (
    CONFIG,
    SET,
    STRICT_KEYS,
    Command,
    Parser,
    calling,
    explain_errors,
    flag,
)

TASKS: dict[str, tuple[str, Command]] = {
    "eval-c": (
        "compare a judge's critiques with reference critiques, by a grader",
        calling(
            "experiments.paper.critiques:eval_c",
            *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
            file("--critiques", "evaluate the critiques in a file instead of asking a judge"),
            file("--reference", "file of reference critiques, in place of those in the data"),
            file("--votes", "count a grader's answers in a file instead of asking a grader"),
        ),
    ),
    "ranking": (
        "rank systems by mean rating and compare with a leaderboard",
        calling(
            "experiments.paper.ranking:ranking",
            flag(
                "--data",
                metavar="FOLDER",
                help="outputs in AlpacaEval's format, one file per system",
            ),
            file("--leaderboard", "CSV file with each system's leaderboard score"),
            file("--table", "CSV file of system, rating and leaderboard score, instead of a judge"),
            *(RESULT, CONFIG, SET, STRICT_KEYS),
        ),
    ),
}
"""Help line and command of each evaluation."""


def make_parser() -> Parser:
    """Return a parser with both evaluations and their flags."""
    top = Parser(prog="python -m experiments.paper", description="The paper's own evaluations.")
    places = top.add_subparsers(required=True, metavar="TASK")
    for name, (about, command) in TASKS.items():
        subparser = places.add_parser(name, help=about)
        subparser.set_defaults(run=command.run)
        for typed_as, options in command.flags:
            subparser.add_argument(typed_as, **options)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one evaluation. Return 0 when it is done, 1 after an explained error, 130 if
    interrupted."""
    flag_values = vars(make_parser().parse_args(arguments))
    run = flag_values.pop("run")
    return explain_errors("experiments.paper", lambda: run(**flag_values))


if __name__ == "__main__":
    sys.exit(main())
