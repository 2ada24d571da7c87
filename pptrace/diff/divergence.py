"""Where two steps part: the first action that is off by itself, and the chain that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.diff.findings import action_at

if TYPE_CHECKING:
    from pptrace.diff.match import Matched
    from pptrace.diff.times import Performed
    from pptrace.model.action import Action

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
    chain: tuple[str, ...]
    """The actions that released it, one after another, the last one first."""


def first_divergence(a: Performed, b: Performed, matched: Matched, tolerance: float) -> Divergence | None:
    """Return the first computation that ends off by more than the tolerance of its own time.

    None where all end in time.
    """
    if not len(matched):
        return None
    begin_a, begin_b = int(a.start_ns.min()), int(b.start_ns.min())
    late = (b.end_ns[matched.second] - begin_b) - (a.end_ns[matched.first] - begin_a)
    allowed = tolerance * a.duration_ns[matched.first]
    off = abs(late) > allowed
    if not off.any():
        return None
    at = int(off.argmax())
    i, j = int(matched.first[at]), int(matched.second[at])
    return Divergence(
        rank=int(b.rank[j]), action=action_at(b, j), at_ns=int(b.start_ns[j]) - begin_b, late_ns=int(late[at]),
        own_ns=int(b.duration_ns[j] - a.duration_ns[i]), chain=_chain(b, j),
    )  # fmt: skip


def _chain(step: Performed, index: int) -> tuple[str, ...]:
    """Return what released an action, link by link: the one before it, or its input's producer."""
    producers = _producers(step)
    found: list[str] = []
    while len(found) < _LONGEST:
        candidates = []
        if index > 0 and step.rank[index - 1] == step.rank[index]:
            candidates.append((int(step.end_ns[index - 1]), index - 1))
        producer = producers.get((int(step.kind[index]) == 0, int(step.stage[index]), int(step.unit[index])))
        if producer is not None:
            candidates.append((int(step.end_ns[producer]), producer))
        if not candidates:
            break
        _, index = max(candidates)
        found.append(f"rank {step.rank[index]}: {action_at(step, index)}")
    return tuple(found)


def _producers(step: Performed) -> dict[tuple[bool, int, int], int]:
    """Return, for whatever takes an input, the position of what makes it."""
    made: dict[tuple[bool, int, int], int] = {}
    for index in range(len(step)):
        kind, stage, unit = int(step.kind[index]), int(step.stage[index]), int(step.unit[index])
        forward = kind == 0
        if kind in {0, 1, 2}:
            made[forward, stage + (1 if forward else -1), unit] = index
    return made
