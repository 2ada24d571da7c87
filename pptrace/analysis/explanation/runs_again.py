"""How a step runs again with other durations: its messages wait for whatever holds them up then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.steps.nearest_policy import nearest_policy
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.simulations import again_ns, simulation_of
from pptrace.analysis.steps.times import performed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.steps.times import Performed
    from pptrace.hooks.registry import Registry

__all__ = ["runs_again"]

_GIVES_BACK = 0.01
"""By which share of a step its actions may be off under a policy that is said to have held its messages."""


def runs_again(side: Side, registry: Registry) -> Callable[[Performed], int] | None:
    """Return what runs a side's step with other durations and gaps, and says how long that takes.

    What was simulated is simulated again, its own policy, network and contention included, if need be from the
    configuration that its trace holds. Another trace runs under the policy that is nearest to it. None where
    messages were held and no policy gives them back: they then stay held for as long as they were.
    """
    step, simulation = side.performed, simulation_of(side, registry)
    if simulation is not None:
        return lambda changed: again_ns(simulation, changed.times())
    if step.partial or side.run is not None:
        return None
    found = nearest_policy(step, registry, measured=side.measured, any_order=side.measured)
    if step.transfers.held_ns.any() and found.off_ns > _GIVES_BACK * step.span_ns:
        return None
    return lambda changed: performed(run_order(changed.order, changed.times(held=False), found.policy)).span_ns
