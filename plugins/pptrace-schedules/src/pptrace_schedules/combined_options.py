"""The options of combined 1F1B."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CombinedOptions"]


class CombinedOptions(BaseModel):
    """How many microbatches run through a chunk before the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None,
        description="Microbatches that run through a chunk before the next one's turn; as many as ranks unless "
        "given, and never fewer.",
    )
