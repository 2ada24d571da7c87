"""Tables in PyTorch's pipeline runtime: conditions on tables, and the messages that it inserts.

Source: ``_PipelineScheduleRuntime`` of PyTorch 2.13 and 2.15, ``torch/distributed/pipelining/schedules.py``. The
runtime reads a table of computations. Its loader reads the start of a cell only, ``0F5@0F4`` as ``0F5``, so a
table with other cells is not supported.

To insert messages, the runtime visits ranks in rounds and takes one action per rank and round. A receive is
inserted into its rank's row in the round of its send. Before that, the runtime inserts actions that gather, free
and reduce the weights of stages: these take rounds even where no stage is sharded. PyTorch 2.15 also inserts a
wait per reduction, and then a wait per send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Receive, Reshard
from pptrace.errors import ScheduleError
from pptrace.steps.action_insertion import insert_actions, insert_stage_actions, with_gathers
from pptrace.steps.actions import group_ends, group_starts, microbatches_of
from pptrace.steps.columns import unset
from pptrace.steps.kernels import pytorch as kernels
from pptrace.steps.kinds import (
    COMMUNICATION,
    PASSES,
    SEND_WAITS,
    SHARDING,
    WEIGHT_GRADIENTS,
    Kind,
    KindSet,
    Result,
)
from pptrace.steps.message_calls import with_messages
from pptrace.steps.placement import chain
from pptrace.steps.schedule import index_schedule
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.steps.schedule import Positions, Schedule

ACTIVE_STAGES = 3
"""Stages of a rank whose weights are gathered at once: the default of ``max_active_stages``."""

_REDUCTIONS = KindSet({Kind.REDUCE_GRAD, Kind.REDUCE_GROUPS, Kind.WAIT_REDUCE_GRAD})
_TRANSFERS = KindSet({*COMMUNICATION, *SEND_WAITS})
_INSERTED = KindSet({*_TRANSFERS, *SHARDING, *_REDUCTIONS})
"""Kinds that PyTorch inserts into a compute-only table, and rejects in one."""

_WAITS = (
    (Kind.SEND_F, Kind.WAIT_SEND_F, Result.AWAITED_ACTIVATION),
    (Kind.SEND_B, Kind.WAIT_SEND_B, Result.AWAITED_GRADIENT),
)
"""Sends, the waits for them, and the results of these."""


class Unsupported(NamedTuple):
    """A part of a table that PyTorch does not run."""

    part: str
    """The part, as a noun phrase."""
    reason: str
    """Why PyTorch does not run it, and what to do."""


def unsupported_stages(schedule: Schedule) -> Iterator[Unsupported]:
    """Yield the stages and messages that neither PyTorch's runtime nor its schedule classes run.

    Source: ``_validate_schedule``.
    """
    ranks = np.concatenate(schedule.placement.pass_ranks)
    replicated_stages = np.flatnonzero((ranks != ranks[0]).any(axis=0))
    if replicated_stages.size:
        yield Unsupported(
            f"stage {replicated_stages[0]} on several ranks",
            "each stage is on one rank; take a schedule without replicated stages",
        )
    if not np.array_equal(np.unique(schedule.placement.edges, axis=0), chain(schedule.stages)):
        yield Unsupported("stages that do not form a chain", "each stage sends to the next one only")
    wide_rows = np.flatnonzero(schedule.span > 1)
    if wide_rows.size:
        yield Unsupported(
            f"actions of several microbatches, such as {schedule.action(int(wide_rows[0]))}",
            "write one action per microbatch",
        )


def unsupported_parts(schedule: Schedule) -> Iterator[Unsupported]:
    """Yield the parts of a table that PyTorch's runtime refuses, misreads, or runs with wrong gradients.

    Kinds that the runtime inserts are supported, because :func:`compute_only` omits them.
    """
    yield from unsupported_stages(schedule)
    if schedule.updates > 1:
        yield Unsupported(
            f"{schedule.updates} updates without a flush between them",
            "the runtime runs the microbatches of one update; take a schedule with a flush, such as 1f1b",
        )
        return
    if schedule.awaited():
        yield Unsupported("actions that wait for others (@)", "the loader does not read waits; remove them")
    foreign_rows = np.flatnonzero(~(PASSES.mask(schedule.kind) | _INSERTED.mask(schedule.kind)))
    if foreign_rows.size:
        yield Unsupported(
            f"actions such as {schedule.action(int(foreign_rows[0]))}",
            "PyTorch has no such action; switch offloading and recomputation actions off",
        )
    if (schedule.span == 1).all():
        yield from _unsupported_counts(schedule)
    losses = schedule.microbatch[(schedule.stage == schedule.stages - 1) & (schedule.kind == Kind.F)]
    descents = np.flatnonzero(np.diff(losses) < 0)
    if descents.size:
        earlier, later = losses[descents[0] : descents[0] + 2]
        yield Unsupported(
            f"forward {earlier} of the last stage before forward {later}",
            "PyTorch takes losses in the order of microbatches, so gradients would be wrong; run the last stage's "
            "forwards in order",
        )


def _unsupported_counts(schedule: Schedule) -> Iterator[Unsupported]:
    """Yield missing and repeated passes of a table whose actions have one microbatch each."""
    counts = np.zeros((len(Kind), schedule.stages, schedule.microbatches), dtype=np.int64)
    rows = PASSES.mask(schedule.kind)
    np.add.at(counts, (schedule.kind[rows], schedule.stage[rows], schedule.microbatch[rows]), 1)
    gradients, weight_gradients = counts[Kind.B] + counts[Kind.I], counts[Kind.B] + counts[Kind.W]
    for name, is_wrong, passes in (
        ("forward", counts[Kind.F] != 1, "one forward"),
        (
            "backward", (gradients != 1) | (weight_gradients != 1),
            "one backward, whole or as input and weight gradient,",
        ),
    ):  # fmt: skip
        if is_wrong.any():
            stage, microbatch = map(int, np.argwhere(is_wrong)[0])
            yield Unsupported(
                f"a missing or repeated {name} of microbatch {microbatch} on stage {stage}",
                f"each stage runs {passes} of each microbatch",
            )


def compute_only(schedule: Schedule) -> Schedule:
    """Return a table without the messages and the other actions that PyTorch inserts.

    With weights in host memory, gathers and reductions are copies of the schedule, and remain.
    """
    return _without(schedule, _TRANSFERS if schedule.placement.has_host_state else _INSERTED)


def compute_comms(schedule: Schedule, *, waits: bool) -> Schedule:
    """Return a table with all actions that PyTorch inserts, as its loader reads it as ``compute_comms``.

    Messages of the table keep their places. Gathers and reductions are where PyTorch puts them: without
    reductions, the runtime neither reduces nor scales gradients. With ``waits``, sends and reductions have waits,
    as in PyTorch 2.15.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    removed = SHARDING | _REDUCTIONS | (set() if waits else SEND_WAITS)
    return lower(_without(schedule, KindSet(removed)), Lowering(waits=waits))


