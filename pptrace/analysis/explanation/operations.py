"""What a measurement without actions still tells: communication and computation by rank and name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.timeline.measurement import Summary

__all__ = ["Total", "by_name", "by_rank", "total_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Operations in sum."""

    count: int
    """How many."""
    total_ns: int
    """Their time."""
    size_bytes: int
    """What they moved; 0 where unknown."""


def total_of(operations: Iterable[Summary | Total]) -> Total:
    """Return the sum of operations."""
    listed = list(operations)
    names = [field.name for field in fields(Total)]
    return Total(**{name: sum(getattr(one, name) for one in listed) for name in names})


def by_rank(operations: Sequence[Summary]) -> dict[int, dict[str, Total]]:
    """Return each rank's communication and computation."""
    return {
        rank: {
            name: total_of(one for one in operations if one.rank == rank and one.communicates == communicates)
            for name, communicates in (("communication", True), ("computation", False))
        }
        for rank in sorted({one.rank for one in operations})
    }


def by_name(operations: Sequence[Summary]) -> dict[str, Total]:
    """Return operations of all ranks by name, the longest in sum first."""
    named: dict[str, list[Summary]] = {}
    for one in operations:
        named.setdefault(one.what, []).append(one)
    totals = {what: total_of(members) for what, members in named.items()}
    return dict(sorted(totals.items(), key=lambda item: (-item[1].total_ns, item[0])))
