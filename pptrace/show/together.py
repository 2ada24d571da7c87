"""Overlapped pairs in pictures: a frame, a band per member, and in it the turns at which the member computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pptrace.model.kinds import Kind
    from pptrace.show.slots import Cell, Drawing

__all__ = ["Together", "note", "pairs_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """An overlapped pair in the picture."""

    members: tuple[Cell, ...]
    """Its cells, in order: the first is drawn uppermost."""
    turns: tuple[tuple[tuple[float, float], ...], ...]
    """By member, when it computes: from which slot on, and for how many."""

    @property
    def start(self) -> int:
        """Its first slot."""
        return min(cell.start for cell in self.members)

    @property
    def length(self) -> int:
        """Its slots, gaps included."""
        return max(cell.start + cell.length for cell in self.members) - self.start


def pairs_of(drawing: Drawing) -> list[Together]:
    """Return the pairs of which two members or more are in the picture, and none is wrong."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in drawing.cells:
        if cell.pair >= 0:
            found.setdefault((cell.rank, cell.pair), []).append(cell)
    return [
        Together(members=tuple(cells), turns=_turns(cells, drawing.orders))
        for cells in found.values()
        if len(cells) > 1 and not any(cell.marked for cell in cells)
    ]


def note(drawing: Drawing, mark: str = "framed") -> str:
    """Return what a reader is to know of pairs and how they are marked; nothing where there are none."""
    kinds = {tuple(cell.action.kind for cell in pair.members) for pair in pairs_of(drawing)}
    if not kinds:
        return ""
    orders = []
    for pair in sorted(kinds.intersection(drawing.orders)):
        turns = " ".join(pair[member].name for member in drawing.orders[pair])
        orders.append(f"{'&'.join(kind.name for kind in pair)} computes by turns {turns}")
    return "; ".join([f"overlapped pairs are {mark}", *orders])


def _turns(
    cells: Iterable[Cell], orders: Mapping[tuple[Kind, ...], tuple[int, ...]]
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Return when each member computes: by turns where an order is known and nothing waits in between."""
    members = list(cells)
    order = orders.get(tuple(cell.action.kind for cell in members), ())
    start = min(cell.start for cell in members)
    whole = sum(cell.length for cell in members)
    gaps = max(cell.start + cell.length for cell in members) - start != whole
    if gaps or set(order) != set(range(len(members))):
        return tuple(((float(cell.start), float(cell.length)),) for cell in members)
    parts = [members[member].length / order.count(member) for member in range(len(members))]
    found: list[list[tuple[float, float]]] = [[] for _ in members]
    at = float(start)
    for member in order:
        found[member].append((at, parts[member]))
        at += parts[member]
    return tuple(map(tuple, found))