def _without(schedule: Schedule, removed: KindSet) -> Schedule:
    return schedule.selected(np.flatnonzero(~removed.mask(schedule.kind)))


class Lowering(Struct, frozen=True, kw_only=True):
    """Options of PyTorch's pipeline runtime."""

    receive: str = "asap"
    """Places of receives, ``asap`` or ``deferred`` (``defer_pp_recv``)."""
    waits: bool = False
    """Whether sends and reductions have waits, as in PyTorch 2.15. All further options need them."""
    lookahead: tuple[int, ...] = ()
    """By rank, the number of next stages to gather (``unshard_lookahead``); empty for all that can be gathered."""
    defers_reduction_waits: bool = False
    """Whether a reduction is waited for before the next one or at the end of the row
    (``defer_reduce_grad_wait``); otherwise at once."""
    max_pending_sends: int | None = None
    """Most sends of a rank that have begun and that no wait follows (``max_outstanding_sends``)."""


_DEFAULT = Lowering()


def lower(schedule: Schedule, lowering: Lowering = _DEFAULT) -> Schedule:
    """Return a table with all actions that PyTorch's runtime inserts.

    These are gathers and releases of weights, reductions, messages, and waits. Such actions of the table keep
    their places.

    Raises:
        ScheduleError: no order of messages lets every action run, or a send must exceed the limit.
    """
    table = schedule
    if not SHARDING.mask(table.kind).any():
        sharded = np.ones(schedule.stages, dtype=bool)
        table = with_gathers(table, sharded, Reshard.NEVER, ACTIVE_STAGES, lowering.lookahead)
    if not _REDUCTIONS.mask(table.kind).any():
        table = _insert_reductions(table)
    if lowering.waits:
        table = _insert_reduction_waits(table, deferred=lowering.defers_reduction_waits)
    if not schedule.has_communication:
        issued = with_messages(table, Receive(lowering.receive))
        table = replace(table, row_ptr=issued.row_ptr, **issued.cells._asdict())
    if lowering.waits:
        table = _insert_send_waits(table)
    if lowering.max_pending_sends is not None:
        table = _limit_pending_sends(table, lowering.max_pending_sends)
    return table


