"""`autoj evaluate TASK`: the flags of each task, beside what runs it."""

from __future__ import annotations

from typing import Any

from autoj_reward.commands.flags import CONFIG, SET, command, flag

DATA = flag("--data", metavar="FILE", required=True, help="the rows to measure on")
RESULT = flag(
    "--json",
    metavar="FILE",
    required=True,
    dest="result",
    help="where the figures go; judged rows and journal go beside it",
)
RESULTS = flag(
    "--results", metavar="FILE", nargs="+", required=True, help="results of other evaluations"
)


def file(name: str, help: str) -> tuple[str, dict[str, Any]]:
    return flag(name, metavar="FILE", help=help)


@command(
    *(DATA, RESULT, CONFIG, SET),
    file("--verdicts", "measure the verdicts of a file, and ask no judge"),
    file("--swapped-verdicts", "the verdicts on responses in the other order"),
)
def eval_p(**given: Any) -> int:
    from autoj_reward.evaluate.pairs import eval_p

    return eval_p(**given)


@command(
    *(DATA, RESULT, CONFIG, SET),
    file("--critiques", "measure the critiques of a file, and ask no judge"),
    file("--reference", "reference critiques, in place of those in the data"),
    file("--votes", "count a grader's answers in a file, and ask nobody"),
)
def eval_c(**given: Any) -> int:
    from autoj_reward.evaluate.critiques import eval_c

    return eval_c(**given)


@command(
    *(DATA, RESULT, CONFIG, SET),
    flag("--scores", metavar="NAME", help="rank by these scores of the data, and ask no judge"),
    flag("--grades", metavar="NAME", help="grade by these scores of the data, and ask no grader"),
)
def eval_r(**given: Any) -> int:
    from autoj_reward.evaluate.selection import eval_r

    return eval_r(**given)


@command(
    flag("--data", metavar="FOLDER", help="outputs in AlpacaEval's form, one file a system"),
    file("--leaderboard", "CSV with the figures of the systems"),
    file("--table", "CSV of system, rating and leaderboard figure; ask no judge"),
    *(RESULT, CONFIG, SET),
)
def ranking(**given: Any) -> int:
    from autoj_reward.evaluate.ranking import ranking

    return ranking(**given)


@command(
    *(DATA, RESULT, CONFIG, SET),
    flag(
        "--format",
        required=True,
        metavar="NAME",
        dest="form",
        help="rewardbench, judgebench, llmbar, eval-p, or labelled (PandaLM, HH, yours)",
    ),
)
def pairs(**given: Any) -> int:
    from autoj_reward.evaluate.pairs import pairs

    return pairs(**given)


@command(DATA, RESULT, CONFIG, SET)
def best_of_four(**given: Any) -> int:
    from autoj_reward.evaluate.best_of_four import best_of_four

    return best_of_four(**given)


@command(RESULTS, RESULT)
def kappa(**given: Any) -> int:
    from autoj_reward.evaluate.kappa import kappa

    return kappa(**given)


@command(
    RESULTS,
    flag("--output", required=True, metavar="FILE", help="the page"),
    flag(
        "--limit",
        type=int,
        default=500,
        metavar="N",
        help="judgements of each result that the page holds",
    ),
)
def leaderboard(**given: Any) -> int:
    from autoj_reward.evaluate.leaderboard import leaderboard

    return leaderboard(**given)
