"""A schedule at the three levels of abstraction: its formula, its idealised table, its simulated step.

Source: Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of Pipeline-Parallel LLM
Training (2026), which shows that rankings change between the three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.hooks.build import build_schedule
from pptrace.hooks.call import call_plugin
from pptrace.model.workload import Workload
from pptrace.sim.simulate import simulate
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from fractions import Fraction

    from pptrace.experiment.run import Run
    from pptrace.schedule.table import Schedule

__all__ = ["Levels", "at_levels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """One schedule's bubble at each level; the simulated one is ``run.metrics.bubble``."""

    run: Run
    """The simulated step."""
    formula: Fraction | None
    """The schedule's closed form; None where it offers none for these sizes."""
    table: Fraction
    """Idle over ranks times length, with a forward of 1, a backward of 2 and messages that take no time."""


def at_levels(run: Run) -> Levels:
    """Return a simulated step's schedule at all three levels.

    The table is the one that the schedule makes where it knows no times, so that it is not bent towards the costs.
    """
    choice = run.prepared.resolved.experiment.schedule
    if choice.kind == "table":
        return Levels(run=run, formula=None, table=_bubble(run.prepared.schedule))
    provided = run.registry.schedules[choice.name]
    request = replace(
        run.prepared.request, f_ns=(), b_ns=(), i_ns=(), w_ns=(), transfer_ns=0, activation_bytes=(),
        memory_limit_bytes=0, weight_activation_bytes=(), stage_bytes=(), device_bytes=0, rank_bytes=(),
    )  # fmt: skip
    bubble = provided.offer.bubble
    return Levels(
        run=run,
        formula=call_plugin(provided.provider, bubble, request) if bubble else None,
        table=_bubble(build_schedule(provided, request)),
    )


def _bubble(schedule: Schedule) -> Fraction:
    workload = Workload.uniform(schedule.stages, edges=len(schedule.placement.edges), f_ns=1, i_ns=1, w_ns=1)
    return measure(simulate(schedule, workload), workload).bubble
