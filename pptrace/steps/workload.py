"""Durations and bytes per stage and kind of action."""

from __future__ import annotations

from copy import copy
from fractions import Fraction
from functools import partial
from operator import mul
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from pptrace.config.quantities import format_size
from pptrace.memo import memoized
from pptrace.steps.columns import Int32s, Int64s, column, none
from pptrace.steps.kinds import Kind, KindSet
from pptrace.steps.segments import Segment, check_segments, overlapped_ns, single

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray


class KernelCost(Struct, frozen=True, kw_only=True):
    """A kernel, or a group of kernels, of one microbatch's action.

    The durations of an action's kernels, collectives included, sum to the action's duration.
    """

    stage: int
    """Stage of the action."""
    kind: Kind
    """Kind of the action: a forward, or either half of a backward."""
    part: str
    """Segment that it belongs to: ``attention``, ``experts``, ``head``."""
    name: str
    """Its operation: ``attention core``."""
    times: int = 1
    """Number of such kernels in the action, for example one per layer."""
    duration_ns: int
    """Total duration."""
    flops: int = 0
    """Total floating-point operations."""
    size_bytes: int = 0
    """Total bytes to and from memory."""
    causal: bool = False
    """Whether its cost grows with the number of preceding tokens (causal attention over the whole sequence)."""
    product: tuple[int, int, int, int] | None = None
    """Batch, rows, columns and depth of a matrix product; None for other kernels."""


_NS_PER_S = 1_000_000_000

PER_STAGE = (
    "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns",
    "activation_bytes", "weight_activation_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes",
    "reduce_ns", "optimizer_ns",
)  # fmt: skip
PER_MICROBATCH = (
    *PER_STAGE[:10], "boundary_bytes", "offload_ns", "reload_ns", "recompute_ns", "offload_bytes",
    "checkpoint_bytes", "boundary_gradient_bytes", "boundary_buffer_bytes",
)  # fmt: skip
COLLECTIVE = KindSet(kind for kind in Kind if f"{kind.traits.cost}_collective_ns" in PER_STAGE)
"""Kinds whose durations can have a collective part."""
PER_EDGE = {"boundary_bytes": 1, "boundary_gradient_bytes": 1, "boundary_buffer_bytes": 2}
OPTIONAL = (
    "offload_ns", "reload_ns", "recompute_ns", "unshard_ns", "checkpoint_bytes", "gathered_bytes",
    "unreduced_bytes", "released_ns", "reduce_groups_ns", "reduced_bytes", "unshard_subgroup_ns", "subgroup_bytes",
    "transient_bytes",
)  # fmt: skip
UNSCALED = (
    "sync_ns", "reserved_bytes", "reserved_permille", "capacity_bytes", "tokens", "model_flops", "peak_flops",
    "plausible_flops", "unit_time_ns", "units", "weights", "host_bytes_per_s",
)  # fmt: skip


def checked(name: str, values: Any) -> Int64s:
    """Return values from a plugin as a column.

    Raises:
        ValueError: the values are not a list of integers.
    """
    try:
        array = column(values, np.int64)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from None
    if array.ndim != 1:
        msg = f"{name} has {array.ndim} dimensions: one value per stage, or per edge"
        raise ValueError(msg)
    return array


