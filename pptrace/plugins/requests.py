"""Requests to plugins for schedules, costs, networks and executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class GroupCollectives(Protocol):
    """Times of collectives over the groups of one parallel axis, on the links between their GPUs."""

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        """Return what a collective takes where all groups of its axis run it at once.

        Args:
            collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``.
            axis: ``tp``, ``cp``, ``ep``, ``etp`` for those that split an expert's matrices, ``dp`` for the
                replicas that reduce gradients (dp x cp), or ``edp`` for those that reduce an expert's.
            size_bytes: bytes of the whole vector: what each GPU holds before an all-reduce, a reduce-scatter
                or an all-to-all, and after an all-gather.
        """
        ...


class TableSimulator(Protocol):
    """A configuration while its schedule is built, for schedules that search. Tables are ``Schedule``."""

    def prepared(self, table: Any, /) -> Any:
        """Return the configuration with a table, ready to run: a :class:`~pptrace.run.inputs.Prepared`.

        Raises:
            PptraceError: the table cannot run.
        """
        ...

    def others(self) -> Iterator[tuple[str, Any, ScheduleRequest]]:
        """Yield name, table and request of each other installed schedule that takes the sizes.

        Without chunks in the configuration, each schedule has its own default.
        """
        ...


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


_UNKNOWN = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What a schedule is built from; simple schedules read ``ranks`` and ``microbatches`` alone.

    >>> request = ScheduleRequest(ranks=4, microbatches=8)
    >>> request.stages, request.microbatches
    (4, 8)
    """

    ranks: int
    """Pipeline ranks."""
    microbatches: int
    """Microbatches in the step."""
    chunks: int = 1
    """Model chunks per rank."""
    f_ns: tuple[int, ...] = ()
    """Forward time of a microbatch per stage; empty where only the structure is known: count each as 1."""
    b_ns: tuple[int, ...] = ()
    """Full backward time per stage; empty as above: count each as 2."""
    i_ns: tuple[int, ...] = ()
    """Input-gradient time per stage; empty as above: count each as 1."""
    w_ns: tuple[int, ...] = ()
    """Weight-gradient time per stage; empty as above: count each as 1."""
    transfer_ns: int = 0
    """Time of one boundary message between neighbours, uncontended."""
    activation_bytes: tuple[int, ...] = ()
    """Bytes that a microbatch's forward leaves on each stage; empty where unknown."""
    offload_ns: tuple[int, ...] = ()
    """Time of a copy of a microbatch's activations to host memory per stage; empty as above."""
    reload_ns: tuple[int, ...] = ()
    """Time of their copy back per stage; empty as above."""
    recompute_ns: tuple[int, ...] = ()
    """Time of a forward that is computed again by an action of its own, per stage; empty as above."""
    checkpoint_bytes: tuple[int, ...] = ()
    """The part of ``activation_bytes`` that stays until then; empty as above."""
    causal_share: Fraction = _UNKNOWN
    """Share of a microbatch's time that is the core of causal attention over whole sequences; 0 where unknown."""
    memory_limit_bytes: int = 0
    """Bytes per rank for activations where stages loop over the ranks; 0 for no limit."""
    weight_activation_bytes: tuple[int, ...] = ()
    """The part of ``activation_bytes`` that stays from an input gradient until its weight gradient."""
    stage_bytes: tuple[int, ...] = ()
    """Bytes of each stage that are always there: weights, gradients, optimizer, buffers of its messages."""
    device_bytes: int = 0
    """Bytes per rank for all of this, on the rank with the smallest device; 0 for no limit."""
    rank_bytes: tuple[int, ...] = ()
    """The same of each rank where devices differ; empty where all have ``device_bytes``."""
    options: Mapping[str, Any] = field(default_factory=_nothing)
    """The schedule's own options, checked against its parameter model."""
    simulator: TableSimulator | None = None
    """The configuration that asks, for schedules that search; None where sizes alone ask."""

    @property
    def stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.ranks * self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """What a cost model builds a :class:`~pptrace.steps.workload.Workload` from."""

    ranks: int
    """Pipeline ranks."""
    stages: int
    """Stages; a cost model splits the model over them in order."""
    microbatches: int
    """Microbatches that one pipeline runs in the step."""
    edges: tuple[tuple[int, int], ...] = ()
    """The stages' graph as (from, to), forward."""
    model: Mapping[str, Any] = field(default_factory=_nothing)
    """The model's description: a preset's values, with what the user changed."""
    device: Mapping[str, Any] = field(default_factory=_nothing)
    """The device's description, likewise."""
    rank_devices: tuple[Mapping[str, Any], ...] = ()
    """Shape (ranks,): the device of each pipeline rank where they differ; empty where all are ``device``."""
    stage_ranks: tuple[tuple[int, ...], ...] = ()
    """Shape (stages,): the pipeline ranks that hold each stage; empty where stages loop over the ranks."""
    tp: int = 1
    """Tensor-parallel size."""
    cp: int = 1
    """Context-parallel size."""
    dp: int = 1
    """Data-parallel replicas of the pipeline."""
    ep: int = 1
    """Expert-parallel size."""
    etp: int = 0
    """Devices that an expert's matrices are split over; 0 for as many as ``tp``."""
    sequence_parallel: bool = False
    """Whether activations between tensor-parallel regions are split over the sequence."""
    micro: int = 1
    """Sequences in a microbatch."""
    sequence: int = 0
    """Tokens in a sequence."""
    global_batch: int = 0
    """Sequences in the step, over all replicas."""
    collectives: GroupCollectives | None = None
    """What collectives take on the cluster that the job is on; None where no cluster is described."""
    data_parallel: Mapping[str, int] = field(default_factory=_nothing)
    """Network of the data-parallel group: ``rate_kbps`` (kB/s per direction) and ``latency_ns``."""
    reshard: str = "never"
    """When gathered weights are freed: behind a stage's last pass (``never``), each ``forward``, or ``always``."""
    reduce_each: bool = False
    """Whether gradients are reduced behind each microbatch's backward."""
    has_pairs: bool = False
    """Whether the schedule has overlapped pairs, which run segments of one action beside those of another. What an
    action takes alone does not depend on it."""
    options: Mapping[str, Any] = field(default_factory=_nothing)
    """The cost model's own options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """What a network is built from.

    A network joins endpoints, numbered from 0. On its own they are the pipeline ranks. As the inside of a
    cluster's node they are its GPUs and, behind them, its NICs. As a cluster's fabric they are the NICs of
    all nodes, node after node.
    """

    endpoints: int
    """How many endpoints to join."""
    nics: int = 0
    """How many of them, the last ones, are NICs of a node; 0 where the network is not a node's inside."""
    per_node: int = 1
    """How many neighbouring endpoints are NICs of one node, where the network is a cluster's fabric."""
    options: Mapping[str, Any] = field(default_factory=_nothing)
    """The network's own options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRequest:
    """What the points of a sweep run on."""

    workers: int
    """How many points run at once."""
    options: Mapping[str, Any] = field(default_factory=_nothing)
    """The executor's own options."""
