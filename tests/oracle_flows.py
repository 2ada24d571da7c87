"""Flows that share links, written plainly from the definitions: exact fractions, no data structures, slow."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Flow", "fair_rates"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One message, or a bundle of equal ones that go at one pace."""

    weight: Mapping[int, int]
    """How many of its flows are on each link."""
    cap: int
    """What each of its flows gets at most."""


def fair_rates(flows: Sequence[Flow], capacity: Sequence[int]) -> list[Fraction]:
    """Raise all rates together; a flow stops at its cap or when one of its links is full."""
    rate = [Fraction(0)] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        steps = [flows[f].cap - rate[f] for f in rising]
        for link, whole in enumerate(capacity):
            taken = sum(rate[f] * flow.weight.get(link, 0) for f, flow in enumerate(flows))
            wanted = sum(flows[f].weight.get(link, 0) for f in rising)
            if wanted:
                steps.append((whole - taken) / wanted)
        step = min(steps)
        for f in rising:
            rate[f] += step
        taken = [
            sum(r * flow.weight.get(link, 0) for r, flow in zip(rate, flows, strict=True))
            for link in range(len(capacity))
        ]
        rising = {
            f
            for f in rising
            if rate[f] < flows[f].cap and all(taken[link] < capacity[link] for link in flows[f].weight)
        }
    return rate
