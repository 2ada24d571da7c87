"""The scheduling problem that the solver gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AWAIT_OF",
    "COMPUTED",
    "NO_LIMIT",
    "ON_RANK",
    "Op",
    "Part",
    "Problem",
    "Rows",
    "coarsened",
    "coarsened_by_work",
    "computed_again",
    "is_exact",
]

NO_LIMIT = -1
"""The limit of a rank whose memory does not matter."""
_FINEST = 200_000
"""Units of time that the work of a rank has at most, unless given."""


class Part(IntEnum):
    """What a microbatch does on a stage."""

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
    """Both backwards in one; a search splits them, and a table may join them again."""
    A = 6
    """Await: what comes next in the row, and that alone, starts when that activation's offload has ended."""
    C = 7
    """Compute the forward again, some time before ``I``; until then it leaves its checkpoint alone."""
    D = 8
    """As ``A``, for that activation's reload."""


_TIMES = (
    "f", "i", "w", "forward_transfer", "backward_transfer", "offload", "reload", "recompute", "tail", "b",
)  # fmt: skip
"""Fields of a problem that are times."""
COMPUTED = (Part.F, Part.I, Part.W)
"""The parts that every microbatch has on every stage."""


ON_RANK = (*COMPUTED, Part.B, Part.C)
"""The parts that a rank computes itself, one at a time."""
_OWN_NEEDS = {
    Part.I: Part.F, Part.W: Part.I, Part.O: Part.F, Part.R: Part.O, Part.C: Part.F, Part.A: Part.O, Part.D: Part.R,
}  # fmt: skip
"""By part, the part of the same microbatch and stage that it waits for."""
AWAIT_OF = {Part.O: Part.A, Part.R: Part.D}
"""By copy, the part that awaits its end."""


class Op(NamedTuple):
    """One part of one microbatch on one stage."""

    part: Part
    stage: int
    microbatch: int


Rows: TypeAlias = "list[list[Op]]"
"""Per rank its ops in order; a copy is launched when the computation in front of it is done."""


