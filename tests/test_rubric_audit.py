"""`autoj rubrics audit`, with a scripted judge that finds an item's quoted words in a response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoj_reward.cli import main as cli
from autoj_reward.questions.rubric import ItemVerdict, RubricScore
from autoj_reward.rubric_items import RubricItem
from autoj_reward.rubrics.measures import CONFIDENT, measure_items
from tests.browser import Page, chromium
from tests.test_relative import write

SCATTERS = "Explains the cause"
GAMED = {"query": "Why is the sky blue?", "rubric": ['Names "scattering"', 'Names "Rayleigh"']}
SAFE = {
    "query": "Why is the sky red?",
    "rubric": [SCATTERS, {"criterion": 'Says "clear"', "points": -1}],
}
SCRIPT = {SCATTERS: "dust in the air"}
RESPONSES = [
    {"query": GAMED["query"], "response": "Scattering.", "grade": 4},
    {"query": GAMED["query"], "response": "Rayleigh scattering.", "grade": 9},
    {"query": GAMED["query"], "response": "Mirrors, not scattering.", "grade": 1},
    {"query": GAMED["query"], "response": "Scattering, said Rayleigh.", "label": 8},
]


def audit(
    folder: Path, rubrics: list[Any], responses: list[Any] | None = None, *more: str
) -> tuple[int, Any]:
    """Run the command with hard verdicts; return its exit code and result."""
    run = ["rubrics", "audit", "--input", write(folder / "rubrics.jsonl", rubrics)]
    run += ["--responses", write(folder / "rows.jsonl", responses)] if responses else []
    script = json.dumps({"log": str(folder / "log"), "items": SCRIPT})
    for key in (
        "judge.kind=fake",
        "judge.format=rubric-item",
        f"judge.script={script}",
        "rubric.by=items",
        "rubric.hard=true",
    ):
        run += ["--set", key]
    code = cli.main([*run, "--output", str(folder / "out"), *more])
    result = folder / "out" / "audit.json"
    return code, json.loads(result.read_text()) if result.exists() else None


def list_rewards(rubric: Any) -> dict[str, float]:
    return {response["name"]: response["reward"] for response in rubric["trivial"]}


def test_a_rubric_that_claims_can_game_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = audit(tmp_path, [GAMED, SAFE], None, "--strict")
    gamed, safe = result["rubrics"]
    assert list_rewards(gamed) == {"empty": 0, "query": 0, "claims": 1, "confident": 0}
    assert gamed["best_trivial"] == "claims"
    assert [item["met_by"] for item in gamed["items"]] == [["claims"], ["claims"]]
    assert set(list_rewards(safe).values()) == {0}
    assert "clear" in CONFIDENT and safe["items"][1]["met_by"] == ["confident"]
    assert result["summary"]["gamed"] == 1 and code == 1
    assert "2 rubrics: in 1 a trivial response earns more than 0.2" in capsys.readouterr().out


def test_strict_refuses_what_is_gamed_or_not_known_alone(tmp_path: Path) -> None:
    def run(name: str, rubric: Any, *more: str) -> int:
        folder = tmp_path / name
        folder.mkdir()
        return audit(folder, [rubric], None, *more)[0]

    assert run("safe", SAFE, "--strict") == 0
    assert run("lax", GAMED) == 0
    assert run("allowed", GAMED, "--strict", "--most", "1") == 0
    failing = json.dumps({"items": SCRIPT, "fail": {CONFIDENT: "unparsable"}})
    assert run("unknown", SAFE, "--set", f"judge.script={failing}", "--strict") == 1
    [unknown] = json.loads((tmp_path / "unknown" / "out" / "audit.json").read_text())["rubrics"]
    assert (
        list_rewards(unknown)["confident"] is None
        and "unparsable" in unknown["trivial"][3]["reason"]
    )


def test_items_are_measured_over_the_responses_of_their_query(tmp_path: Path) -> None:
    items = ['Names "scattering"', 'Names "Rayleigh"', 'Tells of "Rayleigh"']
    pitfall = {"criterion": 'Claims "mirrors"', "points": -1}
    _, result = audit(tmp_path, [GAMED | {"rubric": [*items, pitfall]}, SAFE], RESPONSES)
    constant, rayleigh, again, wrong = result["rubrics"][0]["items"]
    assert (constant["met"], constant["variance"]) == (1, 0)
    assert constant["agreement"] is None and constant["redundancy"] is None
    assert (rayleigh["met"], rayleigh["variance"], rayleigh["verdicts"]) == (0.5, 0.25, 4)
    assert rayleigh["agreement"] == pytest.approx(2 / 5**0.5)  # ranks 3.5, 1.5 against 4, 3, 2, 1
    assert wrong["agreement"] > 0.7  # a pitfall that the worst response meets
    assert (rayleigh["redundancy"], rayleigh["redundant_with"], again["redundant_with"]) == (
        1,
        2,
        1,
    )
    summary = result["summary"]
    assert (summary["constant_items"], summary["redundant_items"]) == (1, 2)
    assert result["rubrics"][1]["items"][0]["met"] is None  # no response to that query
    tables = (tmp_path / "out" / "audit.md").read_text()
    assert '| 1: Names "Rayleigh" | 1 | 0.5 | 0.25 | 0.894 | 1 (item 2) |' in tables


HOSTILE = 'Tells of "Rayleigh" </td><script>document.title="owned"</script><img src=x> \u202e'
AUDITED = [GAMED | {"rubric": [*GAMED["rubric"], HOSTILE + "long" * 99]}, SAFE, {"query": HOSTILE}]


def test_the_page_shows_items_and_trivial_rewards_with_the_bound(tmp_path: Path) -> None:
    audit(tmp_path, AUDITED, RESPONSES)
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "in 1 a trivial response earns more than 0.2, in 0 one could not be judged" in page
    gamed, safe = page.split('id="row-')[1:]
    assert '<td>claims</td><td>1</td><td><span class="chip bad">fail</span></td>' in gamed
    assert "chip bad" not in safe and "<td>confident</td></tr>" in safe
    assert '<td>1: Names &quot;Rayleigh&quot; <span class="chip">redundant</span></td>' in gamed
    assert "<td>1</td><td>0.5</td><td>0.25</td><td>0.894</td><td>1 (item 2)</td>" in gamed
    assert not any(bad in page for bad in ("<script", "<img", "\u202e", "http://", "https://"))


def test_a_page_whose_bound_is_kept_or_not_known(tmp_path: Path) -> None:
    def state(*more: str) -> str:
        audit(tmp_path, [SAFE], None, *more)
        page = (tmp_path / "out" / "audit.html").read_text()
        return page.split("<h1>Audit of rubrics</h1>")[1].split("</span>")[0]

    assert state().endswith(">pass")
    failing = json.dumps({"items": SCRIPT, "fail": {CONFIDENT: "unparsable"}})
    (tmp_path / "out" / "audit.json").unlink()
    assert state("--set", f"judge.script={failing}").endswith(">not known")


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser_scrolls_its_tables_alone(tmp_path: Path) -> None:
    audit(tmp_path, AUDITED, RESPONSES)
    page = Page(tmp_path / "out" / "audit.html", tmp_path / "profile")
    try:
        for width in (400, 1280):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            page._call("Emulation.setDeviceMetricsOverride", **metrics)
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.run("document.title") == "Audit of rubrics"
        assert page.run("document.querySelectorAll('.audit').length") == 5
        assert (page.problems, len(page.requests)) == ([], 1)
        colours = set()
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page._call("Emulation.setEmulatedMedia", features=features)
            colours.add(page.run("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
    finally:
        page.close()


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    first = audit(tmp_path, [GAMED, SAFE], RESPONSES)
    logged_prompts = (tmp_path / "log").read_text()
    assert len(logged_prompts.splitlines()) == 2 * 4 * 2 + 2 * len(RESPONSES)
    (tmp_path / "out" / "audit.json").unlink()
    assert audit(tmp_path, [GAMED, SAFE], RESPONSES) == first
    assert (tmp_path / "log").read_text() == logged_prompts


def test_bad_rows_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rubrics = [GAMED, {"query": "a"}, {"query": "a", "rubric": [{"criterion": "b", "points": "5"}]}]
    other = {"query": "Who?", "response": "I."}
    _, result = audit(tmp_path, rubrics, [*RESPONSES, other, RESPONSES[0] | {"grade": "good"}])
    printed = capsys.readouterr().out
    for why in (
        "rubrics.jsonl:2: field 'rubric': no rubric items",
        "rubrics.jsonl:3: field 'rubric[0].points'",
        "rows.jsonl:5: field 'query': no rubric has this query: 'Who?'",
        "rows.jsonl:6: field 'grade': not a number",
        "4 rows left out",
    ):
        assert why in printed
    assert result["rows_left_out"] == len(result["left_out"]) == 4
    assert result["rubrics"][0]["responses"] == 4


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--most", "nan"), "--most is nan"),
        (("--samples", "0"), "--samples is 0"),
        (("--samples", "2"), "temperature 0"),
        (("--set", "judge.format=autoj-en"), "no checklist protocol"),
        (
            (
                "--samples",
                "2",
                "--set",
                "rubric={by: overall}",
                "--set",
                "judge.format=rubric-overall",
            ),
            "no verdict on an item",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], why: str
) -> None:
    code, result = audit(tmp_path, [GAMED], None, *more)
    assert code == 1 and result is None and why in capsys.readouterr().err


def test_further_samples_are_judged_anew(tmp_path: Path) -> None:
    warm = ("--samples", "3", "--set", "judge.temperature=0.7")
    _, result = audit(tmp_path, [GAMED], RESPONSES, *warm)
    assert [item["flips"] for item in result["rubrics"][0]["items"]] == [0, 0]
    assert len((tmp_path / "log").read_text().splitlines()) == 2 * 4 + 3 * 2 * len(RESPONSES)


def make_score(*shares: float | None) -> RubricScore:
    verdicts = tuple(ItemVerdict(RubricItem("a"), share) for share in shares)
    return RubricScore(0.5, "", verdicts, ())


def test_noise_of_a_constant_item_is_no_correlation() -> None:
    samples = [[make_score(n / 1000, n / 10)] for n in range(4)]
    items = [RubricItem("a"), RubricItem("b")]
    noise, real = measure_items(items, samples, (1.0, 2.0, 3.0, 4.0), {})
    assert (noise.agreement, noise.redundancy, real.redundancy) == (None, None, None)
    assert real.agreement == pytest.approx(1)


def test_flips_are_verdicts_unlike_the_first_sample() -> None:
    samples = [[make_score(s) for s in shares] for shares in ([0.9, 0.2, 0.6], [0.1, None, 0.4])]
    [measures] = measure_items([RubricItem("a")], samples, (None, None), {"empty": make_score(0.5)})
    assert measures.flips == pytest.approx(1 / 3) and measures.met == 0.5
    assert measures.met_by == ("empty",)
