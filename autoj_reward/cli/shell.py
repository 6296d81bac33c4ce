"""What stands around every command: errors in one line, and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable

from autoj_reward.errors import AutojError
from autoj_reward.extras import from_extras


def explained(name: str, work: Callable[[], int]) -> int:
    """Work, and return its exit code; 1: an error that is explained; 130: interrupted.

    name: what the line on the terminal begins with. Groups of errors are told by the first.
    """
    try:
        with from_extras():
            return work()
    except* AutojError as known:
        error: BaseException = known
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"{name}: error: {error}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on from here", file=sys.stderr)
        code = 130
    return code
