"""What every config block is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """A config block: frozen. Unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
