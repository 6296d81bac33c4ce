from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web

from autoj_reward.config.urls import parse_base_url, without_secrets
from autoj_reward.errors import ConfigError
from autoj_reward.io.http import post, read_json, retry_after_s, session

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://user:pass@host:8000/v1?key=1#top", "http://host:8000/v1"),
        ("https://key@host", "https://host"),
        ("http://user:pa/ss@host/v1", "http://host/v1"),
        ("http://user:pa?ss@host/v1", "http://host/v1"),
        ("user:pass@host:8000/v1", "host:8000/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("'http://u:p@a/v1?k=1' and https://u@b/c", "'http://a/v1' and https://b/c"),
        ("model@revision, a@b.org", "model@revision, a@b.org"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, expected: str) -> None:
    assert without_secrets(address) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "localhost:8000",
        "ftp://pass@host/",
        "http://",
        "http:///v1",
        "http://h:port/",
        "http://a b/",
    ],
)
def test_a_key_that_holds_no_address_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"base_url '.*' is not an http:// or https:// URL") as e:
        parse_base_url(wrong, "base_url")
    assert "pass" not in str(e.value)


def test_the_parts_of_an_address() -> None:
    base = parse_base_url("https://user:p%40ss@host/v1/?api-version=2", "base_url")
    assert base.at("/chat/completions") == "https://host/v1/chat/completions?api-version=2"
    assert base.authorization == "Basic dXNlcjpwQHNz"
    assert "dXNl" not in repr(base) and "api-version" not in repr(base)
    assert parse_base_url("http://host", "base_url").authorization == ""


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("nan", 0.0),
        ("9" * 5000, 60.0),
        ("Tue, 24 Nov 2026 12:00:20 GMT", 20.0),
        ("Tue, 24 Nov 2026 11:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 60.0),
        ("Tue, 99 Nov 2026 12:00:20 GMT", 0.0),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float) -> None:
    headers = {"Retry-After": header} if header else {}
    assert retry_after_s(headers, 60.0, NOW) == seconds


@pytest.mark.parametrize("text", ['{"a": [1, "é"]}', '"\\ud83d"', "NaN"])
def test_json_is_read_as_json_reads_it(text: str) -> None:
    assert repr(read_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(body)


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Yield the address of a small server whose requests the handler answers."""
    server = web.Server(handler)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "{}:{}".format(*runner.addresses[0])
    await runner.cleanup()


async def test_a_session_sends_as_many_requests_at_once_as_it_is_given() -> None:
    all_here, waiting = asyncio.Event(), 0

    async def handler(request: web.BaseRequest) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == 150:
            all_here.set()
        await all_here.wait()
        return web.json_response(await request.json())

    async with (
        serve(handler) as host,
        session(base := parse_base_url(f"http://{host}", "k"), connect_s=5) as client,
    ):

        async def ask(n: int) -> int:
            async with post(client, base.at("/x"), {"n": n}) as answer:
                return read_json(await answer.read())["n"]

        assert await asyncio.gather(*map(ask, range(150))) == list(range(150))


async def test_a_session_sends_the_addresss_own_secrets_and_follows_nothing() -> None:
    requests: list[web.BaseRequest] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        requests.append(request)
        return web.Response(status=302, headers={"Location": "/other", "Set-Cookie": "a=b"})

    async with serve(handler) as host:
        base = parse_base_url(f"http://user:pass@{host}/v1?key=7", "base_url")
        async with session(base, connect_s=5) as client:
            for _ in range(2):
                async with post(client, base.at("/x"), {}) as answer:
                    assert answer.status == 302
    assert [r.path_qs for r in requests] == ["/v1/x?key=7"] * 2
    assert all(r.headers["Authorization"] == "Basic dXNlcjpwYXNz" for r in requests)
    assert not any("Cookie" in r.headers for r in requests)


async def test_the_environments_proxy_is_used_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f"{request.headers['Proxy-Authorization']} {request.raw_path}")

    async def ask(proxies: bool) -> str:
        base = parse_base_url("http://judge.invalid/v1", "base_url")
        async with (
            session(base, connect_s=5, proxies=proxies) as client,
            post(client, base.at("/x"), {}) as answer,
        ):
            return await answer.text()

    async with serve(handler) as host:
        monkeypatch.setenv("http_proxy", f"http://user:pass@{host}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert await ask(True) == "Basic dXNlcjpwYXNz http://judge.invalid/v1/x"
        with pytest.raises(OSError):
            await ask(False)
        monkeypatch.setenv("http_proxy", "socks5://user:pass@host")
        with pytest.raises(ConfigError, match=r"the proxy socks5://host for http://judge"):
            await ask(True)
