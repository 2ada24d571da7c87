"""Where two steps part: the first action that is off by itself, and the chain that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.figure import SIGMAS, Figure
from pptrace.analysis.steps.releases import releases_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.releases import Releases
    from pptrace.analysis.steps.times import Performed
    from pptrace.model.action import Action
    from pptrace.model.columns import Int64s

__all__ = ["Divergence", "Link", "first_divergence"]

_LONGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An action that released another."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    late_ns: int | None
    """By how much it ended later than in the first step; None where that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The earliest action that is off by more than the tolerance."""

    rank: int
    """Its rank."""
    action: Action
    """What it is."""
    at_ns: int
    """When it started in the second step."""
    late_ns: Figure
    """By how much it ended later than in the first, both steps starting together."""
    own_ns: int
    """The part of that which is its own duration."""
    message_ns: int
    """The part that its input took longer from the rank that released it; 0 where its own rank did."""
    idle_ns: int
    """The part that its rank left between its release and its start."""
    released_ns: int
    """By how much what released it ended later than in the first; these four sum to the lateness."""
    source: int
    """The rank that released it; -1 for none."""
    behind: tuple[str, str]
    """What ran before it on its rank in both steps, where that is not the same; both empty where it is."""
    chain: tuple[Link, ...]
    """What released it, one after another, the last one first."""


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
    ended = dict(zip(matched.second.tolist(), late.tolist(), strict=True))
    releases = releases_of(b)
    by = releases.of(j)
    own = int((b.end_ns[j] - b.start_ns[j]) - (a.end_ns[i] - a.start_ns[i]))
    released = ended.get(by, 0) if by is not None else 0
    rest = int(late[at]) - own - released
    source = -1 if by is None else int(b.rank[by])
    idle = int(b.gap_ns[j] - a.gap_ns[i]) if source not in {-1, int(b.rank[j])} else rest
    return Divergence(
        rank=int(b.rank[j]), action=b.action(j), at_ns=int(b.start_ns[j]) - begin_b,
        late_ns=Figure(int(late[at]), int(noise_ns[at]) or None),
        own_ns=own, message_ns=rest - idle, idle_ns=idle, released_ns=released, source=source,
        behind=_behind((a, i), (b, j)), chain=tuple(_chain(releases, j, ended)),
    )  # fmt: skip


def _behind(*places: tuple[Performed, int]) -> tuple[str, str]:
    """Return what ran before two computations on their ranks, where that is not the same."""
    first, second = (
        str(step.action(at - 1)) if at and step.rank[at - 1] == step.rank[at] else "its beginning"
        for step, at in places
    )
    return ("", "") if first == second else (first, second)


def _chain(releases: Releases, index: int, ended: Mapping[int, int]) -> Iterator[Link]:
    """Yield what released an action, link by link."""
    step, at = releases.step, releases.of(index)
    for _ in range(_LONGEST):
        if at is None:
            return
        yield Link(rank=int(step.rank[at]), action=step.action(at), late_ns=ended.get(at))
        at = releases.of(at)
