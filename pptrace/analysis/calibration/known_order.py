"""Which installed schedules have a step's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from pptrace.analysis.steps.match import folded_alike
from pptrace.analysis.steps.times import performed
from pptrace.errors import PptraceError
from pptrace.hooks.build import build_schedule
from pptrace.model.request import ScheduleRequest
from pptrace.model.workload import Workload
from pptrace.sim.simulate import simulate

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed
    from pptrace.hooks.registry import Registry
    from pptrace.schedule.table import Schedule

__all__ = ["schedules_of"]


def schedules_of(step: Performed, registry: Registry) -> tuple[str, ...]:
    """Return the names of all schedules that order its computations so with no option set, without a search."""
    placement = step.placement
    chunks, uneven = divmod(placement.stages, placement.ranks)
    names: list[str] = []
    if uneven or step.partial:
        return ()
    for name, provided in registry.schedules.items():
        parameters = provided.offer.options
        if provided.offer.searches:
            continue
        try:
            request = ScheduleRequest(
                ranks=placement.ranks, microbatches=placement.microbatches, chunks=chunks,
                options=parameters()().model_dump() if parameters else {},
            )  # fmt: skip
            same = _same_order(step, build_schedule(provided, request))
        except (PptraceError, ValidationError):  # it takes no such sizes, or must be given an option
            continue
        if same:
            names.append(name)
    return tuple(names)


def _same_order(step: Performed, table: Schedule) -> bool:
    if table.stages != step.placement.stages:
        return False
    costs = Workload.uniform(table.stages, edges=len(table.placement.edges), f_ns=1000, b_ns=2000)
    a, b, _ = folded_alike(step, performed(simulate(table, costs)))
    return all(
        np.array_equal(getattr(a, column), getattr(b, column))
        for column in ("rank", "kind", "stage", "microbatch")
    )
