"""Message policies: the order in which ranks issue actions and messages, and messages of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import PluginError, ScheduleError
from pptrace.steps.actions import Cells
from pptrace.steps.columns import empty_columns, unset
from pptrace.steps.dependencies import empty, explain_deadlock, traverse
from pptrace.steps.kernels import message_calls as kernels
from pptrace.steps.kernels import tables
from pptrace.steps.kernels.message_calls import NEVER, TURNS
from pptrace.steps.kinds import COMMUNICATION, RECEIVES, TABLE, TOWARDS_NEXT
from pptrace.steps.schedule import graph_of
from pptrace_kernel import halves, run, run_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule, StageGraph


class CallGroups(NamedTuple):
    """Calls of an issue order: groups of message sides that a rank launches at once."""

    of_row: Int32s
    """Shape (rows,): call of each side of a message, -1 for other rows."""
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

    def with_rows(self, source: NDArray[np.integer], begin: NDArray[np.integer]) -> CallGroups:
        """Return the calls after rows were split or inserted.

        Args:
            source: the original row of each new row.
            begin: the first new row of each original row.
        """
        waited = np.where(self.waited < 0, -1, begin[self.waited]).astype(np.int32)
        return self._replace(
            of_row=self.of_row[source], waited=waited, further=np.ones_like(self.further),
            row=begin[self.row].astype(np.int32),
        )  # fmt: skip


class IssueOrder(Cells, frozen=True, kw_only=True):
    """Actions of a schedule with the sends, and the receives if the policy has any, in issue order."""

    placement: Placement
    """Placement of the schedule."""
    row_ptr: Int32s
    """Shape (ranks + 1,): first row of each rank."""
    edge: Int32s
    """Index into the placement's edges for a message, else -1."""
    peer: Int32s = field(default_factory=lambda: unset(0))
    """Shape (rows,): rank at the other side of each message, -1 for other rows; empty where unknown."""
    sent: Int32s = field(default_factory=lambda: unset(0))
    """Shape (ranks x ranks,): number of messages from one rank to another; empty where unknown."""
    calls: CallGroups | None = None
    """Calls of a message program; None for policies that follow a rule."""

    def selected(self, rows: NDArray[np.integer]) -> Self:
        """Return the given rows in the given order, without peers; each stays on its rank."""
        is_selected = np.zeros(len(self) + 1, dtype=np.int32)
        is_selected[rows + 1] = 1
        row_ptr = is_selected.cumsum()[self.row_ptr]
        none = unset(0)
        return replace(
            self, row_ptr=row_ptr, edge=self.edge[rows], peer=none, sent=none, **self.cells.taken(rows)._asdict()
        )

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
        is_receive = RECEIVES.mask(self.kind[between])
        place, side = rows.copy(), np.zeros(rows.size, dtype=np.int8)
        place[between] = np.where(is_receive, first[pair[between]], last[pair[between]])
        side[between] = np.where(is_receive, -1, 1)
        return self.selected(np.lexsort((side, place))) if between.size else self


def with_sends(schedule: Schedule) -> IssueOrder:
    """Insert each send right after its producer, without receives; sends of the table keep their positions."""
    if schedule.has_communication:
        issued = as_issued(schedule)
        return issued.selected(np.flatnonzero(~RECEIVES.mask(issued.kind)))
    graph = graph_of(schedule.placement)
    most = len(schedule) * (1 + graph.widest)  # unused memory is not touched
    out, (peer,) = empty(schedule, most), empty_columns(most, np.int32)
    inputs = schedule.row_ptr, schedule.cells, graph, TABLE
    for ranks in halves(graph.ranks, work=len(schedule)), [(0, graph.ranks)]:  # again if actions are missing
        sent = np.zeros(schedule.ranks**2, dtype=np.int32)
        starts = [int(schedule.row_ptr[first]) + _count_sends(graph, first) for first, _ in ranks]
        parts = [(first, end, start) for (first, end), start in zip(ranks, starts, strict=True)]
        ends = run_parts(tables.insert_sends, parts, inputs, (*out, peer, sent), work=len(schedule))
        if starts[1:] == ends[:-1]:
            break
    rows = out.row_ptr[-1] = ends[-1]
    cells = {name: values[:rows] for name, values in out.cells._asdict().items()}
    return IssueOrder(
        placement=schedule.placement, row_ptr=out.row_ptr, edge=out.edge[:rows], peer=peer[:rows], sent=sent,
        **cells,
    )  # fmt: skip