def insert_messages(schedule: Schedule, lowering: Lowering = _DEFAULT) -> Schedule:
    """Return a table with PyTorch's messages and waits, without the gathers and reductions that PyTorch inserts.

    Releases without waits in tables wait for a reduction inside it (``_root_post_backward_final_callback`` in
    ``PipelineStage.perform_reduce_grad``).

    Raises:
        ScheduleError: as :func:`lower`.
    """
    if schedule.has_communication and not lowering.waits:
        return _insert_reduction_waits(schedule, deferred=False)
    lowered = lower(schedule, lowering)
    inserted = np.zeros(len(lowered), dtype=bool)
    for kinds in (SHARDING, _REDUCTIONS):
        if not kinds.mask(schedule.kind).any():
            inserted |= kinds.mask(lowered.kind)
    table = lowered.selected(np.flatnonzero(~inserted))
    return table if lowering.waits else _insert_reduction_waits(table, deferred=False)


def _insert_reductions(schedule: Schedule) -> Schedule:
    """Insert a reduction after the last backward of each stage on each rank."""
    last = schedule.last_rows(WEIGHT_GRADIENTS.mask(schedule.kind))
    rank, stage = np.nonzero(last >= 0)
    order = np.argsort(last[rank, stage])
    rank, stage = rank[order], stage[order]
    position = group_ends(schedule.pair, schedule.row_ptr)[last[rank, stage]]
    kind = np.full(rank.size, Kind.REDUCE_GRAD)
    return insert_stage_actions(schedule, np.stack([position, rank, kind, stage]))


def _insert_send_waits(schedule: Schedule) -> Schedule:
    """Insert a wait for each send that has none.

    The wait for a forward's send is right after the backward of the same stage and microbatch. All other waits
    are at the row's end, in the order of their sends, but before weight updates.
    """
    positions, block_end = index_schedule(schedule), group_ends(schedule.pair, schedule.row_ptr)
    row_end = _row_ends(schedule)[schedule.rank_of_row()]
    columns = []
    for sent, wait, awaited in _WAITS:
        rows = np.flatnonzero(np.equal(schedule.kind, sent))
        rows = rows[positions.of(awaited)[schedule.stage[rows], schedule.microbatch[rows]] < 0]
        backward = _last_backward(schedule, positions, rows) if sent == Kind.SEND_F else np.full(rows.size, -1)
        follows = backward > rows
        place, cause = np.where(follows, block_end[backward], row_end[rows]), np.where(follows, backward, rows)
        columns.append(np.stack([place, ~follows, cause, rows, np.full(rows.size, wait)]))
    place, at_end, cause, rows, kind = np.concatenate(columns, axis=1)
    order = np.lexsort((cause, at_end, place))
    return insert_actions(schedule, place[order], kind[order].astype(np.int8), rows[order])


