"""`autoj watch`: its token, content policy and shutdown, and the page in a real browser during a
run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from autoj_reward.cli import main as cli
from autoj_reward.io.claims import judged_by
from autoj_reward.types import Outcome, Verdict
from autoj_reward.watch.page import document, headers
from autoj_reward.watch.run import Run
from autoj_reward.watch.service import page_app
from tests.browser import Page, chromium
from tests.watch.conftest import Record, wait_for

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eabc"
CRITIQUE = "The [response](javascript:alert(1)) is <b>clear</b>.\nRating: [[9]]"


def client(record: Record) -> httpx.AsyncClient:
    app = page_app(Run(record.folder), "secret")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://watch")


@pytest.mark.parametrize("name", ["run", "queries", "query", "pair", "curves", "else"])
async def test_nothing_of_a_run_is_told_without_the_token(record: Record, name: str) -> None:
    async with client(record) as asking:
        for token in ("", "Bearer ", "Bearer secre", "Bearer secret2"):
            given = {"Authorization": token} if token else {}
            answer = await asking.get(f"/api/{name}", headers=given)
            assert answer.status_code == 401
            assert "private" not in answer.text
        assert (await asking.get(f"/api/{name}?token=secret")).status_code == 401


async def test_what_is_asked_with_the_token(record: Record) -> None:
    async with client(record) as asking:
        asking.headers["Authorization"] = "Bearer secret"
        answer = await asking.get("/api/run")  # nobody follows the run here
        assert (answer.status_code, answer.json()["journal"]["judged"]) == (
            200,
            0,
        )  # nobody follows it here
        assert answer.headers["cache-control"] == "no-store"
        wrong = await asking.get("/api/queries?order=sideways")
        assert wrong.status_code == 422
        assert wrong.json()["detail"].startswith("order: 'sideways' is none of newest")
        for path in ("/docs", "/openapi.json", "/api", "/api/../etc/passwd", "/page.css"):
            assert (await asking.get(path)).status_code == 404
        assert (await asking.post("/api/run", json={})).status_code == 405


async def test_the_page_is_for_all_and_holds_nothing(record: Record) -> None:
    async with client(record) as asking:
        answer = await asking.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "private" not in answer.text and "secret" not in answer.text
    for name, value in headers().items():
        assert answer.headers[name] == value


def test_the_policy_lets_this_script_run_and_no_other() -> None:
    policy = headers()["Content-Security-Policy"]
    for kind in ("script", "style"):
        [text] = re.findall(rf"<{kind}>(.*?)</{kind}>", document(), re.S)
        found = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{found}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_page_asks_nobody_else_and_makes_no_markup() -> None:
    text = document().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", text) == []
    banned = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|\son\w+="
    assert re.findall(banned, text) == []
    assert " style=" not in text


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3}(?:[0-9a-f]{3})?)(?=;)", css))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * d for d in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(scheme: str) -> None:
    """WCAG 2.1, 1.4.3: contrast of at least 4.5 to 1; for lines and bars 3 to 1 (1.4.11)."""
    blocks = document().split("@media (prefers-color-scheme: dark)")
    css = blocks[0] if scheme == "light" else blocks[1].split("* { box-sizing")[0]
    own = colours(css)
    pairs = [(ink, on, 4.5) for ink in ("ink", "muted") for on in ("page", "card", "quote")]
    pairs += [("good-ink", "good", 4.5), ("bad-ink", "bad", 4.5), ("ink", "warn", 4.5)]
    pairs += [("blue", "card", 4.5), ("bad-ink", "card", 4.5), ("ink", "hover", 4.5)]
    pairs += [("pick", "card", 3.0)]
    for ink, on, least in pairs:
        high, low = sorted((luminance(own[ink]), luminance(own[on])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= least, (ink, on)


class Watch:
    """`autoj watch` in a separate process."""

    def __init__(self, path: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "autoj_reward.cli", "watch", str(path), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.address = self.line.rpartition(" ")[2].strip()

    def ask(self, name: str) -> httpx.Response:
        base, _, token = self.address.partition("#")
        return httpx.get(f"{base}api/{name}", headers={"Authorization": f"Bearer {token}"})

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Record a run with a hostile query, a failed candidate and a comparison."""
    made = Record(tmp_path_factory.mktemp("run"))
    made.rate(HOSTILE, "worst", 2, critique="Too short.", expected=2.2)
    made.rate(HOSTILE, HOSTILE, 9, critique=CRITIQUE, expected=8.7, flags=("planted_verdict",))
    made.rate(HOSTILE, "middle", 6, critique="Fair.", expected=6.1)
    made.rate(HOSTILE, "cut", outcome=Outcome.TRUNCATED, reason="no rating slot")
    made.compare(HOSTILE, "worst", "middle", Verdict.SECOND, "The second one.")
    made.rate("a private query", "plain", 5)
    yield made
    made.journal.close()


@pytest.fixture(scope="module")
def watch(record: Record) -> Iterator[Watch]:
    made = Watch(record.folder)
    yield made
    assert made.end() == (0, "")


def test_a_growing_run_is_told_as_it_grows(record: Record, watch: Watch) -> None:
    assert re.fullmatch(rf"{record.folder}: http://127\.0\.0\.1:\d+/#[\w-]{{32}}\n", watch.line)
    wait_for(lambda: watch.ask("run").json()["journal"]["judged"] == 6)
    record.rate("a private query", "another", 7)
    wait_for(lambda: watch.ask("run").json()["journal"]["judged"] == 7)
    assert httpx.get(watch.address.partition("#")[0] + "api/run").status_code == 401


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "SIGTERM"])
def test_it_ends_when_it_is_told_to(tmp_path: Path, number: int) -> None:
    assert Watch(tmp_path).end(number) == (0, "")


