"""Where two steps part: the first action that is off by itself, and the chain that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.stepdiff.findings import action_at
from pptrace.stepdiff.path import makers, released_by
from pptrace.stepdiff.spreads import SIGMAS

if TYPE_CHECKING:
    from pptrace.model.action import Action
    from pptrace.model.columns import Int64s
    from pptrace.stepdiff.match import Matched
    from pptrace.stepdiff.times import Performed

__all__ = ["Divergence", "first_divergence"]

_LONGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The earliest action that is off by more than the tolerance."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    at_ns: int
    """When it started in the second step."""
    late_ns: int
    """By how much it ended later than in the first, both steps starting together."""
    own_ns: int
    """The part of that which is its own duration."""
    late_varies_ns: int
    """Standard deviation of the lateness by both sides' variation from step to step; 0 where each has one step."""
    chain: tuple[str, ...]
    """The actions that released it, one after another, the last one first."""


def first_divergence(
    a: Performed, b: Performed, matched: Matched, tolerance: float, noise_ns: Int64s
) -> Divergence | None:
    """Return the first computation that ends off by more than noise, and than the tolerance of its own time.

    Args:
        a: the first step.
        b: the second.
        matched: the pairs.
        tolerance: which share of an action's time counts as equal.
        noise_ns: shape (pairs,): how much the difference of the ends varies from step to step.

    Returns:
        None where all end in time.
    """
    if not len(matched):
        return None
    begin_a, begin_b = int(a.start_ns.min()), int(b.start_ns.min())
    late = (b.end_ns[matched.second] - begin_b) - (a.end_ns[matched.first] - begin_a)
    allowed = np.maximum(tolerance * a.duration_ns[matched.first], SIGMAS * noise_ns)
    off = np.abs(late) > allowed
    if not off.any():
        return None
    at = int(off.argmax())
    i, j = int(matched.first[at]), int(matched.second[at])
    return Divergence(
        rank=int(b.rank[j]), action=action_at(b, j), at_ns=int(b.start_ns[j]) - begin_b, late_ns=int(late[at]),
        own_ns=int(b.duration_ns[j] - a.duration_ns[i]), late_varies_ns=int(noise_ns[at]), chain=_chain(b, j),
    )  # fmt: skip


def _chain(step: Performed, index: int) -> tuple[str, ...]:
    """Return what released an action, link by link."""
    producers = makers(step)
    found: list[str] = []
    at = released_by(step, index, producers)
    while at is not None and len(found) < _LONGEST:
        found.append(f"rank {step.rank[at]}: {action_at(step, at)}")
        at = released_by(step, at, producers)
    return tuple(found)
