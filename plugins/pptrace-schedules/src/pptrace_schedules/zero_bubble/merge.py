"""Adjacent input and weight gradients, merged into full backwards.

Source: PyTorch 2.13, ``torch/distributed/pipelining/schedules.py``, ``_merge_bw``. A full backward overlaps
the collectives of its input gradient with its weight gradients; a separate input gradient has nothing to overlap
them with. In exchange, a full backward sends its gradient later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Kind, Links, Paths, Schedule, Workload, simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s, Timeline

__all__ = ["Merging", "merged"]


def merged(table: Schedule) -> Schedule:
    """Return a table in which an input gradient directly before its weight gradient becomes a full backward."""
    return _with_merged(table, _pairs(table))


def _pairs(table: Schedule) -> NDArray[np.intp]:
    """Return the positions of input gradients that their own weight gradient directly follows."""
    rank = _rank_of(table)
    first, second = slice(None, -1), slice(1, None)
    pairs = (table.kind[first] == Kind.I) & (table.kind[second] == Kind.W)
    for column in (rank, table.stage, table.microbatch):
        pairs &= column[first] == column[second]
    return np.flatnonzero(pairs)


def _with_merged(table: Schedule, pairs: NDArray[np.intp]) -> Schedule:
    kind = table.kind.copy()
    kind[pairs] = Kind.B
    kept = np.delete(np.arange(len(table)), pairs + 1)
    row_ptr = np.append(0, np.cumsum(np.bincount(_rank_of(table)[kept], minlength=table.ranks)))
    return Schedule.from_columns(table.placement, row_ptr, kind[kept], table.stage[kept], table.microbatch[kept])


def _rank_of(table: Schedule) -> NDArray[np.intp]:
    return np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """Durations that decide which backwards are merged; arrays have shape (stages,)."""

    forward: Int64s
    input_gradient: Int64s
    weight_gradient: Int64s
    backward: Int64s
    transfer: int
    """Time from one rank to another; messages meet nobody."""

    def of(self, table: Schedule) -> tuple[Schedule, Schedule]:
        """Return the table with all adjacent halves merged, and with only those whose merge delays no stage.

        The latter is never longer than the table itself: a gradient that comes later is there before its stage
        starts with it, and a merged backward takes no longer than its halves. So each action may start when it
        did, or earlier.
        """
        pairs = _pairs(table)
        return _with_merged(table, pairs), _with_merged(table, pairs[self._harmless(table, pairs)])

    def lengths(self, table: Schedule) -> tuple[int, int]:
        """Return the longest time from a rank's start to its end, and from the first start to the last end."""
        timeline = self._timeline(table)
        start, end = np.full(table.ranks, 2**62), np.zeros(table.ranks, dtype=np.int64)
        actions = _actions(timeline)
        rank = timeline.rank_of_row()[actions]
        np.minimum.at(start, rank, timeline.start_ns[actions])
        np.maximum.at(end, rank, timeline.end_ns[actions])
        return int((end - start).max()), int(end.max() - start.min())

    def _harmless(self, table: Schedule, pairs: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which backwards can be merged without delaying another stage."""
        stage, microbatch = table.stage[pairs], table.microbatch[pairs]
        started = self._gradients_start(table)
        rank_of = table.placement.stage_rank[0]
        next_stage = np.maximum(stage - 1, 0)
        away = np.where(rank_of[stage] == rank_of[next_stage], 0, self.transfer)
        there = started[stage, microbatch] + self.backward[stage] + away
        harmless: NDArray[np.bool_] = (stage == 0) | (there <= started[next_stage, microbatch])
        return harmless & (self.backward <= self.input_gradient + self.weight_gradient)[stage]

    def _gradients_start(self, table: Schedule) -> Int64s:
        """Return when input gradients start, shape (stages, microbatches)."""
        timeline = self._timeline(table)
        gradients = timeline.kind == Kind.I
        started = np.zeros((table.stages, table.microbatches), dtype=np.int64)
        started[timeline.stage[gradients], timeline.microbatch[gradients]] = timeline.start_ns[gradients]
        return started

    def _timeline(self, table: Schedule) -> Timeline:
        costs = Workload.uniform(
            table.stages, f_ns=self.forward, i_ns=self.input_gradient, w_ns=self.weight_gradient,
            b_ns=self.backward,
        )  # fmt: skip
        return simulate(table, costs, _Wires(self.transfer))


def _actions(timeline: Timeline) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [Kind.F, Kind.I, Kind.W, Kind.B])


@dataclass(frozen=True, slots=True)
class _Wires:
    """A network where every message takes the same time."""

    transfer: int

    @property
    def links(self) -> Links:
        return Links(rate_kbps=np.zeros(0, dtype=np.int64))

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        del dst
        none = np.zeros(src.size, dtype=np.int64)
        return Paths(
            overhead_ns=none, latency_ns=np.full(src.size, self.transfer, dtype=np.int64), rate_kbps=none,
            link_ptr=np.zeros(src.size + 1, dtype=np.int32), link=np.zeros(0, dtype=np.int32),
        )  # fmt: skip