@dataclass(frozen=True, slots=False, kw_only=True)
class Problem:
    """A pipeline of stages in a chain, and what limits its schedule.

    Times and sizes are integers of any unit. Memory is taken at the start of a forward and of a reload, and freed
    at the end of an offload, of ``I`` (all but the weight gradient's part) and of ``W`` (the rest).
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
    """What a forward leaves."""
    weight_activation: tuple[int, ...]
    """The part of it that an input gradient keeps for the weight gradient."""
    limit: tuple[int, ...]
    """Shape (ranks,): the most of that at once; ``NO_LIMIT`` for any amount."""
    forward_transfer: tuple[int, ...] = ()
    """Shape (stages - 1,): from one stage to the next; 0 unless given, as all below."""
    backward_transfer: tuple[int, ...] = ()
    """Shape (stages - 1,): from the next stage back."""
    offload: tuple[int, ...] = ()
    """Shape (stages,): time of a copy to the host; copies are possible where this and ``reload`` are given."""
    reload: tuple[int, ...] = ()
    """Shape (stages,): time of a copy back."""
    recompute: tuple[int, ...] = ()
    """Shape (stages,): time of a forward computed again, where that may be; never of what is copied."""
    checkpoint: tuple[int, ...] = ()
    """Shape (stages,): the part of an activation that stays where it is computed again."""
    one_stream: bool = False
    """Whether copies out and back share a stream of the rank; else each direction has one."""
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks whose copies share the streams that each would have, as behind one PCIe switch."""
    b: tuple[int, ...] = ()
    """Time of both backwards in one; the sum of the two unless given."""
    tail: tuple[int, ...] = ()
    """Shape (ranks,): what follows a rank's last computation."""
    span: bool = False
    """Whether to shorten the longest rank's time from its first start to its last end; else the whole step."""

    def __post_init__(self) -> None:
        stages = len(self.stage_rank)
        for name, size in (("forward_transfer", stages - 1), ("backward_transfer", stages - 1),
                           ("tail", self.ranks)):  # fmt: skip
            if not getattr(self, name):
                object.__setattr__(self, name, (0,) * size)
        given = ("f", "i", "w", "activation", "weight_activation")
        if any(len(getattr(self, name)) != stages for name in given) or len(self.limit) != self.ranks:
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
        """Whether forwards may be computed again."""
        return bool(self.recompute) and any(limit != NO_LIMIT for limit in self.limit)

    @cached_property
    def channels(self) -> tuple[tuple[tuple[int, ...], tuple[Part, ...]], ...]:
        """Ranks and directions of copies that run one at a time."""
        together = {rank for group in self.shared for rank in group}
        groups = [*self.shared, *((rank,) for rank in range(self.ranks) if rank not in together)]
        directions = ((Part.O, Part.R),) if self.one_stream else ((Part.O,), (Part.R,))
        return tuple((tuple(group), parts) for group in groups for parts in directions)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Shape (ranks,): the stages of each rank, in order."""
        held: list[list[int]] = [[] for _ in range(self.ranks)]
        for stage, rank in enumerate(self.stage_rank):
            held[rank].append(stage)
        return tuple(tuple(stages) for stages in held)

    @cached_property
    def needs(self) -> dict[tuple[Part, int], tuple[tuple[Part, int, int], ...]]:
        """By part and stage of an op: part and stage of each op that it always waits for, and the transfer."""
        needs: dict[tuple[Part, int], tuple[tuple[Part, int, int], ...]] = {}
        for stage in range(self.stages):
            for part, before in _OWN_NEEDS.items():
                needs[part, stage] = ((before, stage, 0),)
            needs[Part.F, stage] = ((Part.F, stage - 1, self.forward_transfer[stage - 1]),) if stage else ()
            if stage + 1 < self.stages:
                needs[Part.I, stage] += ((Part.I, stage + 1, self.backward_transfer[stage]),)
            needs[Part.B, stage] = needs[Part.I, stage]
        return needs

    def duration(self, op: Op) -> int:
        """Return what an op takes."""
        part, stage = op.part, op.stage
        if part is Part.B:
            return self.b[stage] if self.b else self.i[stage] + self.w[stage]
        if part is Part.C:
            return self.recompute[stage]
        return (self.f, self.i, self.w, self.offload, self.reload)[part][stage]

    @property
    def shortest(self) -> Problem:
        """This, with what no way of running backwards undercuts: where both in one are shorter, as short as that.

        A table may run both in one where ``I`` starts, and ``W`` then ends no earlier than what is left of it.
        """
        if not self.b or all(b >= i + w for b, i, w in zip(self.b, self.i, self.w, strict=True)):
            return self
        i = tuple(map(min, self.i, self.b))
        w = tuple(min(w, b - one) for w, b, one in zip(self.w, self.b, i, strict=True))
        return replace(self, i=i, w=w, b=())

    def work(self, rank: int) -> int:
        """Return what a rank computes in the step."""
        return self.microbatches * sum(self.f[s] + self.i[s] + self.w[s] for s in self.stages_of[rank])

    def round_trip(self, stage: int) -> int:
        """Return the least time from the start of a forward to the end of its input gradient."""
        down = sum(self.f[stage:]) + sum(self.i[stage:])
        return down + sum(self.forward_transfer[stage:]) + sum(self.backward_transfer[stage:])

    def ops(self) -> list[Op]:
        """Return every computation."""
        return [
            Op(part, stage, microbatch)
            for part in COMPUTED
            for stage in range(self.stages)
            for microbatch in range(self.microbatches)
        ]


def computed_again(ops: Iterable[Op]) -> set[tuple[int, int]]:
    """Return stage and microbatch of every forward that is computed again."""
    return {(op.stage, op.microbatch) for op in ops if op.part is Part.C}


def coarsened(problem: Problem, finest: int = _FINEST) -> tuple[Problem, int]:
    """Return the problem in larger units, and the unit of time in the old one.

    Sizes lose nothing. Times are rounded down where they are too fine for a solver, so that what bounds the coarse
    problem's optimum from below bounds the true one's, in units.

    Args:
        problem: what to schedule.
        finest: units of time that the work of a rank has at most.
    """
    times = [*problem.f, *problem.i, *problem.w, *problem.forward_transfer, *problem.backward_transfer,
             *problem.offload, *problem.reload, *problem.recompute, *problem.tail]  # fmt: skip
    unit = max(gcd(*times), 1)
    longest = max(problem.work(rank) for rank in range(problem.ranks))
    if longest // unit > finest:
        unit = longest // finest
    size = max(gcd(*problem.activation, *problem.weight_activation, *problem.checkpoint), 1)
    columns = {name: tuple(value // unit for value in getattr(problem, name)) for name in _TIMES}
    sizes = {name: tuple(value // size for value in getattr(problem, name))
             for name in ("activation", "weight_activation", "checkpoint")}  # fmt: skip
    limit = tuple(NO_LIMIT if one == NO_LIMIT else one // size for one in problem.limit)
    return replace(problem, **columns, **sizes, limit=limit), unit  # type: ignore[arg-type] # columns by name


def coarsened_by_work(problem: Problem, finest: int) -> tuple[Problem, int]:
    """Return what :func:`coarsened` does, but in the unit of what takes a stream, where messages alone are finer.

    So messages much shorter than computations and copies are rounded down, to nothing, and those lose nothing.
    """
    coarse, unit = coarsened(problem, finest)
    own = gcd(*problem.f, *problem.i, *problem.w, *problem.offload, *problem.reload, *problem.recompute)
    if own < unit or is_exact(problem, coarse, unit):
        return coarse, unit
    return coarsened(problem, max(problem.work(rank) for rank in range(problem.ranks)) // own)


def is_exact(problem: Problem, coarse: Problem, unit: int) -> bool:
    """Return whether a problem in larger units, as :func:`coarsened` makes it, has lost nothing of its times."""
    return all(getattr(problem, name) == tuple(unit * value for value in getattr(coarse, name)) for name in _TIMES)
