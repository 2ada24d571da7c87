"""Options of the schedule and of the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pptrace.plugin import Duration, Size

__all__ = ["DEFAULT_NS", "SHORTEST_NS", "OptimizeOptions", "OptpipeOptions"]

SHORTEST_NS = 100_000_000
"""The shortest time of a search."""
DEFAULT_NS = 10_000_000_000
"""The time of a search in a configuration unless given."""
_TIME = "How long to search unless work is given; it ends earlier where a schedule is proved to be the fastest."
_MEMORY = "What each rank may use, weights included; the device's memory unless given."


class _Effort(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    work: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="How much to search, in place of a time: units of about a second of one processor. With one "
        "worker the result is then the same on every machine, however busy.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="Seed of the search.")
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Threads of the solver; results are reproducible with one."
    )

    recompute: bool = Field(
        default=False, description="Whether forwards may be computed again where memory is short."
    )
    copies: Literal["cluster", "direction", "pair"] = Field(
        default="cluster",
        description="What has a channel for copies to the host and one back: what the cluster says, a rank, or "
        "ranks 2i and 2i + 1.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("work") is None:
            return given
        if given.get("time") is not None:
            msg = "give time or work, not both"
            raise ValueError(msg)
        return {**given, "time": None}


class OptpipeOptions(_Effort):
    """What ``schedule: optpipe`` takes."""

    time: Duration | None = Field(default=DEFAULT_NS, description=_TIME)
    activations: Annotated[Size, Field(ge=0)] = Field(
        default=0,
        description="Bytes of activations that each rank may hold; what the device has room for unless given.",
    )
    cache: bool = Field(
        default=True, description="Whether what was found before is taken, and what is found is kept."
    )


class OptimizeOptions(_Effort):
    """What ``pptrace optimize`` takes."""

    time: Duration | None = Field(default=60_000_000_000, description=_TIME)
    memory: Sequence[Size] = Field(default=(), description=_MEMORY)