def test_what_cannot_be_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", str(tmp_path / "none")]) == 1
    assert "none: no run is there: name the output of best-of-n" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["watch", str(tmp_path), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def page(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    made = Page(watch.address, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture
def shown(page: Page) -> Page:
    """Reload the page and return it."""
    page._call("Page.reload")
    wait_for(lambda: len(all_of(page, ".query")) >= 2)
    return page


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)})?.textContent"))


def all_of(page: Page, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    found: list[str] = page.run(script)
    return found


def press(page: Page, key: str) -> None:
    codes = {"Enter": 13, "Escape": 27, "Tab": 9}
    for kind in ("keyDown", "keyUp"):
        given = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        page._call("Input.dispatchKeyEvent", **given, **({"text": "\r"} if key == "Enter" else {}))


def test_the_token_leaves_the_address(shown: Page, watch: Watch) -> None:
    assert shown.run("location.href") == watch.address.partition("#")[0]


def test_best_and_worst_side_by_side_and_two_others(shown: Page) -> None:
    shown.choose("#order", "spread")
    wait_for(lambda: "script" in all_of(shown, ".query .asked")[0])
    shown.click(".query")
    wait_for(lambda: len(all_of(shown, ".column")) == 2)
    assert all_of(shown, ".column header b") == ["9", "2"]
    assert all_of(shown, ".column header .muted") == ["best", "worst"]
    assert CRITIQUE in text(shown, ".column.A") and "Too short." in text(shown, ".column.B")
    assert len(all_of(shown, ".candidates tbody tr")) == 4
    shown.click(".candidates tbody tr:nth-child(2) input[name=one]")
    wait_for(lambda: all_of(shown, ".column header b") == ["6", "2"])
    wait_for(lambda: "A wins" in text(shown, "#pair"))
    assert "The second one." in text(shown, "#pair")


def test_hostile_texts_stay_texts(shown: Page) -> None:
    shown.choose("#order", "spread")
    wait_for(lambda: "script" in all_of(shown, ".query .asked")[0])
    shown.click(".query")
    wait_for(lambda: len(all_of(shown, ".column")) == 2)
    assert "<img src=x onerror=alert(1)>\ufffdabc" in text(shown, ".column.A")
    assert shown.run("document.title").endswith("autoj watch")
    assert shown.run("document.querySelectorAll('img').length") == 0
    assert shown.run("document.querySelectorAll('script').length") == 2
    assert shown.run("document.querySelectorAll('#body a').length") == 0


def test_search_and_filters_in_a_browser(shown: Page) -> None:
    for field, value, found in (
        ("#search", "too short", 1),
        ("#search", "nowhere", 0),
        ("#search", "", 2),
        ("#outcome", "truncated", 1),
        ("#outcome", "", 2),
        ("#flag", "planted_verdict", 1),
    ):
        shown.choose(field, value)
        wait_for(lambda found=found: len(all_of(shown, ".query")) == found)
    assert text(shown, "#count") == "1 of 1 query"


def test_the_keyboard_alone(shown: Page) -> None:
    shown.run("document.querySelector('.query').focus()")
    press(shown, "Enter")
    wait_for(lambda: shown.run("document.querySelector('#detail').open"))
    wait_for(lambda: all_of(shown, ".column") != [])
    press(shown, "Escape")
    wait_for(lambda: not shown.run("document.querySelector('#detail').open"))
    wait_for(lambda: shown.run("document.activeElement.className") == "query")
    fields = "[...document.querySelectorAll('input, select, button')]"
    unnamed = f"{fields}.filter((e) => !e.labels.length && !e.ariaLabel && !e.textContent)"
    assert shown.run(f"{unnamed}.length") == 0


def test_the_page_asks_this_service_alone(shown: Page, watch: Watch) -> None:
    shown.click(".query")
    wait_for(lambda: all_of(shown, ".column") != [])
    assert shown.problems == []
    base = watch.address.partition("#")[0]
    assert [r for r in shown.requests if not r.startswith(base) and "data:" not in r] == []
    assert not any(watch.address.partition("#")[2] in request for request in shown.requests)


def test_figures_in_a_browser_grow_with_the_run(shown: Page, record: Record) -> None:
    before = int(text(shown, ".tile dd"))
    for n in range(4):
        record.rate("a later query", f"r{n}", n + 3)
    wait_for(lambda: text(shown, ".tile dd") == str(before + 4))
    assert shown.run("document.querySelectorAll('#plots svg').length") >= 3
    shown.click("#fresh")
    wait_for(lambda: len(all_of(shown, ".query")) == 3)


def test_progress_while_a_job_is_at_work(shown: Page, record: Record, watch: Watch) -> None:
    with judged_by("judge", record.folder, record.folder / "summary.json", total=40):
        wait_for(lambda: text(shown, "#state") == "running")
        told = watch.ask("run").json()
        assert (told["state"], told["total"]) == ("running", 40)
        done = told["journal"]["kinds"]["rating"]
        wait_for(lambda: text(shown, "#progress-text").startswith(f"{done} of 40 judgements"))
    wait_for(lambda: text(shown, "#state") == "stopped")


def test_a_page_without_its_token_says_so(watch: Watch, tmp_path: Path) -> None:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    page = Page(watch.address.partition("#")[0], tmp_path / "profile")
    wait_for(lambda: "open the address that autoj watch printed" in text(page, "#notices"))
    page.close()
