"""A slow second implementation of where messages go in a table, written from the rules' words."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from pptrace.network.contract import Flat
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload

__all__ = ["SENDS", "Cell", "Item", "Step", "as_actions", "partner", "place_asap", "place_deferred", "place_sends"]

SENDS, RECEIVES, GRADIENTS = {Kind.SEND_F, Kind.SEND_B}, {Kind.RECV_F, Kind.RECV_B}, {Kind.B, Kind.I}
_OTHER_END = {
    Kind.SEND_F: Kind.RECV_F, Kind.RECV_F: Kind.SEND_F, Kind.SEND_B: Kind.RECV_B, Kind.RECV_B: Kind.SEND_B,
}  # fmt: skip


class Cell(NamedTuple):
    """An action, as a value that can be looked up; its span is the same on all stages."""

    kind: Kind
    stage: int
    microbatch: int
    span: int


Item: TypeAlias = tuple[Cell, ...]
"""The members of an overlapped pair, or one action alone."""


@dataclass(frozen=True)
class Step:
    """A schedule with its costs."""

    schedule: Schedule
    workload: Workload
    network: Flat

    @property
    def stages(self) -> int:
        return self.schedule.stages

    def rank(self, stage: int, microbatch: int) -> int:
        return self.schedule.placement.rank_of(stage, microbatch)

    def rows(self) -> list[list[Item]]:
        return [
            [
                tuple(Cell(a.kind, a.stage, a.microbatch, a.span) for a in (item.sub_actions or (item,)))
                for item in row
            ]
            for row in (self.schedule[rank] for rank in range(self.schedule.ranks))
        ]

    def source(self, cell: Cell) -> Cell | None:
        """Return what a compute action needs of its neighbouring stage, as F or B; None for nothing."""
        if cell.kind is not Kind.F and cell.kind not in GRADIENTS:
            return None
        kind, stage = (Kind.F, cell.stage - 1) if cell.kind is Kind.F else (Kind.B, cell.stage + 1)
        return Cell(kind, stage, cell.microbatch, cell.span) if 0 <= stage < self.stages else None

    def message(self, cell: Cell) -> tuple[Cell, Cell] | None:
        """Return the SEND and the RECV of a compute action's result; None where it stays on its rank."""
        if cell.kind is not Kind.F and cell.kind not in GRADIENTS:
            return None
        send = cell._replace(kind=Kind.SEND_F if cell.kind is Kind.F else Kind.SEND_B)
        receive = partner(send)
        if not 0 <= receive.stage < self.stages:
            return None
        away = self.rank(receive.stage, cell.microbatch) != self.rank(cell.stage, cell.microbatch)
        return (send, receive) if away else None


def partner(cell: Cell) -> Cell:
    """Return a SEND's RECV, or a RECV's SEND."""
    shift = 1 if cell.kind in {Kind.SEND_F, Kind.RECV_B} else -1
    return cell._replace(kind=_OTHER_END[cell.kind], stage=cell.stage + shift)


def as_actions(rows: list[list[Item]]) -> list[list[Action | str | None]]:
    """Return rows as a table is built from."""

    def action(item: Item) -> Action:
        members = tuple(Action(kind=c.kind, stage=c.stage, microbatch=c.microbatch, span=c.span) for c in item)
        if len(members) == 1:
            return members[0]
        first = members[0]
        return Action(
            kind=first.kind, stage=first.stage, microbatch=first.microbatch, span=first.span, sub_actions=members
        )

    return [[action(item) for item in row] for row in rows]


def place_sends(step: Step) -> list[list[Item]]:
    """Put each SEND right behind its producer, and no RECV."""
    rows: list[list[Item]] = []
    for row in step.rows():
        rows.append([])
        for cell in (cell for item in row for cell in item):
            rows[-1] += [(cell,), *([(ends[0],)] if (ends := step.message(cell)) else [])]
    return rows


def place_asap(step: Step) -> list[list[Item]]:
    """Walk the ranks in rounds, an item each; both ends of its messages are placed behind it at once."""
    waiting = [deque(row) for row in step.rows()]
    placed: list[list[Item]] = [[] for _ in waiting]
    done: set[Cell] = set()
    while any(waiting):
        for rank, row in enumerate(waiting):
            if not row or any(need not in done for cell in row[0] if (need := step.source(cell))):
                continue
            item = row.popleft()
            placed[rank].append(item)
            for cell in item:
                done.add(cell._replace(kind=Kind.B) if cell.kind in GRADIENTS else cell)
                if ends := step.message(cell):
                    placed[rank].append((ends[0],))
                    placed[step.rank(ends[1].stage, cell.microbatch)].append((ends[1],))
    return placed


def place_deferred(step: Step) -> list[list[Item]]:
    """Move each RECV right before its consumer, a pair's in its members' order.

    A rank below its peer receives before it sends to it.
    """
    placed: list[list[Item]] = []
    for rank, row in enumerate(place_asap(step)):
        moved: list[Item] = []
        held: list[Cell] = []
        for item in row:
            first = item[0]
            if first.kind in RECEIVES:
                held.append(first)
                continue
            if first.kind in SENDS:
                peer = step.rank(partner(first).stage, first.microbatch)
                now = [r for r in held if rank < peer == step.rank(partner(r).stage, r.microbatch)]
            else:
                now = [r for cell in item for r in held if feeds(r, cell)]
            held = [r for r in held if r not in now]
            moved += [*((r,) for r in now), item]
        placed.append(moved)
    return placed


def feeds(receive: Cell, cell: Cell) -> bool:
    """Say whether a RECV brings what a compute action needs."""
    kinds = {Kind.F} if receive.kind is Kind.RECV_F else GRADIENTS
    return cell.kind in kinds and receive[1:] == cell[1:]
