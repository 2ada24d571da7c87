"""The rules of a valid table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.steps.actions import CELL, Action, group_starts
from pptrace.steps.columns import distinct_rows
from pptrace.steps.dependencies import explain_deadlock, walk
from pptrace.steps.kernels import tables
from pptrace.steps.kinds import BACKWARD, COMMUNICATION, ORDER, STAGE_ENDS, TOWARDS_NEXT, Kind, Result
from pptrace.steps.schedule import Positions, Problem, index_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.steps.columns import Int32s
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule

_PASSES = {Result.ACTIVATION: Kind.F, Result.GRADIENT: Kind.B, Result.WEIGHT_GRADIENT: Kind.W}
"""What each stage of each microbatch has, by the kind that leaves it."""


def validate(schedule: Schedule) -> None:
    """Check a schedule wholly.

    Raises:
        ScheduleError: an action is out of range, on a wrong rank, there twice, missing, out of order
            in its row, or a message without its other end.
        DeadlockError: the rows wait for each other in a cycle.
    """
    validate_structure(schedule)
    walked, _ = walk(schedule)
    if walked < len(schedule):
        raise explain_deadlock(schedule)


def validate_structure(schedule: Schedule) -> Positions:
    """Check all but deadlock, and return the positions found.

    Raises:
        ScheduleError: as :func:`validate`.
    """
    check_shape(schedule)
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, positions.problem)
    _check_present(schedule, positions)
    _check_order(schedule, positions)
    check_pairs(schedule, positions)
    if schedule.has_communication:
        check_messages(schedule, positions)
    if positions.results > Result.OFFLOADED:
        check_copies(schedule, positions)
    check_stage_ends(schedule)
    check_waits(schedule)
    return positions


def validate_partial(schedule: Schedule) -> None:
    """Check a table of computations of which some may be missing: every action once, in place and in order.

    Raises:
        ScheduleError: an action is on a wrong rank, there twice, or out of order in its row.
    """
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, positions.problem)
    _check_order(schedule, positions)


def _describe(schedule: Schedule, problem: Problem) -> ScheduleError:
    row, rank = problem.row, schedule.rank_at(problem.row)
    action = schedule.action(row)
    where = f"rank {rank}, action {row - int(schedule.row_ptr[rank])} ({action})"
    if problem.code == tables.OUT_OF_STAGES:
        text = f"{where}: stage {action.stage} is out of range: stages are 0 to {schedule.stages - 1}"
    elif problem.code == tables.OUT_OF_MICROBATCHES:
        last = action.microbatch + action.span - 1
        text = f"{where}: microbatch {last} is out of range: they are 0 to {schedule.microbatches - 1}"
    elif problem.code == tables.TWICE:
        first = problem.other
        text = (
            f"{where}: does again what action {first - int(schedule.row_ptr[rank])} "
            f"({schedule.action(first)}) has done: remove one"
        )
    else:
        home = f"is on rank {problem.other}" if problem.other >= 0 else "is not on that microbatch's route"
        text = f"{where}: stage {action.stage} {home}: move the action there"
    return ScheduleError(text, rank=rank, position=row, action=str(action))


def _check_present(schedule: Schedule, positions: Positions) -> None:
    placement = schedule.placement
    wanted = placement.stage_rank.T[:, placement.microbatch_route] >= 0
    for result in list(_PASSES)[: positions.results]:
        missing = wanted & (positions.of(result) < 0)
        if not missing.any():
            continue
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(missing))
        name = _missing_name(schedule, positions, result, stage, microbatch)
        rank = placement.rank_of(stage, microbatch)
        count = int(missing.sum())
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ScheduleError(
            f"rank {rank}: {name} is missing{more}: every stage runs each microbatch forward and backward once",
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
        if wrong.any():
            stage, microbatch = (int(axis[0]) for axis in np.nonzero(wrong))
            row, other = int(second[stage, microbatch]), int(first[stage, microbatch])
            rank = schedule.rank_at(row)
            raise ScheduleError(
                f"rank {rank}: {schedule.action(row)} comes before {schedule.action(other)}: swap them",
                rank=rank,
                position=row,
                action=str(schedule.action(row)),
                missing=str(schedule.action(other)),
            )


def check_messages(schedule: Schedule, positions: Positions) -> None:
    """Check that every hop between ranks has both ends, and that no message goes where no hop is.

    Raises:
        ScheduleError: an end without a hop, without its other end, or with other microbatches.
    """
    placement = schedule.placement
    rank = placement.stage_rank.T[:, placement.microbatch_route]
    hop = np.zeros((placement.stages + 1, placement.microbatches), dtype=bool)
    hop[1:-1] = (rank[1:] != rank[:-1]) & (rank[1:] >= 0) & (rank[:-1] >= 0)
    for kind in sorted(COMMUNICATION):
        wanted = hop[1:] if kind in TOWARDS_NEXT else hop[:-1]
        place = positions.of(kind.traits.results[0])
        there = place >= 0
        wrong = wanted != there
        if not wrong.any():
            continue
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(wrong))
        name = f"{stage}{kind.name}{microbatch}"
        at = int(rank[stage, microbatch])
        if there[stage, microbatch]:
            text = f"rank {at}: {name} has no peer: that stage's neighbour is on the same rank, or there is none"
            raise ScheduleError(text, rank=at, position=int(place[stage, microbatch]), action=name)
        raise ScheduleError(
            f"rank {at}: {name} is missing: a table with messages needs both ends of every hop",
            rank=at,
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
        send, receive = int(sent[first]), int(received[first])
        rank = schedule.rank_at(receive)
        raise ScheduleError(
            f"rank {rank}: {schedule.action(receive)} receives other microbatches than "
            f"{schedule.action(send)} on rank {schedule.rank_at(send)} sends: write the same on both ends",
            rank=rank,
            position=receive,
            action=str(schedule.action(receive)),
        )


def check_copies(schedule: Schedule, positions: Positions) -> None:
    """Check that each offload has a reload and each reload has an offload.

    Raises:
        ScheduleError: an offload or a reload without its counterpart.
    """
    out, back = positions.of(Result.OFFLOADED), positions.of(Result.RELOADED)
    alone = (out < 0) != (back < 0)
    if not alone.any():
        return
    stage, microbatch = (int(axis[0]) for axis in np.nonzero(alone))
    offloaded = out[stage, microbatch] >= 0
    row = int(out[stage, microbatch] if offloaded else back[stage, microbatch])
    missing = f"{stage}{Kind.RELOAD.name if offloaded else Kind.OFFLOAD.name}{microbatch}"
    rank = schedule.rank_at(row)
    raise ScheduleError(
        f"rank {rank}: {schedule.action(row)} without {missing}: what is copied out must come back",
        rank=rank,
        position=row,
        action=str(schedule.action(row)),
        missing=missing,
    )


def check_stage_ends(schedule: Schedule) -> None:
    """Check that each rank updates a stage at most once, and reduces it, behind the stage's last backward.

    Where it reduces more than once, backwards are between.

    Raises:
        ScheduleError: the first that does not.
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
        kind, at = int(schedule.kind[row]), int(cell[row])
        if (kind, at) in seen and (kind != Kind.REDUCE_GRAD or seen[kind, at] == backwards):
            raise _end_error(schedule, row, "is there twice", str(schedule.action(row)))
        if last[at] > row and (kind != Kind.REDUCE_GRAD or final[kind, at] == row or not backwards):
            raise _end_error(schedule, row, "comes before", str(schedule.action(int(last[at]))))
        if kind == Kind.REDUCE_GRAD and (int(Kind.OPTIMIZER), at) in seen:
            raise _end_error(schedule, row, "comes behind", f"{schedule.stage[row]}OPTIMIZER")
        seen[kind, at] = backwards


