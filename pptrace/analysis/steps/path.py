"""The chain of computations that a step's end waited for, found from ends alone, measured ones too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pptrace.analysis.steps.match import same_stages
from pptrace.analysis.steps.releases import releases_of
from pptrace.analysis.steps.times import action_at
from pptrace.model.action import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.steps.times import Performed

__all__ = ["BETWEEN", "MESSAGES", "Chain", "Parted", "chain_of", "parted"]

BETWEEN = "between actions"
"""Time on the path in which nothing of it ran: a rank that does not go on, messages that nobody saw arrive."""
MESSAGES = "messages"
"""Time on the path in which a message was on its way between ranks, as far as a computation waited for it."""


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
    """Follow back, from the computation that ends last, what released each: whichever of its inputs came last."""
    if not len(step):
        return Chain(positions=(), by_kind_ns={})
    releases = releases_of(step)
    at: int | None = int(step.end_ns.argmax())
    found: list[int] = []
    while at is not None:
        found.append(at)
        at = releases.of(at)
    found.reverse()
    by_kind: dict[str, int] = {}
    for index in found:
        kind = Kind(int(step.kind[index])).name
        by_kind[kind] = by_kind.get(kind, 0) + int(step.end_ns[index] - step.start_ns[index])
    whole = int(step.end_ns[found[-1]] - step.start_ns.min())
    sent = sum(releases.waited_ns(before, after) for before, after in pairwise(found))
    if sent:
        by_kind[MESSAGES] = sent
    by_kind[BETWEEN] = whole - sum(by_kind.values())
    return Chain(positions=tuple(found), by_kind_ns=by_kind)


def parted(a: Performed, b: Performed, chains: tuple[Chain, Chain]) -> Parted | None:
    """Return where two steps' paths part; None where they are the same, or stages are not alike."""
    if not same_stages(a, b):
        return None
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
