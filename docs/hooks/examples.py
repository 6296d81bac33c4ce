"""Griffe extension: examples in the docstrings of the Python reference become code blocks."""

from __future__ import annotations

from typing import Any

import griffe

from docs.hooks.reference import paragraphs


class Examples(griffe.Extension):
    """Rewrites the docstring of every object that Griffe reads."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = paragraphs(obj.docstring.value)
