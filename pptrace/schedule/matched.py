"""Check that what belongs together is there: both ends of a message, a copy and its return, a stage's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.action import Action
from pptrace.model.kinds import BACKWARD, COMMUNICATION, STAGE_ENDS, TOWARDS_NEXT, Kind, Result

if TYPE_CHECKING:
    from pptrace.schedule.index import Positions
    from pptrace.schedule.table import Schedule

__all__ = ["check_copies", "check_messages", "check_stage_ends", "check_waits"]


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
    """Check that what is offloaded is reloaded, and the other way round.

    Raises:
        ScheduleError: one without the other.
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
    """Check that what waits by name, and what it waits for, is in the table.

    Raises:
        ScheduleError: the first that is not.
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
