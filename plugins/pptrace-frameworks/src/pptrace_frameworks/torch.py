"""Messages as PyTorch's pipelining issues them.

Source: PyTorch 2.13 and 2.15, ``torch/distributed/pipelining/schedules.py``. PyTorch issues a batch of sends
alone, or of receives alone, as single operations on the communicator of each pair of ranks. A batch of sends and
receives is one batch on the communicator of the group.

* ``Schedule1F1B``: receives are blocking. The sends of warm-up and drain overlap with computation; each completes
  before the next send of its kind. In steady state, a send and the next receive are one blocking batch.
* ``ScheduleGPipe``: receives are blocking; ranks wait for sends after the last forward and the last backward.
* All other classes run a table with explicit SEND and RECV. Each is a separate operation. A receive completes
  before its use, sends complete at the end of the step. That is ``ordered`` with a stream per pair of ranks.
  ``lower`` describes the places of messages.
* The runtime of 2.15 has explicit waits for sends and reductions. That of 2.13 waits for a reduction inside it.
* The runtime also runs the orders of 1F1B and GPipe, if a program loads them as a table (``_load_csv``). It alone
  has ``unshard_lookahead``, ``defer_reduce_grad_wait`` and ``max_outstanding_sends``.
* With communicators per edge (2.15, ``torch.distributed.config.pipeline_per_edge_p2p``), each direction of a pair
  of ranks has its own communicator. A send and a receive are then never one batch.

``build`` refuses the same tables as these classes. ``Schedule1F1B`` refuses fewer microbatches than stages.
``ScheduleInterleavedZeroBubble`` refuses rounds of unequal size. The runtime refuses stages on several ranks,
actions of several microbatches, and stages that do not form a chain. A single microbatch fits the orders of both
1F1B and GPipe; ``ScheduleGPipe`` runs it. All other classes have the conditions of the schedules of the same
names.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from pptrace.plugin import ConstraintError, Kind, Lowering, MessageCalls, Parameters, Policy, insert_messages
from pptrace.steps.pytorch_tables import unsupported_stages
from pptrace_frameworks.rows import Ends, cannot, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import MessageRequest, Schedule
    from pptrace_frameworks.rows import Ints, Rows

SENT, RECEIVED, BATCH = 1, 2, 4
"""Turns between two actions: a send, after the wait for the previous send (turn 0); a receive; a batch."""


_OF_BOTH_RELEASES = ("receive", "table_runtime")
_OF_RUNTIME = ("table_runtime", "unshard_lookahead", "defer_reduce_grad_wait", "max_outstanding_sends")
"""Options with which the runtime runs the orders of 1F1B and GPipe, in place of their classes."""


class TorchOptions(Parameters):
    """How PyTorch's pipelining places receives."""

    receive: Literal["asap", "deferred"] = "asap"
    """Where the runtime of interleaved, zero-bubble and V schedules puts a receive: as soon as its send is issued,
    or right before its use (defer_pp_recv). Schedule1F1B and ScheduleGPipe have fixed positions."""
    table_runtime: bool = False
    """Whether the runtime of tables also runs the orders of 1F1B and GPipe, as for tables of `pptrace torch run`
    and of torchtitan's pipeline_parallel_schedule_csv, and not Schedule1F1B and ScheduleGPipe."""
    version: Literal["2.13", "2.15"] = "2.13"
    """Release of PyTorch whose runtime is followed. In 2.15, computation waits for each send: for a forward's
    after the backward of its microbatch, for all others at the end of the step."""
    max_outstanding_sends: int | None = Field(default=None, ge=1)
    """For version 2.15: most sends of a rank that have begun and that it has not waited for."""
    unshard_lookahead: Literal["full", "auto"] | tuple[Annotated[int, Field(ge=1)], ...] = "full"
    """For version 2.15: number of next stages whose weights each rank gathers, a list with one number per rank;
    auto for rank + 2, full for data_parallel.active_stages, which is also the most."""
    defer_reduce_grad_wait: bool = False
    """For version 2.15: whether a rank waits for the reduction of a stage before its next reduction or at the end
    of the step, and not right after its launch."""
    p2p_per_edge: bool = False
    """For version 2.15: whether each direction of a pair of ranks has its own communicator
    (TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P), and not each pair."""

    @field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, version: object) -> object:
        """Take a version that YAML reads as a number."""
        return str(version) if isinstance(version, float) else version


