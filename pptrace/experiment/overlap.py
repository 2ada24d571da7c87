"""Notes on overlapped pairs that overlap nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.experiment.assembly import Assembly
    from pptrace.experiment.costs import Costs
    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule

__all__ = ["overlap_notes"]

_OPTION = "segments"
"""The option by which a cost model gives segments."""


def overlap_notes(work: Assembly, costs: Costs, table: Schedule, workload: Workload) -> tuple[str, ...]:
    """Return why the overlapped pairs of a table overlap nothing, and what to set; empty where they may overlap.

    Args:
        work: the configuration and the plugins.
        costs: the cost model and its options.
        table: the schedule's table.
        workload: its costs.
    """
    if not table.has_pairs or any(_has_communication(one) for one in (workload, *workload.classes)):
        return ()
    return (f"the pairs of this schedule overlap nothing: {_reason(work, costs, workload)}",)


def _has_communication(workload: Workload) -> bool:
    return any(
        not segment.is_computation
        for stages in workload.segments.values() for segments in stages for segment in segments
    )  # fmt: skip


def _reason(work: Assembly, costs: Costs, workload: Workload) -> str:
    offer = costs.offer.offer
    if not _gives_segments(work, offer.name):
        models = " or ".join(sorted(name for name in work.registry.cost_models if _gives_segments(work, name)))
        return f"{offer.name} costs have no segments; set costs.name to {models}, which have costs.{_OPTION}"
    if workload.segments:
        return "no segment of these costs communicates; set the stream of one under costs.segments"
    if offer.model is not None and not _has_collectives(workload):
        return "costs have no segments, as no action has a collective; set parallel.tp, parallel.cp or parallel.ep"
    if costs.request.options.get(_OPTION) is False:
        return f"costs have no segments, as costs.{_OPTION} is false; set it to true"
    return f"costs have no segments; set costs.{_OPTION}"


def _gives_segments(work: Assembly, name: str) -> bool:
    options = work.registry.cost_models[name].offer.options
    return options is not None and _OPTION in options().model_fields


def _has_collectives(workload: Workload) -> bool:
    return any(
        getattr(one, name).any()
        for one in (workload, *workload.classes)
        for name in ("f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns")
    )
