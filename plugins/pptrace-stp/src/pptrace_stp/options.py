"""The options of the schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["StpOptions"]

_Share = Annotated[float, Field(ge=0, le=1)]


class StpOptions(BaseModel):
    """How far the warm-up runs ahead, and what is copied to host memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up: Literal["full", "lean"] = Field(
        default="full",
        description="full: as many forwards ahead as keep every rank busy, 3p chunks of activations. lean: as "
        "many as the steady state needs, 2p + 1 chunks, with longer gaps at the end.",
    )
    offload_warm_up: _Share = Field(
        default=0,
        description="Share of chunk 0's microbatches in the warm-up whose activations are copied to host memory; "
        "their copies should take less than a forward each, on average.",
    )
    offload_steady: _Share = Field(
        default=0, description="The same share from the first backward of chunk 0 on; it may be larger."
    )
