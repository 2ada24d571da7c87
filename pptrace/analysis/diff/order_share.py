"""How much of a difference is the order's, where orders differ, and how much is that of times: both simulated.

What actions and messages take says little of two schedules: a link can look slow because its messages now wait for
each other. So the first step's order is run with the second's times and network. What the second step takes beyond
that is its order's; what that takes beyond the first step is the times'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.simulations import again_ns
from pptrace.analysis.steps.times import performed
from pptrace.errors import PptraceError
from pptrace.model.columns import find
from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed
    from pptrace.experiment.prepare import Prepared
    from pptrace.model.columns import Int64s
    from pptrace.sim.action_times import ActionTimes

__all__ = ["OrderShare", "order_share"]

_SPLIT = (Kind.B, Kind.I, Kind.W)
"""A whole backward, and the two gradients that it consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderShare:
    """What a difference goes back to; together the whole difference."""

    order_ns: Figure
    """By how much the second's order lengthens the step, with the second's times and network."""
    times_ns: Figure
    """By how much the second's times and network lengthen it, in the first's order."""
    rest_ns: Figure
    """What neither gives: what replays miss of the steps, and what lies before and behind the pipeline."""


def order_share(
    a: Performed, b: Performed, on: tuple[Prepared | None, Prepared | None], change_ns: int
) -> OrderShare | None:
    """Return what the order and what the times change; None where neither step can be run in the other's way.

    Args:
        a: the first step.
        b: the second, of as many ranks, stages and microbatches.
        on: what they were simulated on; None for what was recorded.
        change_ns: by how much the second training step is longer.
    """
    if a.partial or b.partial:
        return None
    times = replace(a, duration_ns=_durations(a, b)).times(transfers=b, gaps=b, held=False)
    try:
        before, between, after = _simulated(a, b, times, on) or _replayed(a, b, times)
    except PptraceError:
        return None
    order, own = after - between, between - before
    return OrderShare(order_ns=Figure(order), times_ns=Figure(own), rest_ns=Figure(change_ns - order - own))


def _simulated(
    a: Performed, b: Performed, times: ActionTimes, on: tuple[Prepared | None, Prepared | None]
) -> tuple[int, int, int] | None:
    """Return both lengths, and between them that of the first's order on the second's network."""
    first, second = on
    if first is None or second is None:
        return None
    try:
        return a.span_ns, again_ns(replace(second, schedule=first.schedule), times), b.span_ns
    except PptraceError:
        return None


def _replayed(a: Performed, b: Performed, times: ActionTimes) -> tuple[int, int, int]:
    """Return the same of replays, in which messages are held by nothing but their own order."""
    ran = ((a.order, a.times(held=False)), (a.order, times), (b.order, b.times(held=False)))
    before, between, after = (performed(run_order(order, each)).span_ns for order, each in ran)
    return before, between, after


def _durations(a: Performed, b: Performed) -> Int64s:
    """Return what the first's actions take in the second, shape (actions of the first,); what it lacks stays.

    A whole backward takes what both gradients take; a gradient alone takes half of a whole backward.
    """
    order = np.argsort(b.places, kind="stable")
    keys, durations = b.places[order], np.append(b.duration_ns[order], -1)
    cells = b.placement.stages * b.placement.microbatches
    of_kind = {kind: durations[find(keys, a.places + (kind - a.kind.astype(np.int64)) * cells)] for kind in _SPLIT}
    whole, inputs, weights = of_kind.values()
    both = np.where((inputs >= 0) & (weights >= 0), inputs + weights, -1)
    half = np.where(whole >= 0, whole // 2, -1)
    substitute = np.select([a.kind == Kind.B, np.isin(a.kind, _SPLIT)], [both, half], -1)
    known = durations[find(keys, a.places)]
    known = np.where(known >= 0, known, substitute)
    return np.where(known >= 0, known, a.duration_ns)
