"""`autoj classify`: the scenario of every query of a file, same order out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoj_reward.cli.flags import INPUT, OUTPUT, STRICT_ROWS, command, flag

if TYPE_CHECKING:
    from autoj_reward.io.rows import QueryRow


@command(
    *(INPUT, OUTPUT, STRICT_ROWS),
    flag(
        "--others-below",
        type=float,
        metavar="CONFIDENCE",
        help="confidence under which the scenario is `others`, 0 to 1",
    ),
)
def classify(source: str, output: str, strict: bool, others_below: float | None) -> int:
    """Add `scenario`, `confidence` and `best` to every row; print how many of each scenario."""
    import json
    from collections import Counter
    from dataclasses import asdict

    from autoj_reward.conversation import question
    from autoj_reward.errors import ConfigError
    from autoj_reward.io.files import require_apart, write_jsonl
    from autoj_reward.io.rows import joined, read_queries, require_usable
    from autoj_reward.models.scenarios import shipped_classifier

    if others_below is not None and not 0 <= others_below <= 1:
        raise ConfigError(f"--others-below {others_below:g}: a confidence is between 0 and 1")
    require_apart([source], [output])
    rows = read_queries(source)
    require_usable(rows, source, strict)
    asked = [question(row.query, row.context.turns) for row in rows.rows]
    found = shipped_classifier().classify(asked, others_below)
    pairs = zip(rows.rows, found, strict=True)
    write_jsonl(output, (joined(_fields(row), asdict(said)) for row, said in pairs))
    counts = Counter(said.scenario for said in found)
    print(json.dumps({"output": output, "scenarios": dict(counts.most_common())}))
    return 0


def _fields(row: QueryRow) -> dict[str, Any]:
    own = {"query": row.query, "responses": row.responses, "logprobs": row.logprobs}
    return {name: value for name, value in own.items() if value is not None} | row.extra
