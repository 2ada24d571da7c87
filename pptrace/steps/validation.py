"""The rules of a valid table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.steps.actions import CELL, Action, group_starts
from pptrace.steps.columns import distinct_rows
from pptrace.steps.dependencies import explain_deadlock, traverse
from pptrace.steps.kernels import tables
from pptrace.steps.kinds import BACKWARD, COMMUNICATION, ORDER, STAGE_ENDS, TABLE, TOWARDS_NEXT, Kind, Result
from pptrace.steps.schedule import Positions, index_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.steps.columns import Int32s
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule

_PASSES = {Result.ACTIVATION: Kind.F, Result.GRADIENT: Kind.B, Result.WEIGHT_GRADIENT: Kind.W}
"""Required results of each stage and microbatch, with the kind that computes each."""


def validate(schedule: Schedule) -> None:
    """Check that a schedule is complete, in order and free of deadlock.

    Raises:
        ScheduleError: an action is out of range, on a wrong rank, duplicated, missing or out of order
            in its row, or a message has only one side.
        DeadlockError: the rows wait for each other in a cycle.
    """
    validate_structure(schedule)
    visited, _ = traverse(schedule)
    if visited < len(schedule):
        raise explain_deadlock(schedule)


def validate_structure(schedule: Schedule) -> None:
    """Check a schedule except for deadlock.

    Raises:
        ScheduleError: as :func:`validate`.
    """
    _check_shape(schedule)
    positions = _valid_positions(schedule)
    _check_present(schedule, positions)
    _check_order(schedule, positions)
    _check_moved(schedule, positions)
    _check_pairs(schedule, positions)
    if schedule.has_communication:
        _check_messages(schedule, positions)
    _check_stage_ends(schedule)
    _check_partners(schedule, positions)
    _check_reduction_waits(schedule)
    _check_waits(schedule)


def validate_partial(schedule: Schedule) -> None:
    """Check a table in which computations may be missing.

    Raises:
        ScheduleError: an action is on a wrong rank, duplicated, or out of order in its row.
    """
    _check_order(schedule, _valid_positions(schedule))


def _error_at(schedule: Schedule, row: int, text: str, *, missing: str = "") -> ScheduleError:
    """Return the error of a row; ``text`` follows the name of its action."""
    rank, action = schedule.rank_at(row), str(schedule.action(row))
    return ScheduleError(f"rank {rank}: {action}{text}", rank=rank, position=row, action=action, missing=missing)


def _valid_positions(schedule: Schedule) -> Positions:
    """Return the positions of actions, which are in range, on the right rank and unique."""
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, *positions.problem)
    return positions


def _describe(schedule: Schedule, fault: int, row: int, other: int) -> ScheduleError:
    rank, action = schedule.rank_at(row), schedule.action(row)
    where = f"rank {rank}, action {row - int(schedule.row_ptr[rank])} ({action})"
    if fault == tables.OUT_OF_STAGES:
        text = f"{where}: stage {action.stage} is out of range: stages are 0 to {schedule.stages - 1}"
    elif fault == tables.OUT_OF_MICROBATCHES:
        last = action.microbatch + action.span - 1
        text = f"{where}: microbatch {last} is out of range: they are 0 to {schedule.microbatches - 1}"
    elif fault == tables.TWICE:
        text = (
            f"{where}: repeats action {other - int(schedule.row_ptr[rank])} ({schedule.action(other)}): remove one"
        )
    else:
        home = f"is on rank {other}" if other >= 0 else "is not on that microbatch's route"
        text = f"{where}: stage {action.stage} {home}: move the action there"
    return ScheduleError(text, rank=rank, position=row, action=str(action))


def _check_present(schedule: Schedule, positions: Positions) -> None:
    placement = schedule.placement
    for result in list(_PASSES)[: positions.results]:
        if positions.of(result).min(initial=0) >= 0:
            continue
        wanted = placement.stage_rank.T[:, placement.microbatch_route] >= 0
        missing = wanted & (positions.of(result) < 0)
        if not missing.any():
            continue
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(missing))
        name = _missing_name(schedule, positions, result, stage, microbatch)
        rank = placement.rank_of(stage, microbatch, backward=result is not Result.ACTIVATION)
        count = int(missing.sum())
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ScheduleError(
            f"rank {rank} lacks {name}{more}: every stage runs each microbatch forward and backward once",
            rank=rank,
            missing=name,
        )


def _missing_name(schedule: Schedule, positions: Positions, result: Result, stage: int, microbatch: int) -> str:
    if result is Result.GRADIENT:
        whole, half = ((schedule.kind == kind).any() for kind in (Kind.B, Kind.I))
        halved = positions.of(Result.WEIGHT_GRADIENT)[stage, microbatch] >= 0 or (half and not whole)
        return f"{stage}{'I' if halved else 'B'}{microbatch}"
    return f"{stage}{_PASSES[result].name}{microbatch}"


def _check_order(schedule: Schedule, positions: Positions) -> None:
    for before, after in ORDER:
        if max(before, after) >= positions.results:
            continue
        first, second = positions.of(before), positions.of(after)
        wrong = (first > second) & (second >= 0)
        if schedule.placement.has_host_state:
            rank = schedule.rank_of_row()
            wrong &= rank[first] == rank[second]
        if wrong.any():
            stage, microbatch = (int(axis[0]) for axis in np.nonzero(wrong))
            other = str(schedule.action(int(first[stage, microbatch])))
            text = f" comes before {other}: swap them"
            raise _error_at(schedule, int(second[stage, microbatch]), text, missing=other)


def _check_moved(schedule: Schedule, positions: Positions) -> None:
    """Check that activations whose backward is on another rank are copied to it through host memory."""
    placement = schedule.placement
    if not placement.has_host_state:
        return
    is_moved = placement.is_moved.T[:, placement.microbatch_route]
    uncopied = is_moved & (positions.of(Result.OFFLOADED) < 0)
    if uncopied.any():
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(uncopied))
        name = f"{stage}{Kind.OFFLOAD.name}{microbatch}"
        row = int(positions.of(Result.GRADIENT)[stage, microbatch])
        text = f" needs the activation of another rank: add {name} there, and {stage}RELOAD{microbatch} here"
        raise _error_at(schedule, row, text, missing=name)


def _check_messages(schedule: Schedule, positions: Positions) -> None:
    """Check that every stage boundary between ranks has a send and a receive, and that no other messages exist."""
    placement = schedule.placement
    for kind in sorted(COMMUNICATION):
        rank = placement.pass_ranks[TABLE.with_backward[kind]].T[:, placement.microbatch_route]
        hop = np.zeros((placement.stages + 1, placement.microbatches), dtype=bool)
        hop[1:-1] = (rank[1:] != rank[:-1]) & (rank[1:] >= 0) & (rank[:-1] >= 0)
        wanted = hop[1:] if kind in TOWARDS_NEXT else hop[:-1]
        position = positions.of(kind.traits.results[0])
        present = position >= 0
        wrong = wanted != present
        if not wrong.any():
            continue
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(wrong))
        name = f"{stage}{kind.name}{microbatch}"
        holder = int(rank[stage, microbatch])
        if present[stage, microbatch]:
            text = (
                f"rank {holder}: {name} has no peer: that stage's neighbour is on the same rank, or there is none"
            )
            raise ScheduleError(text, rank=holder, position=int(position[stage, microbatch]), action=name)
        raise ScheduleError(
            f"rank {holder} lacks {name}: a table with messages needs both ends of every hop",
            rank=holder,
            missing=name,
        )
    _check_equal(schedule, positions.of(Result.SENT_ACTIVATION)[:-1], positions.of(Result.RECEIVED_ACTIVATION)[1:])
    _check_equal(schedule, positions.of(Result.SENT_GRADIENT)[1:], positions.of(Result.RECEIVED_GRADIENT)[:-1])


def _check_equal(schedule: Schedule, sends: np.ndarray, receives: np.ndarray) -> None:
    both = sends >= 0
    sent, received = sends[both], receives[both]
    differ = (schedule.microbatch[sent] != schedule.microbatch[received]) | (
        schedule.span[sent] != schedule.span[received]
    )
    if differ.any():
        first = int(np.argmax(differ))
        send = int(sent[first])
        text = (
            f" receives other microbatches than {schedule.action(send)} on rank {schedule.rank_at(send)} sends: "
            "write the same on both ends"
        )
        raise _error_at(schedule, int(received[first]), text)


def _check_stage_ends(schedule: Schedule) -> None:
    """Check reductions and updates of stages.

    The last reduction and the last update of a stage follow its last backward. Between two reductions or updates
    there are backwards of the stage. All stages have as many updates: one, or at least three.
    """
    ends = np.flatnonzero(STAGE_ENDS.mask(schedule.kind))
    if not ends.size:
        return
    _, cell = np.unique(schedule.rank_of_row() * schedule.stages + schedule.stage, return_inverse=True)
    backward = np.flatnonzero(BACKWARD.mask(schedule.kind))
    last = np.full(len(schedule), -1)
    np.maximum.at(last, cell[backward], backward)
    between = _backwards_before(cell, backward, ends)
    seen: dict[tuple[int, int], int] = {}
    final = {(int(schedule.kind[row]), int(cell[row])): row for row in ends.tolist()}
    for row, backwards in zip(ends.tolist(), between.tolist(), strict=True):
        kind, held_stage = int(schedule.kind[row]), int(cell[row])
        if seen.get((kind, held_stage)) == backwards:
            raise _error_at(schedule, row, " occurs twice: remove one")
        if last[held_stage] > row and (final[kind, held_stage] == row or not backwards):
            other = str(schedule.action(int(last[held_stage])))
            raise _error_at(schedule, row, f" comes before {other}: swap them", missing=other)
        if kind == Kind.REDUCE_GRAD and seen.get((int(Kind.OPTIMIZER), held_stage)) == backwards:
            other = f"{schedule.stage[row]}OPTIMIZER"
            raise _error_at(schedule, row, f" comes after {other}: swap them", missing=other)
        seen[kind, held_stage] = backwards
    _check_updates(schedule, cell)


_LEAST_UPDATES = 3
"""Updates of a table with several; the pipeline neither fills nor drains between the first and the second one."""


def _check_updates(schedule: Schedule, cell: np.ndarray) -> None:
    """Check that each stage has as many updates on each of its ranks, one or at least three."""
    updates = schedule.updates
    if updates == 1:
        return
    counts = np.bincount(cell[schedule.kind == Kind.OPTIMIZER], minlength=int(cell.max()) + 1)
    fewest = int(np.argmin(counts))
    if counts[fewest] == updates >= _LEAST_UPDATES:
        return
    row = int(np.argmax(cell == fewest))
    text = f"stage {schedule.stage[row]} has {counts[fewest]} updates and another has {updates}"
    if counts[fewest] == updates:
        text = f"stages have {updates} updates"
    rank = schedule.rank_at(row)
    raise ScheduleError(f"rank {rank}: {text}: write one for each stage, or {_LEAST_UPDATES} or more", rank=rank)


def _backwards_before(cell: np.ndarray, backward: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return, per row, the number of backwards of the same rank and stage before it."""
    width = cell.size + 1
    positions = np.sort(cell[backward] * width + backward)
    return np.asarray(
        np.searchsorted(positions, cell[rows] * width + rows) - np.searchsorted(positions, cell[rows] * width)
    )


