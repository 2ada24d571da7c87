"""Options of schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class ChimeraOptions(BaseModel):
    """How many pipelines there are, and what becomes of more microbatches than ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    waves: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Waves, each of two chunks per rank; half of parallel.vp, or 2, by default."
    )


class SeqOptions(BaseModel):
    """Into how many slices a sequence is cut, and how unlike they are."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    slices: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=2, description="Slices of each microbatch's sequence, of as many tokens each."
    )
    attention: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Share of a pass's time in the core of causal attention, which grows with the slice; by "
        "default that of the model's costs, or 0 where they have none. With 0 all slices take the same time.",
    )


class CombinedOptions(BaseModel):
    """How many microbatches run through a chunk before the next."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    round: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None,
        description="Microbatches that run through a chunk before the next one's turn; by default as many as "
        "ranks, and never fewer.",
    )
