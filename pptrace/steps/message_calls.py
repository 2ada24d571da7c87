"""Batches of messages that a rank issues in one call, by message policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import PluginError
from pptrace.steps.actions import CellColumns
from pptrace.steps.columns import empty_columns, unset
from pptrace.steps.issue_order import Issue, IssueOrder
from pptrace.steps.kernels import message_calls as kernels
from pptrace.steps.kernels.message_calls import NEVER, TURNS
from pptrace.steps.kinds import TABLE
from pptrace.steps.schedule import graph_of
from pptrace_kernel import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.steps.schedule import Schedule


class _Messages(NamedTuple):
    """The messages of a table, by producer."""

    producer: Int32s
    consumer: Int32s
    source: Int32s
    target: Int32s
    edge: Int32s
    way: Int8s


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """What a message policy places: a table's actions, and the messages between them as columns."""

    schedule: Schedule
    """The table, its epilogue included; no messages in it."""
    producer: Int32s
    """Shape (messages,): the position of the action whose result each message carries."""
    consumer: Int32s
    """The position of the action that needs it."""
    source: Int32s
    """The rank that sends it."""
    target: Int32s
    """The rank that receives it."""
    gradient: NDArray[np.bool_]
    """Whether it carries a gradient, against the direction of the stages."""

    def before(self, rows: NDArray[np.integer]) -> Int64s:
        """Return the moments right before some positions of the table, turn 0."""
        return np.asarray(rows + self._rank(rows)) * TURNS

    def behind(self, rows: NDArray[np.integer]) -> Int64s:
        """Return the moments right behind some positions of the table, turn 0."""
        return np.asarray(rows + self._rank(rows) + 1) * TURNS

    def _rank(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        ranks = np.repeat(np.arange(self.schedule.ranks), np.diff(self.schedule.row_ptr))
        return np.asarray(ranks[rows], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCalls:
    """Where each message is sent, received and waited for; columns of one moment per message.

    A moment is a place between two actions of a rank, as :meth:`MessageRequest.before` and
    :meth:`MessageRequest.behind` give it, plus a turn below :attr:`MOST_TURNS`. What one rank issues at one
    moment on one communicator is one call: it begins behind its rank's computation so far and the calls before
    it on its communicator, each of its messages when the calls at both its ends have begun; it ends with its
    last message. Messages from one rank to another run in the order in which they are sent, whatever carries
    them.
    """

    send: Int64s
    """When the sender's call is launched: behind the producer."""
    receive: Int64s
    """When the receiver's is: before the consumer."""
    send_waited: Int64s | None = None
    """From when on the sender's computation waits for its call; -1, or None for all, where it never does."""
    receive_waited: Int64s | None = None
    """The same of the receiver's; the consumer waits for the whole call in any case."""
    communicator: Int32s | None = None
    """Number from 0 of the communicator that carries it; a rank's calls on one follow one another. None: one."""
    MOST_TURNS: ClassVar[int] = TURNS
    """Turns between two actions: calls that a program may launch there one after the other."""


Program: TypeAlias = Callable[[MessageRequest], "MessageCalls | Plan"]
"""Says how a program issues a table's messages; the core alone returns a plan, which it has checked."""


class _Ends(NamedTuple):
    """Both ends of every message in the order in which they are issued."""

    first: Int32s
    """Shape (slots + 1,): where each slot's ends begin."""
    order: Int32s
    key: Int32s
    """Turn and communicator of each: ends of one slot and key are one call."""


class _Waits(NamedTuple):
    """Which waits for which."""

    source: Int32s
    target: Int32s


def in_calls(schedule: Schedule, program: Program, name: str, made_at: Int32s | None = None) -> IssueOrder:
    """Return a table's issue order with its messages where a program issues them.

    Args:
        schedule: the table.
        program: says where.
        name: what messages call the program's policy.
        made_at: where each stage makes each microbatch's activation, then its gradient, where that is known.

    Raises:
        PluginError: the program's moments cannot be; see :func:`~pptrace.steps.message_calls.checked_calls`.
    """
    messages, sent = _listed(schedule, made_at)
    request = MessageRequest(
        schedule=schedule, producer=messages.producer, consumer=messages.consumer, source=messages.source,
        target=messages.target, gradient=messages.way.astype(bool),
    )  # fmt: skip
    return _issued(schedule, messages, sent, checked_calls(request, program(request), name))


def _listed(schedule: Schedule, made_at: Int32s | None) -> tuple[_Messages, Int32s]:
    """Return a table's messages, and how many one rank sends to another, shape (ranks x ranks,)."""
    graph = graph_of(schedule.placement)
    widest = int(max(np.diff(graph.succ_ptr).max(initial=0), np.diff(graph.pred_ptr).max(initial=0)))
    out = _Messages(
        *empty_columns(len(schedule) * widest, *[np.int32] * 5, np.int8)
    )  # what is not needed is not touched
    if made_at is None:
        made_at = unset(2 * graph.stages * graph.microbatches)
        run(kernels.find_results, (schedule.cells, graph, TABLE), (made_at,), work=len(schedule))
    sent = np.zeros(graph.ranks**2, dtype=np.int32)
    count = run(
        kernels.list_messages,
        (schedule.row_ptr, schedule.cells, graph, TABLE, made_at),
        (sent, out),
        work=len(schedule),
    )
    return _Messages(*(values[:count] for values in out)), sent  # type: ignore[arg-type] # each keeps its dtype


def _issued(schedule: Schedule, messages: _Messages, sent: Int32s, plan: Plan) -> IssueOrder:
    """Put both ends of every message in place."""
    count, ranks = messages.producer.size, schedule.ranks
    plan = _around_pairs(schedule, messages, plan)
    # A power of two, so that kernels take no remainders.
    communicators = 1 << int(plan.communicator.max(initial=0)).bit_length()
    first = np.zeros(len(schedule) + ranks + 1, dtype=np.int32)
    ends = _Ends(first, *empty_columns(2 * count, np.int32, np.int32))
    run(kernels.sort_ends, (plan, communicators), ends, work=len(schedule))
    rows = len(schedule) + 2 * count
    cell_types = (values.dtype.type for values in schedule.cells)
    *cells, edge, peer, of_row = empty_columns(rows, *cell_types, *[np.int32] * 3)
    out = CellColumns(*cells)
    (at,) = empty_columns(len(schedule), np.int32)
    of_end, before, over = empty_columns(2 * count, np.int32, np.int32, np.int32)
    number = run(
        kernels.issue_ends,
        (schedule.row_ptr, schedule.cells, messages, communicators, *ends),
        (out, edge, peer, of_row, at, of_end, before, over, np.empty(communicators, dtype=np.int32)),
        work=len(schedule),
    )
    waited, further, waits, behind = _waits(schedule, messages, plan, ends, communicators, of_end, at, number)
    ends_of = np.diff(first[schedule.row_ptr + np.arange(ranks + 1)])
    issue = Issue(
        of_row=of_row, peer=peer, sent=sent, before=before[:number], communicator=over[:number], waited=waited,
        further=further, awaited=waits.source, row=waits.target, earlier=behind.source, later=behind.target,
    )  # fmt: skip
    row_ptr = (schedule.row_ptr + np.concatenate([[0], np.cumsum(ends_of)])).astype(np.int32)
    return IssueOrder(placement=schedule.placement, row_ptr=row_ptr, edge=edge, calls=issue, **out._asdict())


def _waits(
    schedule: Schedule,
    messages: _Messages,
    plan: Plan,
    ends: _Ends,
    communicators: int,
    of_end: Int32s,
    at: Int32s,
    number: int,
) -> tuple[Int32s, Int8s, _Waits, _Waits]:
    """Return the first row that waits for each call, and whether others may; which those are; which calls do."""
    room, wide = 2 * plan.send.size, int(schedule.span.max(initial=1) > 1)
    rows = _Waits(*empty_columns(room, np.int32, np.int32))
    while True:
        waited, further = unset(number), np.zeros(number, dtype=np.int8)
        later, counted = _Waits(*empty_columns(room, np.int32, np.int32)), np.zeros(2, dtype=np.int64)
        run(
            kernels.wait_for_calls,
            (schedule.row_ptr, schedule.cells, TABLE, messages, plan, communicators, *ends, of_end, at, wide),
            (waited, further, rows, later, counted),
            work=len(schedule),
        )
        if counted[1] <= room:
            found, behind = (
                _Waits(*(side[: counted[0]] for side in rows)),
                _Waits(*(side[: counted[1]] for side in later)),
            )
            return waited, further, found, behind
        room = int(counted[1])  # seldom: more calls wait for calls than messages have ends


def _around_pairs(schedule: Schedule, messages: _Messages, plan: Plan) -> Plan:
    """Move calls inside an overlapped pair after the pair, or before it if a member depends on them."""
    if not (schedule.pair >= 0).any():
        return plan
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))
    inside = np.zeros(len(schedule) + schedule.ranks, dtype=bool)
    rows = 1 + np.flatnonzero((schedule.pair[1:] >= 0) & (np.diff(schedule.pair) == 0) & (np.diff(rank) == 0))
    inside[rows + rank[rows]] = True
    place = np.arange(inside.size)
    before = np.maximum.accumulate(np.where(inside, 0, place))
    behind = np.minimum.accumulate(np.where(inside, inside.size, place)[::-1])[::-1]

    def moved(moment: Int64s, to: NDArray[np.integer]) -> Int64s:
        return np.where(moment < 0, moment, to[moment // TURNS] * TURNS + moment % TURNS)

    needed = before[messages.consumer + messages.target] * TURNS + TURNS - 1
    waited = np.where(plan.receive_waited < 0, needed, plan.receive_waited)
    receive, waited = (
        np.where(moved(moment, behind) <= needed, moved(moment, behind), moved(moment, before))
        for moment in (plan.receive, waited)
    )
    return plan._replace(
        send=moved(plan.send, behind), send_waited=moved(plan.send_waited, behind),
        receive=receive, receive_waited=waited,
    )  # fmt: skip


_WAIT = "a wait is not before its call nor behind its rank's end"
_LAWS = (
    ("the send of {}'s result on rank {}", "a send is behind its producer"),
    ("the receive of {}'s result on rank {}", "a receive is before its consumer"),
    ("the wait for the send of {}'s result on rank {}", _WAIT),
    ("the wait for the receive of {}'s result on rank {}", _WAIT),
)


class Plan(NamedTuple):
    """A program's moments, each of its columns there."""

    send: Int64s
    receive: Int64s
    send_waited: Int64s
    receive_waited: Int64s
    communicator: Int32s
    """Empty where there is one."""


class _CheckedEnds(NamedTuple):
    """Both ends of each message."""

    producer: Int32s
    consumer: Int32s
    source: Int32s
    target: Int32s


def checked_calls(request: MessageRequest, calls: object, name: str) -> Plan:
    """Return a program's moments as columns.

    Args:
        request: what the program was asked.
        calls: its answer; a plan is one that was checked.
        name: what messages call the program's policy.

    Raises:
        PluginError: no moments, columns of another shape or of no integers, a send before its producer, a receive
            behind its consumer, a wait before its call or behind its rank's last action, a negative communicator.
    """
    if isinstance(calls, Plan):
        return calls
    count = request.producer.size
    missing = [column for column in ("send", "receive") if getattr(calls, column, None) is None]
    if missing:
        raise PluginError(f"message policy {name!r} returned a {type(calls).__name__} without {missing[0]}")
    columns: dict[str, Any] = {"communicator": np.zeros(0, dtype=np.int32)}
    for column in Plan._fields:
        values = getattr(calls, column, None)
        if values is not None:
            columns[column] = _column(values, column, count, name)
        elif column != "communicator":
            columns[column] = np.full(count, NEVER, dtype=np.int64)
    columns["communicator"] = _numbered(columns["communicator"], name)
    plan = Plan(**columns)
    ends = _CheckedEnds(request.producer, request.consumer, request.source, request.target)
    wrong = run(kernels.find_wrong, (request.schedule.row_ptr, ends, plan), (), work=count) - 1
    if wrong >= 0:
        sort, message = divmod(wrong, count)
        what, law = _LAWS[sort]
        action = request.schedule.action(int(request.producer[message]))
        rank = int((request.target if sort % 2 else request.source)[message])
        raise PluginError(f"message policy {name!r} places {what.format(action, rank)} where it cannot be: {law}")
    return plan


def _column(values: object, column: str, count: int, name: str) -> NDArray[np.integer]:
    """Return one value per message."""
    array = np.asarray(values)
    if array.shape != (count,):
        raise PluginError(f"message policy {name!r} returned {column} of shape {array.shape}, expected {(count,)}")
    if array.dtype.kind not in "iu" and count:
        raise PluginError(f"message policy {name!r} returned {column} of {array.dtype}, expected integers")
    return array if array.dtype == np.int32 else array.astype(np.int64, copy=False)


def _numbered(communicator: NDArray[np.integer], name: str) -> Int32s:
    """Return communicators as numbers below that of the messages, in their order."""
    if communicator.min(initial=0) < 0:
        raise PluginError(f"message policy {name!r} returned a communicator below 0")
    if communicator.max(initial=0) >= max(communicator.size, 1):
        communicator = np.unique(communicator, return_inverse=True)[1]
    return communicator.astype(np.int32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A point-to-point policy with its settings.

    >>> Policy().name.value
    'async'
    """

    name: PolicyName = PolicyName.ASYNC
    """Which policy; ``batched`` for a program's calls, which are batches of its own."""
    receive: Receive | None = None
    """Where receives are put in a table that has none; deferred under ``batched``, else asap, unless given."""
    stream: StreamPer = StreamPer.DIRECTION
    """What has a stream of its own, under ``ordered``."""
    eager_bytes: int = 0
    """Messages up to this size do not wait for their receiver, under ``ordered``; 0 for none at all."""
    program: Program | None = None
    """Says which messages are one call, and where calls are launched and waited for, under ``batched``."""
    title: str = ""
    """The name by which a plugin offers it."""

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.title or str(self.name.value)

    @property
    def placing(self) -> Receive:
        """Where receives are put in a table that has none."""
        return self.receive or (Receive.DEFERRED if self.name is PolicyName.BATCHED else Receive.ASAP)

    @property
    def has_receives(self) -> bool:
        """Whether receives have places of their own."""
        return self.name in {PolicyName.BLOCKING, PolicyName.ORDERED, PolicyName.BATCHED}

    @property
    def blocks(self) -> bool:
        """Whether messages hold the compute streams."""
        return self.name in {PolicyName.BLOCKING, PolicyName.SENDER_BLOCKING}

    @property
    def largest_eager(self) -> int:
        """The largest message that does not wait for its receiver; -1 where every one does."""
        return self.eager_bytes if self.name is PolicyName.ORDERED and self.eager_bytes else -1
