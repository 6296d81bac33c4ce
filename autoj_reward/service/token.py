"""The token of a reward service: where it is kept, and how callers present it."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from autoj_reward.errors import ConfigError


def kept_token(variable: str, file: Path | None) -> str:
    """The token in a file, else in an environment variable.

    ConfigError if there is none, a file that others can read, or a token that no HTTP header can
    carry.
    """
    where = f"token_file {file}" if file is not None else f"the token in {variable}"
    token = _read(file) if file is not None else os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(
            f"{where} is empty: write the token that callers must present into it"
            if file is not None
            else f"set the environment variable {variable} to the token that callers must "
            "present, for example: export "
            f"{variable}=$(python -c 'import secrets; print(secrets.token_urlsafe())')"
        )
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{where} holds characters that no HTTP header can carry")
    return token


def _read(file: Path) -> str:
    try:
        if file.stat().st_mode & stat.S_IRWXO:
            raise ConfigError(
                f"token_file {file}: every user of this machine can read it: chmod 600 {file} (in "
                "Kubernetes defaultMode: 0440), and write a new token if others have been here"
            )
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {file}: cannot be read: {error}") from error


def presented(authorization: str) -> str:
    """The token of a header: a bearer's, or the password of callers that can only be given an
    address (http://any:TOKEN@host)."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else in_address(authorization)[1]


def in_address(authorization: str) -> tuple[str, str]:
    """User and password that a caller's address holds; empty where it holds none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except ValueError:
        return "", ""
    return user, password
