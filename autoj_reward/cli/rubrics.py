"""The `autoj rubrics` commands: their flags, and the functions that run them."""

from __future__ import annotations

from autoj_reward.cli.main import CONFIG, INPUT, OUTPUT, SET, STRICT, calling, flag

generate = calling(
    "autoj_reward.rubrics.generate:generate_rubrics",
    *(INPUT, OUTPUT, CONFIG, SET, STRICT),
    flag("--dry-run", action="store_true", help="print counts and cost without asking the writer"),
)

audit = calling(
    "autoj_reward.rubrics.audit:audit",
    flag(
        "--input",
        required=True,
        metavar="FILE",
        dest="source",
        help="rows with query and rubric, .jsonl or .parquet",
    ),
    flag(
        "--responses",
        metavar="FILE",
        help="rows with query, response and, if known, a number in grade or label; without it only "
        "trivial responses are judged",
    ),
    flag("--output", required=True, metavar="FOLDER", help="output folder"),
    CONFIG,
    SET,
    flag(
        "--samples",
        type=int,
        default=1,
        metavar="N",
        help="judgements of each response, to measure how often a verdict flips (1)",
    ),
    flag(
        "--most",
        type=float,
        default=0.2,
        metavar="REWARD",
        help="highest reward that a trivial response may earn, 0 to 1 (0.2)",
    ),
    flag(
        "--strict",
        action="store_true",
        help="exit with 1 if a trivial response earns more or cannot be judged",
    ),
)
