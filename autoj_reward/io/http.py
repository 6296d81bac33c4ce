"""HTTP client functions for thousands of small JSON requests on one event loop."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic_core import from_json

from autoj_reward.config.urls import BaseUrl, without_secrets
from autoj_reward.errors import ConfigError
from autoj_reward.tracing import trace_headers

NO_ANSWER = (aiohttp.ClientError, OSError)
"""Exceptions of a request without a complete answer: no connection, a lost one, or a timeout."""
KEEP_ALIVE_S = 4.0
"""Seconds that an idle connection is kept. uvicorn closes it after 5 s, and a request sent just
then is lost."""
DNS_S = 30
"""Seconds that a host's addresses are cached, so that a service may move."""
LARGE_BODY_BYTES = 2**20
"""Body size from which a body is sent in chunks, so that other requests can proceed meanwhile."""
JSON = {"Content-Type": "application/json"}


def session(
    base: BaseUrl,
    *,
    headers: Mapping[str, str] | None = None,
    connect_s: float,
    total_s: float | None = None,
    proxies: bool = False,
) -> aiohttp.ClientSession:
    """Open a session for one server. Use and close it in the same event loop.

    It has no connection limit of its own; the caller's semaphore is the limit.

    headers: an Authorization header here overrides the one of the address. connect_s: seconds to
    connect. total_s: seconds for a request with its answer; None means no limit. proxies: whether
    to use the proxy of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, which is looked up now.
    `~/.netrc` is never read, and no cookies are kept.
    """
    default_headers = {"Authorization": base.authorization} if base.authorization else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=DNS_S, keepalive_timeout=KEEP_ALIVE_S
        ),
        headers=default_headers | dict(headers or {}),
        timeout=aiohttp.ClientTimeout(total=total_s, connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=_find_proxy(base.root) if proxies else None,
        trust_env=False,
    )


def post(
    client: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Send a JSON body, and the current trace. Redirects are returned as answers, not followed."""
    text = json.dumps(body, separators=(",", ":")).encode()
    data = text if len(text) < LARGE_BODY_BYTES else BytesIO(text)
    all_headers = JSON | trace_headers() | dict(headers or {})
    return client.post(url, data=data, headers=all_headers, allow_redirects=False)


def read_json(body: bytes) -> Any:
    """Parse a JSON body. Raises ValueError if it is invalid.

    pydantic's parser takes half the time of `json` on log-probabilities. `json` is the fallback,
    because only it accepts half of a surrogate pair.
    """
    try:
        return from_json(body)
    except ValueError:
        try:
            return json.loads(body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def error_text(error: BaseException) -> str:
    """Return an error's type and message, without secrets in addresses."""
    message = without_secrets(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def retry_after_s(headers: Mapping[str, str], cap_s: float, now: float | None = None) -> float:
    """Return the seconds that a server asks clients to wait before a retry, at most cap_s.

    `Retry-After` holds seconds or a date. Returns 0 without the header, or if it is malformed. now:
    seconds since the epoch.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        seconds = _count_seconds_until(value, time.time() if now is None else now)
    return 0.0 if math.isnan(seconds) else min(cap_s, max(0.0, seconds))


def _count_seconds_until(date: str, now: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _find_proxy(url: str) -> str | None:
    """Return the environment's proxy for an address, or None."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigError(
            f"the environment names the proxy {without_secrets(proxy)} for {url}: only http:// "
            "and https:// proxies can be used; add the host to NO_PROXY to go without"
        )
    return proxy
