"""The order in which ranks issue actions and messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from pptrace.config.choices import Receive
from pptrace.errors import ScheduleError
from pptrace.steps.actions import Cells
from pptrace.steps.dependencies import Issued, empty, explain_deadlock, walk
from pptrace.steps.kernels import tables
from pptrace.steps.kinds import COMMUNICATION, RECEIVES, TABLE, TOWARDS_NEXT
from pptrace.steps.schedule import graph_of
from pptrace_kernel import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule


class Issue(NamedTuple):
    """Calls of an issue order: groups of message sides that a rank launches at once."""

    of_row: Int32s
    """Shape (rows,): call of each side of a message, -1 for other rows."""
    peer: Int32s
    """Shape (rows,): rank at the other side of each message, -1 for other rows."""
    sent: Int32s
    """Shape (ranks x ranks,): number of messages from one rank to another."""
    before: Int32s
    """Shape (calls,): previous call on the rank's communicator, -1 for none."""
    communicator: Int32s
    """Shape (calls,): communicator of each call."""
    waited: Int32s
    """Shape (calls,): first row that waits for each call without using its messages; -1 for none."""
    further: Int8s
    """Shape (calls,): 0 if only that row waits for the call, and uses a message that the call receives."""
    awaited: Int32s
    """Calls that further rows wait for."""
    row: Int32s
    """Those further rows, one per entry of ``awaited``."""
    earlier: Int32s
    """Calls that other calls wait for."""
    later: Int32s
    """The waiting calls, one per entry of ``earlier``."""

    def with_rows(self, source: NDArray[np.integer], begin: NDArray[np.integer]) -> Issue:
        """Return the calls after rows were split or inserted.

        Args:
            source: the original row of each new row.
            begin: the first new row of each original row.
        """
        waited = np.where(self.waited < 0, -1, begin[self.waited]).astype(np.int32)
        return self._replace(
            of_row=self.of_row[source], peer=self.peer[source], waited=waited,
            further=np.ones_like(self.further), row=begin[self.row].astype(np.int32),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IssueOrder(Cells):
    """Actions of a schedule with the sends, and the receives if the policy has any, in issue order."""

    placement: Placement
    """Placement of the schedule."""
    row_ptr: Int32s
    """Shape (ranks + 1,): first row of each rank."""
    edge: Int32s
    """Index into the placement's edges for a message, else -1."""
    calls: Issue | None = None
    """Calls of a message program; None for policies that follow a rule."""

    def selected(self, rows: NDArray[np.integer]) -> Self:
        """Return the given rows in the given order; each stays on its rank."""
        before = np.zeros(len(self) + 1, dtype=np.int32)
        before[rows + 1] = 1
        row_ptr = before.cumsum()[self.row_ptr]
        return replace(self, row_ptr=row_ptr, edge=self.edge[rows], **self.cells.taken(rows)._asdict())

    def with_whole_pairs(self) -> Self:
        """Move messages out of overlapped pairs: receives before the first member, sends after the last."""
        members = np.flatnonzero(self.pair >= 0)
        rank = np.searchsorted(self.row_ptr, members, side="right")
        begins = np.ones(members.size, dtype=bool)
        begins[1:] = (np.diff(self.pair[members]) != 0) | (np.diff(rank) != 0)
        first, last = members[begins], members[np.append(begins[1:], np.ones(min(1, members.size), dtype=bool))]
        rows = np.arange(len(self))
        pair = np.searchsorted(first, rows, side="right") - 1
        between = np.flatnonzero((pair >= 0) & (self.pair < 0))
        between = between[between < last[pair[between]]]
        before = RECEIVES.mask(self.kind[between])
        place, side = rows.copy(), np.zeros(rows.size, dtype=np.int8)
        place[between] = np.where(before, first[pair[between]], last[pair[between]])
        side[between] = np.where(before, -1, 1)
        return self.selected(np.lexsort((side, place))) if between.size else self


def with_sends(schedule: Schedule) -> IssueOrder:
    """Insert each send right after its producer, without receives; sends of the table keep their positions."""
    if schedule.has_communication:
        issued = as_issued(schedule)
        return issued.selected(np.flatnonzero(~RECEIVES.mask(issued.kind)))
    sent, _ = _count_messages(schedule)
    out = empty(len(schedule) + int(sent.sum()), schedule.ranks)
    run(
        tables.insert_sends,
        (schedule.row_ptr, schedule.cells, graph_of(schedule.placement), TABLE),
        out,
        work=len(schedule),
    )
    return _issue_order(schedule.placement, out)


def with_messages(schedule: Schedule, receive: Receive = Receive.ASAP) -> IssueOrder:
    """Insert sends after their producers and receives by the rule ``receive``.

    Messages of the table keep their positions.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    if schedule.has_communication:
        return as_issued(schedule)
    sent, received = _count_messages(schedule)
    lengths = np.diff(schedule.row_ptr) + sent + received
    out = empty(int(lengths.sum()), schedule.ranks)
    out.row_ptr[1:] = np.cumsum(lengths)
    walked, _ = walk(schedule, out)
    if walked < len(schedule):
        raise explain_deadlock(schedule)
    issued = _issue_order(schedule.placement, out)
    return _defer_receives(issued) if receive is Receive.DEFERRED else issued


def as_issued(schedule: Schedule) -> IssueOrder:
    """Return the issue order of a table that contains its messages.

    Raises:
        ScheduleError: the stages are not a chain, so that the peers of messages are unknown.
    """
    if not schedule.placement.is_chain and schedule.has_communication:
        raise ScheduleError("a table with messages needs stages in a chain")
    edge = np.full(len(schedule), -1, dtype=np.int32)
    down = TOWARDS_NEXT.mask(schedule.kind)
    up = COMMUNICATION.mask(schedule.kind) & ~down
    edge[down] = schedule.stage[down]
    edge[up] = schedule.stage[up] - 1
    return IssueOrder(
        placement=schedule.placement, row_ptr=schedule.row_ptr, edge=edge, **schedule.cells._asdict()
    )


def _issue_order(placement: Placement, columns: Issued) -> IssueOrder:
    return IssueOrder(placement=placement, row_ptr=columns.row_ptr, edge=columns.edge, **columns.cells._asdict())


def _count_messages(schedule: Schedule) -> tuple[Int32s, Int32s]:
    sent = np.zeros(schedule.ranks, dtype=np.int32)
    received = np.zeros(schedule.ranks, dtype=np.int32)
    run(
        tables.count_messages,
        (schedule.row_ptr, schedule.cells, graph_of(schedule.placement), TABLE),
        (sent, received),
        work=len(schedule),
    )
    return sent, received


def _defer_receives(issued: IssueOrder) -> IssueOrder:
    longest = int(np.diff(issued.row_ptr).max(initial=0))
    order = np.zeros(len(issued), dtype=np.int32)
    orphans = run(
        tables.defer_receives,
        (issued.row_ptr, issued.cells, issued.edge, graph_of(issued.placement), TABLE),
        (np.zeros(longest, dtype=np.int32), order),
        work=len(issued),
    )
    if orphans:
        raise ScheduleError(f"{orphans} receives have no consumer")
    return issued.selected(order)