def _count_sends(graph: StageGraph, end: int) -> int:
    """Return the messages that ranks ``:end`` send if each stage runs each microbatch forward and backward."""
    rank = graph.stage_rank.reshape(graph.routes, graph.stages)
    source, target = rank[:, graph.edge_from], rank[:, graph.edge_to]
    sends = ((source < end) * 1 + (target < end)) * ((source >= 0) & (target >= 0) & (source != target))
    return int(sends.sum(axis=1) @ np.bincount(graph.microbatch_route, minlength=graph.routes))


def with_messages(schedule: Schedule, receive: Receive = Receive.ASAP) -> IssueOrder:
    """Insert sends after their producers and receives by the rule ``receive``.

    Messages of the table keep their positions.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    if schedule.has_communication:
        return as_issued(schedule)
    sent = with_sends(schedule).sent.reshape(schedule.ranks, schedule.ranks)
    lengths = np.diff(schedule.row_ptr) + sent.sum(axis=0) + sent.sum(axis=1)
    out = empty(schedule, int(lengths.sum()))
    out.row_ptr[1:] = np.cumsum(lengths)
    visited, _ = traverse(schedule, out)
    if visited < len(schedule):
        raise explain_deadlock(schedule)
    issued = IssueOrder(placement=schedule.placement, row_ptr=out.row_ptr, edge=out.edge, **out.cells._asdict())
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


class _Messages(NamedTuple):
    """The messages of a table, by producer."""

    producer: Int32s
    consumer: Int32s
    source: Int32s
    target: Int32s
    edge: Int32s
    direction: Int8s


class MessageRequest(Struct, frozen=True):
    """Input of a message policy: the actions of a table, and the messages between them in columns."""

    schedule: Schedule
    """The table without messages, including its epilogue."""
    producer: Int32s
    """Shape (messages,): position of the action whose result each message carries."""
    consumer: Int32s
    """Position of the action that needs the message."""
    source: Int32s
    """Sending rank."""
    target: Int32s
    """Receiving rank."""
    gradient: NDArray[np.bool_]
    """Whether the message carries a gradient, against the direction of the stages."""

    def before(self, rows: NDArray[np.integer]) -> Int64s:
        """Return the moments right before positions of the table, turn 0."""
        return np.asarray(rows + self.schedule.rank_of_row()[rows], dtype=np.int64) * TURNS

    def after(self, rows: NDArray[np.integer]) -> Int64s:
        """Return the moments right after positions of the table, turn 0."""
        return np.asarray(rows + self.schedule.rank_of_row()[rows] + 1, dtype=np.int64) * TURNS


class MessageCalls(Struct, frozen=True, kw_only=True, eq=False):
    """Moments at which each message is sent, received and waited for; columns of one value per message.

    A moment is a position between two actions of a rank, from :meth:`MessageRequest.before` or
    :meth:`MessageRequest.after`, plus a turn below :attr:`MOST_TURNS`. The sides of messages that a rank issues
    at one moment on one communicator are one call. A call begins after the computation issued before it and the
    previous call of its communicator. A message starts when the calls on both sides have begun. A call ends with
    its last message. Messages from one rank to another run in the order of their sends.
    """

    send: Int64s
    """Moment of the sender's call, after the producer."""
    receive: Int64s
    """Moment of the receiver's call, before the consumer."""
    send_waited: Int64s | None = None
    """Moment from which the sender's computation waits for its call; -1 for never. None: never for all."""
    receive_waited: Int64s | None = None
    """Moment from which the receiver's computation waits for its call; the consumer always waits for it."""
    communicator: Int32s | None = None
    """Index of the communicator; calls of a rank on one communicator run in sequence. None: a single one."""
    MOST_TURNS: ClassVar[int] = TURNS
    """Number of turns between two actions: successive calls that a program can launch there."""


Program: TypeAlias = Callable[[MessageRequest], "MessageCalls | CheckedCalls"]
"""Function that places a table's messages. Only the core returns a checked plan."""


class _Waits(NamedTuple):
    """Pairs of a source and a target that waits for it."""

    source: Int32s
    target: Int32s


