"""The `autoj check`, `calibrate` and `evaluate` commands: their flags, and their functions."""

from __future__ import annotations

from autoj_reward.cli.main import CONFIG, LAYOUT, SET, STRICT_KEYS, Flag, calling, flag

DATA = flag("--data", metavar="FILE", required=True, help="rows to evaluate on")
RESULT = flag(
    "--json",
    metavar="FILE",
    required=True,
    dest="result",
    help="output file of the metrics; judged rows and journal are written next to it",
)
RESULTS = flag(
    "--results", metavar="FILE", nargs="+", required=True, help="result files of evaluations"
)


def file(name: str, help: str) -> Flag:
    """Describe a flag that takes a file."""
    return flag(name, metavar="FILE", help=help)


check = calling(
    "autoj_reward.check.run:check_judge",
    flag("--output", required=True, metavar="FOLDER", help="output folder"),
    file("--labels", "labelled rows, to measure the judge on too"),
    flag(
        "--sample",
        type=int,
        metavar="N",
        help="check N of the 60 rows, and N of the labelled groups (all)",
    ),
    *(CONFIG, SET),
    flag("--strict", action="store_true", help="exit with 1 if a bound is missed"),
)

calibrate = calling(
    "autoj_reward.check.calibrate:calibrate_judge",
    flag("--labels", required=True, metavar="FILE", help="rows with ratings or grades"),
    flag("--output", required=True, metavar="FILE", help="output file for reward.calibration"),
    flag(
        "--abstain",
        type=float,
        nargs=2,
        metavar=("SHARE", "POINTS"),
        help="where to abstain, so that at most SHARE of the rest is wrong by more than POINTS",
    ),
    *(CONFIG, SET),
)

eval_p = calling(
    "autoj_reward.evaluate.pairs:eval_p",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    file("--verdicts", "evaluate the verdicts in a file instead of asking a judge"),
    file("--swapped-verdicts", "verdicts on the same responses in swapped order"),
)

eval_r = calling(
    "autoj_reward.evaluate.selection:eval_r",
    *(DATA, RESULT, CONFIG, SET, STRICT_KEYS),
    flag("--scores", metavar="NAME", help="rank by this score in the data instead of a judge"),
    flag("--grades", metavar="NAME", help="grade by this score in the data instead of a grader"),
)

pairs = calling(
    "autoj_reward.evaluate.pairs:pairs",
    *(DATA, RESULT, CONFIG, SET, LAYOUT, STRICT_KEYS),
)

judges = calling(
    "autoj_reward.evaluate.judges:evaluate_judges",
    *(DATA, RESULT),
    flag(
        "--judge",
        action="append",
        default=[],
        metavar="MODEL",
        dest="judges",
        help="model, folder, known name, or a run file (.yaml) with the judge; once for each judge",
    ),
    *(CONFIG, SET, LAYOUT, STRICT_KEYS),
)

best_of_four = calling(
    "autoj_reward.evaluate.best_of_four:best_of_four", DATA, RESULT, CONFIG, SET, STRICT_KEYS
)

kappa = calling(
    "autoj_reward.evaluate.panel:kappa",
    *(RESULTS, RESULT),
    file("--stand-in", "result of a judge that votes where one of the panel failed"),
)

leaderboard = calling(
    "autoj_reward.evaluate.leaderboard:leaderboard",
    RESULTS,
    flag("--output", required=True, metavar="FILE", help="output HTML file"),
    flag(
        "--limit",
        type=int,
        default=500,
        metavar="N",
        help="judgements of each result that the page shows (500)",
    ),
)