def _last_backward(schedule: Schedule, positions: Positions, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last backward of the stage and microbatches of each row, -1 for none."""
    gradient, last = positions.of(Result.GRADIENT), np.full(rows.size, -1, dtype=np.int64)
    number, stage, microbatch = microbatches_of(schedule, rows)
    np.maximum.at(last, number, gradient[stage, microbatch])
    return last


def _row_ends(schedule: Schedule) -> NDArray[np.int64]:
    """Return the position after each rank's last action that is no weight update and no synchronization."""
    rows = np.flatnonzero(~KindSet({Kind.OPTIMIZER, Kind.SYNC}).mask(schedule.kind))
    ends = schedule.row_ptr[:-1].astype(np.int64)
    np.maximum.at(ends, schedule.rank_of_row()[rows], rows + 1)
    return ends


def _insert_reduction_waits(schedule: Schedule, *, deferred: bool) -> Schedule:
    """Insert a wait for each reduction that has none before the stage's next reduction on its rank.

    The wait is right after the reduction or, if ``deferred``, right before the rank's next reduction, and at the
    row's end after the last one.
    """
    rank_of_row, pending = schedule.rank_of_row(), dict[tuple[int, int], int]()
    unmatched = list[int]()
    for row in np.flatnonzero(KindSet(_REDUCTIONS - {Kind.REDUCE_GROUPS}).mask(schedule.kind)).tolist():
        reduction = pending.pop((int(rank_of_row[row]), int(schedule.stage[row])), -1)
        if schedule.kind[row] == Kind.REDUCE_GRAD:
            pending[int(rank_of_row[row]), int(schedule.stage[row])] = row
            unmatched += [reduction] * (reduction >= 0)
    reductions = np.array(sorted([*unmatched, *pending.values()]), dtype=np.int64)
    if not reductions.size:
        return schedule
    place = reductions + 1
    if deferred:
        starts = np.flatnonzero(schedule.kind == Kind.REDUCE_GRAD)
        following = np.append(starts, len(schedule))[np.searchsorted(starts, reductions, side="right")]
        place = np.minimum(following, _row_ends(schedule)[rank_of_row[reductions]])
    return insert_actions(schedule, place, Kind.WAIT_REDUCE_GRAD, reductions)


def _limit_pending_sends(schedule: Schedule, limit: int) -> Schedule:
    """Return a table in which waits for sends are moved forward, as PyTorch's ``max_outstanding_sends`` does.

    Before a send above the limit, the rank waits for a pending send: the first whose receive is certain to have
    been issued, else the first for which a wait cannot cause a deadlock. Takes quadratic time at worst.

    Args:
        schedule: a table with its messages and one wait per send.
        limit: most sends of a rank that have begun and that no wait follows.

    Raises:
        ScheduleError: a send must exceed the limit.
    """
    positions, rows = index_schedule(schedule), len(schedule)
    is_wait = SEND_WAITS.mask(schedule.kind)
    begins = np.zeros(rows, dtype=bool)
    begins[group_starts(schedule.pair, schedule.row_ptr)] = True
    node = np.where(is_wait, -1, np.cumsum(begins & ~is_wait) - 1)
    count = int(node.max(initial=-1)) + 1
    nodes, partner = _dependencies(schedule, positions, node, count)
    stack, visited, number, order = (np.zeros(size, dtype=np.int64) for size in (count, count, 1, rows))
    exceeded = run(
        kernels.limit_pending,
        (schedule.row_ptr, node, partner, limit),
        (
            nodes, kernels.Search(stack, visited, number), np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.int8), order,
        ),
        work=rows,
    )  # fmt: skip
    if exceeded:
        row = exceeded - 1
        rank, action = schedule.rank_at(row), str(schedule.action(row))
        raise ScheduleError(
            f"rank {rank}: {action} exceeds the limit of {limit} pending sends, and no earlier send completes "
            "without it: raise the limit",
            rank=rank, position=row, action=action,
        )  # fmt: skip
    return replace(schedule, **schedule.cells.taken(order)._asdict())


def _dependencies(
    schedule: Schedule, positions: Positions, node: NDArray[np.int64], count: int
) -> tuple[kernels.Nodes, NDArray[np.int64]]:
    """Return the order of ``count`` nodes, and per send and wait the row of its partner, -1 for other rows."""
    nodes = kernels.Nodes(*(unset(count) for _ in kernels.Nodes._fields))
    rank = np.empty(count, dtype=np.int64)
    rank[node[node >= 0]] = schedule.rank_of_row()[node >= 0]
    nodes.following[:-1] = np.where(rank[1:] == rank[:-1], np.arange(1, count), -1)
    next_node = np.minimum.accumulate(np.where(node < 0, count, node)[::-1])[::-1]
    partner = np.full(len(schedule), -1, dtype=np.int64)
    for sent, received, awaited, offset in _MESSAGES:
        send = positions.of(sent)
        stage, microbatch = np.nonzero(send >= 0)
        send, wait = send[stage, microbatch], positions.of(awaited)[stage, microbatch]
        receive = positions.of(received)[stage + offset, microbatch]
        nodes.receive[node[send]] = node[receive]
        send, wait, receive = send[wait >= 0], wait[wait >= 0], receive[wait >= 0]
        partner[send], partner[wait] = wait, send
        following = next_node[wait]
        on_rank = (following < count) & (rank[np.minimum(following, count - 1)] == rank[node[send]])
        nodes.released[node[receive]] = np.where(on_rank, following, -1)
    return nodes, partner


_MESSAGES = (
    (Result.SENT_ACTIVATION, Result.RECEIVED_ACTIVATION, Result.AWAITED_ACTIVATION, 1),
    (Result.SENT_GRADIENT, Result.RECEIVED_GRADIENT, Result.AWAITED_GRADIENT, -1),
)
"""Sends, receives and waits, and the number of stages from the sender to the receiver."""