_PARTNERS = (
    (Result.OFFLOADED, Result.RELOADED, Kind.RELOAD, "a copy out needs a copy back"),
    (Result.RELOADED, Result.OFFLOADED, Kind.OFFLOAD, "a copy out needs a copy back"),
    (Result.AWAITED_ACTIVATION, Result.SENT_ACTIVATION, Kind.SEND_F, "add the send, or remove the wait"),
    (Result.AWAITED_GRADIENT, Result.SENT_GRADIENT, Kind.SEND_B, "add the send, or remove the wait"),
)
"""Results that exist only with another result, the kind of the other one, and the rule for users."""


def _check_partners(schedule: Schedule, positions: Positions) -> None:
    """Check that copies to the host and back come in twos, and that each wait for a send has its send."""
    for result, partner, kind, rule in _PARTNERS:
        alone = (positions.of(result) >= 0) & (positions.of(partner) < 0)
        if alone.any():
            stage, microbatch = (int(axis[0]) for axis in np.nonzero(alone))
            name = f"{stage}{kind.name}{microbatch}"
            row = int(positions.of(result)[stage, microbatch])
            raise _error_at(schedule, row, f" without {name}: {rule}", missing=name)


def _check_reduction_waits(schedule: Schedule) -> None:
    """Check that each wait for a reduction follows a reduction of its stage, and is the first one to do so."""
    if not np.equal(schedule.kind, int(Kind.WAIT_REDUCE_GRAD)).any():
        return
    rows = np.flatnonzero(np.isin(schedule.kind, (Kind.REDUCE_GRAD, Kind.WAIT_REDUCE_GRAD)))
    rank_of_row, pending = schedule.rank_of_row(), set[tuple[int, int]]()
    for row in rows.tolist():
        reduction = (int(rank_of_row[row]), int(schedule.stage[row]))
        if schedule.kind[row] == Kind.REDUCE_GRAD:
            pending.add(reduction)
        elif reduction in pending:
            pending.remove(reduction)
        else:
            name = f"{schedule.stage[row]}{Kind.REDUCE_GRAD.name}"
            text = f" has no pending {name} before it: move it after the reduction, or remove it"
            raise _error_at(schedule, row, text, missing=name)


