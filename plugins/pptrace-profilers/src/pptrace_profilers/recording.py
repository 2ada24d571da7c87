"""Recordings of a run: files, annotations and steps."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from pptrace.plugin import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import Action, Int32s, Int64s, Unattributed

Actions: TypeAlias = NDArray[np.object_]
Bools: TypeAlias = NDArray[np.bool_]
_DTYPES: dict[str, type] = {"Actions": object, "Bools": np.bool_, "Int64s": np.int64}

NO_STAGE = -1
"""Stage of an action whose name has no stage; stands for the single stage of its rank."""
MOST_RANKS = 2**22
"""Maximum number of processes of a job; larger numbers are invalid."""
_PIPELINE = re.compile(r"(?:^|[_\W])pp(?:$|[_\W])|pipeline", re.IGNORECASE)


# Defaults of columns; a column that must be given has no rows by default.
NO_ROWS: Any = ()
UNKNOWN: Any = -1
NOTHING: Any = 0
EVERY: Any = True
NO_ACTION: Any = None


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Rows:
    """Base of tables in columns, one value per row; a default or a single value applies to all rows."""

    start_ns: Int64s = NO_ROWS
    end_ns: Int64s = NO_ROWS

    def __init__(self, **columns: Any) -> None:
        if unknown := columns.keys() - {column.name for column in fields(self)}:
            message = f"no columns: {unknown}"
            raise TypeError(message)
        rows = np.shape(columns.get("start_ns", NO_ROWS))
        for column in fields(self):
            values = columns.get(column.name, column.default)
            values = np.asarray(values, dtype=_DTYPES[str(column.type)])
            object.__setattr__(self, column.name, np.broadcast_to(values, rows))

    def __len__(self) -> int:
        return int(self.start_ns.size)

    @classmethod
    def from_rows(cls, names: Sequence[str], rows: Iterable[Sequence[object]]) -> Self:
        """Return the table of rows that have the values of the named columns."""
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return cls(**dict(zip(names, columns, strict=True)))

    @classmethod
    def concatenate(cls, tables: Sequence[Self]) -> Self:
        """Return the rows of all tables."""
        names = [column.name for column in fields(cls)]
        return cls(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})

    def of_rows(self, rows: NDArray[Any]) -> Self:
        """Return the given rows, in their order."""
        return self.with_columns(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    def sorted_by(self, *keys: NDArray[Any]) -> Self:
        """Return the rows in the order of the first key; later keys order equal rows."""
        return self.of_rows(np.lexsort(keys[::-1]))

    def with_columns(self, **columns: Any) -> Self:
        """Return the table with other values in some columns."""
        return replace(self, **columns)

    def updated(self, rows: NDArray[Any], **changes: Any) -> Self:
        """Return the table with other values in some rows."""
        columns = {name: np.array(getattr(self, name)) for name in changes}
        for name, values in columns.items():
            values[rows] = changes[name]
        return self.with_columns(**columns)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Executions(Rows):
    """Actions with their annotations on the host, and with the time spans of their kernels."""

    action: Actions = NO_ROWS
    """The actions that the annotations name."""
    pair: Int64s = UNKNOWN
    """Number of the overlapped pair of which the action is a phase; -1 for all other actions."""
    on_gpu: Bools = NOTHING
    """Whether kernels of the action were recorded; without them, the following columns do not count."""
    gpu_start_ns: Int64s = NOTHING
    """Start of the first kernel."""
    gpu_end_ns: Int64s = NOTHING
    """End of the last kernel."""
    launch_ns: Int64s = UNKNOWN
    """Launch of the first kernel on the host; -1 if not recorded."""
    gap_ns: Int64s = NOTHING
    """Time from the first to the last kernel without a running kernel of the action."""
    short_gap_ns: Int64s = NOTHING
    """The part of ``gap_ns`` in gaps that are too short for a late launch."""
    collective_ns: Int64s = NOTHING
    """Time from the first to the last kernel with collectives of the rank's group alone."""
    computes: Bools = EVERY
    """Whether the kernels ran on the compute stream."""
    operators_start_ns: Int64s = UNKNOWN
    """Start of the first operator of the host inside the annotation; -1 if none was recorded."""
    operators_end_ns: Int64s = UNKNOWN
    """End of the last operator inside the annotation; -1 if none was recorded."""

    @property
    def kind(self) -> Int64s:
        """Return the kind of each action."""
        return np.array([action.kind for action in self.action], dtype=np.int64)

    @property
    def work_ns(self) -> tuple[Int64s, Int64s]:
        """Return the starts and ends of the kernels, by default of the annotations."""
        start_ns = np.where(self.on_gpu, self.gpu_start_ns, self.start_ns)
        return start_ns, np.where(self.on_gpu, self.gpu_end_ns, self.end_ns)


