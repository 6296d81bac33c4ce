from __future__ import annotations

import io
import json
import math
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.conversation import Context, Prompt, Response
from autoj_reward.errors import OutputError
from autoj_reward.io.files import to_plain, write_json, write_jsonl, write_text
from autoj_reward.io.rows import QueryRow
from autoj_reward.questions.choose import Shortlist
from autoj_reward.questions.rank import Order, PairScore, Ranking
from autoj_reward.questions.rubric import ItemVerdict, RubricScore
from autoj_reward.rubric_items import RubricItem
from autoj_reward.types import (
    BadRow,
    Candidate,
    Judgement,
    Outcome,
    Selection,
    Usage,
    Verdict,
)
from rollouts.best_of_n.results import GroupResult, judgement_records, selection_record
from rollouts.best_of_n.shards import Records, Shard, groups_of
from tests.judgements import rated
from tests.rollouts.figures import summarise

LONE = "\ud800"


def make_failure(outcome: Outcome = Outcome.UNPARSABLE, reason: str = "no slot") -> Judgement:
    return Judgement(outcome, reason=reason, usage=Usage(10, 5, 3, 1.0))


def make_group(
    *judgements: Judgement, index: int = 0, rule: str = "rating", **selection: Any
) -> GroupResult:
    candidates = tuple(Candidate("q", f"r{i}", -float(i)) for i in range(len(judgements)))
    row = QueryRow(7, Prompt("q"), extra={"id": "a1", "tags": ("x", "y")})
    return GroupResult(row, candidates, judgements, Selection(index, rule, **selection))


# --- records ------------------------------------------------------------------------------------


def test_group_needs_one_judgement_a_candidate() -> None:
    with pytest.raises(ValueError, match="1 candidates with 0 judgements"):
        GroupResult(QueryRow(1, Prompt("q")), (Candidate("q", "r"),), (), Selection(0, "only"))


def test_group_needs_a_chosen_candidate_that_exists() -> None:
    with pytest.raises(ValueError, match="chosen 2 of 1"):
        make_group(rated(5), index=2)


def test_selection_record() -> None:
    result = make_group(
        rated(5), make_failure(), rated(8, expected=7.5, critique="good"), index=2, tied=(2,)
    )
    assert selection_record(result) == {
        "line": 7,
        "query": "q",
        "index": 2,
        "response": "r2",
        "critique": "good",
        "rating": 8,
        "expected": 7.5,
        "direct": None,
        "pessimistic": 7.5,
        "forced": False,
        "outcome": "ok",
        "rule": "rating",
        "tied": [2],
        "ratings": [5, None, 8],
        "extra": {"id": "a1", "tags": ["x", "y"]},
    }


def test_judgement_records() -> None:
    slot = (("1", 0.2), ("2", 0.7))
    judgement = rated(
        2.0,
        slot,
        1.78,
        0.1,
        forced=True,
        direct=6.0,
        critique="c",
        usage=Usage(9, 4, 2, 0.5, 2.5),
        judge="j@1",
        flags=("planted_verdict",),
    )
    first, second = judgement_records(
        make_group(judgement, make_failure(Outcome.TRUNCATED, "too long"))
    )
    assert first == {
        "line": 7,
        "index": 0,
        "response": "r0",
        "policy_logprob": -0.0,
        "outcome": "ok",
        "reason": "",
        "rating": 2.0,
        "expected": 1.78,
        "direct": 6.0,
        "pessimistic": pytest.approx(1 - math.log((0.2 + 0.7 * math.exp(-1)) / 0.9)),
        "outside": 0.1,
        "distribution": {"1": 0.2, "2": 0.7},
        "forced": True,
        "critique": "c",
        "flags": ["planted_verdict"],
        "tokens_in": 9,
        "tokens_cached": 4,
        "tokens_out": 2,
        "latency_s": 0.5,
        "queued_s": 2.5,
        "judge": "j@1",
    }
    assert second["outcome"] == "truncated"
    assert second["reason"] == "too long"
    assert [second[key] for key in ("rating", "expected", "outside", "distribution")] == [None] * 4


# --- summary ------------------------------------------------------------------------------------


