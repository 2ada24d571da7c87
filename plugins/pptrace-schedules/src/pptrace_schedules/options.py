"""The options of the schedules that take any."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ChimeraOptions", "HanayoOptions"]


class ChimeraOptions(BaseModel):
    """How many pipelines there are, and what becomes of more microbatches than ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipelines: Annotated[int, Field(ge=2, le=4096)] = Field(
        default=2, description="Pipelines, half of them down and half up; each holds the whole model."
    )
    scale: Literal["merged", "concatenation", "forward-doubling", "backward-halving"] = Field(
        default="merged",
        description="More microbatches than ranks. merged: one bidirectional 1F1B. concatenation: one basic unit "
        "after another. forward-doubling: forwards of two microbatches at once. backward-halving: backwards of "
        "half a microbatch.",
    )


class HanayoOptions(BaseModel):
    """How often a microbatch runs down and up the ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    waves: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Waves, each of two chunks per rank; half of parallel.vp, or 2, unless given."
    )