def members_of(action: Action) -> tuple[Action, ...]:
    """Return the actions of an overlapped pair, or the single action."""
    return action.sub_actions or (action,)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class MessageEnds(Rows):
    """Ends of messages: from the post to the end of the wait on the host, or a kernel of a GPU."""

    action: Actions = NO_ACTION
    """``SEND_F`` and so on, from an annotation around the post; None without one."""
    sends: Bools = NO_ROWS
    """Whether this is the sender's end."""
    peer: Int64s = UNKNOWN
    """Global rank at the other end; -1 if not recorded."""
    size_bytes: Int64s = NOTHING
    """Size of the message; 0 if not recorded."""
    posted_ns: Int64s = UNKNOWN
    """Launch of the kernel on the host; -1 if ``start_ns`` is the host's post."""
    stream: Int64s = UNKNOWN
    """GPU stream of the kernel; -1 if not recorded."""

    @property
    def host_ns(self) -> Int64s:
        """Return when the host posted the messages or launched their kernels."""
        return np.where(self.posted_ns >= 0, self.posted_ns, self.start_ns)


class Payload(Struct, frozen=True, kw_only=True):
    """One message or collective of a kernel."""

    operation: str
    """``send``, ``recv``, or PyTorch's name of the collective."""
    peer: int = -1
    """Global rank at the other end of a message; -1 if not recorded."""
    size_bytes: int = 0
    """Size of the message; 0 if not recorded."""
    group: str = ""
    """Description of its process group."""
    action: Action | None = None
    """``SEND_F`` and so on, from an annotation; None without one."""

    @property
    def is_message(self) -> bool:
        """Return whether this is a message between two ranks, not a collective."""
        return self.operation in {"send", "recv"}


class Operations(Struct, frozen=True, kw_only=True):
    """GPU operations by time; columns have one value per operation."""

    name: Int32s
    """Index of the name in ``names``."""
    names: tuple[str, ...]
    """Distinct names."""
    stream: Int64s
    """GPU stream."""
    start_ns: Int64s
    end_ns: Int64s
    launch_ns: Int64s
    """Launch on the host; -1 if not recorded."""
    communicates: Bools
    """Whether the operation is communication."""
    copies: Bools
    """Whether the operation copies or fills memory."""
    action: Int32s
    """Position of the launching action among the annotated actions; -1 for none."""
    thread: Int32s | None = None
    """Number of the launching thread on the host, -1 if not recorded; None if no thread is recorded."""
    operator: Int32s | None = None
    """Index in ``names`` of the innermost host operator around the launch, -1 for none; None if not recorded."""
    payloads: Mapping[int, tuple[Payload, ...]] = field(default_factory=dict)
    """Messages and collectives of communication kernels, by position; only those that the trace describes."""

    @classmethod
    def of_collectives(cls, collectives: Sequence[tuple[Payload, int, int, int, int]]) -> Operations | None:
        """Return the operations of a recording without actions.

        Args:
            collectives: payload, start, end, stream and launch of each collective.
        """
        if not collectives:
            return None
        payloads = [payload for payload, *_ in collectives]
        names = tuple(dict.fromkeys(payload.operation for payload in payloads))
        start, end, stream, launch = np.array([columns for _, *columns in collectives], dtype=np.int64).T
        return cls(
            name=np.array([names.index(payload.operation) for payload in payloads], dtype=np.int32), names=names,
            stream=stream, start_ns=start, end_ns=end, launch_ns=launch,
            communicates=np.ones(len(payloads), dtype=bool), copies=np.zeros(len(payloads), dtype=bool),
            action=np.full(len(payloads), -1, dtype=np.int32),
            payloads={position: (payload,) for position, payload in enumerate(payloads)},
        )  # fmt: skip


