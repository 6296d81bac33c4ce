"""Eval-P and pairs of other benchmarks: published figures out of published counts, bad input by
row before any judge, and a scripted judge from end to end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.errors import InputError
from autoj_reward.evaluate import pairs
from autoj_reward.evaluate.pair_metrics import JudgedPair
from autoj_reward.evaluate.pairs import LabelledPair, PairAnswer, read_pairs
from autoj_reward.evaluate.results import load_result, load_rows
from autoj_reward.evaluate.rows import GROUPS, group
from autoj_reward.formats.criteria import load_scenarios
from autoj_reward.io.checks import BadField
from autoj_reward.models.spec import judge_spec
from autoj_reward.types import Verdict
from tests.evaluate_rows import autoj_verdicts, pair, released_scenarios, write

TABLE_1 = {
    "Summarization": (45.83, 73.61),
    "Exam Questions": (38.89, 69.44),
    "Code": (47.5, 75.83),
    "Rewriting": (49.17, 74.17),
    "Creative Writing": (59.72, 87.04),
    "Functional Writing": (61.67, 81.67),
    "General Communication": (55.21, 92.36),
    "NLP Tasks": (57.58, 86.36),
}
FAKE = ["--set", "judge.kind=fake", "--set", "bootstrap=50"]


def evaluate(*arguments: str) -> int:
    return cli.main(["evaluate", *arguments])


def test_the_scenarios_are_the_papers() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names)) == 58
    assert len(GROUPS) == 8
    aliases = {alias: s.name for s in load_scenarios() for alias in s.aliases}
    assert set(aliases) >= {"functional_writing", "value_judgement", "default"}
    for alias, name in aliases.items():
        assert group({"scenario": alias}) == group({"scenario": name})
    with pytest.raises(BadField, match="no scenario of the paper"):
        group({"scenario": "small_talk"})


def test_the_published_figures_come_out(tmp_path: Path, capsys: Any) -> None:
    rows, verdicts, swapped = zip(*autoj_verdicts(), strict=True)
    out = str(tmp_path / "out.json")
    assert not evaluate(
        "eval-p",
        *("--data", write(tmp_path / "p.jsonl", rows), "--json", out, "--set", "bootstrap=200"),
        *("--verdicts", write(tmp_path / "v.jsonl", verdicts)),
        *("--swapped-verdicts", write(tmp_path / "s.jsonl", swapped)),
    )
    result = load_result(out)
    overall = result["overall"]
    assert (overall["n"], overall["agreement"], overall["consistency"]) == (1392, 54.96, 83.41)
    low, high = overall["agreement_95"]
    assert 51 < low < 54.96 < high < 59
    shares = {name: (g["agreement"], g["consistency"]) for name, g in result["groups"].items()}
    assert shares == TABLE_1
    assert list(shares) == list(TABLE_1)
    assert len(load_rows(out)) == 1392
    assert "54.96" in capsys.readouterr().out
    page = tmp_path / "board.html"
    assert evaluate("leaderboard", "--results", out, "--output", str(page), "--limit", "5") == 0
    text = page.read_text(encoding="utf-8")
    assert 'data-value="54.96"' in text
    assert "1,387 judged rows left out" in text


def test_verdicts_of_one_order_have_no_consistency(tmp_path: Path) -> None:
    rows = [pair("planning", n, label) for n, label in enumerate((0, 1, 2, 2))]
    out = str(tmp_path / "out.json")
    outputs = [{"output": n} for n in (0, 0, 2, 2)]
    evaluate(
        "eval-p",
        *("--data", write(tmp_path / "p.jsonl", rows), "--json", out),
        *("--verdicts", write(tmp_path / "v.jsonl", outputs)),
    )
    result = load_result(out)
    assert (result["overall"]["agreement"], result["overall"]["consistency"]) == (75.0, None)
    assert (result["protocol"], result["overall"]["ties"]) == ("pointwise", 50.0)


def test_a_judge_is_asked_once_and_recalled(tmp_path: Path) -> None:
    rows = [pair(scenario, n) for n, scenario in enumerate(released_scenarios("Code"))]
    rows.append(pair("chitchat", 9, 1))
    data, log = write(tmp_path / "p.jsonl", rows), tmp_path / "asked.jsonl"
    out = str(tmp_path / "out.json")
    command = ["eval-p", "--data", data, "--json", out, *FAKE]
    command += ["--set", f"judge.script={{log: '{log}'}}"]
    assert evaluate(*command) == 0
    result = load_result(out)
    assert (result["overall"]["agreement"], result["overall"]["consistency"]) == (83.33, 100.0)
    assert result["groups"]["Code"]["agreement"] == 100.0
    assert result["groups"]["General Communication"]["agreement"] == 0.0
    assert result["bias"]["length"] == {
        "pairs": 6,
        "judge_share": 100.0,
        "human_share": 83.33,
        "agreement_more": 100.0,
        "agreement_less": 0.0,
    }
    assert result["bias"]["position"]["first_share"] == 50.0
    assert result["cost"]["judgements"] == 12
    assert result["cost"]["mean"]["tokens_in"] == 20.0  # the slot is read, too
    assert result["judge"].startswith("default:autoj-en:")
    first = load_rows(out)[0]
    assert (first["label"], first["verdict"], first["orders"]) == (
        "first",
        "first",
        ["first", "second"],
    )
    assert "final decision" in first["judgements"][1]["critique"]
    assert len(log.read_text().splitlines()) == 12
    assert evaluate(*command) == 0
    assert len(log.read_text().splitlines()) == 12


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n) for n in range(6)])
    log = tmp_path / "asked.jsonl"
    command = ["eval-p", "--data", data, "--json", str(tmp_path / "out.json"), *FAKE]
    command += ["--set", f"judge.script={{log: '{log}'}}"]
    assert evaluate(*command, "--set", "sample=2") == 0
    assert len(log.read_text().splitlines()) == 4
    assert evaluate(*command) == 0
    questions = log.read_text().splitlines()
    assert len(questions) == len(set(questions)) == 12


def test_a_run_that_breaks_off_leaves_no_rows(tmp_path: Path) -> None:
    """Rows are written as they are judged, and stand there only once all are."""
    data = write(tmp_path / "p.jsonl", [pair("planning", n) for n in range(4)])
    out = tmp_path / "out.json"
    script = ["--set", "judge.script={fail: {short 2: unavailable}}", "--set", "repeats=2"]

    def raise_error(pair: LabelledPair, answer: PairAnswer) -> JudgedPair:
        raise InputError("no more of it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "judged_pair", raise_error)
        assert evaluate("eval-p", "--data", data, "--json", str(out), *FAKE, *script) == 1
    files = {path.name for path in tmp_path.iterdir()}
    assert files <= {"p.jsonl", ".out.json.claim", "out.journal.sqlite"}
    assert not evaluate("eval-p", "--data", data, "--json", str(out), *FAKE, *script)
    assert len(load_rows(str(out))) == 4


def test_an_order_that_sways_the_judge_is_inconsistent(tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n) for n in range(4)])
    out = str(tmp_path / "out.json")
    script = ["--set", "judge.script={verdicts: first}", "--set", "repeats=2"]
    evaluate("eval-p", "--data", data, "--json", out, *FAKE, *script)
    result = load_result(out)
    assert (result["overall"]["agreement"], result["overall"]["consistency"]) == (0.0, 0.0)
    assert result["bias"]["position"]["always_first"] == 4
    assert result["stability"] == {"repeats": 2, "same": 100.0, "kappa": None}


@pytest.mark.parametrize(
    ("thresholds", "within"),
    [pytest.param([], 6.0, id="its-own"), pytest.param(["1.5"], 1.5, id="the-configs")],
)
def test_the_judges_own_tie_threshold_where_the_config_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thresholds: list[str], within: float
) -> None:
    monkeypatch.setattr(
        "autoj_reward.evaluate.runner.judge_spec",
        lambda config: replace(judge_spec(config), ratings_tie=6.0),
    )
    data = write(tmp_path / "p.jsonl", [pair("planning", 0)])
    out = str(tmp_path / "out.json")
    sets = ["--set", "protocol=pointwise", "--set", "view=rating"]
    sets += ["--set", "judge.script={ratings: {long answer 0: 8, short 0: 3}}"]
    sets += [part for value in thresholds for part in ("--set", f"tie_threshold={value}")]
    evaluate("eval-p", "--data", data, "--json", out, *FAKE, *sets)
    assert load_result(out)["settings"]["tie_threshold"] == within
    assert load_rows(out)[0]["verdict"] == ("tie" if thresholds == [] else "first")


def test_responses_rated_alone(tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n, n % 2) for n in range(4)])
    out = str(tmp_path / "out.json")
    values = {
        f"{kind} {n}": 8 if kind == "short" else 3
        for kind in ("long answer", "short")
        for n in range(4)
    }
    sets = ["--set", "protocol=pointwise", "--set", "view=rating"]
    sets += ["--set", f"judge.script={{ratings: {json.dumps(values)}}}"]
    evaluate("eval-p", "--data", data, "--json", out, *FAKE, *sets)
    result = load_result(out)
    assert (result["overall"]["agreement"], result["overall"]["consistency"]) == (50.0, None)
    assert result["searched_on_these_rows"] == {"tie_threshold": 0.0, "agreement": 50.0}
    assert load_rows(out)[0]["judgements"][1]["rating"] == 8


@pytest.mark.parametrize(
    ("layout", "row", "label", "group"),
    [
        pytest.param(
            "judgebench",
            {
                "pair_id": "x1",
                "question": "q",
                "response_A": "a",
                "response_B": "b",
                "label": "B>A",
                "source": "livebench-math",
            },
            Verdict.SECOND,
            "livebench-math",
            id="judgebench",
        ),
        pytest.param(
            "llmbar",
            {"input": "q", "output_1": "a", "output_2": "b", "label": 2},
            Verdict.SECOND,
            "all",
            id="llmbar",
        ),
        pytest.param(
            "pair",
            {"query": "q", "response_1": "a", "response_2": "b", "label": "tie"},
            Verdict.TIE,
            "all",
            id="own",
        ),
    ],
)
def test_forms_of_other_benchmarks(
    layout: str, row: dict[str, Any], label: Verdict, group: str, tmp_path: Path
) -> None:
    [labelled_pair] = read_pairs(write(tmp_path / "p.jsonl", [row]))
    assert labelled_pair.layout == layout
    assert labelled_pair.query == "q"
    assert [response.text for response in labelled_pair.responses] == ["a", "b"]
    assert (labelled_pair.label, labelled_pair.group) == (label, group)


def test_another_benchmark_from_end_to_end(tmp_path: Path) -> None:
    rows = [
        {"prompt": "q", "chosen": "longer", "rejected": "s", "subset": "hep-go", "id": 1},
        {"prompt": "p", "chosen": "s", "rejected": "longer", "subset": "hard", "id": 2},
    ]
    out = str(tmp_path / "out.json")
    data = write(tmp_path / "p.jsonl", rows)
    assert evaluate("pairs", "--data", data, "--json", out, *FAKE) == 0
    result = load_result(out)
    assert result["task"] == "rewardbench1"
    assert {g: f["agreement"] for g, f in result["groups"].items()} == {
        "hep-go": 100.0,
        "hard": 0.0,
    }
    assert result["sections"] == {"Reasoning": {"n": 1, "score": 100.0, "score_95": [None, None]}}


BAD_ROWS = [
    pytest.param(
        {"label": 3}, ["p.jsonl:2: field 'label': 3 is no label: one of 0, 1"], id="label"
    ),
    pytest.param({"label": True}, ["p.jsonl:2: field 'label': True"], id="label true"),
    pytest.param({"label": "z"}, ["p.jsonl:2: field 'label': 'z'"], id="label text"),
    pytest.param(
        {"scenario": "small_talk"}, ["p.jsonl:2: field 'scenario': 'small_talk'"], id="scenario"
    ),
    pytest.param({"prompt": " "}, ["p.jsonl:2: field 'prompt': blank"], id="blank"),
    pytest.param({"response 2": None}, ["p.jsonl:2: field 'response 2': not a"], id="response"),
    pytest.param({"id": "a"}, ["p.jsonl:2: field 'id': 'a' is also the id of row 1"], id="twice"),
]


@pytest.mark.parametrize(("change", "messages"), BAD_ROWS)
def test_a_bad_row_is_named_before_any_judge(
    change: dict[str, Any], messages: list[str], tmp_path: Path, capsys: Any
) -> None:
    rows = [pair("planning", 0, id="a"), pair("planning", 1, id="b") | change]
    data, log = write(tmp_path / "p.jsonl", rows), tmp_path / "asked.jsonl"
    out = tmp_path / "out.json"
    log_flags = ["--set", f"judge.script={{log: '{log}'}}"]
    assert evaluate("eval-p", "--data", data, "--json", str(out), *FAKE, *log_flags) == 1
    errors = capsys.readouterr().err
    assert all(text in errors for text in [*messages, "1 of 2 rows are bad"])
    assert not log.exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [
        pytest.param([{"output": 0}], "1 rows for the 2 rows of", id="short"),
        pytest.param([{"output": 0}] * 3, "row 3 answers no row", id="long"),
        pytest.param([{"output": 0}, {"output": 3}], "v.jsonl:2: field 'output': 3", id="off"),
        pytest.param([{"output": 0}, {}], "v.jsonl:2: field 'output': null", id="missing"),
        pytest.param(
            [{"output": 0, "id": "b"}, {"output": 0, "id": "a"}],
            "v.jsonl:1: field 'id': 'b', but row 1 of the data has 'a'",
            id="order by id",
        ),
        pytest.param(
            [{"output": 0, "meta": {"idx": 1}}, {"output": 0}],
            "v.jsonl:1: field 'idx': 1 stands at place 0",
            id="order by index",
        ),
    ],
)
@pytest.mark.parametrize("role", ["verdicts", "swapped-verdicts"])
def test_wrong_files_of_verdicts(
    verdicts: list[Any], message: str, role: str, tmp_path: Path, capsys: Any
) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n, id="ab"[n]) for n in range(2)])
    bad = write(tmp_path / "v.jsonl", verdicts)
    good = write(tmp_path / "good.jsonl", [{"output": 0}] * 2)
    files = {"verdicts": good, "swapped-verdicts": good} | {role: bad}
    flags = [text for name, path in files.items() for text in (f"--{name}", path)]
    assert evaluate("eval-p", "--data", data, "--json", str(tmp_path / "o.json"), *flags) == 1
    assert message in capsys.readouterr().err


def test_swapped_verdicts_need_the_others(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", 0)])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), "--swapped-verdicts", data]
    assert evaluate("eval-p", *flags) == 1
    assert "name both" in capsys.readouterr().err


def test_pairs_with_the_columns_of_eval_p_need_no_scenario(tmp_path: Path) -> None:
    rows = [pair("planning", 0), {k: v for k, v in pair("", 1).items() if k != "scenario"}]
    data = write(tmp_path / "p.jsonl", rows)
    out = str(tmp_path / "o.json")
    assert evaluate("pairs", "--data", data, "--json", out, *FAKE) == 0
    assert sorted(row["group"] for row in load_rows(out)) == ["General Communication", "all"]
    assert evaluate("eval-p", "--data", data, "--json", out, *FAKE) == 1


def test_a_format_without_comparison_is_refused_first(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", 0)])
    flags = ["--data", data, "--json", str(tmp_path / "o.json"), *FAKE]
    pandalm = ["--set", "protocol=pointwise", "--set", "judge.format=pandalm"]
    assert evaluate("eval-p", *flags, *pandalm) == 1
    message = capsys.readouterr().err
    assert "format 'pandalm' has no single protocol" in message
    assert "or set protocol=pairwise, which compares the two responses" in message
    assert evaluate("eval-p", *flags, "--set", "judge.format=rubric") == 1
    message = capsys.readouterr().err
    assert "format 'rubric' has no pairwise protocol" in message
    assert "or set protocol=pointwise, which rates each response alone" in message


def test_a_figure_is_printed_with_its_interval(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n, n % 2) for n in range(4)])
    assert evaluate("eval-p", "--data", data, "--json", str(tmp_path / "o.json"), *FAKE) == 0
    overall = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("overall")
    )
    assert re.fullmatch(
        r"overall +4  50\.00 \[\d+\.\d\d, \d+\.\d\d\] +100\.00 \[100\.00, 100\.00\]", overall
    )


def test_the_released_half_is_read(released: Any) -> None:
    rows = released("autoj/testdata_pairwise.jsonl")
    assert len(rows) == 696
    assert {group(row) for row in rows} == set(GROUPS)


def test_a_sample_is_drawn_by_the_seed(tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [pair("planning", n) for n in range(20)])
    lines = []
    for seed in (0, 0, 1):
        out = str(tmp_path / "o.json")
        sets = ["--set", "sample=5", "--set", f"seed={seed}"]
        evaluate("eval-p", "--data", data, "--json", out, *FAKE, *sets)
        lines.append([row["line"] for row in load_rows(out)])
    assert lines[0] == lines[1] != lines[2]
    assert len(lines[0]) == 5
