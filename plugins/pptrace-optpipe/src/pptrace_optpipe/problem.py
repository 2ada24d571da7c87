"""The scheduling problem of a search."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr, replace

if TYPE_CHECKING:
    from collections.abc import Iterable


NO_LIMIT = -1
"""The limit of a rank with unlimited memory."""
_FINEST = 200_000
"""The most units of time in the work of a rank, by default."""


class OpKind(IntEnum):
    """An operation of a microbatch on a stage."""

    F = 0
    """Forward."""
    I = 1  # noqa: E741 - PyTorch's name
    """Backward for the input gradient."""
    W = 2
    """Backward for the weight gradient."""
    O = 3  # noqa: E741 - the papers' name
    """Offload: copy the activation to the host."""
    R = 4
    """Reload: copy it back."""
    B = 5
    """Both backwards in one operation; ``I`` and ``W`` in one, see :attr:`Problem.joinable`."""
    A = 6
    """Await: only the next operation of the row waits for the end of this activation's offload."""
    C = 7
    """Recompute the forward before ``I``; before this, only the checkpoint of the activation is in memory."""
    D = 8
    """As ``A``, for the activation's reload."""


_TIMES = (
    "f", "i", "w", "forward_transfer", "backward_transfer", "offload", "reload", "recompute", "tail", "b",
)  # fmt: skip
"""Fields of a problem with times."""
COMPUTED = (OpKind.F, OpKind.I, OpKind.W)
"""The kinds that every microbatch has on every stage."""
GRADIENT = (OpKind.I, OpKind.B)
"""The kinds that compute an input gradient, and so free the activation."""
ON_RANK = (*COMPUTED, OpKind.B, OpKind.C)
"""The kinds that run on the compute stream of a rank, one at a time."""
_STAGE_NEEDS = {
    OpKind.I: OpKind.F, OpKind.W: OpKind.I, OpKind.O: OpKind.F, OpKind.R: OpKind.O,
    OpKind.C: OpKind.F, OpKind.A: OpKind.O, OpKind.D: OpKind.R,
}  # fmt: skip
"""By kind, its input on the same stage and of the same microbatch."""
AWAIT_OF = {OpKind.O: OpKind.A, OpKind.R: OpKind.D}
"""By copy, the kind that awaits its end."""


class Op(NamedTuple):
    """One operation of one microbatch on one stage."""

    kind: OpKind
    stage: int
    microbatch: int


Rows: TypeAlias = "list[list[Op]]"
"""Per rank its operations in order; a copy is launched at the end of the previous computation in the row."""