def build(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Return the policy for a table: a separate program for 1F1B and GPipe, else PyTorch's runtime.

    Raises:
        ConstraintError: a table that PyTorch refuses, or an option that its version lacks.
    """
    _check_stages(schedule)
    has_waits, per_edge = options["version"] == "2.15", options["p2p_per_edge"]
    written = [name for name, field in TorchOptions.model_fields.items() if options[name] != field.default]
    _check_options(schedule, written, has_waits=has_waits)
    _check_waits(schedule, has_waits=has_waits)
    lookahead = _lookahead(schedule, options["unshard_lookahead"])
    if not schedule.has_communication and not any(name in written for name in _OF_RUNTIME):
        program = _program_of(schedule)
        if program is not None:
            return Policy.of("batched", program=partial(program, per_edge=per_edge))
    lowering = Lowering(
        receive=options["receive"], waits=has_waits, lookahead=lookahead,
        defers_reduction_waits=options["defer_reduce_grad_wait"],
        max_pending_sends=options["max_outstanding_sends"],
    )  # fmt: skip
    return Policy.of(
        "ordered", stream="direction" if per_edge else "pair", lookahead=lookahead,
        lowering=partial(insert_messages, lowering=lowering),
    )  # fmt: skip


def _check_options(schedule: Schedule, written: Sequence[str], *, has_waits: bool) -> None:
    """Refuse options that the release or the form of the table does not have.

    Raises:
        ConstraintError: an option of 2.15 with 2.13, or gathers ahead in a table with messages.
    """
    for name in written:
        if not has_waits and name not in _OF_BOTH_RELEASES:
            raise ConstraintError("needs version 2.15: PyTorch 2.13 has no such option", key=f"p2p.options.{name}")
    if schedule.has_communication and "unshard_lookahead" in written:
        raise ConstraintError(
            "PyTorch gathers ahead in tables without messages only: remove one of both",
            key="p2p.options.unshard_lookahead",
        )


def _lookahead(schedule: Schedule, option: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of next stages to gather by rank; empty for all that can be gathered.

    Raises:
        ConstraintError: not one number per rank.
    """
    if option == "auto":
        return tuple(range(2, 2 + schedule.ranks))
    if isinstance(option, str):
        return ()
    if len(option) != schedule.ranks:
        raise ConstraintError(
            f"{len(option)} numbers for {schedule.ranks} ranks: give one per rank",
            key="p2p.options.unshard_lookahead",
        )
    return option


def _check_waits(schedule: Schedule, *, has_waits: bool) -> None:
    """Refuse a table with messages that the runtime's loader refuses.

    Raises:
        ConstraintError: a wait in version 2.13, or a send without one in version 2.15.
    """
    kinds = {Kind(kind).name: int((schedule.kind == kind).sum()) for kind in Kind}
    waits = kinds["WAIT_SEND_F"] + kinds["WAIT_SEND_B"]
    if not has_waits and waits + kinds["WAIT_REDUCE_GRAD"]:
        raise ConstraintError(
            "the table has waits, which PyTorch reads from 2.15 on: set p2p.options.version=2.15", key="p2p.policy"
        )
    if has_waits and waits < kinds["SEND_F"] + kinds["SEND_B"]:
        raise ConstraintError(
            "PyTorch 2.15 reads a table with messages only if each send has a wait: add them by pptrace convert "
            "--waits",
            key="p2p.policy",
        )


def _check_stages(schedule: Schedule) -> None:
    """Refuse tables that neither PyTorch's runtime nor a schedule class runs.

    Raises:
        ConstraintError: the stages or microbatches of the table are not supported.
    """
    for part, _ in unsupported_stages(schedule):
        raise cannot("torch", f"has {part}", runs="chains of stages, each stage on one rank")


def _program_of(schedule: Schedule) -> Callable[..., MessageCalls] | None:
    """Return the program of PyTorch's two schedules of one stage per rank, None for other tables.

    Neither schedule splits backwards: a table with split backwards runs in the runtime.

    Raises:
        ConstraintError: the class of this order refuses the number of microbatches.
    """
    rows = _read_rows(schedule)
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
        raise _torch_error(
            f"Schedule1F1B takes at least as many microbatches as stages, and {rows.count} are fewer than "
            f"{rows.ranks}: give {rows.ranks} or more"
        )
    return _one_f_one_b if takes_turns else None


def _read_rows(schedule: Schedule) -> Rows | None:
    """Return the rows of a table whose rank r has stage r only, None for other tables."""
    if not np.array_equal(schedule.placement.stage_rank[0], np.arange(schedule.ranks)):
        return None
    try:
        return rows_of(schedule, "torch")
    except ConstraintError:
        return None


def _is_zero_bubble(schedule: Schedule, rows: Rows) -> bool:
    """Return whether weight gradients have the order of ``ScheduleInterleavedZeroBubble``.

    With one stage per rank: on rank r, weight gradient k follows input gradient k + r; the last r weight gradients
    end the step.
    """
    weight = np.flatnonzero(schedule.kind == Kind.W)
    if weight.size != rows.backward.size:
        return False
    followed_index = np.arange(rows.count) + np.arange(rows.ranks)[:, None]
    rank, index = np.nonzero(followed_index < rows.count)
    followed = rows.backward[rank, followed_index[rank, index]]
    return np.array_equal(weight.reshape(rows.backward.shape)[rank, index], followed + 1)


def _check_rounds(rows: Rows) -> None:
    """Refuse microbatches that ``ScheduleInterleavedZeroBubble`` cannot divide into rounds.

    Raises:
        ConstraintError: the rounds are of unequal size.
    """
    rounds = max(1, rows.count // rows.ranks)
    if rows.count % rounds:
        raise _torch_error(
            f"ScheduleInterleavedZeroBubble runs microbatches in rounds of equal size, and {rows.count} is "
            f"not divisible by {rounds}: give {rounds * rows.ranks} or {(rounds + 1) * rows.ranks}"
        )


def _torch_error(why: str) -> ConstraintError:
    return ConstraintError(f"PyTorch's {why}, or use ordered with p2p.stream=pair", key="p2p.policy")


def _warm_up(rows: Rows) -> Ints:
    """Return the forwards of each rank before the steady state, as Megatron counts them."""
    return np.minimum(np.arange(rows.ranks)[::-1], rows.count - 1)


def _communicators(ends: Ends, rows: Rows, is_batched: NDArray[np.bool_], *, per_edge: bool) -> NDArray[np.int32]:
    """Return the communicator of each message: that of the group for batches, else that of its pair of ranks.

    With ``per_edge``, each pair has one per direction, and the group has none.
    """
    pair = np.minimum(ends.source, ends.target)
    if per_edge:
        return (2 * pair + ends.gradient).astype(np.int32)
    return np.where(is_batched, rows.ranks, pair).astype(np.int32)


def _one_f_one_b(request: MessageRequest, *, per_edge: bool) -> MessageCalls:
    rows = rows_of(request.schedule, "torch")
    ends = Ends.of(request, rows)
    warm_up = _warm_up(rows)
    # If the sender is in steady state, its receiver is too, and the message is part of a batch at both ends.
    steady = rows.count - warm_up[ends.source]
    is_batched = np.where(
        ends.gradient, ends.producer_index < steady - 1, ends.producer_index >= warm_up[ends.source]
    )
    after_producer = request.after(request.producer)
    following = np.minimum(ends.producer_index + 1, rows.count - 1)
    next_of_kind = np.where(
        ends.gradient, rows.backward[ends.source, following], rows.forward[ends.source, following]
    )
    last = ends.gradient & (ends.producer_index == rows.count - 1)
    waited = np.where(last, after_producer + RECEIVED, request.after(next_of_kind))
    receive = request.before(request.consumer) + np.where(is_batched, BATCH, RECEIVED)
    return MessageCalls(
        send=after_producer + np.where(is_batched, BATCH, SENT),
        send_waited=np.where(is_batched, after_producer + BATCH, waited),
        receive=receive, receive_waited=receive,
        communicator=_communicators(ends, rows, is_batched, per_edge=per_edge),
    )  # fmt: skip


def _gpipe(request: MessageRequest, *, per_edge: bool) -> MessageCalls:
    rows = rows_of(request.schedule, "torch")
    ends = Ends.of(request, rows)
    last = np.where(ends.gradient, rows.backward[ends.source, -1], rows.forward[ends.source, -1])
    receive = request.before(request.consumer) + RECEIVED
    none = np.zeros(ends.producer_index.size, dtype=bool)
    return MessageCalls(
        send=request.after(request.producer) + SENT, send_waited=request.after(last) + SENT,
        receive=receive, receive_waited=receive,
        communicator=_communicators(ends, rows, none, per_edge=per_edge),
    )  # fmt: skip
