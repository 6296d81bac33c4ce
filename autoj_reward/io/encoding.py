"""Any text as bytes, lone surrogates included."""

from __future__ import annotations

import hashlib


def encoded(text: str) -> bytes:
    """UTF-8 that holds lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> bytes:
    """SHA-256: what tells a text from others and is short, however long the text is."""
    return hashlib.sha256(encoded(text)).digest()
