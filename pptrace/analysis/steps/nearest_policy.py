"""Which message policy a step ran under, told from when its actions started."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed
from pptrace.config.choices import PolicyName
from pptrace.errors import PptraceError
from pptrace.hooks.build import build_policy, checked_options
from pptrace.model.workload import Workload
from pptrace.schedule.policy import Policy
from pptrace.schedule.table import Schedule
from pptrace.sim.simulate import simulate

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed
    from pptrace.hooks.offers import MessagePolicyOffer
    from pptrace.hooks.provider import Provided
    from pptrace.hooks.registry import Registry

__all__ = ["Nearest", "nearest_policy"]

_AS_NEAR = 0.001
"""Which share of a step two policies are told apart by."""
_V_SHAPED = Schedule.from_rows([
    ["0F0", "0F1", "3F0", "3I0", "3F1", "3I1", "3W0", "3W1", "0B0", "0B1"],
    ["1F0", "2F0", "1F1", "2F1", "2I0", "1I0", "2I1", "1I1", "2W0", "2W1", "1W0", "1W1"],
])  # fmt: skip
"""An order of chunks in a V, with split backwards."""
_LOOPED = Schedule.from_rows([
    ["0F0", "0F1", "2F0", "2F1", "0F2", "2B0", "0F3", "2B1", "2F2", "0B0",
     "2F3", "0B1", "2B2", "2B3", "0B2", "0B3"],
    ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1F2", "1B0", "1F3", "1B1",
     "3F2", "3B2", "3F3", "3B3", "1B2", "1B3"],
])  # fmt: skip
"""Interleaved 1F1B, in which a rank's messages cross: a policy that has each wait for the last can deadlock."""


class Nearest(NamedTuple):
    """A policy, and how near it is."""

    policy: Policy
    off_ns: int
    """By how much actions start too early or too late, mean."""


def nearest_policy(step: Performed, registry: Registry, *, measured: bool, any_order: bool = True) -> Nearest:
    """Return the policy under which a step's actions, with their own times, start nearest to when they did.

    Of policies that are as near, to a thousandth of the step: a framework's where one ran, for it knows what that
    does with other orders; else ``async``.

    Args:
        step: the step.
        registry: the plugins, whose policies are tried.
        measured: whether the step was recorded, and not simulated.
        any_order: whether only policies count that can take every order, for a fit is to say what others take.
    """
    tried = {
        name: _off(step, provided, any_order=any_order) for name, provided in registry.message_policies.items()
    }
    known = [found for found in tried.values() if found is not None]
    if step.partial or not known:
        return Nearest(Policy(), 0)
    least = min(one.off_ns for one in known) + _AS_NEAR * step.span_ns
    near = [one for one in known if one.off_ns <= least]
    rules, usual = {name.value for name in PolicyName}, Policy().label
    return min(near, key=lambda one: ((one.policy.label in rules) == measured, one.policy.label != usual))


def _off(step: Performed, provided: Provided[MessagePolicyOffer], *, any_order: bool) -> Nearest | None:
    """Return by how many nanoseconds actions are off in the mean; None for a policy that cannot take its order."""
    try:
        options = checked_options(provided, {}, "p2p.options")
        if any_order:
            for other in (_V_SHAPED, _LOOPED):
                policy = build_policy(provided, other, options)
                simulate(other, Workload.uniform(4, edges=3, f_ns=1, b_ns=1), policy=policy)
        policy = build_policy(provided, step.order, options)
        again = performed(run_order(step.order, step.times(held=False), policy))
    except PptraceError:
        return None
    off = (again.start_ns - again.start_ns.min()) - (step.start_ns - step.start_ns.min())
    return Nearest(policy, round(float(np.abs(off).mean())))