def in_calls(schedule: Schedule, program: Program, name: str) -> IssueOrder:
    """Return a table's issue order with messages placed by a program; ``name`` is that of its policy in errors.

    Raises:
        PluginError: a moment is invalid; see :func:`~pptrace.steps.message_calls.checked_calls`.
    """
    messages, sent = _list_messages(schedule)
    request = MessageRequest(
        schedule=schedule, producer=messages.producer, consumer=messages.consumer, source=messages.source,
        target=messages.target, gradient=messages.direction.view(bool),
    )  # fmt: skip
    return _issue_messages(schedule, messages, sent, checked_calls(request, program(request), name))


def _list_messages(schedule: Schedule) -> tuple[_Messages, Int32s]:
    """Return a table's messages, and the number from one rank to another, shape (ranks x ranks,)."""
    graph = graph_of(schedule.placement)
    out = _Messages(
        *empty_columns(len(schedule) * graph.widest, *[np.int32] * 5, np.int8)
    )  # an upper bound; unused memory is not touched
    made_at = unset(2 * graph.stages * graph.microbatches)
    rows = halves(len(schedule), work=len(schedule))
    run_parts(kernels.find_results, rows, (schedule.cells, graph, TABLE), (made_at,), work=len(schedule))
    inputs = schedule.row_ptr, schedule.cells, graph, TABLE, made_at
    for ranks in halves(graph.ranks, work=len(schedule)), [(0, graph.ranks)]:  # again if actions are missing
        sent = np.zeros(graph.ranks**2, dtype=np.int32)
        parts = [(first, end, _count_sends(graph, first)) for first, end in ranks]
        ends = run_parts(kernels.list_messages, parts, inputs, (sent, out), work=len(schedule))
        if [start for _, _, start in parts[1:]] == ends[:-1]:
            break
    count = ends[-1]
    return _Messages(*(values[:count] for values in out)), sent  # type: ignore[arg-type] # each keeps its dtype


def _issue_messages(schedule: Schedule, messages: _Messages, sent: Int32s, plan: CheckedCalls) -> IssueOrder:
    """Return the issue order with both sides of every message."""
    count, ranks, rows = messages.producer.size, schedule.ranks, len(schedule)
    plan = _move_around_pairs(schedule, messages, plan)
    # A power of two, so that kernels need no division.
    communicators = 1 << int(plan.communicator.max(initial=0)).bit_length()
    sends, receives = (sent.reshape(ranks, ranks).sum(axis=axis) for axis in (1, 0))
    send_ptr, end_ptr = (np.concatenate([[0], np.cumsum(ends)]) for ends in (sends, sends + receives))
    parts = halves(ranks, work=rows)
    # The first side of each slot; all sides in issue order; their keys: sides of one slot and key are one call.
    (first,) = empty_columns(rows + ranks + 1, np.int32)
    first[-1] = 2 * count
    order, key, of_end, *waits = empty_columns(2 * count, *[np.int32] * 5)
    calls = run_parts(
        kernels.sort_ends,
        [(rank, end, *send_ptr[[rank, end]].tolist(), int(end_ptr[rank])) for rank, end in parts],
        (schedule.row_ptr, plan, communicators),
        (first, order, key),
        work=rows,
    )
    begins = [
        (rank, end, int(end_ptr[rank]), sum(calls[:number]), number) for number, (rank, end) in enumerate(parts)
    ]
    out, issued = schedule.cells.empty(rows + 2 * count), empty_columns(rows + 2 * count, *[np.int32] * 3)
    (place,), capacity = empty_columns(rows, np.int32), count
    before, over, waited, further = empty_columns(sum(calls), *[np.int32] * 3, np.int8)
    while True:
        between, counted = empty_columns(2 * capacity, np.int32, np.int32), np.zeros(2, dtype=np.int64)
        further_rows = run_parts(
            kernels.issue_ends,
            begins,
            (
                schedule.row_ptr, schedule.cells, TABLE, messages, plan, communicators,
                int(schedule.span.max(initial=1) > 1), first, order, key,
            ),
            (
                out, *issued, place, before, over,
                np.empty(2 * (communicators + _LINES), dtype=np.int32),  # parts write to different lines
                of_end, waited, further, _Waits(*waits), _Waits(*between), counted,
            ),
            work=rows,
        )  # fmt: skip
        if counted.max() <= capacity:
            break
        capacity = int(counted.max())  # rare: more waits between calls than messages
    awaited, row = _joined(waits, [begin for _, _, begin, *_ in begins], further_rows)
    earlier, later = _joined(between, [0, capacity], counted.tolist())
    edge, peer, of_row = issued
    issue = CallGroups(
        of_row=of_row, before=before, communicator=over, waited=waited, further=further, awaited=awaited, row=row,
        earlier=earlier, later=later,
    )  # fmt: skip
    return IssueOrder(
        placement=schedule.placement, row_ptr=(schedule.row_ptr + end_ptr).astype(np.int32), edge=edge, peer=peer,
        sent=sent, calls=issue, **out._asdict(),
    )  # fmt: skip


