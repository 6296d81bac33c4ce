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
from autoj_reward.watch.service import page_app
from tests.browser import Page, chromium
from tests.watch.conftest import OpenRun, Record, wait_for

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202eabc"
CRITIQUE = "The [response](javascript:alert(1)) is <b>clear</b>.\nRating: [[9]]"


@pytest.fixture
def client(record: Record, open_run: OpenRun) -> httpx.AsyncClient:
    app = page_app(open_run(record.folder), "secret")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://watch")


@pytest.mark.parametrize("name", ["run", "queries", "query", "pair", "curves", "else"])
async def test_nothing_of_a_run_is_told_without_the_token(
    client: httpx.AsyncClient, name: str
) -> None:
    async with client:
        for token in ("", "Bearer ", "Bearer secre", "Bearer secret2"):
            request_headers = {"Authorization": token} if token else {}
            answer = await client.get(f"/api/{name}", headers=request_headers)
            assert answer.status_code == 401
            assert "private" not in answer.text
        assert (await client.get(f"/api/{name}?token=secret")).status_code == 401


async def test_what_is_asked_with_the_token(client: httpx.AsyncClient) -> None:
    async with client:
        client.headers["Authorization"] = "Bearer secret"
        answer = await client.get("/api/run")  # nobody follows the run here
        assert (answer.status_code, answer.json()["journal"]["judged"]) == (
            200,
            0,
        )  # nobody follows it here
        assert answer.headers["cache-control"] == "no-store"
        wrong = await client.get("/api/queries?order=sideways")
        assert wrong.status_code == 422
        assert wrong.json()["detail"].startswith("order: 'sideways' is none of newest")
        for path in ("/docs", "/openapi.json", "/api", "/api/../etc/passwd", "/page.css"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/api/run", json={})).status_code == 405


async def test_the_page_is_for_all_and_holds_nothing(client: httpx.AsyncClient) -> None:
    async with client:
        answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "private" not in answer.text and "secret" not in answer.text
    for name, value in headers().items():
        assert answer.headers[name] == value


def test_the_policy_lets_this_script_run_and_no_other() -> None:
    policy = headers()["Content-Security-Policy"]
    for kind in ("script", "style"):
        [text] = re.findall(rf"<{kind}>(.*?)</{kind}>", document(), re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_page_asks_nobody_else_and_makes_no_markup() -> None:
    text = document().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", text) == []
    banned = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|\son\w+="
    assert re.findall(banned, text) == []
    assert " style=" not in text


def read_colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3}(?:[0-9a-f]{3})?)(?=;)", css))


