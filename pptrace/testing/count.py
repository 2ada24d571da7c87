"""Count what a table itself says: its bubble and its activations, with unit costs and free messages."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.model.workload import Workload

if TYPE_CHECKING:
    from pptrace.schedule.table import Schedule

__all__ = ["Counted", "count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The figures that a schedule's closed forms state."""

    bubble: Fraction
    """Idle over ranks times length."""
    peak_activations: tuple[Fraction, ...]
    """Per rank, the most activations held, in one stage's of one microbatch."""


def count(schedule: Schedule) -> Counted:
    """Return a table's figures with a forward of 1, both halves of a backward of 1, and an ideal network."""
    from pptrace.sim.simulate import simulate
    from pptrace.timeline.metrics import measure

    workload = Workload.uniform(
        schedule.stages,
        edges=len(schedule.placement.edges),
        f_ns=1,
        i_ns=1,
        w_ns=1,
        activation_bytes=1,
        weight_activation_bytes=1,
    )
    metrics = measure(simulate(schedule, workload), workload)
    return Counted(
        bubble=metrics.bubble,
        peak_activations=tuple(map(Fraction, metrics.memory.peak_activations.tolist())),
    )
