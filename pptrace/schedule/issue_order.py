"""An issue order is a schedule with its messages in place: what each rank issues, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import Receive
from pptrace.errors import ScheduleError
from pptrace.kernel import run
from pptrace.model.action import Kind
from pptrace.model.columns import Int8s, Int32s, column
from pptrace.schedule.kernels import tables
from pptrace.schedule.neighbours import neighbours

if TYPE_CHECKING:
    from pptrace.model.placement import Placement
    from pptrace.schedule.table import Schedule

__all__ = ["IssueOrder", "Receive", "as_issued", "walk", "with_messages", "with_sends"]

_COLUMNS = ("kind", "stage", "unit", "span", "braid", "edge")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueOrder:
    """A schedule's columns with its sends, and receives where the policy has them, in place."""

    placement: Placement
    """As the schedule's."""
    row_ptr: Int32s
    """Shape (ranks + 1,)."""
    kind: Int8s
    """:class:`~pptrace.model.action.Kind` of each action."""
    stage: Int32s
    """Stage; the sender's for ``SEND_*``, the receiver's for ``RECV_*``."""
    unit: Int32s
    """First unit, -1 for none."""
    span: Int32s
    """Number of units."""
    braid: Int32s
    """Braid number, -1 for an action alone."""
    edge: Int32s
    """Index into the placement's edges for a message, else -1."""

    def __post_init__(self) -> None:
        for name in ("row_ptr", *_COLUMNS):
            object.__setattr__(self, name, column(getattr(self, name), np.int8 if name == "kind" else np.int32))

    def __len__(self) -> int:
        return int(self.kind.size)


def with_sends(schedule: Schedule) -> IssueOrder:
    """Put each send right behind its producer, and no receives; a table's own sends stay where they are."""
    if schedule.has_communication:
        issued = as_issued(schedule)
        receives = np.isin(issued.kind, (Kind.RECV_F, Kind.RECV_B))
        return _select(issued, np.flatnonzero(~receives).astype(np.int32))
    sent, _ = _count(schedule)
    out = _empty(len(schedule) + int(sent.sum()), schedule.ranks)
    placement, near = schedule.placement, neighbours(schedule.placement)
    run(
        tables.insert_sends,
        (*_rows_of(schedule), *near.arguments, placement.stages),
        tuple(out.values()),
        work=len(schedule),
    )
    return IssueOrder(placement=placement, **out)


def with_messages(schedule: Schedule, receive: Receive = Receive.ASAP) -> IssueOrder:
    """Put sends behind their producers and receives where ``receive`` says; a table's own stay.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    if schedule.has_communication:
        return as_issued(schedule)
    sent, received = _count(schedule)
    lengths = np.diff(schedule.row_ptr) + sent + received
    out = _empty(int(lengths.sum()), schedule.ranks)
    out["row_ptr"][1:] = np.cumsum(lengths)
    walked, _ = walk(schedule, out)
    if walked < len(schedule):
        from pptrace.schedule.deadlock import explain_deadlock

        raise explain_deadlock(schedule)
    issued = IssueOrder(placement=schedule.placement, **out)
    return _deferred(issued) if receive is Receive.DEFERRED else issued


def as_issued(schedule: Schedule) -> IssueOrder:
    """Take a table with its own messages as it stands.

    Raises:
        ScheduleError: the stages form no chain, so that a message's other end is not known.
    """
    if not schedule.placement.is_chain and schedule.has_communication:
        raise ScheduleError("a table with messages of its own needs stages in a chain")
    edge = np.full(len(schedule), -1, dtype=np.int32)
    up = np.isin(schedule.kind, (Kind.RECV_F, Kind.SEND_B))
    down = np.isin(schedule.kind, (Kind.SEND_F, Kind.RECV_B))
    edge[down] = schedule.stage[down]
    edge[up] = schedule.stage[up] - 1
    return IssueOrder(
        placement=schedule.placement, row_ptr=schedule.row_ptr, kind=schedule.kind, stage=schedule.stage,
        unit=schedule.unit, span=schedule.span, braid=schedule.braid, edge=edge,
    )  # fmt: skip


def walk(schedule: Schedule, out: dict[str, np.ndarray] | None = None) -> tuple[int, Int32s]:
    """Walk the ranks in rounds; return the actions walked and each rank's next position.

    With ``out`` (its ``row_ptr`` set), the actions and their messages are written there.
    """
    placement, near = schedule.placement, neighbours(schedule.placement)
    emit = out is not None
    columns = out or _empty(0, schedule.ranks)
    cells = placement.stages * placement.units
    head = np.zeros(schedule.ranks, dtype=np.int32)
    scratch = (head, head.copy(), np.zeros(cells, dtype=np.int8), np.zeros(cells, dtype=np.int8))
    walked = run(
        tables.place_messages,
        (
            *_rows_of(schedule), *near.arguments, placement.stages, placement.units,
            columns["row_ptr"].copy(), int(emit), int(schedule.has_communication),
        ),
        (*scratch, *(columns[name] for name in _COLUMNS)),
        work=len(schedule),
    )  # fmt: skip
    return walked, head


def _rows_of(schedule: Schedule) -> tuple[np.ndarray, ...]:
    placement = schedule.placement
    return (
        schedule.row_ptr, schedule.kind, schedule.stage, schedule.unit, schedule.span, schedule.braid,
        placement.stage_rank.ravel(), placement.unit_route,
    )  # fmt: skip


def _count(schedule: Schedule) -> tuple[Int32s, Int32s]:
    placement, near = schedule.placement, neighbours(schedule.placement)
    sent = np.zeros(schedule.ranks, dtype=np.int32)
    received = np.zeros(schedule.ranks, dtype=np.int32)
    run(
        tables.count_messages,
        (
            schedule.row_ptr, schedule.kind, schedule.stage, schedule.unit,
            placement.stage_rank.ravel(), placement.unit_route,
            near.succ_ptr, near.succ, near.pred_ptr, near.pred, placement.stages,
        ),
        (sent, received),
        work=len(schedule),
    )  # fmt: skip
    return sent, received


def _empty(rows: int, ranks: int) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {"row_ptr": np.zeros(ranks + 1, dtype=np.int32)}
    out["kind"] = np.empty(rows, dtype=np.int8)
    for name in _COLUMNS[1:]:
        out[name] = np.empty(rows, dtype=np.int32)
    return out


def _deferred(issued: IssueOrder) -> IssueOrder:
    placement = issued.placement
    longest = int(np.diff(issued.row_ptr).max(initial=0))
    order = np.zeros(len(issued), dtype=np.int32)
    orphans = run(
        tables.defer_receives,
        (
            issued.row_ptr, issued.kind, issued.stage, issued.unit, issued.span, issued.braid, issued.edge,
            placement.edges[:, 0].copy(), placement.edges[:, 1].copy(),
            placement.stage_rank.ravel(), placement.unit_route, placement.stages,
        ),
        (np.zeros(longest, dtype=np.int32), order),
        work=len(issued),
    )  # fmt: skip
    if orphans:
        raise ScheduleError(f"{orphans} receives have no consumer")
    return _select(issued, order, row_ptr=issued.row_ptr)


def _select(issued: IssueOrder, rows: Int32s, row_ptr: Int32s | None = None) -> IssueOrder:
    if row_ptr is None:
        row_ptr = np.searchsorted(rows, issued.row_ptr).astype(np.int32)
    return IssueOrder(
        placement=issued.placement,
        row_ptr=row_ptr,
        **{name: getattr(issued, name)[rows] for name in _COLUMNS},
    )
