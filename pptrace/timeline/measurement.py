"""Measured steps, and the replicas of a job."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pptrace.steps.columns import Columns, Int64s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline


class ImportRequest(Struct, frozen=True, kw_only=True):
    """Options of an importer for reading a run's traces."""

    layout: str = ""
    """Sizes such as ``pp=4,tp=2,dp=8`` where the trace does not describe its groups."""
    replica: str = ""
    """The pipeline to read of several: ``dp=0,tp=0``, ``slowest`` or ``median``; default: the first."""
    rules: Path | None = None
    """A YAML file with rules that map names to actions."""
    iteration: int | None = None
    """The folder to read of several ``iteration_N``; default: the last complete one."""
    every_replica: bool = False
    """Whether to read all pipelines in addition."""
    operators: bool = False
    """Whether to read which operators of the host launched operations, for traces without actions."""
    clocks: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Offsets of clocks in an earlier run by rank, in nanoseconds; kept where messages allow it."""


class Clock(Struct, frozen=True, kw_only=True):
    """Alignment of a rank's clock with the clock of rank 0."""

    rank: int
    """The rank."""
    offset_ns: int
    """Offset that is added to the rank's times."""
    bound_ns: int
    """Error bound of the offset; 0 where ranks share a clock."""
    pairs: int = 0
    """Number of messages that the estimate uses; 0 where ranks share a clock, or where no message is known."""
    contradicted_ns: int = 0
    """Time by which messages arrive before they are sent under the best offset; 0 where an offset fits all."""


class Source(Struct, frozen=True, kw_only=True):
    """The trace file of a rank."""

    rank: int
    """The rank."""
    path: Path
    """The file; ranks may share one."""
    origin_ns: int
    """The rank's local clock at time 0 of the file."""
    has_clock: bool = False
    """Whether the file names its clock, as Perfetto's format does and Chrome JSON does not."""


class Unattributed(Struct, frozen=True, kw_only=True):
    """Work of a rank that belongs to no action."""

    rank: int
    """The rank."""
    what: str
    """Name of the operations, or the problem with them."""
    count: int
    """Number of operations."""
    total_ns: int
    """Their total time."""


class Summary(Struct, frozen=True, kw_only=True):
    """Totals of a rank's operations of the same name."""

    rank: int
    """The rank."""
    what: str
    """The operations' name; ``send`` or ``receive`` for messages that the host posted."""
    communicates: bool
    """Whether they are communication; else computation or copies."""
    count: int
    """Number of operations."""
    total_ns: int
    """Total time of the operations of known duration."""
    size_bytes: int = 0
    """Their total size; 0 where the trace has no sizes."""
    untimed: int = 0
    """Number of operations of unknown duration."""
    copies: bool = False
    """Whether they copy or fill memory; then they are neither communication nor computation."""


class KernelTotal(Struct, frozen=True, kw_only=True):
    """Totals of a rank's operations on a GPU of the same name, stream and operator."""

    rank: int
    """The rank."""
    what: str
    """The name of the kernel or copy."""
    stream: int
    """The stream of the GPU; -1 where unknown."""
    operator: str
    """The innermost operator of the host around their launches, such as ``aten::add``; empty where unknown."""
    count: int
    """Number of operations."""
    total_ns: int
    """Their total time."""


class Occupied(Struct, frozen=True, kw_only=True):
    """Use of a rank's GPU from its first operation to its last; the parts sum to that time."""

    rank: int
    """The rank."""
    computing_ns: int
    """Computation time."""
    exposed_ns: int
    """Non-overlapped communication time."""
    idle_ns: int
    """Time in which nothing ran."""
    copying_ns: int = 0
    """Time in which only copies and fills of memory ran."""


class BySize(Columns, frozen=True, kw_only=True, eq=True):
    """Durations by size of communication operations whose purpose is unknown."""

    what: str
    """The category, such as ``messages between nodes`` or ``AllReduce of 8 ranks``."""
    messages: bool
    """Whether they are messages between two ranks; else collectives."""
    size_bytes: Int64s
    """Shape (operations,): size of the message, or bytes that the collective moves over each rank's link."""
    took_ns: Int64s
    """Shape (operations,): duration from the arrival of the last rank to the end."""


class Step(Columns, frozen=True, kw_only=True, eq=True):
    """One recorded step."""

    label: str
    """The profiler's number of the step."""
    timeline: Timeline
    """All recorded actions."""
    gap_ns: Int64s
    """Shape (slices,): idle time inside an action while its rank's device waits for kernel launches."""
    short_gap_ns: Int64s = ()  # type: ignore[assignment] # Columns makes an array of it
    """Shape (slices,): the part of ``gap_ns`` in gaps under 10 us, too short for a late launch; empty for none."""
    host_ns: Int64s = ()  # type: ignore[assignment] # Columns makes an array of it
    """Shape (slices,): time of an action on the host before its first and after its last operator; -1 where
    unknown, and empty where all are."""
    begins_ns: int = 0
    """Time 0 of the timeline on rank 0's clock."""


class Replica(Struct, frozen=True, kw_only=True):
    """One of several pipelines that run the same work on other data, or on other shards."""

    name: str
    """Its coordinates, such as ``dp=0,tp=1``."""
    ranks: tuple[int, ...]
    """Its global ranks."""
    steps: tuple[Step, ...]
    """Its steps."""


class Measurement(Struct, frozen=True, kw_only=True):
    """The content of a run's traces."""

    steps: tuple[Step, ...]
    """The steps, first to last; empty where the traces have no action of a pipeline."""
    clocks: tuple[Clock, ...] = ()
    """One per rank."""
    numbers: tuple[int, ...] = ()
    """Each rank's number in the pipeline where recordings of ranks are missing; empty where none is missing."""
    ranks: int = 0
    """Number of ranks in the pipeline, including ranks without a recording; 0 where unknown."""
    unattributed: tuple[Unattributed, ...] = ()
    """Operations that belong to no action, the longest first."""
    empty_input_gradient: bool = False
    """Whether the first stage has no input gradients, so that its weight gradients are recorded as backwards."""
    slices: int = 1
    """Slices of each microbatch's sequence; with several, the microbatches of :attr:`steps` are slices."""
    p2p: Mapping[str, Any] = field(default_factory=dict)
    """The message policy that ran, as the section ``p2p`` of a configuration; empty where unknown."""
    summaries: tuple[Summary, ...] = ()
    """Communication and computation by rank and name, each rank's longest first; only where there are no steps."""
    kernels: tuple[KernelTotal, ...] = ()
    """Operations on GPUs by rank, name, stream and operator; only where there are no steps."""
    occupied: tuple[Occupied, ...] = ()
    """One per rank with a GPU; only where there are no steps."""
    by_size: tuple[BySize, ...] = ()
    """Operations of a profiler that records communication only; a network can be fitted to them."""
    replicas: tuple[Replica, ...] = ()
    """All pipelines, if requested and several exist; :attr:`steps` has the steps of one pipeline."""
    job: object | None = None
    """All pipelines in a record of the importer's plugin, for its analysis; None without such a record."""
    sources: tuple[Source, ...] = ()
    """The ranks' files that trace viewers can open, in the order of ranks; empty where viewers open none."""
    notes: tuple[str, ...] = field(default=())
    """What was inferred, folded, or could not be read; one sentence each."""
