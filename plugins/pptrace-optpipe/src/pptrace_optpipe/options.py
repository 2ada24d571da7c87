"""Options of the schedule and of the command; light to import."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pptrace.plugin import Duration, Size

SHORTEST_NS = 100_000_000
"""The shortest time of a search."""
DEFAULT_NS = 10_000_000_000
"""The time of a search in a configuration by default."""
_TIME = "Time of the search, unless work is given; it ends earlier if a schedule is proved optimal."
_MEMORY = "Memory limit of each rank, including weights; the device's memory by default."


class _SearchOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    work: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Limit of the search in place of a time, in units of about a second of one processor. "
        "With one worker, the result is then the same on every machine under every load.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="Seed of the search.")
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Threads of the solver; results are reproducible with one."
    )
    recompute: bool = Field(default=False, description="Whether forwards may be recomputed if memory is short.")
    copies: Literal["cluster", "direction", "pair"] = Field(
        default="cluster",
        description="Ranks that share a channel for copies to the host and a channel back. With "
        "direction, each rank is alone. With pair, ranks 2i and 2i + 1 share them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_time(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("work") is None:
            return given
        if given.get("time") is not None:
            msg = "give time or work, not both"
            raise ValueError(msg)
        return {**given, "time": None}


class OptpipeOptions(_SearchOptions):
    """Options of ``schedule: optpipe``."""

    time: Duration | None = Field(default=DEFAULT_NS, description=_TIME)
    activations: Annotated[Size, Field(ge=0)] = Field(
        default=0,
        description="Limit of the bytes of activations on each rank; the device's free memory by default.",
    )
    cache: bool = Field(default=True, description="Whether to use cached results and to cache new results.")


class OptimizeOptions(_SearchOptions):
    """Options of ``pptrace optimize``."""

    time: Duration | None = Field(default=60_000_000_000, description=_TIME)
    memory: Sequence[Size] = Field(default=(), description=_MEMORY)
