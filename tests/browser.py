"""A headless Chromium for tests of pages, driven by the DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 600
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on 4.
AT_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """The browser of this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a browser of its own, of a file or an address. `problems` holds errors of the
    page and blocked loads; `requests` every address that it asked for."""

    def __init__(self, place: Path | str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        ends = (str(to_browser), str(from_browser))
        arguments = (f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, *ends, str(chromium()), *FLAGS, *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._ids, self._buffer = itertools.count(1), b""
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        try:
            self._open(place.as_uri() if isinstance(place, Path) else place)
        except BaseException:
            self.close()
            raise

    def _open(self, address: str) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=address)
        until = time.monotonic() + SECONDS
        while self.run("document.readyState") != "complete" and time.monotonic() < until:
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        evaluation = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in evaluation:
            raise AssertionError(evaluation["exceptionDetails"])
        return evaluation["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse on the first element that the selector names."""
        script = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option, or fill in a text, and tell the page."""
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            f" e.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change'])"
            " e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def screenshot(self, path: Path) -> None:
        capture = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(capture["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=SECONDS)
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            received_message = self._receive()
            if received_message.get("id") == number:
                if "error" in received_message:
                    raise AssertionError(f"{method}: {received_message['error']}")
                result: dict[str, Any] = received_message["result"]
                return result
            self._note(received_message)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 65536)
            if not data:
                raise AssertionError("the browser has gone")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