class Recording(Struct, frozen=True, kw_only=True):
    """Recorded data of one process, from one or several files."""

    path: Path
    """The (first) file."""
    rank: int
    """Global rank; -1 if neither the file nor its name has it."""
    world: int
    """Processes of the job; 0 if not recorded."""
    host: str = ""
    """Name of the machine, whose processes have one clock; empty if not recorded."""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each process group that has a description."""
    windows: tuple[tuple[str, int, int], ...] = ()
    """Label, start and end of each step that the profiler marked."""
    executions: Executions = field(default_factory=Executions)
    """Actions by time."""
    ends: MessageEnds = field(default_factory=MessageEnds)
    """Ends of messages by time."""
    operations: Operations | None = None
    """GPU operations; None for a recording of the host."""
    untimed: tuple[Payload, ...] = ()
    """Messages and collectives of unknown duration, which are in no other table."""
    origin_ns: int | None = None
    """Time that trace viewers show as 0; None if trace viewers cannot open the file."""
    has_clock: bool = False
    """Whether the file defines a clock, as in Perfetto's format."""
    allocated_bytes: int = 0
    """Peak of allocated memory on the GPU; 0 if not recorded."""
    notes: tuple[str, ...] = ()
    """Notes on dropped events; one sentence each."""
    unattributed: tuple[Unattributed, ...] = ()
    """Operations without an action; ``rank`` is not set."""


def pipeline_group(groups: Mapping[str, tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """Return the global ranks of a rank's pipeline group; empty if no description matches."""
    return next((ranks for name, ranks in groups.items() if _PIPELINE.search(name) and rank in ranks), ())


def list_some(items: Iterable[object], count: int, most: int = 16) -> str:
    """Return the first ``most`` of ``count`` items as text, and the number of omitted items.

    >>> list_some([3, 5, 8], 3, 2)
    '3, 5 and 1 others'
    """
    named = list(map(str, islice(items, most)))
    return ", ".join(named) + (f" and {count - len(named)} others" if count > len(named) else "")


class Annotations(Struct, frozen=True, kw_only=True):
    """Annotations by start; of equal starts, the longer annotation comes first."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int32s
    """Number of the thread."""
    row: Int64s
    """Row in the file."""

    def around(self, time_ns: Int64s, thread: Int32s, row: Int64s) -> Int64s:
        """Return the innermost annotation around each instant, -1 for none.

        An annotation of the same thread takes precedence: autograd launches from a thread without annotations.

        Args:
            time_ns: instants.
            thread: the thread of each instant.
            row: the row of each instant in the file; orders empty annotations at the same time.
        """
        if not self.start_ns.size:
            return np.full(time_ns.size, -1, dtype=np.int64)
        count = self.start_ns.size
        _, times = np.unique(np.concatenate([self.start_ns, self.end_ns, time_ns]), return_inverse=True)
        any_thread = self._innermost(np.arange(count), times, row)
        # Shift the times of each thread beyond those of all lower threads, so that one search covers all threads.
        times += np.concatenate([self.thread, self.thread, thread]).astype(np.int64) * times.size
        nearest = self._innermost(np.argsort(self.thread, kind="stable"), times, row)
        return np.where(nearest >= 0, nearest, any_thread)

    def _innermost(self, rows: Int64s, times: Int64s, row: Int64s) -> Int64s:
        """Return the last annotation that started before each instant and did not end before it.

        Args:
            rows: all annotations by start.
            times: ordinals of the starts and of the ends of the annotations, and of the instants.
            row: the row of each instant in the file.
        """
        start, end, instant = np.split(times, [rows.size, 2 * rows.size])
        start, end = start[rows], end[rows]
        # Empty annotations and instants at the same time are in the order of the file.
        file_row = np.where(start == end, self.row[rows], -1)
        most_rows = int(max(file_row.max(), row.max(initial=0))) + 2
        position = np.searchsorted(start * most_rows + file_row, instant * most_rows + row, side="right") - 1
        outer = _outer_annotations(end)
        unsettled = np.flatnonzero(position >= 0)
        while unsettled.size:
            has_ended = end[position[unsettled]] < instant[unsettled]
            unsettled = unsettled[has_ended]
            position[unsettled] = outer[position[unsettled]]
            unsettled = unsettled[position[unsettled] >= 0]
        innermost: Int64s = np.where(position >= 0, rows[position], -1)
        return innermost


def _outer_annotations(end: Int64s) -> Int64s:
    """Return for each annotation the last previous annotation that ends later; -1 for none."""
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


def manifest_beside(path: Path) -> dict[str, Any]:
    """Return the manifest beside a file, the first ``*.manifest.json`` with an object; empty if there is none."""
    for manifest in sorted(path.parent.glob("*.manifest.json")):
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(manifest.read_text(encoding="utf-8"))
            if isinstance(content, dict):
                return content
    return {}
