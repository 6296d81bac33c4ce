"""The command line. It parses before it imports anything heavy; each command names its function.

The table of commands is where the packages meet: names as text, so that this package imports
neither `rollouts` nor `experiments`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from autoj_reward.capacity.flags import FLAGS as PLAN
from autoj_reward.errors import AutojError

Flag = tuple[str, dict[str, Any]]

CONFIG: Flag = ("--config", {"metavar": "FILE", "help": "YAML run file"})
SET: Flag = (
    "--set",
    {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "dest": "sets",
        "help": "override one value, for example judge.model=GAIR/autoj-13b",
    },
)
STRICT: Flag = (
    "--strict",
    {"action": "store_true", "help": "a bad input row is an error, at once"},
)


TRAINERS = {
    "ppo": "proximal policy optimization (TRL's PPOTrainer)",
    "grpo": "group-relative policy optimization (TRL's GRPOTrainer)",
    "rloo": "REINFORCE leave-one-out (TRL's RLOOTrainer)",
    "online-dpo": "pairs ordered by the judge (TRL's OnlineDPOTrainer)",
    "rejection-sampling": "train on the best of N, round after round (TRL's SFTTrainer)",
}


MODELS = {
    "judge": "train a judge on judgements, ratings and labelled pairs (paper, section 4.4)",
    "scalar": "train a scalar reward model on labelled pairs (paper, section 6.4)",
}


DATA: Flag = ("--data", {"metavar": "FILE", "required": True, "help": "the rows to measure on"})
RESULTS: Flag = (
    "--results",
    {"metavar": "FILE", "nargs": "+", "required": True, "help": "results of other evaluations"},
)
RESULT: Flag = (
    "--json",
    {
        "metavar": "FILE",
        "required": True,
        "dest": "result",
        "help": "where the figures go; judged rows and journal go beside it",
    },
)


def parser() -> argparse.ArgumentParser:
    """Every command with its flags."""
    top = argparse.ArgumentParser(
        prog="autoj", description="LLM judges as reward models: rate, compare and select responses."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    best = _add(
        commands,
        "best-of-n",
        "rollouts.best_of_n.job:main",
        "judge N responses a query, keep the best",
    )
    best.add_argument("--config", required=True, **CONFIG[1])
    _flags(best, SET, STRICT)

    train = commands.add_parser(
        "train", help="train a policy with the judge as its reward, or a judge"
    )
    algorithms = train.add_subparsers(required=True, metavar="WHAT")
    for name, text in TRAINERS.items():
        learn = _add(algorithms, name, "rollouts.train.main:main", text)
        learn.add_argument("--config", required=True, **CONFIG[1])
        learn.set_defaults(algorithm=name)
        _flags(learn, SET)
    for name, text in MODELS.items():
        learn = _add(algorithms, name, f"autoj_reward.training.{name}.train:main", text)
        learn.add_argument("--config", required=True, **CONFIG[1])
        _flags(learn, SET)

    collect = _add(
        commands,
        "collect",
        "autoj_reward.collect.collect:main",
        "ask a stronger model for judgements to train on",
    )
    collect.add_argument("--config", required=True, **CONFIG[1])
    collect.add_argument("--dry-run", action="store_true", help="count and price, ask nothing")
    _flags(collect, SET)

    for name, text in (
        ("score", "rate the response of every row (query, response)"),
        ("compare", "compare the responses of every row (query, response_1, response_2)"),
    ):
        command = _add(commands, name, f"autoj_reward.commands.score:{name}", text)
        command.add_argument(
            "--input", required=True, metavar="FILE", dest="source", help=".jsonl or .parquet"
        )
        command.add_argument(
            "--output", required=True, metavar="FILE", help="JSON lines, same order"
        )
        _flags(command, CONFIG, SET, STRICT)

    _evaluations(
        commands.add_parser("evaluate", help="measure a judge by human labels and benchmarks")
    )

    classify = _add(
        commands,
        "classify",
        "autoj_reward.commands.classify:classify",
        "name the scenario of every query",
    )
    classify.add_argument(
        "--input", required=True, metavar="FILE", dest="source", help=".jsonl or .parquet"
    )
    classify.add_argument("--output", required=True, metavar="FILE", help="JSON lines, same order")
    classify.add_argument(
        "--others-below",
        type=float,
        metavar="CONFIDENCE",
        help="confidence under which the scenario is `others`, 0 to 1",
    )
    _flags(classify, STRICT)

    scenarios = _add(
        commands,
        "scenarios",
        "autoj_reward.commands.look:scenarios",
        "list the scenarios, or show one",
    )
    scenarios.add_argument("--show", metavar="NAME", help="its criteria as a teacher reads them")
    scenarios.add_argument("--folder", metavar="DIR", help="scenario files of your own")

    serve = _add(commands, "serve", "autoj_reward.edge.service:main", "serve a judge over HTTP")
    serve.add_argument("--config", required=True, **CONFIG[1])
    _flags(serve, SET)

    parse = _add(
        commands,
        "parse",
        "autoj_reward.commands.look:parse",
        "show what the parser reads in judge texts",
    )
    parse.add_argument(
        "--input", required=True, metavar="FILE", dest="source", help="rows with `text`; - is stdin"
    )
    parse.add_argument(
        "--format", default="autoj-en", metavar="NAME", dest="format_name", help="judge format"
    )
    parse.add_argument("--pairwise", action="store_true", help="texts compare two responses")

    plan = _add(
        commands,
        "plan",
        "autoj_reward.capacity.plan:plan",
        "judgements a minute at most, devices for a load, and their cost",
    )
    _flags(plan, *PLAN)

    models = _add(
        commands, "models", "autoj_reward.commands.look:models", "list the models known by name"
    )
    models.add_argument("--prepare", action="store_true", help="build the built-in models now")
    return top


def _evaluations(evaluate: argparse.ArgumentParser) -> None:
    """The tasks below `autoj evaluate`."""
    tasks = evaluate.add_subparsers(required=True, metavar="TASK")

    eval_p = _add(
        tasks,
        "eval-p",
        "autoj_reward.evaluate.pairs:eval_p",
        "agreement and consistency on Eval-P, overall and by scenario group",
    )
    _flags(eval_p, DATA, RESULT, CONFIG, SET)
    eval_p.add_argument(
        "--verdicts", metavar="FILE", help="measure the verdicts of a file, and ask no judge"
    )
    eval_p.add_argument(
        "--swapped-verdicts", metavar="FILE", help="the verdicts on responses in the other order"
    )

    eval_c = _add(
        tasks,
        "eval-c",
        "autoj_reward.evaluate.critiques:eval_c",
        "critiques against reference critiques, as a grader sees them",
    )
    _flags(eval_c, DATA, RESULT, CONFIG, SET)
    eval_c.add_argument(
        "--critiques", metavar="FILE", help="measure the critiques of a file, and ask no judge"
    )
    eval_c.add_argument(
        "--reference", metavar="FILE", help="reference critiques, in place of those in the data"
    )
    eval_c.add_argument(
        "--votes", metavar="FILE", help="count a grader's answers in a file, and ask nobody"
    )

    eval_r = _add(
        tasks,
        "eval-r",
        "autoj_reward.evaluate.selection:eval_r",
        "best-of-N by the judge's ratings, graded, and their correlation with the grades",
    )
    _flags(eval_r, DATA, RESULT, CONFIG, SET)
    eval_r.add_argument(
        "--scores", metavar="NAME", help="rank by these scores of the data, and ask no judge"
    )
    eval_r.add_argument(
        "--grades", metavar="NAME", help="grade by these scores of the data, and ask no grader"
    )

    ranking = _add(
        tasks,
        "ranking",
        "autoj_reward.evaluate.ranking:ranking",
        "systems ranked by mean rating, against a leaderboard",
    )
    ranking.add_argument(
        "--data", metavar="FOLDER", help="outputs in AlpacaEval's form, one file a system"
    )
    ranking.add_argument(
        "--leaderboard", metavar="FILE", help="CSV with the figures of the systems"
    )
    ranking.add_argument(
        "--table", metavar="FILE", help="CSV of system, rating and leaderboard figure; ask no judge"
    )
    _flags(ranking, RESULT, CONFIG, SET)

    pairs = _add(
        tasks,
        "pairs",
        "autoj_reward.evaluate.pairs:pairs",
        "agreement on pairs in the form of RewardBench, JudgeBench or LLMBar",
    )
    _flags(pairs, DATA, RESULT, CONFIG, SET)
    pairs.add_argument(
        "--format",
        required=True,
        metavar="NAME",
        dest="form",
        help="rewardbench, judgebench, llmbar, eval-p, or labelled (PandaLM, HH, yours)",
    )

    several = _add(
        tasks,
        "best-of-four",
        "autoj_reward.evaluate.best_of_four:best_of_four",
        "the best among several responses, in the form of RewardBench 2",
    )
    _flags(several, DATA, RESULT, CONFIG, SET)

    kappa = _add(
        tasks,
        "kappa",
        "autoj_reward.evaluate.kappa:kappa",
        "agreement of judges with each other, from results on the same pairs",
    )
    _flags(kappa, RESULTS, RESULT)

    board = _add(
        tasks,
        "leaderboard",
        "autoj_reward.evaluate.leaderboard:leaderboard",
        "one HTML page of any number of results",
    )
    _flags(board, RESULTS)
    board.add_argument("--output", required=True, metavar="FILE", help="the page")
    board.add_argument(
        "--limit",
        type=int,
        default=500,
        metavar="N",
        help="judgements of each result that the page holds",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: an error that is explained; 130: interrupted."""
    given = vars(parser().parse_args(arguments))
    given.pop("command")
    module, function = given.pop("target").split(":")
    try:
        code: int = getattr(importlib.import_module(module), function)(**given)
    except AutojError as error:
        return _fail(str(error))
    except ExceptionGroup as group:
        known, unknown = group.split(AutojError)
        if unknown or known is None:
            raise
        return _fail(str(_leaf(known)))
    except KeyboardInterrupt:
        print("\nautoj: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return code


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, target: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(target=target)
    return command


def _flags(command: argparse.ArgumentParser, *flags: Flag) -> None:
    for name, options in flags:
        command.add_argument(name, **options)


def _leaf(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _fail(message: str) -> int:
    print(f"autoj: error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
