"""What every config block is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """A config block: frozen, and every unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
