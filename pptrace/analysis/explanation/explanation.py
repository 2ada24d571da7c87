"""Where the time of a step went, and what would shorten it; with several steps, how much that varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.explanation.runs_again import runs_again
from pptrace.analysis.explanation.what_if import RankBusy, WhatIf, busy_by_rank, what_if
from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.parts import parts_of
from pptrace.analysis.steps.path import chain_of
from pptrace.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.steps.sides import Side
    from pptrace.hooks.registry import Registry

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Of one step; :func:`pptrace.analysis.figure.varied` says of its figures how they vary over several."""

    step: str
    """As the profiler numbers it."""
    step_ns: Figure
    """Its length."""
    bubble: Figure
    """Idle time over ranks times length."""
    parts_ns: Mapping[str, Figure]
    """By part, mean over ranks; they sum to the length."""
    idle_by_cause_ns: Mapping[str, Figure]
    """Idle time of all ranks by cause."""
    exposed_communication_ns: Figure
    """Communication of all ranks that nothing hid."""
    groups_ns: Mapping[str, Figure]
    """Communication of all ranks within their own groups, by group, beside computation or not."""
    hidden_ns: Mapping[str, Figure]
    """The part of each that ran while its rank computed."""
    unrecorded_ns: Figure
    """Waits of all ranks for what nobody recorded."""
    critical_path_ns: Mapping[str, Figure]
    """The chain that the end waited for, by kind, and what lies between."""
    ranks: tuple[RankBusy, ...]
    """What each rank computed."""
    idle_ns: tuple[Figure, ...]
    """What each rank waited."""
    what_if: WhatIf | None
    """Its length without one thing after another; None where it cannot be replayed."""
    no_what_if: str
    """Why not."""


def explain(side: Side, registry: Registry | None = None) -> Explanation:
    """Explain a side's step; of the plugins given, message policies are tried where messages were held up."""
    metrics, step = side.metrics, side.performed
    groups = [one for one in metrics.groups if one.stream.is_group]
    without, why = None, ""
    try:
        without = what_if(step, None if registry is None else runs_again(side, registry))
    except ScheduleError as error:
        why = str(error)
    return Explanation(
        step=side.steps[side.chosen].label, step_ns=Figure(metrics.step_ns), bubble=Figure(float(metrics.bubble)),
        parts_ns=_figures(parts_of(side)), idle_by_cause_ns=_figures(metrics.idle_by_cause_ns),
        exposed_communication_ns=Figure(int(metrics.exposed_ns.sum())),
        groups_ns=_figures({one.name: int(one.total_ns.sum()) for one in groups}),
        hidden_ns=_figures({one.name: int(one.hidden_ns.sum()) for one in groups}),
        unrecorded_ns=Figure(int((step.gap_ns - step.host_gap_ns).sum())),
        critical_path_ns=_figures(chain_of(step).by_kind_ns), ranks=busy_by_rank(step),
        idle_ns=tuple(map(Figure, metrics.idle_ns.sum(axis=1).tolist())), what_if=without, no_what_if=why,
    )  # fmt: skip


def _figures(times: Mapping[str, int]) -> Mapping[str, Figure]:
    return {name: Figure(time) for name, time in times.items()}