class Problem(Struct, frozen=True, kw_only=True, dict=True):
    """A chain of pipeline stages with times, sizes and memory limits.

    Times and sizes are integers of any unit. Forwards and reloads take memory at their start. Offloads free it at
    their end. ``I`` frees all but the weight part at its end, and ``W`` frees the weight part.
    """

    microbatches: int
    stage_rank: tuple[int, ...]
    """Shape (stages,): each stage's rank."""
    f: tuple[int, ...]
    """Shape (stages,), as all below: time of a forward."""
    i: tuple[int, ...]
    """Time of a backward for the input gradient."""
    w: tuple[int, ...]
    """Time of a backward for the weight gradient."""
    activation: tuple[int, ...]
    """Size of the activation of a forward."""
    weight_activation: tuple[int, ...]
    """Weight part: the size that an input gradient keeps for the weight gradient."""
    limit: tuple[int, ...]
    """Shape (ranks,): limit of the total size of activations; ``NO_LIMIT`` for unlimited memory."""
    forward_transfer: tuple[int, ...] = ()
    """Shape (stages - 1,): time from one stage to the next; 0 by default, as all below."""
    backward_transfer: tuple[int, ...] = ()
    """Shape (stages - 1,): time from the next stage back."""
    offload: tuple[int, ...] = ()
    """Shape (stages,): time of a copy to the host; copies are possible if this and ``reload`` are given."""
    reload: tuple[int, ...] = ()
    """Shape (stages,): time of a copy back."""
    recompute: tuple[int, ...] = ()
    """Shape (stages,): time of a recomputed forward; empty without recomputation. It excludes an offload."""
    checkpoint: tuple[int, ...] = ()
    """Shape (stages,): the size of an activation's checkpoint, which stays in memory before recomputation."""
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks whose copies share the streams of one rank, such as the ranks of a PCIe switch."""
    b: tuple[int, ...] = ()
    """Time of both backwards in one operation; the sum of the two by default."""
    tail: tuple[int, ...] = ()
    """Shape (ranks,): time after a rank's last computation."""

    def __post_init__(self) -> None:
        stages = len(self.stage_rank)
        for name, size in (("forward_transfer", stages - 1), ("backward_transfer", stages - 1),
                           ("tail", self.ranks)):  # fmt: skip
            if not getattr(self, name):
                force_setattr(self, name, (0,) * size)
        columns = ("f", "i", "w", "activation", "weight_activation")
        if any(len(getattr(self, name)) != stages for name in columns) or len(self.limit) != self.ranks:
            msg = f"a problem of {stages} stages on {self.ranks} ranks has one value for each"
            raise ValueError(msg)

    @cached_property
    def ranks(self) -> int:
        """Number of ranks."""
        return max(self.stage_rank) + 1

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stage_rank)

    @property
    def copies(self) -> bool:
        """Whether activations may be copied to the host."""
        return bool(self.offload) and any(limit != NO_LIMIT for limit in self.limit)

    @property
    def recomputes(self) -> bool:
        """Whether recomputation is possible."""
        return bool(self.recompute) and any(limit != NO_LIMIT for limit in self.limit)

    @cached_property
    def channels(self) -> tuple[tuple[tuple[int, ...], OpKind], ...]:
        """Ranks and kind of the copies of each stream; copies of a stream run one at a time."""
        grouped = {rank for group in self.shared for rank in group}
        groups = [*self.shared, *((rank,) for rank in range(self.ranks) if rank not in grouped)]
        return tuple((tuple(group), kind) for group in groups for kind in (OpKind.O, OpKind.R))

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Shape (ranks,): the stages of each rank, in order."""
        stages_by_rank: list[list[int]] = [[] for _ in range(self.ranks)]
        for stage, rank in enumerate(self.stage_rank):
            stages_by_rank[rank].append(stage)
        return tuple(tuple(stages) for stages in stages_by_rank)

    @cached_property
    def needs(self) -> dict[tuple[OpKind, int], tuple[tuple[OpKind, int, int], ...]]:
        """By kind and stage of an operation: kind, stage and transfer time of each of its inputs."""
        needs: dict[tuple[OpKind, int], tuple[tuple[OpKind, int, int], ...]] = {}
        for stage in range(self.stages):
            for kind, input_kind in _STAGE_NEEDS.items():
                needs[kind, stage] = ((input_kind, stage, 0),)
            needs[OpKind.F, stage] = ((OpKind.F, stage - 1, self.forward_transfer[stage - 1]),) if stage else ()
            if stage + 1 < self.stages:
                needs[OpKind.I, stage] += ((OpKind.I, stage + 1, self.backward_transfer[stage]),)
            needs[OpKind.B, stage] = needs[OpKind.I, stage]
        return needs

    def duration(self, op: Op) -> int:
        """Return the duration of an operation, in units of the problem."""
        kind, stage = op.kind, op.stage
        if kind is OpKind.B:
            return self.b[stage] if self.b else self.i[stage] + self.w[stage]
        if kind is OpKind.C:
            return self.recompute[stage]
        return (self.f, self.i, self.w, self.offload, self.reload)[kind][stage]

    @cached_property
    def joinable(self) -> frozenset[int]:
        """The stages with a joined backward that is shorter than its two parts; elsewhere, a search splits all."""
        return frozenset(stage for stage, b in enumerate(self.b) if b < self.i[stage] + self.w[stage])

    @property
    def joined(self) -> Problem:
        """The problem with joined backwards as ``I`` on joinable stages, where ``W`` takes no time."""

        def on_joinable(values: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(
                value if stage in self.joinable else other
                for stage, (value, other) in enumerate(zip(values, others, strict=True))
            )

        nothing = (0,) * self.stages
        return replace(
            self, i=on_joinable(self.b or nothing, self.i), w=on_joinable(nothing, self.w), b=(),
            weight_activation=on_joinable(nothing, self.weight_activation),
        )  # fmt: skip

    @property
    def without_transfers(self) -> Problem:
        """The problem with messages that take no time."""
        return replace(self, forward_transfer=(), backward_transfer=())

    @property
    def shortest(self) -> Problem:
        """The problem with backward times that are lower bounds for split and joined backwards.

        A joined backward can replace ``I`` and ``W`` from the start of ``I``. Therefore ``I`` is at most the
        joined time, and ``W`` is at most the remaining part of it.
        """
        if not self.joinable:
            return self
        i = tuple(map(min, self.i, self.b))
        w = tuple(min(w, b - i_time) for w, b, i_time in zip(self.w, self.b, i, strict=True))
        return replace(self, i=i, w=w, b=())

    def work(self, rank: int) -> int:
        """Return the total duration of a rank's computations in the step."""
        stages = self.stages_of[rank]
        return self.microbatches * sum(self.f[stage] + self.i[stage] + self.w[stage] for stage in stages)

    def round_trip(self, stage: int) -> int:
        """Return the least time from the start of a forward to the end of its input gradient."""
        down = sum(self.f[stage:]) + sum(self.i[stage:])
        return down + sum(self.forward_transfer[stage:]) + sum(self.backward_transfer[stage:])

    def ops(self) -> list[Op]:
        """Return all computations, without copies and recomputation."""
        return [
            Op(kind, stage, microbatch)
            for kind in COMPUTED
            for stage in range(self.stages)
            for microbatch in range(self.microbatches)
        ]


