"""What an action did on its GPU: from its first to its last kernel, with gaps, collectives and messages apart.

An operation belongs to the action that launched it. Computation makes the action's slice; a collective in it is
the rank's own group's; a send or receive is an end of a message; a reduction or gathering over data-parallel
replicas is an action of its own. Whatever is none of these is counted by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.model.action import COMMUNICATION, Action, Kind
from pptrace.timeline.measurement import Unattributed
from pptrace_profilers.recording.coverage import covered_ns
from pptrace_profilers.recording.recording import End, OnDevice, Ran

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace_profilers.recording.recording import Operations, Recording, Said

__all__ = ["on_device"]

_NONE, _COMPUTES, _COLLECTIVE, _MESSAGE, _REPLICAS = range(5)
_SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
_PASSES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})
_DATA = re.compile(r"(?:^|[_\W])(?:dp|ddp|fsdp|hsdp)(?:$|[_\W])|data", re.IGNORECASE)
_GATHERS = re.compile(r"gather", re.IGNORECASE)
_REDUCES = re.compile(r"reduce", re.IGNORECASE)


def on_device(one: Recording) -> Recording:
    """Return a recording whose actions have their time on the GPU, and whose messages are its kernels'."""
    if one.operations is None:
        return one
    work = _Work.of(one)
    spans = work.spans()
    ran = [replace(each, device=spans.get(number)) for number, each in enumerate(one.ran)]
    reductions = work.reductions()
    ends = work.ends()
    operations = one.operations
    if reductions:
        operations = replace(operations, action=_moved(operations, one.ran, reductions))
    return replace(
        one,
        ran=tuple(sorted([*ran, *reductions], key=lambda each: each.start_ns)),
        ends=tuple(sorted(ends, key=lambda end: end.start_ns)) if ends else one.ends,
        operations=operations,
        unattributed=(*one.unattributed, *work.left()),
    )