def _check_waits(schedule: Schedule) -> None:
    """Check that both actions of each explicit wait are in the table."""
    if not schedule.waits:
        return
    waits = np.concatenate(schedule.waits)
    present = _action_keys(schedule.kind, schedule.stage, schedule.microbatch)
    missing = ~np.isin(_action_keys(*waits.reshape(-1, 3).T), present)
    if not missing.any():
        return
    first = int(np.argmax(missing))
    waited_for, waiting = (
        str(Action(kind=Kind(int(kind)), stage=int(stage), microbatch=int(microbatch)))
        for kind, stage, microbatch in waits[first // 2].reshape(2, 3)
    )
    waits_here = present == _action_keys(*waits[first // 2, 3:])
    row = int(np.argmax(waits_here)) if waits_here.any() else -1
    name = waiting if first % 2 else waited_for
    raise ScheduleError(
        f"{waiting} waits for {waited_for}: there is no {name}: add it, or wait for nothing",
        rank=schedule.rank_at(row) if row >= 0 else -1, position=row, action=waiting, missing=name,
    )  # fmt: skip


def _action_keys(kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """Return a unique integer per action."""
    return np.asarray((kind.astype(np.int64) << 58) + (stage.astype(np.int64) << 29) + microbatch)


MOST_ACTIONS = 2**28
"""Limit of actions, so that tasks and edges have 32-bit indices."""


def _check_shape(schedule: Schedule) -> None:
    """Check lengths and ranges of columns, and that every stage has a rank."""
    placement = schedule.placement
    if schedule.ranks != placement.ranks:
        raise ScheduleError(f"the table has {schedule.ranks} rows for {placement.ranks} ranks: one row a rank")
    if not len(schedule):
        raise ScheduleError("the table is empty: write one row of actions per rank")
    _check_columns(schedule)
    _check_placement(placement)
    _check_spans(schedule)


def _check_columns(schedule: Schedule) -> None:
    rows, ptr = len(schedule), schedule.row_ptr
    cells = schedule.stages * schedule.microbatches
    if max(rows, cells) > MOST_ACTIONS:
        raise ScheduleError(
            f"{rows} actions on {schedule.stages} stages x {schedule.microbatches} microbatches: "
            f"at most {MOST_ACTIONS} are simulated"
        )
    for name in CELL[1:]:
        if getattr(schedule, name).size != rows:
            raise ScheduleError(
                f"column {name} has {getattr(schedule, name).size} values for {rows} actions: one each"
            )
    if ptr[0] != 0 or ptr[-1] != rows or (np.diff(ptr) < 0).any():
        raise ScheduleError(f"row_ptr must rise from 0 to the number of actions ({rows}), one range a rank")
    if schedule.kind.min() < 0 or schedule.kind.max() >= len(Kind):
        raise ScheduleError(f"column kind has numbers that are not kinds; kinds are 0 to {len(Kind) - 1}")
    if schedule.span.min() < 1:
        row = int(np.argmax(schedule.span < 1))
        raise _error_at(schedule, row, f": a span is at least 1, not {int(schedule.span[row])}")


def _check_placement(placement: Placement) -> None:
    stage_rank, route = placement.stage_rank, placement.microbatch_route
    backward_rank = placement.pass_ranks[1]
    if backward_rank.shape != stage_rank.shape or ((backward_rank < 0) != (stage_rank < 0)).any():
        raise ScheduleError("the placement has other stages or routes for backwards than for forwards")
    if any(ranks.size and (ranks.min() < -1 or ranks.max() >= placement.ranks) for ranks in placement.pass_ranks):
        raise ScheduleError(f"the placement names ranks beyond its {placement.ranks}: they count from 0")
    if route.size and (route.min() < 0 or route.max() >= placement.routes):
        raise ScheduleError(f"the placement names routes beyond its {placement.routes}: they count from 0")
    if placement.edge_fault:
        raise ScheduleError(f"the placement's {placement.edge_fault}")
    unplaced = np.flatnonzero((stage_rank < 0).all(axis=0))
    if unplaced.size:
        stage = int(unplaced[0])
        raise ScheduleError(
            f"stage {stage} has no actions on any rank: stages are numbered from 0 without gaps",
            missing=f"{stage}F0",
        )


def _check_spans(schedule: Schedule) -> None:
    """Check that all microbatches of a span have one route, since they are one message."""
    placement = schedule.placement
    if placement.routes == 1:
        return
    wide = np.flatnonzero((schedule.span > 1) & (schedule.microbatch >= 0))
    if not wide.size:
        return
    _, distinct_route = distinct_rows(np.concatenate(placement.pass_ranks, axis=1))
    route = distinct_route[placement.microbatch_route]
    changes = np.concatenate([[0], np.cumsum(route[1:] != route[:-1])])
    first = schedule.microbatch[wide].astype(np.int64)
    last = np.minimum(first + schedule.span[wide], placement.microbatches) - 1
    split = wide[changes[np.minimum(first, last)] != changes[last]]
    if split.size:
        text = ": its microbatches take different routes: write one action for each"
        raise _error_at(schedule, int(split[0]), text)


def _check_pairs(schedule: Schedule, positions: Positions) -> None:
    """Check that members of a pair are independent. A weight gradient may follow its input gradient."""
    if not schedule.has_pairs:
        return
    starts = group_starts(schedule.pair, schedule.row_ptr)
    group = np.repeat(np.arange(starts.size), np.diff(starts, append=len(schedule)))
    for producer, consumer in _dependencies(schedule, positions):
        in_pair = (producer >= 0) & (consumer >= 0) & (producer != consumer) & (group[producer] == group[consumer])
        if in_pair.any():
            first = np.flatnonzero(in_pair)[0]
            other = str(schedule.action(int(producer.flat[first])))
            text = f" needs {other}, which is in the same overlapped pair: write one after the other"
            raise _error_at(schedule, int(consumer.flat[first]), text, missing=other)


def _dependencies(schedule: Schedule, positions: Positions) -> Iterator[tuple[Int32s, Int32s]]:
    """Yield positions of producers and of their consumers, by microbatch; -1 for missing actions."""
    forward, backward = positions.of(Result.ACTIVATION), positions.of(Result.GRADIENT)
    yield forward, backward
    low, high = schedule.placement.edges.T
    yield forward[low], forward[high]
    yield backward[high], backward[low]
