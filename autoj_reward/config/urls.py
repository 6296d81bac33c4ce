"""URLs and headers in config keys: checked once, and shown without their secrets."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, PlainSerializer

from autoj_reward.errors import ConfigError

SECRET_CHARS = 6
"""Length from which a password or query value is replaced in texts that are shown."""
IN_TEXT = re.compile(r"://([^\s'\"<>]+)")
"""The part of a URL after its scheme. The search takes linear time in any text."""


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """The URL of an endpoint, with its secrets apart from what may be shown."""

    root: str
    """Scheme, host, port and path, without a slash at the end and without secrets: safe for logs
    and errors."""
    query: str = field(default="", repr=False)
    """Query string that is sent with every request (Azure's `api-version`)."""
    authorization: str = field(default="", repr=False)
    """Authorization header for the user and password of the URL; empty if it has none."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The password, the query string and its values, which a server's answer may repeat."""

    @property
    def path(self) -> str:
        """The path of the URL, empty if it ends with the host or the port."""
        return urlsplit(self.root).path

    def at(self, path: str) -> str:
        """Return the full URL of a path below the root, such as `/chat/completions`."""
        return f"{self.root}{path}" + (f"?{self.query}" if self.query else "")

    def hide_secrets(self, text: str, *more: str) -> str:
        """Return a server's text with the secrets of this URL, and `more`, replaced by
        `[hidden]`."""
        for secret in (*more, *self.secrets):
            text = text.replace(secret, "[hidden]") if secret else text
        return text


def parse_base_url(url: str, key_name: str) -> BaseUrl:
    """Parse the URL that a config key holds.

    Raises ConfigError naming the key if the URL is not http or https or has no host.
    """
    parts = _split_url(url)
    if parts is None:
        raise ConfigError(
            f"{key_name} {without_secrets(url)!r} is not an http:// or https:// URL: write it like "
            "http://127.0.0.1:8000"
        )
    authorization, secrets = "", [value for _, value in parse_qsl(parts.query)]
    if "@" in parts.netloc:
        words = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(words.encode()).decode()}"
        secrets.append(unquote(parts.password or ""))
    # A short value is no secret, and replacing it would garble any text.
    long = tuple(s for s in (parts.query, *secrets) if len(s) >= SECRET_CHARS)
    return BaseUrl(_show_url(parts).rstrip("/"), parts.query, authorization, long)


def without_secrets(text: str) -> str:
    """Return a URL, or a text that contains URLs, without user, password, query and fragment."""
    if "://" in text:
        return IN_TEXT.sub(_mask_url, text)
    user, at, _ = text.partition("@")
    bare = at and ":" in user and not any(c.isspace() for c in text)
    return text.rpartition("@")[2] if bare else text


def _mask_url(match: re.Match[str]) -> str:
    parts = _split_url(f"http://{match[1]}")
    if parts is not None:
        return _show_url(parts).removeprefix("http")
    # An address that cannot be split (a password with a slash in it): keep only its end.
    rest = match[1].rpartition("@")[2]
    return "://" + re.split("[?#]", rest, maxsplit=1)[0]


def _split_url(url: str) -> SplitResult | None:
    """Return the parts of an http(s) URL with a host, or None for any other text."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    broken = any(c.isspace() or not c.isprintable() for c in url)
    return None if broken or parts.scheme not in ("http", "https") or not parts.hostname else parts


def _show_url(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


Address = Annotated[str, PlainSerializer(without_secrets)]
"""A URL in a config block. Every dump of the config leaves its secrets out, so results, claims and
reports can hold the dump; the attribute keeps them. Declare the field with `repr=False`."""


ENVIRONMENT = "env:"
"""Beginning of a header's value that is the name of an environment variable."""
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Pattern of an HTTP header's name."""


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an HTTP header")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} holds characters that no HTTP header can carry")
    return headers


def _hide_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as they may be shown: with the names of variables, and no other value."""
    return {
        name: value if value.startswith(ENVIRONMENT) else "[hidden]"
        for name, value in headers.items()
    }


Headers = Annotated[dict[str, str], AfterValidator(_check_headers), PlainSerializer(_hide_headers)]
"""Headers in a config block. A dump hides their values, as that of an `Address` does."""