def test_summary_by_hand() -> None:
    groups = [
        make_group(
            rated(5), rated(8), rated(8), make_failure(), index=1, rule="first", tied=(1, 2)
        ),
        make_group(
            rated(4, forced=True, flags=("input_truncated",), usage=Usage(100, 50, 20, 2.0)),
            rated(6),
            rated(9),
            index=2,
            comparisons=((0, 2, Verdict.SECOND),),
        ),
        make_group(make_failure(), make_failure(Outcome.UNAVAILABLE, ""), rule="all_failed"),
    ]
    bad = [BadRow("in.jsonl", 3, "query", "is empty")]
    s = summarise(groups, bad, view="rating", seconds={"sample": 5, "judge": 2})
    assert (s.queries, s.candidates, s.reused, s.comparisons) == (3, 9, 0, 1)
    assert s.outcomes == {
        "ok": 6,
        "truncated": 0,
        "no_number": 0,
        "unsure": 0,
        "unparsable": 2,
        "input_rejected": 0,
        "unavailable": 1,
        "abandoned": 0,
        "no_answer": 0,
    }
    assert s.reasons == {"no slot": 2, "unavailable": 1}
    assert s.ok_share == pytest.approx(6 / 9)
    assert s.forced == 1
    assert s.forced_share == pytest.approx(1 / 6)
    assert s.flags == {"input_truncated": 1}
    assert s.rules == {"first": 1, "rating": 1, "all_failed": 1}
    assert s.tie_rate == 0.5
    assert s.pair_tie_rate == pytest.approx(1 / 6)
    # Deviations of (5, 8, 8) and (4, 6, 9) from their means.
    assert s.spread == pytest.approx((math.sqrt(2) + math.sqrt(38 / 9)) / 2)
    # N = 2: (8+8+8)/3 = 8 and (6+9+9)/3 = 8.
    assert s.curve_queries == 2
    assert [n for n, _ in s.curve] == [1, 2, 3]
    assert [v for _, v in s.curve] == pytest.approx([(7 + 19 / 3) / 2, 8.0, 8.5])
    assert s.histogram == ((4, 1), (5, 1), (6, 1), (8, 2), (9, 1))
    assert s.usage == Usage(130, 65, 29, 5.0)
    assert s.cache_hit_rate == 0.5
    assert s.judgements_per_second == 4.5
    assert s.output_tokens_per_second == 14.5
    assert s.bad_rows == tuple(bad)


def test_summary_curve_stops_at_the_query_with_the_fewest_values() -> None:
    groups = [make_group(*map(rated, (1, 2, 3, 4))), make_group(rated(6), rated(8), make_failure())]
    curve = summarise(groups, [], view="rating", seconds={}).curve
    assert [n for n, _ in curve] == [1, 2]
    assert [v for _, v in curve] == pytest.approx([4.75, (10 / 3 + 8) / 2])


def test_summary_ranks_by_the_view() -> None:
    groups = [make_group(rated(8, expected=7.9), rated(8, expected=7.1), rated(5))]
    by_rating = summarise(groups, [], view="rating", seconds={})
    by_mean = summarise(groups, [], view="expected", seconds={})
    assert (by_rating.tie_rate, by_mean.tie_rate) == (1.0, 0.0)
    assert by_mean.curve[-1] == (2, 7.9)


@pytest.mark.parametrize(
    ("reused", "new", "new_usage", "judgements", "tokens"),
    [
        pytest.param(0, None, None, 2.0, 30.0, id="all-new"),
        pytest.param(2, None, None, None, None, id="some-reused-cost-unknown"),
        pytest.param(2, 2, Usage(tokens_out=40), 1.0, 20.0, id="some-reused-cost-known"),
        pytest.param(8, 8, Usage(tokens_out=40), 4.0, 20.0, id="several critiques a candidate"),
        pytest.param(4, 0, Usage(), 0.0, 0.0, id="all-reused"),
    ],
)
def test_rates_leave_reused_judgements_out(
    reused: int,
    new: int | None,
    new_usage: Usage | None,
    judgements: float | None,
    tokens: float | None,
) -> None:
    groups = [make_group(*[rated(5, usage=Usage(tokens_out=15))] * 4)]
    s = summarise(
        groups,
        [],
        view="rating",
        seconds={"judge": 2.0},
        reused=reused,
        new=new,
        new_usage=new_usage,
    )
    assert (s.judgements_per_second, s.output_tokens_per_second) == (judgements, tokens)
    assert s.usage.tokens_out == 60


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="no-query"),
        pytest.param([make_group(make_failure(), rule="all_failed")], id="all-failed"),
        pytest.param([make_group(rated(5), rule="only")], id="one-candidate"),
    ],
)
def test_summary_without_anything_to_divide_by(groups: list[GroupResult]) -> None:
    s = summarise(groups, [], view="rating", seconds={"judge": 0.0})
    assert (s.tie_rate, s.pair_tie_rate, s.spread, s.judgements_per_second) == (None,) * 4
    json.dumps(to_plain(s), allow_nan=False)


# --- files --------------------------------------------------------------------------------------


def test_plain_data_holds_what_json_can_hold() -> None:
    numpy = pytest.importorskip("numpy")
    record = to_plain(
        {
            "verdict": Verdict.TIE,
            "usage": Usage(1, 2, 3, 0.5),
            "nested": ({"a": (1, 2)},),
            "nan": math.nan,
            "path": Path("a") / "b",
            "scalar": numpy.int64(4),
            "array": numpy.array([[1.5, numpy.nan]]),
            3: None,
        }
    )
    assert record == {
        "verdict": "tie",
        "usage": {
            "tokens_in": 1,
            "tokens_cached": 2,
            "tokens_out": 3,
            "latency_s": 0.5,
            "queued_s": 0.0,
            "usd": 0.0,
        },
        "nested": [{"a": [1, 2]}],
        "nan": None,
        "path": str(Path("a") / "b"),
        "scalar": 4,
        "array": [[1.5, None]],
        "3": None,
    }


