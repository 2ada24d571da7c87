"""The options of schedules that cut sequences."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SeqOptions"]


class SeqOptions(BaseModel):
    """Into how many slices a sequence is cut, and how unlike they are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slices: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=2, description="Slices of each microbatch's sequence, of as many tokens each."
    )
    attention: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Share of a pass's time that is causal attention's core, of which later slices have more: as "
        "the model's costs say unless given, or 0 where they do not; with 0 all slices take as long.",
    )
