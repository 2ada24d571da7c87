"""The chain of computations that a step's end waited for, found from ends alone, measured ones too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.model.action import Kind
from pptrace.stepdiff.findings import action_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.stepdiff.times import Performed

__all__ = ["BETWEEN", "Chain", "Parted", "chain_of", "makers", "parted", "released_by"]

BETWEEN = "between actions"
"""Time on the path in which no computation of it ran: messages on their way, gaps of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The computations on the path, first to last."""

    positions: tuple[int, ...]
    """Their positions in the step."""
    by_kind_ns: Mapping[str, int]
    """Their time by kind, and what lies between; together the step's pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Where two paths, followed back from their ends, part."""

    common: int
    """How many computations they share at the end."""
    first: str
    """What comes before those in the first step; empty for its beginning."""
    second: str
    """What comes before in the second."""


def chain_of(step: Performed) -> Chain:
    """Follow back, from the computation that ends last, what released each: whichever of its inputs ended last."""
    if not len(step):
        return Chain(positions=(), by_kind_ns={})
    producers = makers(step)
    at: int | None = int(step.end_ns.argmax())
    found: list[int] = []
    while at is not None:
        found.append(at)
        at = released_by(step, at, producers)
    found.reverse()
    by_kind: dict[str, int] = {}
    for index in found:
        kind = Kind(int(step.kind[index])).name
        by_kind[kind] = by_kind.get(kind, 0) + int(step.end_ns[index] - step.start_ns[index])
    whole = int(step.end_ns[found[-1]] - step.start_ns.min())
    by_kind[BETWEEN] = whole - sum(by_kind.values())
    return Chain(positions=tuple(found), by_kind_ns=by_kind)


def parted(a: Performed, b: Performed, chains: tuple[Chain, Chain]) -> Parted | None:
    """Return where two steps' paths part; None where they are the same."""
    told = [
        [f"rank {step.rank[i]}: {action_at(step, i)}" for i in reversed(chain.positions)]
        for step, chain in zip((a, b), chains, strict=True)
    ]
    common = next(
        (i for i, pair in enumerate(zip(*told, strict=False)) if pair[0] != pair[1]), min(map(len, told))
    )
    if common == len(told[0]) == len(told[1]):
        return None
    first, second = (names[common] if common < len(names) else "" for names in told)
    return Parted(common=common, first=first, second=second)


def makers(step: Performed) -> dict[tuple[bool, int, int], int]:
    """Return the position of what makes each input, by direction, the stage that takes it, and microbatch."""
    made: dict[tuple[bool, int, int], int] = {}
    for index in range(len(step)):
        kind, stage, unit = int(step.kind[index]), int(step.stage[index]), int(step.unit[index])
        if kind <= Kind.I:
            forward = kind == Kind.F
            for each in range(unit, unit + int(step.span[index])):
                made[forward, stage + (1 if forward else -1), each] = index
    return made


def released_by(step: Performed, index: int, producers: Mapping[tuple[bool, int, int], int]) -> int | None:
    """Return what released a computation: the one before it on its rank, or an input's producer."""
    candidates = []
    if index > 0 and step.rank[index - 1] == step.rank[index]:
        candidates.append((int(step.end_ns[index - 1]), index - 1))
    kind, stage, unit = int(step.kind[index]), int(step.stage[index]), int(step.unit[index])
    for each in range(unit, unit + int(step.span[index])) if kind <= Kind.I else ():
        producer = producers.get((kind == Kind.F, stage, each))
        if producer is not None and producer != index:
            candidates.append((int(step.end_ns[producer]), producer))
    earlier = [one for one in candidates if one[0] <= step.end_ns[index] and one[1] != index]
    return max(earlier)[1] if earlier else None
