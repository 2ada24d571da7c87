"""Where each action of a schedule is: one position per result, stage and microbatch, and the first thing wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.kernel import run
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import Result, present
from pptrace.record import dataclass
from pptrace.schedule.kernels.tables import index_actions
from pptrace.schedule.neighbours import graph_of

if TYPE_CHECKING:
    from pptrace.model.columns import Int8s, Int32s
    from pptrace.schedule.table import Schedule

__all__ = ["ABSENT", "Positions", "Problem", "index_schedule"]

ABSENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The first action that cannot be placed in the index."""

    code: int
    """What is wrong, as the kernel numbers it."""
    row: int
    """The action's position in the schedule's columns."""
    other: int
    """The earlier action that it repeats, or the rank on which it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions of actions in a schedule's columns."""

    results: int
    """Results that the schedule's kinds leave, up to the last: 2 (F, B), 3 (also I, W), or more."""
    flat: Int32s
    """Shape (results x stages x microbatches,): position or ``ABSENT``."""
    stages: int
    """Number of stages."""
    microbatches: int
    """Number of microbatches."""
    problem: Problem | None
    """The first problem met, or None."""

    @property
    def passed_on(self) -> Int32s:
        """Positions of what stages pass on: activations, then gradients, each flat by stage and microbatch."""
        return self.flat[: (Result.GRADIENT + 1) * self.stages * self.microbatches]

    def of(self, result: int) -> Int32s:
        """Return one result's positions, shape (stages, microbatches); all absent for one that no kind leaves."""
        size = self.stages * self.microbatches
        if result >= self.results:
            return np.full((self.stages, self.microbatches), ABSENT, dtype=np.int32)
        return self.flat[result * size : (result + 1) * size].reshape(self.stages, self.microbatches)


def index_schedule(schedule: Schedule) -> Positions:
    """Index every microbatch's actions; stop at the first that is out of range, twice or misplaced."""
    placement = schedule.placement
    results = _results_of(schedule.kind)
    flat = np.full(results * placement.stages * placement.microbatches, ABSENT, dtype=np.int32)
    problem = np.zeros(3, dtype=np.int64)
    run(
        index_actions,
        (
            schedule.row_ptr, schedule.cells, graph_of(placement), TABLE
        ),
        (flat, problem),
        work=len(schedule),
    )  # fmt: skip
    code, row, other = (int(value) for value in problem)
    found = Problem(code=code, row=row, other=other) if code else None
    return Positions(
        results=results, flat=flat, stages=placement.stages, microbatches=placement.microbatches, problem=found
    )


def _results_of(kind: Int8s) -> int:
    kinds = present(kind)
    # A full backward's second result is indexed only beside others.
    split = kinds[(TABLE.result[kinds] == Result.GRADIENT) & (TABLE.second_result[kinds] < 0)].size
    least = 1 + (Result.WEIGHT_GRADIENT if split else Result.GRADIENT)
    return max(least, 1 + int(TABLE.result[kinds].max(initial=-1)))
