"""Messages as PyTorch's pipelining issues them.

Source: PyTorch 2.13, ``torch/distributed/pipelining/schedules.py``. There a batch of nothing but sends, or of
nothing but receives, is issued as single operations, each on the communicator of its pair of ranks; only a
mixed one is one batch, on the communicator of the whole group.

* ``Schedule1F1B``: a receive is waited for at once; the sends of warm-up and of the end run beside computation,
  each waited for before the next of its kind; where forward and backward take turns, a send and the next receive
  are one batch, waited for at once.
* ``ScheduleGPipe``: receives are waited for at once, sends behind the last forward and the last backward.
* All others run a table with every SEND and RECV in place: each is an operation of its own, a receive is waited
  for by its use, sends at the step's end. That is ``ordered`` with a stream per pair of ranks.

What these classes refuse, ``build`` refuses: ``Schedule1F1B`` fewer microbatches than stages,
``ScheduleInterleavedZeroBubble`` rounds of unequal size, the runtime stages on several ranks, actions of several
microbatches and stages that do not form a chain. One microbatch is in the orders of both 1F1B and GPipe, and
``ScheduleGPipe`` runs it. The other classes' conditions are those of the schedules of the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.plugin import ConstraintError, Kind, MessageCalls, Policy, PolicyName, Receive, StreamPer
from pptrace_frameworks.rows import Ends, cannot, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pptrace.plugin import MessageRequest, Schedule
    from pptrace_frameworks.rows import Ints, Rows

SENT, RECEIVED, TOGETHER = 1, 2, 4
"""Turns between two actions: a send, behind the wait for the one before (turn 0); a receive; a batch."""


class TorchOptions(BaseModel):
    """How PyTorch's pipelining places receives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    receive: Literal["asap", "deferred"] = Field(
        default="asap",
        description="Where the runtime of interleaved, zero-bubble and V schedules puts a receive: as soon as its "
        "send is issued, or right before its use (defer_pp_recv). Schedule1F1B and ScheduleGPipe have places of "
        "their own.",
    )