def compute_luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * d for d in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(scheme: str) -> None:
    """WCAG 2.1, 1.4.3: contrast of at least 4.5 to 1; for lines and bars 3 to 1 (1.4.11)."""
    blocks = document().split("@media (prefers-color-scheme: dark)")
    css = blocks[0] if scheme == "light" else blocks[1].split("* { box-sizing")[0]
    palette = read_colours(css)
    pairs = [
        (ink, background, 4.5)
        for ink in ("ink", "muted")
        for background in ("page", "card", "quote")
    ]
    pairs += [("good-ink", "good", 4.5), ("bad-ink", "bad", 4.5), ("ink", "warn", 4.5)]
    pairs += [("blue", "card", 4.5), ("bad-ink", "card", 4.5), ("ink", "hover", 4.5)]
    pairs += [("pick", "card", 3.0)]
    for ink, background, least in pairs:
        high, low = sorted(
            (compute_luminance(palette[ink]), compute_luminance(palette[background])), reverse=True
        )
        assert (high + 0.05) / (low + 0.05) >= least, (ink, background)


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
        _, errors = self.process.communicate(timeout=600)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Record a run with a hostile query, a failed candidate and a comparison."""
    new_record = Record(tmp_path_factory.mktemp("run"))
    new_record.rate(HOSTILE, "worst", 2, critique="Too short.", expected=2.2)
    new_record.rate(
        HOSTILE, HOSTILE, 9, critique=CRITIQUE, expected=8.7, flags=("planted_verdict",)
    )
    new_record.rate(HOSTILE, "middle", 6, critique="Fair.", expected=6.1)
    new_record.rate(HOSTILE, "cut", outcome=Outcome.TRUNCATED, reason="no rating slot")
    new_record.compare(HOSTILE, "worst", "middle", Verdict.SECOND, "The second one.")
    new_record.rate("a private query", "plain", 5)
    yield new_record
    new_record.journal.close()


@pytest.fixture(scope="module")
def watch(record: Record) -> Iterator[Watch]:
    new_watch = Watch(record.folder)
    yield new_watch
    assert new_watch.end() == (0, "")


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert cli.main(["watch", str(tmp_path), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def page(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    new_page = Page(watch.address, tmp_path_factory.mktemp("browser"))
    yield new_page
    new_page.close()


@pytest.fixture
def fresh_page(page: Page) -> Page:
    """Reload the page and return it."""
    page._call("Page.reload")
    wait_for(lambda: len(read_texts(page, ".query")) >= 2)
    return page


def read_text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)})?.textContent"))


def read_texts(page: Page, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    texts: list[str] = page.run(script)
    return texts


def press(page: Page, key: str) -> None:
    codes = {"Enter": 13, "Escape": 27, "Tab": 9}
    for kind in ("keyDown", "keyUp"):
        event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        page._call("Input.dispatchKeyEvent", **event, **({"text": "\r"} if key == "Enter" else {}))


def test_the_token_leaves_the_address(fresh_page: Page, watch: Watch) -> None:
    assert fresh_page.run("location.href") == watch.address.partition("#")[0]


def test_best_and_worst_side_by_side_and_two_others(fresh_page: Page) -> None:
    fresh_page.choose("#order", "spread")
    wait_for(lambda: "script" in read_texts(fresh_page, ".query .asked")[0])
    fresh_page.click(".query")
    wait_for(lambda: len(read_texts(fresh_page, ".column")) == 2)
    assert read_texts(fresh_page, ".column header b") == ["9", "2"]
    assert read_texts(fresh_page, ".column header .muted") == ["best", "worst"]
    assert CRITIQUE in read_text(fresh_page, ".column.A") and "Too short." in read_text(
        fresh_page, ".column.B"
    )
    assert len(read_texts(fresh_page, ".candidates tbody tr")) == 4
    fresh_page.click(".candidates tbody tr:nth-child(2) input[name=one]")
    wait_for(lambda: read_texts(fresh_page, ".column header b") == ["6", "2"])
    wait_for(lambda: "A wins" in read_text(fresh_page, "#pair"))
    assert "The second one." in read_text(fresh_page, "#pair")


def test_hostile_texts_stay_texts(fresh_page: Page) -> None:
    fresh_page.choose("#order", "spread")
    wait_for(lambda: "script" in read_texts(fresh_page, ".query .asked")[0])
    fresh_page.click(".query")
    wait_for(lambda: len(read_texts(fresh_page, ".column")) == 2)
    assert "<img src=x onerror=alert(1)>\ufffdabc" in read_text(fresh_page, ".column.A")
    assert fresh_page.run("document.title").endswith("autoj watch")
    assert fresh_page.run("document.querySelectorAll('img').length") == 0
    assert fresh_page.run("document.querySelectorAll('script').length") == 2
    assert fresh_page.run("document.querySelectorAll('#body a').length") == 0


def test_search_and_filters_in_a_browser(fresh_page: Page) -> None:
    for field, value, count in (
        ("#search", "too short", 1),
        ("#search", "nowhere", 0),
        ("#search", "", 2),
        ("#outcome", "truncated", 1),
        ("#outcome", "", 2),
        ("#flag", "planted_verdict", 1),
    ):
        fresh_page.choose(field, value)
        wait_for(lambda count=count: len(read_texts(fresh_page, ".query")) == count)
    assert read_text(fresh_page, "#count") == "1 of 1 query"


def test_the_keyboard_alone(fresh_page: Page) -> None:
    fresh_page.run("document.querySelector('.query').focus()")
    press(fresh_page, "Enter")
    wait_for(lambda: fresh_page.run("document.querySelector('#detail').open"))
    wait_for(lambda: read_texts(fresh_page, ".column") != [])
    press(fresh_page, "Escape")
    wait_for(lambda: not fresh_page.run("document.querySelector('#detail').open"))
    wait_for(lambda: fresh_page.run("document.activeElement.className") == "query")
    fields = "[...document.querySelectorAll('input, select, button')]"
    unnamed = f"{fields}.filter((e) => !e.labels.length && !e.ariaLabel && !e.textContent)"
    assert fresh_page.run(f"{unnamed}.length") == 0


def test_the_page_asks_this_service_alone(fresh_page: Page, watch: Watch) -> None:
    fresh_page.click(".query")
    wait_for(lambda: read_texts(fresh_page, ".column") != [])
    assert fresh_page.problems == []
    base = watch.address.partition("#")[0]
    assert [r for r in fresh_page.requests if not r.startswith(base) and "data:" not in r] == []
    assert not any(watch.address.partition("#")[2] in request for request in fresh_page.requests)


def test_figures_in_a_browser_grow_with_the_run(fresh_page: Page, record: Record) -> None:
    before = int(read_text(fresh_page, ".tile dd"))
    for n in range(4):
        record.rate("a later query", f"r{n}", n + 3)
    wait_for(lambda: read_text(fresh_page, ".tile dd") == str(before + 4))
    assert fresh_page.run("document.querySelectorAll('#plots svg').length") >= 3
    fresh_page.click("#fresh")
    wait_for(lambda: len(read_texts(fresh_page, ".query")) == 3)


def test_progress_while_a_job_is_at_work(fresh_page: Page, record: Record, watch: Watch) -> None:
    claim = judged_by(
        "judge", record.folder, record.folder / "summary.json", command="autoj best-of-n", total=40
    )
    with pytest.raises(KeyboardInterrupt), claim:
        wait_for(lambda: read_text(fresh_page, "#state") == "running")
        reply = watch.ask("run").json()
        assert (reply["state"], reply["total"]) == ("running", 40)
        rated = reply["journal"]["kinds"]["rating"]
        wait_for(
            lambda: read_text(fresh_page, "#progress-text").startswith(f"{rated} of 40 judgements")
        )
        raise KeyboardInterrupt
    wait_for(lambda: read_text(fresh_page, "#state") == "stopped")


def test_a_page_without_its_token_says_so(watch: Watch, tmp_path: Path) -> None:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    page = Page(watch.address.partition("#")[0], tmp_path / "profile")
    wait_for(lambda: "open the address that autoj watch printed" in read_text(page, "#notices"))
    page.close()
