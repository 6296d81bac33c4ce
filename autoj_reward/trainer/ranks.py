"""What the processes of one training must agree on: the first one says it, the others take it."""

from __future__ import annotations

import json
import sys
from typing import Any, TypeVar

T = TypeVar("T")


def of_first_rank(name: str, own: T) -> T:
    """Return what rank 0 has under this name; `own` in a training of one process.

    own: JSON values. The ranks speak through the key-value store of torch.distributed, which is no
    collective operation: rank 0 waits for nobody, and the others for rank 0, up to the store's own
    timeout.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return own
    store = distributed.distributed_c10d._get_default_store()
    if distributed.get_rank() == 0:
        store.set(name, json.dumps(own))
        return own
    found: T = json.loads(store.get(name))
    return found
