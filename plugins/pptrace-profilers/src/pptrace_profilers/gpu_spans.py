"""GPU spans of annotations.

An operation belongs to the action that launched it. Computation bounds the slice of the action. A collective
inside an action belongs to the group of the rank. A send or receive is an end of a message. A reduction or gather
over data-parallel replicas is a separate action. All remaining operations are counted by name.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import Action, Kind, Unattributed, kinds
from pptrace_profilers.recording import Executions, MessageEnds, Payload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s
    from pptrace_profilers.recording import Operations, Recording

_DATA = re.compile(r"(?:^|[_\W])(?:dp|ddp|fsdp|hsdp)(?:$|[_\W])|data", re.IGNORECASE)
_GATHERS = re.compile(r"gather", re.IGNORECASE)
_REDUCES = re.compile(r"reduce", re.IGNORECASE)
LATE_NS = 10_000
"""The shortest gap between kernels that is a late launch; a GPU takes a few microseconds between two kernels."""
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _Role(IntEnum):
    """Role of an operation in the action that launched it."""

    NONE = 0
    COMPUTES = 1
    COLLECTIVE = 2
    MESSAGE = 3
    REPLICAS = 4


def add_gpu_spans(recording: Recording) -> Recording:
    """Return a recording with GPU spans of actions and with messages timed by kernels."""
    operations = recording.operations
    if operations is None:
        return recording
    work = _Work.of(recording.executions, operations)
    executions = Executions.concatenate([work.executions_with_spans(), work.reductions()])
    ends = work.ends()
    return replace(
        recording,
        executions=executions.sorted_by(executions.start_ns),
        ends=ends.sorted_by(ends.start_ns) if len(ends) else recording.ends,
        unattributed=(*recording.unattributed, *work.unattributed()),
    )


class _Work(Struct, frozen=True, kw_only=True):
    """A recording's operations, each with its role."""

    executions: Executions
    operations: Operations
    role: NDArray[np.int8]
    compute_stream: int

    @classmethod
    def of(cls, executions: Executions, operations: Operations) -> _Work:
        kind = np.append(executions.kind, -1)[operations.action]
        unpaired = np.append(executions.pair, -1)[operations.action] < 0
        moves = (kind >= 0) & kinds.COMMUNICATION.mask(kind) & unpaired
        communicates = operations.communicates
        role = np.where(kind < 0, _Role.NONE, np.where(communicates, _Role.COLLECTIVE, _Role.COMPUTES))
        role = np.where(moves, np.where(communicates, _Role.MESSAGE, _Role.NONE), role).astype(np.int8)
        passes = (kind < 0) | kinds.PASSES.mask(kind)
        for position, payloads in operations.payloads.items():
            if any(payload.is_message for payload in payloads):
                role[position] = _Role.MESSAGE
            elif passes[position] and any(_is_over_replicas(payload) for payload in payloads):
                role[position] = _Role.REPLICAS
        return cls(
            executions=executions, operations=operations, role=role, compute_stream=compute_stream(operations)
        )

    def executions_with_spans(self) -> Executions:
        """Return the actions with the time spans of their kernels."""
        operations = self.operations
        parts = np.flatnonzero((self.role == _Role.COMPUTES) | (self.role == _Role.COLLECTIVE))
        if not parts.size:
            return self.executions
        parts = parts[np.lexsort((operations.start_ns[parts], operations.action[parts]))]
        action, first = np.unique(operations.action[parts].astype(np.int64), return_index=True)
        group = np.repeat(np.arange(action.size), np.diff([*first, parts.size]))
        begin, end = operations.start_ns[parts], operations.end_ns[parts]
        bounds = self._bounding(parts, group, action.size)
        low = np.minimum.reduceat(np.where(bounds, begin, _LATEST), first)
        high = np.maximum.reduceat(np.where(bounds, end, _EARLIEST), first)
        main = _any(group, bounds & (operations.stream[parts] == self.compute_stream), action.size)
        high = self._with_collectives(action, low, high, np.maximum.reduceat(end, first), main)
        begin, end = np.clip(begin, low[group], high[group]), np.clip(end, low[group], high[group])
        order = np.lexsort((begin, group))
        computing = order[(self.role[parts] == _Role.COMPUTES)[order]]
        (computed, _), (busy, short_gap_ns) = (
            covered_ns(group[rows], begin[rows], end[rows], action.size) for rows in (computing, order)
        )
        launch = np.minimum.reduceat(np.where(bounds, operations.launch_ns[parts], _LATEST), first)
        return self.executions.updated(
            action, on_gpu=True, gpu_start_ns=low, gpu_end_ns=high, launch_ns=launch, gap_ns=high - low - busy,
            short_gap_ns=short_gap_ns, collective_ns=busy - computed, computes=main,
        )  # fmt: skip

    def _bounding(self, parts: Int64s, group: Int64s, groups: int) -> NDArray[np.bool_]:
        """Return the operations that bound an action: those on the compute stream, else computations, else all."""
        carries = kinds.COMMUNICATION.mask(self.executions.kind[self.operations.action[parts]])
        computes = (
            self.role[parts] == _Role.COMPUTES
        ) != carries  # a communication phase is bounded by its communication
        main = computes & ~carries & (self.operations.stream[parts] == self.compute_stream)
        has_main, has_any = (_any(group, rows, groups) for rows in (main, computes))
        bounds: NDArray[np.bool_] = np.where(has_main[group], main, np.where(has_any[group], computes, True))
        return bounds

    def _with_collectives(
        self, action: Int64s, low: Int64s, high: Int64s, last: Int64s, main: NDArray[np.bool_]
    ) -> Int64s:
        """Return the ends, with the collectives that the next action's computation waits for."""
        passes = kinds.PASSES.mask(self.executions.kind[action]) & main
        order = np.flatnonzero(passes)[np.argsort(low[passes], kind="stable")]
        until = high.copy()
        until[order] = np.append(low[order][1:], _LATEST)
        extended: Int64s = np.maximum(high, np.minimum(last, until))
        return extended

    def ends(self) -> MessageEnds:
        """Return the ends of messages."""
        operations = self.operations
        launchers = np.array([*self.executions.action, None])[operations.action]
        rows: list[tuple[int, Payload, Action | None]] = []
        for position in np.flatnonzero(self.role == _Role.MESSAGE).tolist():
            launcher = launchers[position]
            is_message = launcher is not None and launcher.kind in kinds.COMMUNICATION
            is_send = launcher is not None and launcher.kind in kinds.SENDS
            payloads = [payload for payload in operations.payloads.get(position, ()) if payload.is_message]
            if not payloads and launcher is not None:
                payloads = [Payload(operation="send" if is_send else "recv", action=launcher)]
            for payload in payloads:
                is_named = is_message and is_send == (payload.operation == "send")
                rows.append((position, payload, payload.action or (launcher if is_named else None)))
        kernel = np.array([position for position, _, _ in rows], dtype=np.int64)
        return MessageEnds(
            action=[action for _, _, action in rows],
            sends=[payload.operation == "send" for _, payload, _ in rows],
            peer=[payload.peer for _, payload, _ in rows],
            size_bytes=[payload.size_bytes for _, payload, _ in rows],
            start_ns=operations.start_ns[kernel], end_ns=operations.end_ns[kernel],
            posted_ns=operations.launch_ns[kernel], stream=operations.stream[kernel],
        )  # fmt: skip

    def reductions(self) -> Executions:
        """Return the operations over data-parallel replicas as actions of the last active stage."""
        operations = self.operations
        passes = self.executions.of_rows(kinds.PASSES.mask(self.executions.kind))
        rows = np.flatnonzero(self.role == _Role.REPLICAS)
        known = (operations.launch_ns[rows] >= 0) & (len(passes) > 0)
        self.role[rows[~known]] = _Role.NONE
        rows = rows[known]
        launch_ns = operations.launch_ns[rows]
        last_pass = np.maximum(np.searchsorted(passes.start_ns, launch_ns, side="right") - 1, 0)
        gathers = [bool(_GATHERS.search(operations.payloads[row][0].operation)) for row in rows.tolist()]
        return Executions(
            action=[
                Action(kind=Kind.UNSHARD if gather else Kind.REDUCE_GRAD, stage=action.stage)
                for gather, action in zip(gathers, passes.action[last_pass], strict=True)
            ],
            start_ns=launch_ns, end_ns=launch_ns, launch_ns=launch_ns, on_gpu=True, computes=False,
            gpu_start_ns=operations.start_ns[rows], gpu_end_ns=operations.end_ns[rows],
        )  # fmt: skip

    def unattributed(self) -> list[Unattributed]:
        """Return the operations without an action, summed by name."""
        operations = self.operations
        rows = np.flatnonzero(self.role == _Role.NONE)
        names, count, total = totals(operations.name[rows], (operations.end_ns - operations.start_ns)[rows])
        return [
            Unattributed(rank=-1, what=operations.names[name], count=times, total_ns=time)
            for name, times, time in zip(names.tolist(), count.tolist(), total.tolist(), strict=True)
        ]


