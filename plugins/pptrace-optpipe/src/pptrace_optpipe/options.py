"""Options of the schedule and of the command; light to import."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pptrace.plugin import Duration, Parameters, Size

SHORTEST_NS = 100_000_000
"""The shortest time of a search."""
DEFAULT_NS = 10_000_000_000
"""The time of a search in a configuration by default."""
_TIME = "Time of the search, unless work is given; it ends earlier if a schedule is proved optimal."


class _SearchOptions(Parameters):
    work: Annotated[float, Field(gt=0)] | None = None
    """Limit of the search in place of a time, in units of about a second of one processor. With one worker, the
    result is then the same on every machine under every load."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the search."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of the solver; results are reproducible with one."""
    recompute: bool = False
    """Whether forwards may be recomputed if memory is short."""
    copies: Literal["cluster", "direction", "pair"] = "cluster"
    """Ranks that share a channel for copies to the host and a channel back. With direction, each rank is alone.
    With pair, ranks 2i and 2i + 1 share them."""

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
    activations: Annotated[Size, Field(ge=0)] = 0
    """Limit of the bytes of activations on each rank; the device's free memory by default."""
    cache: bool = True
    """Whether to use cached results and to cache new results."""


class OptimizeOptions(_SearchOptions):
    """Options of ``pptrace optimize``."""

    time: Duration | None = Field(default=60_000_000_000, description=_TIME)
    memory: Sequence[Size] = ()
    """Memory limit of each rank, including weights; the device's memory by default."""