def test_files_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    rows = [{"text": f"line\nbreak \u2028 {LONE} é"}, BadRow("f", 1, "", "r")]
    write_jsonl(folder / "a.jsonl", rows)
    write_json(folder / "a.json", {"outcome": Outcome.OK, "text": LONE})
    write_text(folder / "a.html", f"é {LONE}")
    lines = (folder / "a.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == [to_plain(row) for row in rows]
    assert "é".encode() in lines[0]
    assert json.loads((folder / "a.json").read_text("utf-8")) == {"outcome": "ok", "text": LONE}
    assert (folder / "a.html").read_text("utf-8") == "é \\ud800"
    assert sorted(p.name for p in folder.iterdir()) == ["a.html", "a.json", "a.jsonl"]


def test_write_replaces_and_follows_links(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_written_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_failure_midway_keeps_the_old_file(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        raise RuntimeError("stop")

    target = tmp_path / "a.jsonl"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        write_jsonl(target, rows())
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*a\.json: Is a directory: a folder"):
        write_json(target, {})
    assert list(tmp_path.iterdir()) == [target]


def test_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="a file stands where a folder is needed"):
        write_text(tmp_path / "out" / "a.html", "x")


def test_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="not a regular file"):
        write_text(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_write_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="write permission"):
        write_text(tmp_path / "a", "x")


def test_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="File name too long: name an output folder with a sho"):
        write_text(tmp_path / ("a" * 300), "x")


LIMITED = """
import resource, sys
from autoj_reward.io.files import write_jsonl
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
write_jsonl(sys.argv[1], ({"text": "x" * 1000} for _ in range(100)))
"""


def test_no_room_for_the_file(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    target.write_text("old")
    command = [sys.executable, "-c", LIMITED, str(target)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"OutputError: cannot write {target}: File too large: raise the file" in ran.stderr
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_results_import_nothing_heavy() -> None:
    code = (
        "import sys, rollouts.best_of_n.report\n"
        "print({'torch', 'ray', 'vllm', 'numpy'} & {*sys.modules})"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "set()"


SHARD = Shard(0, 0, 9, "key")


def write_part(folder: Path, *groups: Any) -> None:
    SHARD.part(folder).mkdir(parents=True)
    (SHARD.part(folder) / "groups.pickle").write_bytes(b"".join(map(pickle.dumps, groups)))


def test_a_shards_groups_come_back_as_they_were(tmp_path: Path) -> None:
    context = Context({"reference": "r"})
    responses = Response("r0"), Response("r1")
    full = replace(
        make_group(rated(8, expected=7.5), make_failure(), comparisons=((0, 1, Verdict.TIE),)),
        row=QueryRow(7, Prompt("q"), responses, extra={"id": ["a"]}, context=context),
        shortlist=Shortlist((0, 1), (7.0, None)),
    )
    write_part(tmp_path, full, make_group(rated(1)))
    assert list(groups_of(SHARD, tmp_path)) == [full, make_group(rated(1))]


class Harm:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, ("harmed",)


def test_a_shards_groups_can_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_part(tmp_path, Harm())
    with pytest.raises(pickle.UnpicklingError, match="mkdir is no record of a job"):
        list(groups_of(SHARD, tmp_path))
    assert not Path("harmed").exists()


def test_a_shards_part_brings_back_a_ranked_group() -> None:
    ranking = Ranking(
        (0.2, 0.8),
        (None, 0.1),
        ("", ""),
        (),
        (Order((0, 1), (0.2, 0.8), (True, False)),),
        (PairScore(0, 1, 0.3),),
    )
    candidates = (Candidate("q", "a"), Candidate("q", "b"))
    group = GroupResult(
        QueryRow(1, Prompt("q")),
        candidates,
        (rated(1), rated(2)),
        Selection(1, "relative"),
        ranking=ranking,
    )
    assert Records(io.BytesIO(pickle.dumps(group))).load() == group


def test_a_shards_part_brings_back_rubric_scores() -> None:
    item = RubricItem("Is short", 2.0, "optional", tags=("style",))
    judgements = (rated(1),)
    score = RubricScore(0.5, "", (ItemVerdict(item, 0.5, "Yes"),), judgements)
    row = QueryRow(1, Prompt("q"), rubric=(item,))
    candidates = (Candidate("q", "a", rubric=row.rubric),)
    group = GroupResult(row, candidates, judgements, Selection(0, "only"), rubrics=(score,))
    assert Records(io.BytesIO(pickle.dumps(group))).load() == group