def _any(group: Int64s, chosen: NDArray[np.bool_], groups: int) -> NDArray[np.bool_]:
    """Return for each group whether one of its rows is chosen."""
    has_chosen: NDArray[np.bool_] = np.bincount(group[chosen], minlength=groups) > 0
    return has_chosen


def compute_stream(operations: Operations) -> int:
    """Return the stream with the longest computation; -1 without computations."""
    rows = np.flatnonzero(~operations.communicates)
    streams, _, busy = totals(operations.stream[rows], (operations.end_ns - operations.start_ns)[rows])
    return int(streams[int(np.argmax(busy))]) if streams.size else -1


def _is_over_replicas(payload: Payload) -> bool:
    operation = payload.operation
    return bool(_DATA.search(payload.group) and (_GATHERS.search(operation) or _REDUCES.search(operation)))


def covered_ns(group: Int64s, start_ns: Int64s, end_ns: Int64s, groups: int) -> tuple[Int64s, Int64s]:
    """Return the length of each group's union, and its gaps that are shorter than a late launch in sum.

    Args:
        group: each interval's group, ascending.
        start_ns: starts, ascending within a group.
        end_ns: ends.
        groups: number of groups.

    >>> covered, short = covered_ns(np.array([0, 0, 1]), np.array([0, 5, 5]), np.array([3, 9, 6]), 2)
    >>> covered.tolist(), short.tolist()
    ([7, 1], [2, 0])
    """
    total_ns, short_ns, zero = np.zeros((3, groups), dtype=np.int64)
    if not group.size:
        return total_ns, short_ns
    first = np.flatnonzero(np.diff(group, prepend=-1))
    zero[group[first]] = start_ns[first]
    # Shift each group beyond the previous one, so that one running maximum covers all groups.
    span_ns = int((end_ns - zero[group]).max()) + 1
    begin, end = start_ns - zero[group] + group * span_ns, end_ns - zero[group] + group * span_ns
    latest_end = np.maximum.accumulate(end)
    covered_until = np.concatenate([begin[:1], latest_end[:-1]])
    np.add.at(total_ns, group, np.maximum(end - np.maximum(begin, covered_until), 0))
    gap_ns = begin - covered_until
    gap_ns[first] = 0
    short = (gap_ns > 0) & (gap_ns < LATE_NS)
    np.add.at(short_ns, group[short], gap_ns[short])
    return total_ns, short_ns