def joined_rows(problem: Problem, rows: Rows) -> Rows:
    """Return rows of :attr:`Problem.joined` as rows of the problem, with joined backwards."""
    return [
        [
            op._replace(kind=OpKind.B) if op.kind is OpKind.I and op.stage in problem.joinable else op
            for op in row
            if op.kind is not OpKind.W or op.stage not in problem.joinable
        ]
        for row in rows
    ]


def split_rows(problem: Problem, rows: Rows) -> Rows:
    """Return rows with split backwards on stages that are not joinable, where these are never slower."""
    return [
        [
            part_op
            for op in row
            for part_op in (
                (op._replace(kind=OpKind.I), op._replace(kind=OpKind.W))
                if op.kind is OpKind.B and op.stage not in problem.joinable
                else (op,)
            )
        ]
        for row in rows
    ]


def computed_again(ops: Iterable[Op]) -> set[tuple[int, int]]:
    """Return stage and microbatch of every recomputed forward."""
    return {(op.stage, op.microbatch) for op in ops if op.kind is OpKind.C}


def coarsened(problem: Problem, finest: int = _FINEST) -> tuple[Problem, int]:
    """Return the problem in larger units, and its unit of time in units of the given problem.

    Sizes stay exact. Times that are too fine for a solver are rounded down, so a lower bound of the coarse
    problem, times the unit, is a lower bound of the given problem.

    Args:
        problem: what to schedule.
        finest: the most units of time in the work of a rank.
    """
    times = [*problem.f, *problem.i, *problem.w, *problem.forward_transfer, *problem.backward_transfer,
             *problem.offload, *problem.reload, *problem.recompute, *problem.tail,
             *(problem.b[stage] for stage in problem.joinable)]  # fmt: skip
    unit = max(gcd(*times), 1)
    longest = max(problem.work(rank) for rank in range(problem.ranks))
    if longest // unit > finest:
        unit = longest // finest
    size = max(gcd(*problem.activation, *problem.weight_activation, *problem.checkpoint), 1)
    columns = {name: tuple(value // unit for value in getattr(problem, name)) for name in _TIMES}
    sizes = {name: tuple(value // size for value in getattr(problem, name))
             for name in ("activation", "weight_activation", "checkpoint")}  # fmt: skip
    limit = tuple(NO_LIMIT if size_limit == NO_LIMIT else size_limit // size for size_limit in problem.limit)
    return replace(problem, **columns, **sizes, limit=limit), unit


def coarsened_by_work(problem: Problem, finest: int) -> tuple[Problem, int]:
    """Return the result of :func:`coarsened`, with a unit that keeps computations and copies exact if possible.

    If only messages need a finer unit, the unit is the common divisor of computations and copies. Messages are
    then rounded down, very short ones to 0.
    """
    coarse, unit = coarsened(problem, finest)
    stream_unit = gcd(*problem.f, *problem.i, *problem.w, *problem.offload, *problem.reload, *problem.recompute)
    if stream_unit < unit or is_exact(problem, coarse, unit):
        return coarse, unit
    return coarsened(problem, max(problem.work(rank) for rank in range(problem.ranks)) // stream_unit)


def is_exact(problem: Problem, coarse: Problem, unit: int) -> bool:
    """Return whether a coarse problem from :func:`coarsened` has the exact times of the problem."""
    return all(getattr(problem, name) == tuple(unit * value for value in getattr(coarse, name)) for name in _TIMES)
