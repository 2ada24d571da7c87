"""Requests to plugins for schedules, costs, networks and executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from pptrace.memo import memoized

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.steps.schedule import Schedule


class GroupCollectives(Protocol):
    """Times of collectives over the groups of one parallel axis, on the links between their GPUs."""

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        """Return the time of a collective that all groups of its axis run simultaneously.

        Args:
            collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``.
            axis: ``tp``, ``cp``, ``ep``, ``etp`` (splits an expert's matrices), ``pp``, ``dp`` (reduces dense
                gradients; dp x cp), or ``edp`` (reduces an expert's gradients); of the last two also
                ``-shard`` groups, which share state, ``-subgroup`` groups, which are parts of
                them, and ``-replicate`` groups between them. ``-node`` and ``-rail`` after an axis select its
                members in each node, and those with equal places in their nodes. Groups with unequal numbers of
                members in their nodes count as groups in one node.
            size_bytes: size of the whole vector: bytes on each GPU before an all-reduce, a reduce-scatter
                or an all-to-all, and after an all-gather.
        """
        ...

    def members(self, axis: str) -> int:
        """Return the number of members of a group along an axis, see :meth:`ns`."""
        ...


class TableSimulator(Protocol):
    """Simulator of tables under the current configuration, for schedules that search."""

    def prepared(self, table: Schedule, /) -> Any:  # the class is in a higher layer
        """Return the :class:`~pptrace.run.inputs.StepInputs` of the configuration with ``table`` as its schedule.

        Raises:
            PptraceError: the table cannot run.
        """
        ...

    def others(self) -> Iterator[tuple[str, Schedule, ScheduleRequest]]:
        """Yield name, table and request of each other installed schedule that supports the sizes.

        Without chunks in the configuration, each schedule has its own default.
        """
        ...


_UNKNOWN = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """Inputs of a schedule; simple schedules need only ``ranks`` and ``microbatches``.

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
    encoder_stages: int | None = None
    """First stages of the model that have only its encoders; None where unknown."""
    layers: int | None = None
    """Layers of the model; None without a model."""
    f_ns: tuple[int, ...] = ()
    """Forward time of a microbatch per stage; empty where only the structure is known: use 1 for each."""
    b_ns: tuple[int, ...] = ()
    """Full backward time per stage; empty as above: use 2 for each."""
    i_ns: tuple[int, ...] = ()
    """Input-gradient time per stage; empty as above: use 1 for each."""
    w_ns: tuple[int, ...] = ()
    """Weight-gradient time per stage; empty as above: use 1 for each."""
    transfer_ns: int = 0
    """Time of one boundary message between neighbours, uncontended."""
    activation_bytes: tuple[int, ...] = ()
    """Activation bytes that a microbatch's forward stores on each stage; empty where unknown."""
    offload_ns: tuple[int, ...] = ()
    """Time of a copy of a microbatch's activations to host memory per stage; empty as above."""
    reload_ns: tuple[int, ...] = ()
    """Time of the copy back to the device per stage; empty as above."""
    recompute_ns: tuple[int, ...] = ()
    """Time of a recomputed forward that is a separate action, per stage; empty as above."""
    checkpoint_bytes: tuple[int, ...] = ()
    """The part of ``activation_bytes`` that is kept until the recomputed forward; empty as above."""
    causal_share: Fraction = _UNKNOWN
    """Share of causal core attention over whole sequences in a microbatch's time; 0 where unknown."""
    memory_limit_bytes: int = 0
    """Upper bound of activation bytes per rank where stages loop over the ranks; 0 for no limit."""
    weight_activation_bytes: tuple[int, ...] = ()
    """The part of ``activation_bytes`` that is kept from an input gradient until its weight gradient."""
    stage_bytes: tuple[int, ...] = ()
    """Bytes that each stage always occupies: weights, gradients, optimizer, message buffers."""
    device_bytes: int = 0
    """Upper bound of bytes per rank, activations and ``stage_bytes``, on the smallest device; 0 for no limit."""
    rank_bytes: tuple[int, ...] = ()
    """``device_bytes`` of each rank where devices differ; empty where all are equal."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The schedule's options, validated by its parameter model."""
    simulator: TableSimulator | None = None
    """Simulator for schedules that search; None where only sizes are known."""

    @property
    def stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.ranks * self.chunks


class EncoderGrid(Struct, frozen=True, kw_only=True):
    """Sizes of an encoder's grid of processes, and its exchange with the decoder's grid."""

    name: str = ""
    """The encoder; empty for all encoders of the model together."""
    ranks: int = 0
    """Pipeline ranks before the decoder's, one stage each, with only the encoder; 0 if it is on the GPUs of the
    decoder's first stage, and then part of it."""
    tp: int = 1
    """Tensor-parallel size."""
    cp: int = 1
    """Context-parallel size; the decoder's on the same GPUs."""
    dp: int = 1
    """Replicas, which divide a microbatch of all replicas of the decoder; on the same GPUs, ``tp x dp`` is that of
    the decoder."""
    collectives: GroupCollectives | None = None
    """Times of collectives on the job's cluster; None without a cluster. On the decoder's GPUs, the axis
    ``siblings`` has the replicas of one module in a replica of the other."""
    forward_share: Fraction = Fraction(1)
    """Bytes of a message to the decoder's first stage, relative to those that a device of the encoder's last stage
    has."""
    gradient_share: Fraction = Fraction(1)
    """Bytes of a message back, relative to the same bytes."""
    broadcasts: bool = False
    """Whether one GPU of each replica gets messages, and broadcasts them to its tensor-parallel group."""


_TEXT_ROWS = 80
"""Rows of a memo that take as much memory as the texts of parameters."""


class CostRequest(Struct, frozen=True, kw_only=True):
    """Inputs from which a cost model builds a :class:`~pptrace.steps.workload.Workload`."""

    ranks: int
    """Pipeline ranks."""
    stages: int
    """Stages; a cost model splits the model over them in order."""
    microbatches: int
    """Microbatches that one pipeline runs in the step."""
    edges: tuple[tuple[int, int], ...] = ()
    """The stages' graph as (from, to), forward; empty for a chain."""
    model: Mapping[str, Any] = {}
    """The model's description: a preset's values with the user's changes."""
    device: Mapping[str, Any] = {}
    """The device's description: a preset's values with the user's changes."""
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
    document: int = 0
    """Tokens of each document that a sequence consists of, which attends to itself alone; 0 for a single document.
    Documents of several lengths have the mean weighted by tokens, by which their attention has the same FLOPs."""
    global_batch: int = 0
    """Sequences in the step, over all replicas."""
    collectives: GroupCollectives | None = None
    """Times of collectives on the job's cluster; None without a cluster."""
    data_parallel: Mapping[str, int] = {}
    """Network of the data-parallel group: ``rate_kbps`` (kB/s per direction) and ``latency_ns``."""
    reshard: str = "never"
    """When gathered weights are freed: after a stage's last pass (``never``), each ``forward`` or ``backward``, or
    both (``always``)."""
    subgroup: int = 0
    """Devices of a shard group over which ``always`` leaves weights sharded between passes; 0 for all."""
    reduce_each: bool = False
    """Whether gradients are reduced after each microbatch's backward."""
    shard: int = 0
    """Replicas of the pipeline that shard state among them, a divisor of ``dp``; 0 for all."""
    expert_shard: int = 0
    """Replicas of an expert that share its state; 0 for those in a shard group."""
    reduce_groups: str = "each"
    """When shard groups reduce gradients between them, if gradients are reduced after each microbatch's backward:
    with ``each`` reduction, or after the ``last`` one by an action of each stage."""
    units: bool = False
    """Whether the stages are units of one rank: parts of the model whose weights are gathered separately."""
    has_pairs: bool = False
    """Whether the schedule has overlapped pairs, which run segments of two actions simultaneously. The time of an
    action outside pairs does not depend on it."""
    encoders: tuple[EncoderGrid, ...] = ()
    """Sizes of encoders, in the order of their ranks; encoders without an entry have those of the decoder."""
    options: Mapping[str, Any] = {}
    """The cost model's options."""

    @property
    def rank_gpus(self) -> tuple[int, ...]:
        """Shape (ranks,): GPUs of each pipeline rank, over all replicas.

        >>> grid = EncoderGrid(ranks=1, tp=1, dp=4)
        >>> CostRequest(ranks=3, stages=3, microbatches=1, tp=8, encoders=(grid,)).rank_gpus
        (4, 8, 8)
        """
        first = [grid.tp * grid.cp * grid.dp for grid in self.encoders for _ in range(grid.ranks)]
        return (*first, *[self.tp * self.cp * self.dp] * (self.ranks - len(first)))

    @property
    def vocabulary_shares(self) -> int:
        """Number of last stages that feed no stage: several of them share the embedding and the LM head."""
        return self.stages - len({low for low, _ in self.edges}) if self.edges else 1

    def texts(self) -> tuple[str, ...]:
        """Return texts that are equal for equal requests; requests with the same parameters share theirs."""
        parameters = self.model, self.device, self.rank_devices, self.options
        sizes = replace(self, model={}, device={}, rank_devices=(), options={})
        return repr(sizes), *memoized(lambda: [*map(repr, parameters)], "texts", *parameters, rows=_TEXT_ROWS)


class NetworkRequest(Struct, frozen=True, kw_only=True):
    """Inputs of a network.

    A network connects endpoints, numbered from 0. Without a cluster, endpoints are the pipeline ranks. Inside a
    cluster's node, they are its GPUs followed by its NICs. In a cluster's fabric, they are the NICs of all nodes,
    node after node.
    """

    endpoints: int
    """Number of endpoints to connect."""
    nics: int = 0
    """Number of NICs of a node, the last endpoints; 0 for a network that is not inside a node."""
    per_node: int = 1
    """Number of consecutive endpoints that are NICs of one node, for a cluster's fabric."""
    options: Mapping[str, Any] = {}
    """The network's options."""


class ExecutorRequest(Struct, frozen=True, kw_only=True):
    """Inputs of an executor for the points of a sweep."""

    workers: int
    """Number of points that run simultaneously."""
    options: Mapping[str, Any] = {}
    """The executor's options."""