_LINES = 32
"""Values of two lines of the processor's caches."""


def _joined(columns: Sequence[Int32s], begins: Sequence[int], counts: Sequence[int]) -> list[Int32s]:
    """Return the values that each part of a kernel wrote to columns from its begin on."""
    return [
        np.concatenate([values[begin : begin + n] for begin, n in zip(begins, counts, strict=True)])
        for values in columns
    ]


def _move_around_pairs(schedule: Schedule, messages: _Messages, plan: CheckedCalls) -> CheckedCalls:
    """Move calls inside an overlapped pair after the pair, or before it if a member depends on them."""
    if not schedule.has_pairs:
        return plan
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))
    inside = np.zeros(len(schedule) + schedule.ranks, dtype=bool)
    rows = 1 + np.flatnonzero((schedule.pair[1:] >= 0) & (np.diff(schedule.pair) == 0) & (np.diff(rank) == 0))
    inside[rows + rank[rows]] = True
    place = np.arange(inside.size)
    pair_start = np.maximum.accumulate(np.where(inside, 0, place))
    pair_end = np.minimum.accumulate(np.where(inside, inside.size, place)[::-1])[::-1]

    def moved(moment: Int64s, to: NDArray[np.integer]) -> Int64s:
        return np.where(moment < 0, moment, to[moment // TURNS] * TURNS + moment % TURNS)

    needed = pair_start[messages.consumer + messages.target] * TURNS + TURNS - 1
    waited = np.where(plan.receive_waited < 0, needed, plan.receive_waited)
    receive, waited = (
        np.where(moved(moment, pair_end) <= needed, moved(moment, pair_end), moved(moment, pair_start))
        for moment in (plan.receive, waited)
    )
    return plan._replace(
        send=moved(plan.send, pair_end), send_waited=moved(plan.send_waited, pair_end),
        receive=receive, receive_waited=waited,
    )  # fmt: skip


_WAIT = "a wait is not before its call or after its rank's end"
_RULES = (
    ("the send of {}'s result on rank {}", "a send is after its producer"),
    ("the receive of {}'s result on rank {}", "a receive is before its consumer"),
    ("the wait for the send of {}'s result on rank {}", _WAIT),
    ("the wait for the receive of {}'s result on rank {}", _WAIT),
)


class CheckedCalls(NamedTuple):
    """Checked moments of a program, all columns filled."""

    send: Int64s
    receive: Int64s
    send_waited: Int64s
    receive_waited: Int64s
    communicator: Int32s
    """Empty for a single communicator."""


def checked_calls(request: MessageRequest, calls: object, name: str) -> CheckedCalls:
    """Check the result of a message program and return its columns; ``name`` is that of its policy in errors.

    Raises:
        PluginError: missing moments, an invalid shape or dtype, a send before its producer, a receive after its
            consumer, a wait before its call or after its rank's last action, or a negative communicator.
    """
    if isinstance(calls, CheckedCalls):
        return calls
    count = request.producer.size
    missing = [column for column in ("send", "receive") if getattr(calls, column, None) is None]
    if missing:
        raise PluginError(f"message policy {name!r} returned a {type(calls).__name__} without {missing[0]}")
    columns: dict[str, Any] = {"communicator": np.zeros(0, dtype=np.int32)}
    for column in CheckedCalls._fields:
        values = getattr(calls, column, None)
        if values is not None:
            columns[column] = _column(values, column, count, name)
        elif column != "communicator":
            columns[column] = np.full(count, NEVER, dtype=np.int64)
    columns["communicator"] = _renumber(columns["communicator"], name)
    plan = CheckedCalls(**columns)
    ends = (request.producer, request.consumer, request.source, request.target)
    faults = run_parts(
        kernels.find_invalid, halves(count, work=count), (request.schedule.row_ptr, *ends, plan), (), work=count
    )
    invalid = min(filter(None, faults), default=0) - 1
    if invalid >= 0:
        rule_index, message = divmod(invalid, count)
        subject, rule = _RULES[rule_index]
        action = request.schedule.action(int(request.producer[message]))
        rank = int((request.target if rule_index % 2 else request.source)[message])
        raise PluginError(
            f"message policy {name!r} places {subject.format(action, rank)} where it cannot be: {rule}"
        )
    return plan


def _column(values: object, column: str, count: int, name: str) -> NDArray[np.integer]:
    """Return one value per message."""
    array = np.asarray(values)
    if array.shape != (count,):
        raise PluginError(f"message policy {name!r} returned {column} of shape {array.shape}, expected {(count,)}")
    if array.dtype.kind not in "iu" and count:
        raise PluginError(f"message policy {name!r} returned {column} of {array.dtype}, expected integers")
    return array if array.dtype == np.int32 else array.astype(np.int64, copy=False)


def _renumber(communicator: NDArray[np.integer], name: str) -> Int32s:
    """Return communicators renumbered in their order, if necessary, to be below the number of messages."""
    if communicator.min(initial=0) < 0:
        raise PluginError(f"message policy {name!r} returned a communicator below 0")
    if communicator.max(initial=0) >= max(communicator.size, 1):
        communicator = np.unique(communicator, return_inverse=True)[1]
    return communicator.astype(np.int32, copy=False)


class Policy(Struct, frozen=True, kw_only=True):
    """A point-to-point policy with its settings.

    >>> Policy().name.value
    'async'
    """

    name: PolicyName = PolicyName.ASYNC
    """Rule for streams and rendezvous; ``batched`` for a program's calls."""
    receive: Receive | None = None
    """Rule for inserting receives; None for the policy's default (``batched``: deferred, else asap)."""
    stream: StreamPer = StreamPer.DIRECTION
    """Messages that share a stream, for ``ordered``."""
    eager_bytes: int = 0
    """The largest message that does not wait for its receiver, for ``ordered``; 0 for none."""
    program: Program | None = None
    """Function that groups messages into calls and places their launches and waits, for ``batched``."""
    lowering: Callable[[Schedule], Schedule] | None = None
    """Function that inserts messages and waits into a table, or moves its waits; None for the rule of ``receive``.
    A policy has no ``program`` then."""
    lookahead: tuple[int, ...] = ()
    """By rank, the number of next stages whose sharded weights are gathered; empty for all that may be."""
    title: str = ""
    """Name of the plugin's offer."""

    @classmethod
    def of(
        cls,
        name: str,
        *,
        receive: str | None = None,
        stream: str = "direction",
        program: Program | None = None,
        lowering: Callable[[Schedule], Schedule] | None = None,
        lookahead: tuple[int, ...] = (),
    ) -> Self:
        """Return a policy from the words of the configuration section ``p2p``.

        >>> Policy.of("ordered", stream="pair").label
        'ordered'
        """
        receives = None if receive is None else Receive(receive)
        return cls(
            name=PolicyName(name), receive=receives, stream=StreamPer(stream), program=program, lowering=lowering,
            lookahead=lookahead,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.title or str(self.name.value)

    @property
    def placing(self) -> Receive:
        """Rule for inserting receives."""
        return self.receive or (Receive.DEFERRED if self.name is PolicyName.BATCHED else Receive.ASAP)

    @property
    def has_receives(self) -> bool:
        """Whether receives are rows of the issue order."""
        return self.name in {PolicyName.BLOCKING, PolicyName.ORDERED, PolicyName.BATCHED}

    @property
    def blocks(self) -> bool:
        """Whether messages occupy the compute streams."""
        return self.name in {PolicyName.BLOCKING, PolicyName.SENDER_BLOCKING}

    @property
    def largest_eager(self) -> int:
        """The largest message that does not wait for its receiver; -1 if all messages wait."""
        return self.eager_bytes if self.name is PolicyName.ORDERED and self.eager_bytes else -1
