"""Ranks, and the places that are won and lost from one ranking to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.experiment.run import Run

__all__ = ["Ranks", "groups_within", "listed", "moves", "ranked", "uncertainty_of"]

Ranks: TypeAlias = "tuple[int | None, ...]"
"""A rank for each, from 1; None for what takes no part."""


def ranked(values: Sequence[Any]) -> Ranks:
    """Return the rank of each value, the smallest first; equal values share a rank, None has none.

    Values are compared exactly, as fractions or integers.

    >>> ranked([3, 1, None, 3, 7])
    (2, 1, None, 2, 4)
    """
    return tuple(
        None if value is None else 1 + sum(other < value for other in values if other is not None)
        for value in values
    )


def moves(before: Ranks, after: Ranks) -> tuple[int, ...]:
    """Return how many places each won (lost, where negative), among those that take part in both rankings.

    >>> moves((1, 2, None), (2, 1, 3))
    (-1, 1, 0)
    >>> moves((None, 1, 2), (1, 2, 3))
    (0, 0, 0)
    """
    both = [old is not None and new is not None for old, new in zip(before, after, strict=True)]
    old, new = (
        ranked([rank if shared else None for rank, shared in zip(ranks, both, strict=True)])
        for ranks in (before, after)
    )
    return tuple((was or 0) - (now or 0) for was, now in zip(old, new, strict=True))


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def groups_within(values: Sequence[tuple[int, str]], share: float) -> tuple[tuple[str, ...], ...]:
    """Return the largest groups of names whose values are all nearer to each other than a share of the least.

    Args:
        values: values and names, ascending.
        share: the most by which the last of a group may be beyond its first.

    >>> groups_within([(100, "a"), (104, "b"), (108, "c"), (150, "d")], 0.05)
    (('a', 'b'), ('b', 'c'))
    """
    groups: list[tuple[str, ...]] = []
    reached = 0
    for first, (least, _) in enumerate(values):
        end = first + sum(value <= least * (1 + share) for value, _ in values[first:])
        if end > max(reached, first + 1):
            groups.append(tuple(name for _, name in values[first:end]))
        reached = max(reached, end)
    return tuple(groups)


def uncertainty_of(runs: Iterable[Run]) -> float:
    """Return by which share steps may be off, as their costs say (``costs.uncertainty``); 0 where none says."""
    known = [(run.prepared.resolved.to_dict().get("costs") or {}).get("uncertainty") for run in runs]
    return max((float(share) for share in known if share is not None), default=0.0)