def build(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Return the policy for a table: a program of its own for 1F1B and GPipe, PyTorch's runtime for all others.

    Raises:
        ConstraintError: a table that PyTorch refuses.
    """
    _check_stages(schedule)
    program = None if schedule.has_communication else _program_of(schedule)
    if program is None:
        return Policy(name=PolicyName.ORDERED, stream=StreamPer.PAIR, receive=Receive(options["receive"]))
    return Policy(name=PolicyName.BATCHED, program=program)


def _check_stages(schedule: Schedule) -> None:
    """Refuse what neither PyTorch's runtime nor a schedule class runs, as ``_validate_schedule`` does.

    Raises:
        ConstraintError: it runs stages or microbatches as they cannot.
    """
    ranks, edges = schedule.placement.stage_rank, schedule.placement.edges
    chain = np.arange(schedule.stages - 1)[:, None] + [0, 1]
    problems = {
        "has a stage on several ranks": (ranks != ranks[0]).any(),
        "has actions of several microbatches": (schedule.span > 1).any(),
        "has stages that do not form a chain": not np.array_equal(np.unique(edges, axis=0), chain),
    }
    for what, is_so in problems.items():
        if is_so:
            raise cannot("torch", what, runs="chains of stages, each stage on one rank")


def _program_of(schedule: Schedule) -> Callable[[MessageRequest], MessageCalls] | None:
    """Return the program of PyTorch's two schedules of one stage a rank, None for other tables.

    Neither splits a backward: a table that does runs in the runtime.

    Raises:
        ConstraintError: microbatches that the class refuses whose order this is.
    """
    rows = _one_chunk_rows(schedule)
    if rows is None:
        return None
    takes_turns = rows.is_warm_up_and_turns(_warm_up(rows))
    if (schedule.kind == Kind.I).any():
        if takes_turns and _is_zero_bubble(schedule, rows):
            _check_rounds(rows)
        return None
    if (rows.leading == rows.count).all():
        return _gpipe
    if takes_turns and rows.count < rows.ranks:
        raise _refused(
            f"Schedule1F1B takes at least as many microbatches as stages, and {rows.count} are fewer than "
            f"{rows.ranks}: give {rows.ranks} or more"
        )
    return _one_f_one_b if takes_turns else None


def _one_chunk_rows(schedule: Schedule) -> Rows | None:
    """Return the rows of a table with stage r alone on rank r, None for other tables."""
    if not np.array_equal(schedule.placement.stage_rank[0], np.arange(schedule.ranks)):
        return None
    try:
        return rows_of(schedule, "torch")
    except ConstraintError:
        return None


def _is_zero_bubble(schedule: Schedule, rows: Rows) -> bool:
    """Whether weight gradients are where ``ScheduleInterleavedZeroBubble`` with one stage per rank has them.

    On rank r, each follows the r-th input gradient after its own, the last r one another at the end.
    """
    weight = np.flatnonzero(schedule.kind == Kind.W)
    if weight.size != rows.backward.size:
        return False
    later = np.arange(rows.count) + np.arange(rows.ranks)[:, None]
    rank, number = np.nonzero(later < rows.count)
    followed = rows.backward[rank, later[rank, number]]
    return np.array_equal(weight.reshape(rows.backward.shape)[rank, number], followed + 1)


def _check_rounds(rows: Rows) -> None:
    """Refuse microbatches that ``ScheduleInterleavedZeroBubble`` cannot divide into rounds.

    Raises:
        ConstraintError: the rounds are of unequal size.
    """
    rounds = max(1, rows.count // rows.ranks)
    if rows.count % rounds:
        raise _refused(
            f"ScheduleInterleavedZeroBubble runs microbatches in rounds of equal size, and {rows.count} do not "
            f"divide into {rounds}: give {rounds * rows.ranks} or {(rounds + 1) * rows.ranks}"
        )


def _refused(why: str) -> ConstraintError:
    return ConstraintError(f"PyTorch's {why}, or use ordered with p2p.stream=pair", key="p2p.policy")


def _warm_up(rows: Rows) -> Ints:
    """Return forwards of each rank before forward and backward take turns, as Megatron counts them."""
    return np.minimum(np.arange(rows.ranks)[::-1], rows.count - 1)


def _communicators(ends: Ends, rows: Rows, together: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return each message's communicator: the group's for batches, else its pair's."""
    pair = np.minimum(ends.source, ends.target)
    return np.where(together, rows.ranks, pair).astype(np.int32)


def _one_f_one_b(request: MessageRequest) -> MessageCalls:
    rows = rows_of(request.schedule, "torch")
    ends = Ends.of(request, rows)
    warm_up = _warm_up(rows)
    # Where the sender takes turns its receiver does too, and the message is part of a batch at both ends.
    steady = rows.count - warm_up[ends.source]
    together = np.where(ends.gradient, ends.made < steady - 1, ends.made >= warm_up[ends.source])
    behind = request.after(request.producer)
    following = np.minimum(ends.made + 1, rows.count - 1)
    next_one = np.where(ends.gradient, rows.backward[ends.source, following], rows.forward[ends.source, following])
    last = ends.gradient & (ends.made == rows.count - 1)
    waited = np.where(last, behind + RECEIVED, request.after(next_one))
    receive = request.before(request.consumer) + np.where(together, TOGETHER, RECEIVED)
    return MessageCalls(
        send=behind + np.where(together, TOGETHER, SENT),
        send_waited=np.where(together, behind + TOGETHER, waited),
        receive=receive, receive_waited=receive, communicator=_communicators(ends, rows, together),
    )  # fmt: skip


def _gpipe(request: MessageRequest) -> MessageCalls:
    rows = rows_of(request.schedule, "torch")
    ends = Ends.of(request, rows)
    last = np.where(ends.gradient, rows.backward[ends.source, -1], rows.forward[ends.source, -1])
    receive = request.before(request.consumer) + RECEIVED
    none = np.zeros(ends.made.size, dtype=bool)
    return MessageCalls(
        send=request.after(request.producer) + SENT, send_waited=request.after(last) + SENT,
        receive=receive, receive_waited=receive, communicator=_communicators(ends, rows, none),
    )  # fmt: skip