def _backwards_before(cell: np.ndarray, backward: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return how many backwards of their rank's stage come before rows."""
    width = cell.size + 1
    places = np.sort(cell[backward] * width + backward)
    found = np.searchsorted(places, cell[rows] * width + rows) - np.searchsorted(places, cell[rows] * width)
    return np.asarray(found)


def _end_error(schedule: Schedule, row: int, what: str, other: str) -> ScheduleError:
    rank, action = int(schedule.rank_at(row)), str(schedule.action(row))
    text = f"rank {rank}: {action} {what}"
    text += ": remove one" if action == other else f" {other}: swap them"
    return ScheduleError(text, rank=rank, position=row, action=action, missing="" if action == other else other)


def check_waits(schedule: Schedule) -> None:
    """Check that both actions of each explicit wait are in the table.

    Raises:
        ScheduleError: the first missing action.
    """
    if not schedule.waits:
        return
    waits = np.concatenate(schedule.waits)
    there = _names(schedule.kind, schedule.stage, schedule.microbatch)
    missing = ~np.isin(_names(*waits.reshape(-1, 3).T), there)
    if not missing.any():
        return
    first = int(np.argmax(missing))
    waited_for, waiting = (
        str(Action(kind=Kind(int(kind)), stage=int(stage), microbatch=int(microbatch)))
        for kind, stage, microbatch in waits[first // 2].reshape(2, 3)
    )
    own = there == _names(*waits[first // 2, 3:])
    row = int(np.argmax(own)) if own.any() else -1
    name = waiting if first % 2 else waited_for
    raise ScheduleError(
        f"{waiting} waits for {waited_for}: there is no {name}: add it, or wait for nothing",
        rank=schedule.rank_at(row) if row >= 0 else -1, position=row, action=waiting, missing=name,
    )  # fmt: skip


def _names(kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """Return one number for each of some actions."""
    return np.asarray((kind.astype(np.int64) << 58) + (stage.astype(np.int64) << 29) + microbatch)


MOST_ACTIONS = 2**28
"""So many, with their messages and what they wait for, are counted with 32 bits."""


def check_shape(schedule: Schedule) -> None:
    """Check lengths and ranges of columns, and that every stage is somewhere.

    Raises:
        ScheduleError: what does not fit; a plugin that builds columns itself may get here.
    """
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
        raise ScheduleError(f"column kind holds numbers that are no kind: they are 0 to {len(Kind) - 1}")
    if schedule.span.min() < 1:
        row = int(np.argmax(schedule.span < 1))
        raise _at(schedule, row, f"a span is at least 1, not {int(schedule.span[row])}")


def _check_placement(placement: Placement) -> None:
    held, route = placement.stage_rank, placement.microbatch_route
    if held.size and (held.min() < -1 or held.max() >= placement.ranks):
        raise ScheduleError(f"the placement names ranks beyond its {placement.ranks}: they count from 0")
    if route.size and (route.min() < 0 or route.max() >= placement.routes):
        raise ScheduleError(f"the placement names routes beyond its {placement.routes}: they count from 0")
    if placement.edge_fault:
        raise ScheduleError(f"the placement's {placement.edge_fault}")
    nowhere = np.flatnonzero((held < 0).all(axis=0))
    if nowhere.size:
        stage = int(nowhere[0])
        raise ScheduleError(
            f"stage {stage} has no actions on any rank: stages are numbered from 0 without gaps",
            missing=f"{stage}F0",
        )


def _check_spans(schedule: Schedule) -> None:
    """All microbatches of a span take one route, for they travel as one message."""
    placement = schedule.placement
    wide = np.flatnonzero((schedule.span > 1) & (schedule.microbatch >= 0))
    if not wide.size or placement.routes == 1:
        return
    _, alike = distinct_rows(placement.stage_rank)
    route = alike[placement.microbatch_route]
    changes = np.concatenate([[0], np.cumsum(route[1:] != route[:-1])])
    first = schedule.microbatch[wide].astype(np.int64)
    last = np.minimum(first + schedule.span[wide], placement.microbatches) - 1
    split = wide[changes[np.minimum(first, last)] != changes[last]]
    if split.size:
        raise _at(schedule, int(split[0]), "its microbatches take different routes: write one action for each")


def _at(schedule: Schedule, row: int, text: str) -> ScheduleError:
    rank, action = schedule.rank_at(row), str(schedule.action(row))
    return ScheduleError(f"rank {rank}: {action}: {text}", rank=rank, position=row, action=action)


def check_pairs(schedule: Schedule, positions: Positions) -> None:
    """Check that members of a pair do not wait for each other; a weight gradient may follow its input's.

    Raises:
        ScheduleError: a member's backward is of its own pair's forward, or its stage feeds another member's.
    """
    if not (schedule.pair >= 0).any():
        return
    starts = group_starts(schedule.pair, schedule.row_ptr)
    group = np.repeat(np.arange(starts.size), np.diff(starts, append=len(schedule)))
    for made, needed in _waits(schedule, positions):
        both = (made >= 0) & (needed >= 0) & (made != needed) & (group[made] == group[needed])
        if both.any():
            at = np.flatnonzero(both)[0]
            row, other = int(needed.flat[at]), int(made.flat[at])
            rank = schedule.rank_at(row)
            raise ScheduleError(
                f"rank {rank}: {schedule.action(row)} needs {schedule.action(other)}, which is in the same "
                "overlapped pair: write one behind the other",
                rank=rank,
                position=row,
                action=str(schedule.action(row)),
                missing=str(schedule.action(other)),
            )


def _waits(schedule: Schedule, positions: Positions) -> Iterator[tuple[Int32s, Int32s]]:
    """Yield positions of which the first makes what the second needs, by microbatch; -1 where there is none."""
    forward, backward = positions.of(Result.ACTIVATION), positions.of(Result.GRADIENT)
    yield forward, backward
    low, high = schedule.placement.edges.T
    yield forward[low], forward[high]
    yield backward[high], backward[low]