class Workload(Struct, frozen=True, kw_only=True, eq=False):
    """One step's costs per stage; every array has shape (stages,) unless it says otherwise.

    >>> Workload.uniform(stages=2, f_ns=1, b_ns=2).b_ns.tolist()
    [2, 2]
    """

    f_ns: Int64s
    """Forward of one microbatch, its collectives included."""
    b_ns: Int64s
    """Full backward of one microbatch, its collectives included."""
    i_ns: Int64s
    """Backward of one microbatch for the input gradient, its collectives included."""
    w_ns: Int64s
    """Backward of one microbatch for the weight gradient, its collectives included."""
    f_collective_ns: Int64s
    """Part of ``f_ns`` in which tensor, context or expert parallel groups communicate."""
    b_collective_ns: Int64s
    """Collective part of ``b_ns``."""
    i_collective_ns: Int64s
    """Collective part of ``i_ns``."""
    w_collective_ns: Int64s
    """Collective part of ``w_ns``."""
    boundary_bytes: Int64s
    """Shape (edges,): bytes of one microbatch over each edge of the stages' graph, forward."""
    activation_bytes: Int64s
    """Activations of one microbatch that are kept from its forward to its backward."""
    weight_activation_bytes: Int64s
    """Part of ``activation_bytes`` that is kept until the weight gradient."""
    weights_bytes: Int64s
    """Weights, on each rank that holds the stage (as the next two)."""
    gradients_bytes: Int64s
    """Gradient buffers."""
    optimizer_bytes: Int64s
    """Optimizer state and master weights."""
    reduce_ns: Int64s
    """Reduction of the stage's gradients over its data-parallel replicas; 0 for a single replica."""
    optimizer_ns: Int64s
    """Optimizer update of the stage."""
    offload_ns: Int64s = field(default_factory=none)
    """Copy of one microbatch's activations to host memory; zero by default, like the next two."""
    reload_ns: Int64s = field(default_factory=none)
    """Copy of one microbatch's activations back from host memory."""
    recompute_ns: Int64s = field(default_factory=none)
    """Recomputation of one microbatch's forward by a separate action."""
    offload_bytes: Int64s = field(default_factory=none)
    """Part of ``activation_bytes`` that copies to host memory free, and copies back allocate; empty: all of it."""
    checkpoint_bytes: Int64s = field(default_factory=none)
    """Part of ``activation_bytes`` that is kept for recomputation by a separate action (its input); zero by
    default."""
    boundary_gradient_bytes: Int64s = field(default_factory=none)
    """Shape (edges,): bytes of one microbatch's gradient over each edge; empty: as ``boundary_bytes``. Gradients
    for frozen stages have no bytes: their messages take only the latency."""
    boundary_buffer_bytes: Int64s = field(default_factory=none)
    """Shape (2 x edges,): bytes of one microbatch's buffers at the first stage of each edge, then at the second
    stage of each; empty: as ``boundary_bytes``. They differ if a device exchanges several messages at once."""
    one_copy_stream: bool = False
    """Whether copies to host memory and back share a stream, in the order of their row."""
    unshard_ns: Int64s = field(default_factory=none)
    """Gather of the stage's sharded weights."""
    gathered_bytes: Int64s = field(default_factory=none)
    """Gathered weights until they are freed, beyond ``weights_bytes``; zero by default, like the next three."""
    unshard_subgroup_ns: Int64s = field(default_factory=none)
    """Gather of the stage's weights in the part of a shard group to which its forward resharded them."""
    subgroup_bytes: Int64s = field(default_factory=none)
    """Share of the gathered weights that a device keeps from that forward to the next gather."""
    unreduced_bytes: Int64s = field(default_factory=none)
    """Unreduced gradients, from the first backward after a reduction to the end of the next reduction."""
    reduce_groups_ns: Int64s = field(default_factory=none)
    """Reduction of the stage's gradients between shard groups by an action; zero if ``reduce_ns`` includes it."""
    reduced_bytes: Int64s = field(default_factory=none)
    """Part of the gradients that a device has after their reduction; zero for all of ``gradients_bytes``."""
    released_ns: Int64s = field(default_factory=none)
    """Time from the step's start at which the slowest other replica has the stage's gradients, the earliest start
    of their reduction; 0 for equal replicas."""
    meeting_ns: Int64s = field(default_factory=none)
    """Times from the step's start at which all replicas have issued each collective of units, in the order of
    issue: the earliest starts of collectives. Empty for equal replicas, and for stages that are no units."""
    transient_bytes: Int64s = field(default_factory=none)
    """What an action of the stage needs in addition, such as the gradient of an activation; counted during the
    whole step, once for all microbatches. Zero by default."""
    sync_ns: int = 0
    """Communication of all ranks after the reductions, such as the reduction of the gradient norm."""
    reserved_bytes: int = 0
    """Bytes per rank that no action allocates: context, workspace, fragmentation."""
    reserved_permille: int = 0
    """Memory that the allocator reserves beyond a rank's allocated peak, in thousandths of the peak."""
    capacity_bytes: int = 0
    """Memory of a rank's device, the smallest for different devices; 0 for unknown."""
    rank_capacity_bytes: Int64s = field(default_factory=none)
    """Shape (ranks,): memory of each rank's device; empty: ``capacity_bytes`` for all."""
    tokens: int = 0
    """Tokens of the whole job's step; 0 for unknown."""
    model_flops: int = 0
    """Floating-point operations of the whole job's step, without recomputation; 0 for unknown."""
    peak_flops: int = 0
    """Dense peak of all devices of the whole job, in FLOP/s; 0 for unknown."""
    plausible_flops: int = 0
    """Model FLOP/s of the whole job above which a step is faster than published steps on these devices make
    plausible; 0 for unknown."""
    unit_time_ns: int = 0
    """Nanoseconds of one abstract unit of time; 0 for real times."""
    units: int = 1
    """Number of units of a rank that has the whole model: parts whose weights are gathered separately, and whose
    gradients are reduced separately."""
    weights: int = 1
    """Number of units if each matrix of a layer is one."""
    host_bytes_per_s: int = 0
    """Rate of copies from and to host memory, the lowest of all devices; 0 for unknown."""
    segments: Mapping[Kind, Sequence[tuple[Segment, ...]]] = field(default_factory=lambda: MappingProxyType({}))
    """By kind, the segments of each stage's action; other kinds are a single computation. Set them with
    :meth:`segmented`, which derives the durations."""
    overlapped: bool = False
    """Whether an action outside pairs overlaps its communication with independent computation of its own;
    otherwise its segments run in sequence."""
    microbatch_class: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Shape (microbatches,): cost class of each microbatch, 0 for this workload; empty for uniform costs."""
    classes: tuple[Workload, ...] = ()
    """Costs of microbatches of classes 1, 2 and so on. Costs of whole stages are read from this workload."""
    notes: tuple[str, ...] = field(default=())
    """Assumptions behind the figures, one sentence each, for the detailed output."""
    expert_load: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Source of uneven loads of experts, empty for equal ones: ``name``, ``step``, ``sha256`` of a file,
    ``source_rank`` (the rank of an expert-parallel group that sends most tokens), ``kinds`` of microbatches with
    the loads of the fullest ranks, and ``microbatches`` with the kind of each."""
    kernels: Callable[[], Sequence[KernelCost]] | None = None
    """Function that lists the kernels of every stage's actions; None if unknown, or for scaled costs."""

    def __post_init__(self) -> None:
        for name in (*PER_STAGE, *PER_EDGE, "rank_capacity_bytes", "meeting_ns"):
            force_setattr(self, name, checked(name, getattr(self, name)))
        self._check_lengths()
        for name, count in PER_EDGE.items():
            size, edges = getattr(self, name).size, self.boundary_bytes.size
            if size not in {0, edges * count}:
                msg = f"{name} has {size} values for {edges} edges: {'one' if count == 1 else 'two'} each"
                raise ValueError(msg)
        for name in UNSCALED:
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 0:
                msg = f"{name} is {value!r}: a whole number from 0"
                raise ValueError(msg)
            force_setattr(self, name, int(value))
        force_setattr(self, "notes", tuple(self.notes))
        self._check_segments()
        self._check_classes()

    def _check_lengths(self) -> None:
        """Check the number of values per column; spread single and missing values of optional columns."""
        stages = self.stages
        zeros = np.zeros(stages, dtype=np.int64)
        for name in (*PER_STAGE, *OPTIONAL, "offload_bytes"):
            values = getattr(self, name)
            size = np.size(values)
            is_allowed = size == stages or (size <= 1 and name not in PER_STAGE)
            if not is_allowed:
                msg = f"{name} has {size} values for {stages} stages: one each"
                raise ValueError(msg)
            if size == 0 and name in OPTIONAL:
                values = zeros
            elif size == 1:
                values = np.broadcast_to(values, (stages,))
            if name not in PER_STAGE:
                force_setattr(self, name, checked(name, values))

    def _check_segments(self) -> None:
        for kind, stages in self.segments.items():
            if len(stages) != self.stages:
                msg = f"segments of {kind.name} are for {len(stages)} stages of {self.stages}: one list each"
                raise ValueError(msg)
            durations_ns = self.duration_ns(kind).tolist()
            for stage, (time_ns, _) in enumerate(self._action_times(kind, stages)):
                if time_ns != durations_ns[stage]:
                    msg = f"{kind.name} of stage {stage}: its segments take {time_ns} ns: use Workload.segmented"
                    raise ValueError(msg)

    def _check_classes(self) -> None:
        force_setattr(self, "microbatch_class", column(self.microbatch_class, np.int32))
        used = self.microbatch_class
        if used.size and not 0 <= int(used.min()) <= int(used.max()) <= len(self.classes):
            msg = f"microbatch_class names classes beyond the {len(self.classes) + 1} that have costs"
            raise ValueError(msg)
        if any(costs.stages != self.stages or costs.classes for costs in self.classes):
            msg = f"classes are costs of the same {self.stages} stages, without nested classes"
            raise ValueError(msg)

    def with_columns(self, **columns: Int64s) -> Self:
        """Return these costs with other columns per stage, also in all classes; lengths are not checked."""
        changed = copy(self)
        for name, values in columns.items():
            force_setattr(changed, name, checked(name, values))
        force_setattr(changed, "classes", tuple(costs.with_columns(**columns) for costs in self.classes))
        return changed

    def duration_ns(self, kind: Kind) -> Int64s:
        """Return the duration of one microbatch's action of a kind, per stage; 0 for a kind without costs."""
        name = kind.traits.cost
        if not name and kind in self.segments:
            return np.array(self._action_times(kind, self.segments[kind]), dtype=np.int64)[:, 0]
        durations = getattr(self, f"{name}_ns") if name else 0
        return durations if isinstance(durations, np.ndarray) else np.full(self.stages, durations, dtype=np.int64)

    def _action_times(self, kind: Kind, stages: Sequence[tuple[Segment, ...]]) -> list[tuple[int, int]]:
        """Return :func:`_times_outside_pairs` of each stage's segments; equal stages share their segments."""
        times: dict[int, tuple[int, int]] = {}
        for stage, segments in enumerate(stages):
            if id(segments) not in times:
                times[id(segments)] = memoized(
                    partial(_times_outside_pairs, segments, kind, stage, overlapped=self.overlapped),
                    ("times outside pairs", self.overlapped), segments,
                )  # fmt: skip
        return [times[id(segments)] for segments in stages]

    def collective_ns(self, kind: Kind) -> Int64s:
        """Return the collective part of the duration, per stage."""
        columns: Int64s | None = getattr(self, f"{kind.traits.cost}_collective_ns", None)
        return np.zeros(self.stages, dtype=np.int64) if columns is None else columns

    def segmented(
        self, segments: Mapping[Kind, Sequence[tuple[Segment, ...]]], *, overlapped: bool | None = None
    ) -> Workload:
        """Return these costs with segments; the durations of actions follow from their segments.

        None for ``overlapped`` keeps the present value.
        """
        if overlapped is not None and overlapped != self.overlapped:
            return replace(self, segments=MappingProxyType({}), overlapped=overlapped).segmented(segments)
        columns: dict[str, Any] = {}
        for kind, stages in segments.items():
            name = kind.traits.cost
            if not name:
                continue
            durations, computed = np.array(self._action_times(kind, stages), dtype=np.int64).reshape(-1, 2).T
            columns[f"{name}_ns"] = durations
            if hasattr(self, f"{name}_collective_ns"):
                columns[f"{name}_collective_ns"] = durations - computed
        return replace(self, segments=MappingProxyType(dict(segments)), **columns)

    @property
    def reserve_text(self) -> str:
        """The memory that no action allocates, as text that follows a limit of memory; empty without any."""
        return f", {format_size(self.reserved_bytes)} of it reserved" if self.reserved_bytes else ""

    def sizes(self) -> tuple[Hashable, ...]:
        """Return all values in bytes and the class of each microbatch, on which memory depends besides times."""
        columns = (getattr(self, name) for name in _SIZES)
        sizes = (value if isinstance(value, int) else value.tobytes() for value in columns)
        return (*sizes, self.microbatch_class.tobytes(), *(costs.sizes() for costs in self.classes))

    def capacities(self, ranks: int) -> Int64s:
        """Return the memory of each rank's device, shape (ranks,); 0 for unknown.

        Raises:
            ValueError: the costs are for another number of ranks.
        """
        capacities = self.rank_capacity_bytes
        if capacities.size not in {0, ranks}:
            msg = f"rank_capacity_bytes has {capacities.size} values for {ranks} ranks: one each"
            raise ValueError(msg)
        return capacities if capacities.size else np.full(ranks, self.capacity_bytes, dtype=np.int64)

    def of_microbatch(self, microbatch: int) -> Workload:
        """Return the costs of a microbatch, or of an action of a whole stage (-1)."""
        has_class = self.microbatch_class.size and microbatch >= 0
        number = int(self.microbatch_class[microbatch]) if has_class else 0
        return self.classes[number - 1] if number else self

    @classmethod
    def uniform(cls, stages: int, *, boundary_bytes: int = 0, edges: int = -1, **values: Any) -> Workload:
        """Build a workload from scalars or arrays by field name; the default is zero.

        ``b_ns`` defaults to ``i_ns + w_ns``, and ``i_ns`` and ``w_ns`` to the halves of ``b_ns``.
        """
        columns = dict(values)
        if "b_ns" not in columns:
            columns["b_ns"] = np.add(columns.get("i_ns", 0), columns.get("w_ns", 0))
        half = np.asarray(columns["b_ns"]) // 2
        columns.setdefault("i_ns", np.asarray(columns["b_ns"]) - np.asarray(columns.get("w_ns", half)))
        columns.setdefault("w_ns", np.asarray(columns["b_ns"]) - np.asarray(columns["i_ns"]))
        zeros = np.zeros(stages, dtype=np.int64)
        for name in PER_STAGE:
            if name in columns:
                columns[name] = np.broadcast_to(np.asarray(columns[name], dtype=np.int64), (stages,))
            else:
                columns[name] = zeros
        count = stages - 1 if edges < 0 else edges
        return cls(boundary_bytes=np.full(max(count, 0), boundary_bytes, dtype=np.int64), **columns)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.f_ns.size)

    def scaled(self, share: Fraction) -> Workload:
        """Return costs of microbatches multiplied by ``share``, rounded down.

        >>> from fractions import Fraction
        >>> Workload.uniform(stages=1, f_ns=4, b_ns=8).scaled(Fraction(1, 2)).b_ns.tolist()
        [4]
        """
        columns: dict[str, Any] = {
            "classes": tuple(costs.scaled(share) for costs in self.classes),
            "kernels": None,
        }
        for name in PER_MICROBATCH:
            columns[name] = np.array(
                [int(value * share) for value in getattr(self, name).tolist()], dtype=np.int64
            )
        if not self.segments:
            return replace(self, **columns)
        segments = {
            kind: [tuple(part.scaled(share) for part in parts) for parts in stages]
            for kind, stages in self.segments.items()
        }
        return replace(self, segments=MappingProxyType({}), **columns).segmented(segments)

    def total_ns(self, kinds: Sequence[Kind], microbatches: int) -> int:
        """Return the sum of durations of actions of ``kinds`` over all stages and microbatches."""
        per_class = [sum(int(costs.duration_ns(kind).sum()) for kind in kinds) for costs in (self, *self.classes)]
        return sum(map(mul, per_class, np.bincount(self.microbatch_class).tolist() or [microbatches]))

    def divided(self, parts: int) -> Workload:
        """Return the costs of microbatches that are split into ``parts`` equal parts."""
        return replace(self.scaled(Fraction(1, parts)), microbatch_class=np.repeat(self.microbatch_class, parts))

    @property
    def copied_bytes(self) -> Int64s:
        """Bytes of a copy of one microbatch's activations to host memory, per stage."""
        return self.offload_bytes if self.offload_bytes.size else self.activation_bytes

    def with_host_state(self, recomputed: NDArray[np.bool_]) -> Workload:
        """Return the costs of ranks that hold weights from a copy to their release, and no other state.

        Copies of weights and gradients have the time of gathers and reductions if they have one. ``recomputed``,
        of shape (stages,), has the stages of which copies of activations are checkpoints.
        """
        rate = self.host_bytes_per_s

        def copy_ns(size_bytes: Int64s, known_ns: Int64s) -> Int64s:
            return -(-size_bytes * _NS_PER_S // rate) if rate else known_ns

        nothing = np.zeros(self.stages, dtype=np.int64)
        note = "weights, gradients and optimizer state are in host memory, where the optimizer takes no time"
        return replace(
            self, weights_bytes=nothing, gradients_bytes=nothing, optimizer_bytes=nothing, optimizer_ns=nothing,
            sync_ns=0, gathered_bytes=self.gathered_bytes + self.weights_bytes,
            unreduced_bytes=self.unreduced_bytes + self.gradients_bytes,
            unshard_ns=self.unshard_ns if self.unshard_ns.any() else copy_ns(self.weights_bytes, nothing),
            reduce_ns=self.reduce_ns if self.reduce_ns.any() else copy_ns(self.gradients_bytes, nothing),
            offload_ns=np.where(recomputed, copy_ns(self.checkpoint_bytes, self.offload_ns), self.offload_ns),
            reload_ns=np.where(recomputed, copy_ns(self.checkpoint_bytes, self.reload_ns), self.reload_ns),
            classes=tuple(costs.with_host_state(recomputed) for costs in self.classes),
            notes=(*self.notes, note),
        )  # fmt: skip

    @property
    def edge_bytes(self) -> Int64s:
        """Bytes of one microbatch's messages, shape (2, edges): activations, then gradients."""
        gradients = self.boundary_gradient_bytes if self.boundary_gradient_bytes.size else self.boundary_bytes
        return np.stack([self.boundary_bytes, gradients])

    @property
    def buffer_bytes(self) -> Int64s:
        """Bytes of one microbatch's buffers at the first and the second stage of each edge, shape (2, edges)."""
        buffers = self.boundary_buffer_bytes
        return buffers.reshape(2, -1) if buffers.size else np.stack([self.boundary_bytes] * 2)

    @property
    def state_bytes(self) -> Int64s:
        """Weights, gradient buffers and optimizer state of each stage."""
        total: Int64s = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return total

    @property
    def static_bytes(self) -> Int64s:
        """State and transient bytes of each stage."""
        total: Int64s = self.state_bytes + self.transient_bytes
        return total


_SIZES = tuple(name for name in Workload.__struct_fields__ if name.endswith(("_bytes", "_permille")))


def _times_outside_pairs(
    segments: tuple[Segment, ...], kind: Kind, stage: int, *, overlapped: bool
) -> tuple[int, int]:
    """Check the segments of an action, and return its duration and the time of its computations, in ns.

    Raises:
        ValueError: invalid segments.
    """
    check_segments(segments, f"{kind.name} of stage {stage}")
    issued = [part for part in segments if not part.paired]
    computed_ns = sum(part.duration_ns - part.collective_ns for part in issued if part.is_computation)
    if overlapped:
        return overlapped_ns(single(segments)), computed_ns
    return sum(part.duration_ns for part in issued), computed_ns
