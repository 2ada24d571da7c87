"""The idealised table: which rank does what in which slot, with unit costs and messages that take no time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import COMPUTE, PER_STAGE, Kind
from pptrace.model.columns import Int8s, Int32s, Int64s, column

if TYPE_CHECKING:
    from pptrace.model.placement import Placement

__all__ = ["Costs", "Grid"]

_COLUMNS = ("rank", "stage", "unit", "span")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """How many units of time an action of one unit takes.

    >>> Costs(forward=2, backward=5).halves
    (3, 2)
    """

    forward: int = 1
    """A forward, or one computed again."""
    backward: int = 2
    """A full backward."""

    @property
    def halves(self) -> tuple[int, int]:
        """Return what the input gradient and the weight gradient take of a backward."""
        return self.backward - self.backward // 2, self.backward // 2

    def of(self, kind: int, span: int = 1) -> int:
        """Return how long an action takes; what does not compute takes no time."""
        halves = {Kind.I: self.halves[0], Kind.W: self.halves[1]}
        by_kind = {Kind.F: self.forward, Kind.RECOMPUTE: self.forward, Kind.B: self.backward, **halves}
        return by_kind.get(Kind(kind), 0) * span


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Cells sorted by rank, then by slot."""

    placement: Placement
    """Where each stage of each unit's route is."""
    rank: Int32s
    """Rank of each cell, as the columns below shape (cells,)."""
    start: Int64s
    """First slot."""
    length: Int64s
    """Number of slots."""
    kind: Int8s
    """:class:`~pptrace.model.action.Kind`."""
    stage: Int32s
    """Stage."""
    unit: Int32s
    """First unit, -1 for none."""
    span: Int32s
    """Number of units."""
    marked: Int8s
    """1 for a cell that is at fault, else 0."""
    wrong_ranks: tuple[int, ...] = ()
    """Ranks that lack an action."""

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            object.__setattr__(self, name, column(getattr(self, name), np.int32))
        for name in ("start", "length"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))
        for name in ("kind", "marked"):
            object.__setattr__(self, name, column(getattr(self, name), np.int8))

    def __len__(self) -> int:
        return int(self.kind.size)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.placement.ranks

    @property
    def slots(self) -> int:
        """Number of slots from the first action to the last one's end."""
        return int((self.start + self.length).max(initial=0))

    @property
    def busy(self) -> int:
        """Slots of all ranks in which something is computed."""
        return int(self.length[np.isin(self.kind, [int(kind) for kind in COMPUTE])].sum())

    @property
    def bubble(self) -> Fraction:
        """Slots in which a rank computes nothing, over all."""
        whole = self.ranks * self.slots
        return Fraction(whole - self.busy, whole) if whole else Fraction(0)

    def chunk(self) -> Int32s:
        """Return each cell's chunk: which of its rank's stages on its route it works on, from 0."""
        held = self.placement.stage_rank
        chunk = np.zeros(held.shape, dtype=np.int32)
        for route in range(held.shape[0]):
            seen = np.zeros(self.placement.ranks, dtype=np.int32)
            for stage, rank in enumerate(held[route].tolist()):
                if rank >= 0:
                    chunk[route, stage] = seen[rank]
                    seen[rank] += 1
        inside = (self.stage >= 0) & (self.stage < self.placement.stages)
        found = np.zeros(len(self), dtype=np.int32)
        found[inside] = chunk[self.route()[inside], self.stage[inside]]
        return found

    def route(self) -> Int32s:
        """Return each cell's route, the first for a cell that belongs to no unit."""
        known = (self.unit >= 0) & (self.unit < self.placement.units)
        route = np.zeros(len(self), dtype=np.int32)
        route[known] = self.placement.unit_route[self.unit[known]]
        return route

    def labels(self, *, stage: bool, kind: bool) -> list[str]:
        """Return each cell's text: the unit, with the stage and the kind before it where asked for."""
        per_stage = {int(k) for k in PER_STAGE}
        texts = []
        for k, s, u, n in zip(*(getattr(self, c).tolist() for c in ("kind", *_COLUMNS[1:])), strict=True):
            text = f"{s if stage else ''}{Kind(k).name if kind else ''}"
            if k in per_stage:
                texts.append(text or Kind(k).name)
            else:
                texts.append(f"{text}{u}{f'+{n}' if n > 1 else ''}")
        return texts
