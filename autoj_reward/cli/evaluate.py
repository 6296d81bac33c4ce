"""`autoj evaluate TASK`: the flags of each task, beside what runs it."""

from __future__ import annotations

from autoj_reward.cli.main import CONFIG, SET, STRICT_KEYS, Flag, calling, flag

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


def file(name: str, help: str) -> Flag:
    return flag(name, metavar="FILE", help=help)


eval_p = calling(
    "autoj_reward.evaluate.pairs:eval_p",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    file("--verdicts", "measure the verdicts of a file, and ask no judge"),
    file("--swapped-verdicts", "the verdicts on responses in the other order"),
)

eval_c = calling(
    "autoj_reward.evaluate.critiques:eval_c",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    file("--critiques", "measure the critiques of a file, and ask no judge"),
    file("--reference", "reference critiques, in place of those in the data"),
    file("--votes", "count a grader's answers in a file, and ask nobody"),
)

eval_r = calling(
    "autoj_reward.evaluate.selection:eval_r",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    flag("--scores", metavar="NAME", help="rank by these scores of the data, and ask no judge"),
    flag("--grades", metavar="NAME", help="grade by these scores of the data, and ask no grader"),
)

ranking = calling(
    "autoj_reward.evaluate.ranking:ranking",
    flag("--data", metavar="FOLDER", help="outputs in AlpacaEval's form, one file a system"),
    file("--leaderboard", "CSV with the figures of the systems"),
    file("--table", "CSV of system, rating and leaderboard figure; ask no judge"),
    *(RESULT, CONFIG, SET, STRICT_KEYS),
)

pairs = calling(
    "autoj_reward.evaluate.pairs:pairs",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    flag(
        "--format",
        required=True,
        metavar="NAME",
        dest="form",
        help="rewardbench, judgebench, llmbar, eval-p, or labelled (PandaLM, HH, yours)",
    ),
)

best_of_four = calling(
    "autoj_reward.evaluate.best_of_four:best_of_four", DATA, RESULT, CONFIG, SET, STRICT_KEYS
)

kappa = calling("autoj_reward.evaluate.agreement:kappa", RESULTS, RESULT)

leaderboard = calling(
    "autoj_reward.evaluate.leaderboard:leaderboard",
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
