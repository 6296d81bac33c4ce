"""How callers present the token of a reward service."""

from __future__ import annotations

import base64


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