def _moved(operations: Operations, ran: Sequence[Ran], more: Sequence[Ran]) -> NDArray[np.int32]:
    """Return each operation's action where others came between them."""
    starts = [each.start_ns for each in ran]
    behind = np.searchsorted(np.sort([each.start_ns for each in more]), starts, side="left")
    place = np.append(np.arange(len(starts)) + behind, -1).astype(np.int32)
    moved: NDArray[np.int32] = place[operations.action]
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A recording's operations, each with what it is."""

    one: Recording
    operations: Operations
    role: NDArray[np.int8]
    stream: int

    @classmethod
    def of(cls, one: Recording) -> _Work:
        operations: Any = one.operations
        kinds = np.array([int(each.action.kind) for each in one.ran] or [-1])
        kind = np.where(operations.action >= 0, kinds[operations.action], -1)
        alone = np.array([each.braid < 0 for each in one.ran] or [True])[operations.action]
        moves = np.isin(kind, [int(each) for each in COMMUNICATION]) & alone
        role = np.where(kind < 0, _NONE, np.where(operations.communicates, _COLLECTIVE, _COMPUTES))
        role = np.where(moves, np.where(operations.communicates, _MESSAGE, _NONE), role).astype(np.int8)
        passes = np.isin(kind, [-1, *(int(each) for each in _PASSES)])
        for at, said in operations.said.items():
            if any(each.what in {"send", "recv"} for each in said):
                role[at] = _MESSAGE
            elif passes[at] and any(_over_replicas(each) for each in said):
                role[at] = _REPLICAS
        return cls(one=one, operations=operations, role=role, stream=_compute_stream(operations))

    def spans(self) -> dict[int, OnDevice]:
        """Return by action what its kernels did."""
        operations = self.operations
        parts = np.flatnonzero((self.role == _COMPUTES) | (self.role == _COLLECTIVE))
        if not parts.size:
            return {}
        parts = parts[np.lexsort((operations.start_ns[parts], operations.action[parts]))]
        action, first = np.unique(operations.action[parts].astype(np.int64), return_index=True)
        group = np.repeat(np.arange(action.size), np.diff([*first, parts.size]))
        begin, end = operations.start_ns[parts], operations.end_ns[parts]
        own = self._bounding(parts, group, action.size)
        low = np.minimum.reduceat(np.where(own, begin, np.iinfo(np.int64).max), first)
        high = np.maximum.reduceat(np.where(own, end, np.iinfo(np.int64).min), first)
        main = self._on_main(parts, own, group, action.size)
        high = self._with_collectives(action, low, high, np.maximum.reduceat(end, first), main)
        begin, end = np.clip(begin, low[group], high[group]), np.clip(end, low[group], high[group])
        order = np.lexsort((begin, group))
        computes = self.role[parts] == _COMPUTES
        alone = order[computes[order]]
        busy = covered_ns(group[alone], begin[alone], end[alone], action.size)
        either = covered_ns(group[order], begin[order], end[order], action.size)
        first_own = np.minimum.reduceat(np.where(own, operations.launch_ns[parts], np.iinfo(np.int64).max), first)
        columns = zip(
            action.tolist(), low.tolist(), high.tolist(), first_own.tolist(),
            (high - low - either).tolist(), (either - busy).tolist(), main.tolist(), strict=True,
        )  # fmt: skip
        return {
            number: OnDevice(
                start_ns=start,
                end_ns=stop,
                launch_ns=launch,
                gap_ns=gap,
                collective_ns=collective,
                computes=on_main,
            )
            for number, start, stop, launch, gap, collective, on_main in columns
        }

    def _bounding(self, parts: Int64s, group: Int64s, groups: int) -> NDArray[np.bool_]:
        """Return which operations bound an action: on the compute stream, else those that compute, else all."""
        carries = np.array([one.action.kind in COMMUNICATION for one in self.one.ran])[
            self.operations.action[parts]
        ]
        computes = (self.role[parts] == _COMPUTES) != carries  # a phase that carries is what it sends
        main = computes & ~carries & (self.operations.stream[parts] == self.stream)
        has_main, has_any = (np.bincount(group[one], minlength=groups) > 0 for one in (main, computes))
        chosen: NDArray[np.bool_] = np.where(has_main[group], main, np.where(has_any[group], computes, True))
        return chosen

    def _on_main(self, parts: Int64s, own: NDArray[np.bool_], group: Int64s, groups: int) -> NDArray[np.bool_]:
        on_main = own & (self.operations.stream[parts] == self.stream)
        found: NDArray[np.bool_] = np.bincount(group[on_main], minlength=groups) > 0
        return found

    def _with_collectives(
        self, action: Int64s, low: Int64s, high: Int64s, last: Int64s, main: NDArray[np.bool_]
    ) -> Int64s:
        """Return the ends, with the collectives that the next action's computation waits for."""
        passes = np.array([self.one.ran[each].action.kind in _PASSES for each in action.tolist()]) & main
        order = np.flatnonzero(passes)[np.argsort(low[passes], kind="stable")]
        until = high.copy()
        until[order] = np.append(low[order][1:], np.iinfo(np.int64).max)
        longer: Int64s = np.maximum(high, np.minimum(last, until))
        return longer

    def ends(self) -> list[End]:
        """Return the ends of messages."""
        found = []
        for at in np.flatnonzero(self.role == _MESSAGE).tolist():
            number = int(self.operations.action[at])
            around = self.one.ran[number].action if number >= 0 else None
            carried = [one for one in self.operations.said.get(at, ()) if one.what in {"send", "recv"}]
            if not carried and around is not None:
                found.append(self._end(at, sends=around.kind in _SENDS, action=around))
            for one in carried:
                sends = one.what == "send"
                fits = around is not None and around.kind in COMMUNICATION and (around.kind in _SENDS) == sends
                action = one.action or (around if fits else None)
                found.append(self._end(at, sends=sends, action=action, peer=one.peer, size_bytes=one.size_bytes))
        return found

    def _end(self, at: int, *, sends: bool, action: Action | None, peer: int = -1, size_bytes: int = 0) -> End:
        operations = self.operations
        return End(
            sends=sends, peer=peer, size_bytes=size_bytes, action=action, posted_ns=int(operations.launch_ns[at]),
            start_ns=int(operations.start_ns[at]), end_ns=int(operations.end_ns[at]),
        )  # fmt: skip

    def reductions(self) -> list[Ran]:
        """Return what runs over data-parallel replicas; its stage is the one last worked on."""
        found = []
        stages = [(one.start_ns, one.action.stage) for one in self.one.ran if one.action.kind in _PASSES]
        starts = [start for start, _ in stages]
        for at in np.flatnonzero(self.role == _REPLICAS).tolist():
            launch = int(self.operations.launch_ns[at])
            before = int(np.searchsorted(starts, launch, side="right")) - 1
            if not stages or launch < 0:
                self.role[at] = _NONE
                continue
            (said, *_) = self.operations.said[at]
            kind = Kind.UNSHARD if _GATHERS.search(said.what) else Kind.REDUCE_GRAD
            start, end = int(self.operations.start_ns[at]), int(self.operations.end_ns[at])
            found.append(Ran(
                action=Action(kind=kind, stage=stages[max(before, 0)][1]), start_ns=launch, end_ns=launch,
                device=OnDevice(start_ns=start, end_ns=end, launch_ns=launch, computes=False),
            ))  # fmt: skip
        return found

    def left(self) -> list[Unattributed]:
        """Return what belongs to no action, by name."""
        operations = self.operations
        rows = np.flatnonzero(self.role == _NONE)
        names, index = np.unique(operations.name[rows], return_inverse=True)
        count = np.bincount(index, minlength=names.size)
        total = np.zeros(names.size, dtype=np.int64)
        np.add.at(total, index, operations.end_ns[rows] - operations.start_ns[rows])
        return [
            Unattributed(rank=-1, what=operations.names[name], count=many, total_ns=time)
            for name, many, time in zip(names.tolist(), count.tolist(), total.tolist(), strict=True)
        ]


def _compute_stream(operations: Operations) -> int:
    """Return the stream that computes the longest."""
    rows = np.flatnonzero(~operations.communicates)
    streams, index = np.unique(operations.stream[rows], return_inverse=True)
    if not streams.size:
        return -1
    busy = np.zeros(streams.size, dtype=np.int64)
    np.add.at(busy, index, operations.end_ns[rows] - operations.start_ns[rows])
    return int(streams[int(np.argmax(busy))])


def _over_replicas(said: Said) -> bool:
    return bool(_DATA.search(said.group) and (_GATHERS.search(said.what) or _REDUCES.search(said.what)))
