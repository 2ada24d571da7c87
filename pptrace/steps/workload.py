"""Durations and bytes per stage and kind of action."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import mul
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.steps.columns import Int32s, Int64s, column
from pptrace.steps.segments import Segment, check_segments, overlapped_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.steps.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """A kernel, or a group of them that a cost model does not take apart, of one microbatch's action.

    An action's kernels take what it takes: what it waits for, such as its collectives, is one of them.
    """

    stage: int
    """Whose action."""
    kind: Kind
    """Of which kind: a forward, or either half of a backward."""
    part: str
    """Which segment it belongs to: ``attention``, ``experts``, ``head``."""
    name: str
    """What it computes: ``attention core``."""
    times: int = 1
    """How many of them the action has, such as one a layer."""
    duration_ns: int
    """What they take in all."""
    flops: int = 0
    """Floating-point operations in all."""
    size_bytes: int = 0
    """Bytes to and from memory in all."""
    causal: bool = False
    """Whether it grows with the tokens before its own: the core of causal attention that reaches all of them."""
    product: tuple[int, int, int, int] | None = None
    """Copies, rows, columns and depth of one, where it is a matrix product."""


PER_STAGE = (
    "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns",
    "activation_bytes", "weight_activation_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes",
    "reduce_ns", "optimizer_ns",
)  # fmt: skip
PER_MICROBATCH = (
    *PER_STAGE[:10], "boundary_bytes", "offload_ns", "reload_ns", "recompute_ns", "offload_bytes",
    "checkpoint_bytes", "boundary_gradient_bytes",
)  # fmt: skip
OPTIONAL = (
    "offload_ns", "reload_ns", "recompute_ns", "unshard_ns", "checkpoint_bytes", "gathered_bytes",
    "unreduced_bytes", "released_ns",
)  # fmt: skip
WHOLE = (
    "sync_ns", "reserved_bytes", "reserved_permille", "capacity_bytes", "tokens", "model_flops", "peak_flops",
    "unit_time_ns",
)  # fmt: skip


def none() -> Int64s:
    """Return a column of nothing."""
    return np.zeros(0, dtype=np.int64)


def checked(name: str, values: Any) -> Int64s:
    """Return what a plugin gave as a column.

    Raises:
        ValueError: it is no list of whole numbers.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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
    """The part of ``f_ns`` in which the rank's own group (tensor, context, expert parallel) communicates."""
    b_collective_ns: Int64s
    """The same part of ``b_ns``."""
    i_collective_ns: Int64s
    """The same part of ``i_ns``."""
    w_collective_ns: Int64s
    """The same part of ``w_ns``."""
    boundary_bytes: Int64s
    """Shape (edges,): bytes of one microbatch over each edge of the stages' graph, forward."""
    activation_bytes: Int64s
    """Bytes that one microbatch's forward leaves until its backward."""
    weight_activation_bytes: Int64s
    """The part of ``activation_bytes`` that an input-gradient backward keeps for the weight gradient."""
    weights_bytes: Int64s
    """Weights, on each rank that holds the stage (as the three below)."""
    gradients_bytes: Int64s
    """Gradient buffers."""
    optimizer_bytes: Int64s
    """Optimizer state and master weights."""
    reduce_ns: Int64s
    """Reduction of the stage's gradients over its data-parallel replicas; 0 where there are none."""
    optimizer_ns: Int64s
    """Optimizer update of the stage."""
    offload_ns: Int64s = field(default_factory=none)
    """Copy of one microbatch's activations to host memory; zero unless given, as the three below."""
    reload_ns: Int64s = field(default_factory=none)
    """Copy of one microbatch's activations back."""
    recompute_ns: Int64s = field(default_factory=none)
    """One microbatch's forward computed again by an action of its own."""
    offload_bytes: Int64s = field(default_factory=none)
    """The part of ``activation_bytes`` that copies to host memory free, and copies back take; all where empty."""
    checkpoint_bytes: Int64s = field(default_factory=none)
    """The part of ``activation_bytes`` that stays until a forward is computed again by an action of its own: its
    input. Zero unless given."""
    boundary_gradient_bytes: Int64s = field(default_factory=none)
    """Shape (edges,): bytes of one microbatch's gradient back over each edge; as ``boundary_bytes`` where empty. A
    gradient that nobody needs, in front of frozen stages, has none: its message takes a latency alone."""
    one_copy_stream: bool = False
    """Whether copies to host memory and back follow one another, in the order of their row."""
    unshard_ns: Int64s = field(default_factory=none)
    """Gathering the stage's sharded weights."""
    gathered_bytes: Int64s = field(default_factory=none)
    """What that takes until they are freed, beside ``weights_bytes``; zero unless given, as the one below."""
    unreduced_bytes: Int64s = field(default_factory=none)
    """Whole gradients, from the first backward behind a reduction to the next one's end, likewise."""
    released_ns: Int64s = field(default_factory=none)
    """When the last of the other replicas has computed the stage's gradients, before which they are not reduced:
    from the step's start, and 0 where all replicas are alike."""
    sync_ns: int = 0
    """What all ranks do together once gradients are whole, such as reducing their norm; not computing."""
    reserved_bytes: int = 0
    """Bytes per rank that no action accounts for: context, workspace, fragmentation."""
    reserved_permille: int = 0
    """What the allocator holds beyond all that is allocated at a rank's peak, in thousandths of that."""
    capacity_bytes: int = 0
    """Memory of the rank's device, of the smallest one where ranks have unlike devices; 0 where unknown."""
    rank_capacity_bytes: Int64s = field(default_factory=none)
    """Shape (ranks,): memory of each rank's device where they differ; empty where all have ``capacity_bytes``."""
    tokens: int = 0
    """Tokens that the whole job trains on in one step; 0 where unknown."""
    model_flops: int = 0
    """Floating-point operations that the whole job's step needs, without recomputation; 0 where unknown."""
    peak_flops: int = 0
    """Dense peak of all devices of the whole job, in FLOP/s; 0 where unknown."""
    unit_time_ns: int = 0
    """Nanoseconds of one abstract unit of time; 0 where the costs are real times."""
    segments: Mapping[Kind, Sequence[tuple[Segment, ...]]] = field(default_factory=lambda: MappingProxyType({}))
    """By kind, the segments of each stage's action; a kind that is not there is one segment of computation. What
    they take is the kind's duration: :meth:`segmented` sees to that."""
    overlapped: bool = False
    """Whether an action outside pairs, too, computes what does not need its communication beside that; else its
    segments follow one another."""
    microbatch_class: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Shape (microbatches,): which costs each microbatch has, 0 for these here; empty where all are alike."""
    classes: tuple[Workload, ...] = ()
    """Costs of microbatches of classes 1, 2 and so on; what belongs to a stage alone is said here, not there."""
    notes: tuple[str, ...] = field(default=())
    """How figures were counted, one sentence each, for the detailed output."""
    kernels: Callable[[], Sequence[KernelCost]] | None = field(default=None, compare=False)
    """Lists the kernels of every stage's actions, for those who ask; None where the costs know none, or no more
    where they are scaled."""

    def __post_init__(self) -> None:
        for name in (*PER_STAGE, "boundary_bytes"):
            object.__setattr__(self, name, checked(name, getattr(self, name)))
            if name != "boundary_bytes" and getattr(self, name).size != self.stages:
                msg = f"{name} has {getattr(self, name).size} values for {self.stages} stages: one each"
                raise ValueError(msg)
        for name in (*OPTIONAL, "offload_bytes"):
            values = getattr(self, name)
            filled = (
                values if np.size(values) or name == "offload_bytes" else np.zeros(self.stages, dtype=np.int64)
            )
            if np.size(filled) not in {0, 1, self.stages}:
                msg = f"{name} has {np.size(filled)} values for {self.stages} stages: one each"
                raise ValueError(msg)
            spread = np.broadcast_to(filled, (self.stages,)) if np.size(filled) else filled
            object.__setattr__(self, name, checked(name, spread))
        for name in ("rank_capacity_bytes", "boundary_gradient_bytes"):
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.boundary_gradient_bytes.size not in {0, self.boundary_bytes.size}:
            own, edges = self.boundary_gradient_bytes.size, self.boundary_bytes.size
            msg = f"boundary_gradient_bytes has {own} values for {edges} edges: one each"
            raise ValueError(msg)
        for name in WHOLE:
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 0:
                msg = f"{name} is {value!r}: a whole number from 0"
                raise ValueError(msg)
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "notes", tuple(self.notes))
        self._check_segments()
        self._check_classes()

    def _check_segments(self) -> None:
        for kind, stages in self.segments.items():
            if len(stages) != self.stages:
                msg = f"segments of {kind.name} are for {len(stages)} stages of {self.stages}: one list each"
                raise ValueError(msg)
            for stage, segments in enumerate(stages):
                check_segments(segments, f"{kind.name} of stage {stage}")
                total = self._alone_ns(segments)
                if total != self.duration_ns(kind)[stage]:
                    msg = f"{kind.name} of stage {stage}: its segments take {total} ns: use Workload.segmented"
                    raise ValueError(msg)

    def _check_classes(self) -> None:
        object.__setattr__(self, "microbatch_class", column(self.microbatch_class, np.int32))
        used = self.microbatch_class
        if used.size and not 0 <= int(used.min()) <= int(used.max()) <= len(self.classes):
            msg = f"microbatch_class names classes beyond the {len(self.classes) + 1} that have costs"
            raise ValueError(msg)
        if any(one.stages != self.stages or one.classes for one in self.classes):
            msg = f"classes are costs of the same {self.stages} stages, and have no classes of their own"
            raise ValueError(msg)

    def duration_ns(self, kind: Kind) -> Int64s:
        """Return what one microbatch's action of a kind takes on each stage; 0 for a kind without costs."""
        name = kind.traits.cost
        if not name and kind in self.segments:
            return np.array([self._alone_ns(own) for own in self.segments[kind]], dtype=np.int64)
        given = getattr(self, f"{name}_ns") if name else 0
        return np.broadcast_to(np.asarray(given, dtype=np.int64), (self.stages,))

    def _alone_ns(self, segments: Sequence[Segment]) -> int:
        return overlapped_ns(segments) if self.overlapped else sum(one.duration_ns for one in segments)

    def collective_ns(self, kind: Kind) -> Int64s:
        """Return the share of the duration in which the rank's group communicates."""
        name = f"{kind.traits.cost}_collective_ns"
        return np.asarray(getattr(self, name, np.zeros(self.stages, dtype=np.int64)))

    def segmented(
        self, segments: Mapping[Kind, Sequence[tuple[Segment, ...]]], *, overlapped: bool | None = None
    ) -> Workload:
        """Return these costs with segments; the durations of actions follow from their segments.

        Args:
            segments: as the field.
            overlapped: as the field; as these costs have it unless given.
        """
        if overlapped is not None and overlapped != self.overlapped:
            return replace(self, segments=MappingProxyType({}), overlapped=overlapped).segmented(segments)
        columns: dict[str, Any] = {}
        for kind, stages in segments.items():
            name = kind.traits.cost
            if not name:
                continue
            took = np.array([self._alone_ns(own) for own in stages], dtype=np.int64)
            columns[f"{name}_ns"] = took
            if hasattr(self, f"{name}_collective_ns"):
                computed = [sum(one.duration_ns for one in own if one.is_computation) for own in stages]
                columns[f"{name}_collective_ns"] = took - np.array(computed, dtype=np.int64)
        return replace(self, segments=MappingProxyType(dict(segments)), **columns)

    def capacities(self, ranks: int) -> Int64s:
        """Return the memory of each rank's device, shape (ranks,); 0 where unknown.

        Raises:
            ValueError: the costs are of another number of ranks.
        """
        own = self.rank_capacity_bytes
        if own.size not in {0, ranks}:
            msg = f"rank_capacity_bytes has {own.size} values for {ranks} ranks: one each"
            raise ValueError(msg)
        capacities: Int64s = own if own.size else np.full(ranks, self.capacity_bytes, dtype=np.int64)
        return capacities

    def of_class(self, number: int) -> Workload:
        """Return the costs of one class of microbatches."""
        return self.classes[number - 1] if number else self

    @classmethod
    def uniform(cls, stages: int, *, boundary_bytes: int = 0, edges: int = -1, **values: Any) -> Workload:
        """Build a workload from scalars or arrays by field name; the default is zero.

        ``b_ns`` defaults to ``i_ns + w_ns``, and ``i_ns`` and ``w_ns`` to the halves of ``b_ns``.
        """
        given = dict(values)
        if "b_ns" not in given:
            given["b_ns"] = np.add(given.get("i_ns", 0), given.get("w_ns", 0))
        half = np.asarray(given["b_ns"]) // 2
        given.setdefault("i_ns", np.asarray(given["b_ns"]) - np.asarray(given.get("w_ns", half)))
        given.setdefault("w_ns", np.asarray(given["b_ns"]) - np.asarray(given["i_ns"]))
        for name in PER_STAGE:
            given[name] = np.broadcast_to(np.asarray(given.get(name, 0), dtype=np.int64), (stages,))
        count = stages - 1 if edges < 0 else edges
        return cls(boundary_bytes=np.full(max(count, 0), boundary_bytes, dtype=np.int64), **given)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.f_ns.size)

    def scaled(self, share: Fraction) -> Workload:
        """Return the costs of microbatches that each hold ``share`` of what this workload's hold, rounded down.

        >>> from fractions import Fraction
        >>> Workload.uniform(stages=1, f_ns=4, b_ns=8).scaled(Fraction(1, 2)).b_ns.tolist()
        [4]
        """
        columns: dict[str, Any] = {"classes": tuple(one.scaled(share) for one in self.classes), "kernels": None}
        for name in PER_MICROBATCH:
            columns[name] = np.array(
                [int(value * share) for value in getattr(self, name).tolist()], dtype=np.int64
            )
        if self.segments:
            parts = {kind: [tuple(one.scaled(share) for one in own) for own in stages]
                     for kind, stages in self.segments.items()}  # fmt: skip
            return replace(self, segments=MappingProxyType({}), **columns).segmented(parts)
        return replace(self, **columns)

    def total_ns(self, kinds: Sequence[Kind], microbatches: int) -> int:
        """Return what actions of some kinds take on all stages, of all microbatches of their classes."""
        each = [sum(int(one.duration_ns(kind).sum()) for kind in kinds) for one in (self, *self.classes)]
        return sum(map(mul, each, np.bincount(self.microbatch_class).tolist() or [microbatches]))

    def divided(self, parts: int) -> Workload:
        """Return the costs of so many parts of each microbatch, alike, one after the other."""
        return replace(self.scaled(Fraction(1, parts)), microbatch_class=np.repeat(self.microbatch_class, parts))

    @property
    def copied_bytes(self) -> Int64s:
        """Bytes that a copy of one microbatch's activations to host memory moves, on each stage."""
        return self.offload_bytes if self.offload_bytes.size else self.activation_bytes

    @property
    def edge_bytes(self) -> Int64s:
        """Bytes of one microbatch's messages, shape (2, edges): forward, and gradients back."""
        back = self.boundary_gradient_bytes if self.boundary_gradient_bytes.size else self.boundary_bytes
        return np.stack([self.boundary_bytes, back])

    @property
    def static_bytes(self) -> Int64s:
        """Weights, gradients and optimizer state of each stage that are always there."""
        total: Int64s = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return total
