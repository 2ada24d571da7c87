"""Measured steps, and the replicas of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.columns import Int64s, column

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """How an importer is asked to read a run's traces."""

    layout: str = ""
    """Sizes such as ``pp=4,tp=2,dp=8`` where the trace does not describe its groups."""
    replica: str = ""
    """Which of several pipelines: ``dp=0,tp=0``, ``slowest`` or ``median``; the first unless given."""
    rules: Path | None = None
    """A YAML file of rules by which names are actions."""
    every_replica: bool = False
    """Whether all pipelines are wanted beside that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How one rank's clock was brought in line with rank 0's."""

    rank: int
    """The rank."""
    offset_ns: int
    """What was added to its times."""
    bound_ns: int
    """How far that may be off; 0 where ranks share a clock."""
    pairs: int = 0
    """Messages that it was found from; 0 where ranks share a clock, or nothing is known."""
    contradicted_ns: int = 0
    """By how much messages seem to arrive before they left, whatever the offset; 0 where one offset fits all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The file that one rank was read from."""

    rank: int
    """The rank."""
    path: Path
    """The file; ranks may share one."""
    origin_ns: int
    """What the rank's own clock showed when the file's times were 0."""
    has_clock: bool = False
    """Whether the file names a clock of its own, as Perfetto's format does and Chrome JSON does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattributed:
    """Work of a rank that belongs to no action."""

    rank: int
    """The rank."""
    what: str
    """Name of the operations, or what is wrong with them."""
    count: int
    """How many."""
    total_ns: int
    """Their time in sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one rank's operations of one name amount to."""

    rank: int
    """The rank."""
    what: str
    """The operations' name; ``send`` or ``receive`` for messages that the host posted."""
    communicates: bool
    """Whether they communicate, and do not compute."""
    count: int
    """How many."""
    total_ns: int
    """Their time in sum."""
    size_bytes: int = 0
    """Their sizes in sum; 0 where the trace does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """What one rank's GPU did from its first operation to its last; the three parts sum to that."""

    rank: int
    """The rank."""
    computing_ns: int
    """Time in which something computed."""
    exposed_ns: int
    """Time in which something communicated and nothing computed."""
    idle_ns: int
    """Time in which nothing ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BySize:
    """Durations by size of communication operations whose purpose is unknown."""

    what: str
    """The sort, such as ``messages between nodes`` or ``AllReduce of 8 ranks``."""
    messages: bool
    """Whether they are messages between two ranks, and no collectives."""
    size_bytes: Int64s
    """Shape (operations,): a message's size; what a collective moves over each rank's link."""
    took_ns: Int64s
    """Shape (operations,): from when the last rank was there to the end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_bytes", column(self.size_bytes, np.int64))
        object.__setattr__(self, "took_ns", column(self.took_ns, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One recorded step."""

    label: str
    """As the profiler numbers it."""
    timeline: Timeline
    """Every action that was found."""
    gap_ns: Int64s
    """Shape (slices,): time inside an action in which its rank's device did nothing, waiting for launches."""
    covered_ns: int = 0
    """Length of the profiler's own range around the step; 0 where it wrote none."""
    begins_ns: int = 0
    """When the timeline's time 0 was, by rank 0's clock."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap_ns", column(self.gap_ns, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of several pipelines that run the same on other data, or on other shards."""

    name: str
    """Where it is, such as ``dp=0,tp=1``."""
    ranks: tuple[int, ...]
    """Its global ranks."""
    steps: tuple[Step, ...]
    """Its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that was read from one run's traces."""

    steps: tuple[Step, ...]
    """The steps, first to last; none where no action of a pipeline was found."""
    clocks: tuple[Clock, ...] = ()
    """One per rank."""
    numbers: tuple[int, ...] = ()
    """Each rank's number in the pipeline where recordings of other ranks are missing; empty where none is."""
    ranks: int = 0
    """How many ranks the pipeline has, those included whose recordings are missing; 0 where nothing says."""
    unattributed: tuple[Unattributed, ...] = ()
    """What belongs to no action, the longest first."""
    summaries: tuple[Summary, ...] = ()
    """Communication and computation by rank and name, each rank's longest first; only where there are no steps."""
    occupied: tuple[Occupied, ...] = ()
    """One per rank with a GPU; likewise."""
    by_size: tuple[BySize, ...] = ()
    """Operations of a profiler that records communication alone; a network can be fitted to them."""
    replicas: tuple[Replica, ...] = ()
    """All pipelines, where they were wanted and there are several; the steps above are those of one."""
    job: object | None = None
    """All pipelines in a record of the importer's own plugin, for its analysis; None without one."""
    sources: tuple[Source, ...] = ()
    """The ranks' files that viewers of traces open, in the ranks' order; none where they open none."""
    notes: tuple[str, ...] = field(default=())
    """What was inferred, folded, or could not be read; one sentence each."""
