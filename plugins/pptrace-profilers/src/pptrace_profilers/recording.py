"""Recordings of a run: files, annotations and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pptrace.plugin import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import Action, Int32s, Int64s, Unattributed

Shifted = TypeVar("Shifted", bound=Any)


NO_STAGE = -1
"""The stage of an action whose name has none: the single stage of its rank."""
MOST_RANKS = 2**22
"""Processes that a job may have; more are a mistake."""
_PIPELINE = re.compile(r"(?:^|[_\W])pp(?:$|[_\W])|pipeline", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpan:
    """Time span of the kernels of an action."""

    start_ns: int
    """When the first one started."""
    end_ns: int
    """When the last one ended."""
    launch_ns: int = -1
    """When the host launched the first one; -1 where that is not recorded."""
    gap_ns: int = 0
    """Time between, in which none of them ran."""
    collective_ns: int = 0
    """Time between, in which only collectives of the rank's own group ran."""
    computes: bool = True
    """Whether they ran on the compute stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One action, as an annotation names it."""

    action: Action
    """What it says."""
    start_ns: int
    """Where the annotation starts, on the host."""
    end_ns: int
    """Where it ends."""
    gpu: GpuSpan | None = None
    """Span of its kernels; None if no GPU was recorded."""
    pair: int = -1
    """Number of the overlapped pair that it is a phase of, which communicates in the rank's own group; or -1."""

    @property
    def members(self) -> tuple[Action, ...]:
        """Return the actions of an overlapped pair, or the one."""
        return self.action.sub_actions or (self.action,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnd:
    """One end of a message."""

    sends: bool
    """Whether it leaves here."""
    peer: int
    """Global rank at the other end; -1 where the trace does not say."""
    start_ns: int
    """When it was posted (on a GPU: when its kernel started)."""
    end_ns: int
    """When it was known to be done."""
    size_bytes: int
    """Its size; 0 where the trace does not say."""
    action: Action | None = None
    """``SEND_F`` and so on, where an annotation around it says so."""
    posted_ns: int = -1
    """When the host launched its kernel; -1 where the host's own post is ``start_ns``."""
    stream: int = -1
    """The GPU's stream that its kernel ran on; -1 where the trace does not say."""

    @property
    def host_ns(self) -> int:
        """Return when the host posted it, or launched its kernel."""
        return self.posted_ns if self.posted_ns >= 0 else self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One message or collective of a kernel."""

    operation: str
    """``send``, ``recv``, or the collective's name as PyTorch writes it."""
    peer: int = -1
    """Global rank at the other end of a message; -1 where the trace does not say."""
    size_bytes: int = 0
    """Its size; 0 where the trace does not say."""
    group: str = ""
    """Description of its process group."""
    action: Action | None = None
    """``SEND_F`` and so on, where an annotation says so."""

    @property
    def is_message(self) -> bool:
        """Return whether it is a message between two ranks, and no collective."""
        return self.operation in {"send", "recv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """GPU operations, in columns of one value per operation, by time."""

    name: Int32s
    """Number among ``names``."""
    names: tuple[str, ...]
    """Names, each once."""
    stream: Int64s
    """The GPU's stream."""
    start_ns: Int64s
    """When it starts."""
    end_ns: Int64s
    """When it ends."""
    launch_ns: Int64s
    """When the host launched it; -1 where that is not recorded."""
    communicates: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether it is communication."""
    action: Int32s
    """Position in ``Recording.executions`` of the action that launched it; -1 for none."""
    thread: Int32s | None = None
    """Number of the host's thread that launched it, -1 where that is not recorded; None where nothing says."""
    payloads: Mapping[int, tuple[Payload, ...]] = field(default_factory=dict)
    """By position, what a kernel that communicates carries, where the trace says so."""

    @classmethod
    def of_collectives(cls, collectives: Sequence[tuple[Payload, int, int, int, int]]) -> Operations | None:
        """Return collectives of a recording without actions: what each is, its start, end, stream and launch."""
        if not collectives:
            return None
        payloads = [payload for payload, *_ in collectives]
        names = tuple(dict.fromkeys(payload.operation for payload in payloads))
        start, end, stream, launch = np.array([columns for _, *columns in collectives], dtype=np.int64).T
        return cls(
            name=np.array([names.index(payload.operation) for payload in payloads], dtype=np.int32), names=names,
            stream=stream, start_ns=start, end_ns=end, launch_ns=launch,
            communicates=np.ones(len(payloads), dtype=bool), action=np.full(len(payloads), -1, dtype=np.int32),
            payloads={position: (payload,) for position, payload in enumerate(payloads)},
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One process's file, or files."""

    path: Path
    """The (first) file."""
    rank: int
    """Global rank; -1 where neither the file nor its name says."""
    world: int
    """Processes of the job; 0 where the file does not say."""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each process group that has a description."""
    windows: tuple[tuple[str, int, int], ...] = ()
    """Label, start and end of each step that the profiler marked."""
    executions: tuple[Execution, ...] = ()
    """Actions by time."""
    ends: tuple[MessageEnd, ...] = ()
    """Ends of messages by time."""
    operations: Operations | None = None
    """GPU operations; None where the host's own work was recorded."""
    origin_ns: int | None = None
    """Time that trace viewers show as 0; None if they cannot open the file."""
    has_clock: bool = False
    """Whether the file names a clock of its own, as Perfetto's format does."""
    allocated_bytes: int = 0
    """Most memory that was allocated on its GPU at once; 0 where that is not recorded."""
    notes: tuple[str, ...] = ()
    """Notes on dropped events; one sentence each."""
    unattributed: tuple[Unattributed, ...] = ()
    """Operations without an action; their rank is not set."""


def pipeline_group(groups: Mapping[str, tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """Return the global ranks of a rank's pipeline, where a group's description says so; else none."""
    return next((ranks for name, ranks in groups.items() if _PIPELINE.search(name) and rank in ranks), ())


def name_some(items: Iterable[object], count: int, most: int = 16) -> str:
    """Return the names of the first of ``count`` items, ``most`` at most, and the number of all others.

    >>> name_some([3, 5, 8], 3, 2)
    '3, 5 and 1 others'
    """
    named = list(map(str, islice(items, most)))
    return ", ".join(named) + (f" and {count - len(named)} others" if count > len(named) else "")


def shifted(span: Shifted, by_ns: int, **changes: Any) -> Shifted:
    """Return a span moved by ``by_ns``, with ``changes`` of other fields."""
    return replace(span, start_ns=span.start_ns + by_ns, end_ns=span.end_ns + by_ns, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Annotations by start, the longer first where starts are equal."""

    start_ns: Int64s
    """When each starts."""
    end_ns: Int64s
    """When it ends."""
    thread: Int32s
    """Its thread's number."""
    row: Int64s
    """Its place in the file."""

    def around(self, at_ns: Int64s, thread: Int32s, row: Int64s) -> Int64s:
        """Return the innermost annotation around each instant, -1 for none.

        An annotation of the same thread takes precedence: autograd launches from a thread without annotations.

        Args:
            at_ns: instants.
            thread: the thread of each.
            row: the place in the file of each, which tells empty annotations of one instant apart.
        """
        if not self.start_ns.size:
            return np.full(at_ns.size, -1, dtype=np.int64)
        everywhere = self._innermost(np.arange(self.start_ns.size), (self.start_ns, self.end_ns, at_ns), row)
        # Times of a thread follow all times of threads with lower numbers: one search serves all threads.
        count = self.start_ns.size
        _, time = np.unique(np.concatenate([self.start_ns, self.end_ns, at_ns]), return_inverse=True)
        time += np.concatenate([self.thread, self.thread, thread]).astype(np.int64) * time.size
        by_thread = np.argsort(self.thread, kind="stable")
        nearest = self._innermost(by_thread, (time[:count], time[count : 2 * count], time[2 * count :]), row)
        return np.where(nearest >= 0, nearest, everywhere)

    def _innermost(self, among: Int64s, times: tuple[Int64s, Int64s, Int64s], row: Int64s) -> Int64s:
        """Return the last annotation that started before each instant and did not end before it.

        Args:
            among: all annotations by start.
            times: of the annotations' starts and ends, and of the instants.
            row: the place in the file of each instant.
        """
        start, end, at_ns = times[0][among], times[1][among], times[2]
        position = np.searchsorted(start, at_ns, side="right") - 1
        if bool((start == end).any()):
            position = _last_before(start, np.where(start == end, self.row[among], -1), at_ns, row)
        outer = _outer(end)
        unsettled = np.flatnonzero(position >= 0)
        while unsettled.size:
            over = end[position[unsettled]] < at_ns[unsettled]
            unsettled = unsettled[over]
            position[unsettled] = outer[position[unsettled]]
            unsettled = unsettled[position[unsettled] >= 0]
        innermost: Int64s = np.where(position >= 0, among[position], -1)
        return innermost


def _last_before(start: Int64s, start_row: Int64s, at_ns: Int64s, row: Int64s) -> Int64s:
    """Return the last annotation before each instant, by time and then by place in the file."""
    count = start.size
    order = np.lexsort((
        np.concatenate([np.zeros(count, dtype=np.int8), np.ones(at_ns.size, dtype=np.int8)]),
        np.concatenate([start_row, row]),
        np.concatenate([start, at_ns]),
    ))  # fmt: skip
    passed = np.cumsum(order < count) - 1
    last = np.empty(at_ns.size, dtype=np.int64)
    instants = order >= count
    last[order[instants] - count] = passed[instants]
    return last


def _outer(end: Int64s) -> Int64s:
    """Return for each annotation the last one before it that ends later; -1 for none."""
    outer: list[int] = []
    enclosing: list[tuple[int, int]] = []
    for index, time in enumerate(end.tolist()):
        while enclosing and enclosing[-1][1] <= time:
            enclosing.pop()
        outer.append(enclosing[-1][0] if enclosing else -1)
        enclosing.append((index, time))
    return np.array(outer, dtype=np.int64)


T = TypeVar("T")


def read_files(paths: Sequence[Path], read: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Return the contents of each file, and a note on each unreadable file.

    Raises:
        TraceError: no file can be read.
    """
    contents: dict[Path, T] = {}
    unread: list[str] = []
    for path in paths:
        try:
            contents[path] = read(path)
        except TraceError as error:
            if len(paths) == 1:
                raise
            unread.append(str(error))
    if not contents:
        raise TraceError(f"none of {len(paths)} files can be read: {unread[0]}", file=paths[0].parent)
    return contents, unread