def union_ns(start_ns: Int64s, end_ns: Int64s) -> int:
    """Return the length of the union of intervals in any order.

    >>> union_ns(np.array([2, 0, 7]), np.array([4, 3, 9]))
    6
    """
    order = np.argsort(start_ns, kind="stable")
    covered, _ = covered_ns(np.zeros(order.size, dtype=np.int64), start_ns[order], end_ns[order], 1)
    return int(covered[0])


def totals(key: NDArray[Any], amount: Int64s) -> tuple[NDArray[Any], Int64s, Int64s]:
    """Return the distinct keys, ascending, with the count and the total amount of each.

    >>> [column.tolist() for column in totals(np.array([7, 3, 7]), np.array([1, 2, 3]))]
    [[3, 7], [1, 2], [2, 4]]
    """
    keys, group = np.unique(key, return_inverse=True)
    total = np.zeros(keys.size, dtype=np.int64)
    np.add.at(total, group, amount)
    return keys, np.bincount(group, minlength=keys.size), total


def window_around(windows: Sequence[tuple[int, int]], times_ns: Sequence[int] | Int64s) -> Int64s:
    """Return the last window that starts before each instant; -1 if it ends before the instant.

    Args:
        windows: starts and ends, by start.
        times_ns: instants.

    >>> window_around([(0, 4), (5, 9)], [0, 4, 7, 10]).tolist()
    [0, 0, 1, -1]
    """
    starts, ends = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    instants = np.array(times_ns, dtype=np.int64)
    last = np.searchsorted(starts, instants, side="right") - 1
    window: Int64s = np.where((last >= 0) & (instants <= ends[last]), last, -1)
    return window
