"""Nsight Systems exports.

Source: NVIDIA's Nsight Systems exporter documentation (SQLite schema). Tables come only where they have rows, and
columns differ by version, so both are looked up; a kernel belongs to its launch by process and correlation, and a
process is what its global ids have above their lowest 24 bits.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pptrace.plugin import TraceError, check_events
from pptrace_profilers.events import EventBuilder, whole
from pptrace_profilers.naming_rules import FILE_NAME
from pptrace_profilers.pytorch_process import recording_of
from pptrace_profilers.recording import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_PROCESS = ~0xFFFFFF
_LONGEST_TEXT = 1 << 20
"""Bytes that one value of a database may have."""
_SAYS_RANK = re.compile(r"(?:global[ _])?rank[ _:=]*(\d{1,9})", re.IGNORECASE)
_SUFFIX = re.compile(r", (?:seq|op_id|sizes) = .*", re.DOTALL)
"""What PyTorch's ``emit_nvtx`` writes behind an annotation's name."""
_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_RANGES = frozenset({59, 60})
"""Types of NVTX events that are ranges: push and pop, start and end."""
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_KERNEL, _RUNTIME, _NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"


def read_nsys(path: Path, rules: Rules) -> list[Recording]:
    """Read one database.

    Returns:
        One recording per process that ran kernels; where none did, per process that has NVTX ranges.

    Raises:
        TraceError: it is no such database, a table or column is missing, or nobody knows its processes' ranks.
    """
    try:
        with closing(_opened(path)) as database:
            return _Export(path, Tables(path, database)).recordings(rules)
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(f"is no whole SQLite database: {error}", file=path) from None
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes the database's schema
        message = error.object.decode(errors="replace")
        raise TraceError(f"is no whole SQLite database: {message}", file=path) from None


def _opened(path: Path) -> sqlite3.Connection:
    # Without "immutable" a database beside a journal would be written to.
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
    database.text_factory = lambda text: text.decode("utf-8", errors="replace")
    return database


class _Export:
    """A database as it is read."""

    def __init__(self, path: Path, tables: Tables) -> None:
        self.path, self.tables = path, tables
        self.strings = dict(tables.rows("StringIds", ("id", "value")))
        self.offset_ns = tables.first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
        self.builders: dict[int, EventBuilder] = defaultdict(EventBuilder)
        self.devices: dict[int, set[int]] = defaultdict(set)
        self.ranks: dict[int, int] = {}

    def recordings(self, rules: Rules) -> list[Recording]:
        """Return what the processes did."""
        tables = self.tables
        if _KERNEL not in tables and _NVTX not in tables:
            message = f"has neither {_KERNEL} nor {_NVTX}: record with nsys profile --trace=cuda,nvtx"
            raise TraceError(message, file=self.path)
        self._on_gpu()
        with_kernels = sorted(self.builders)
        self._calls()
        self._ranges()
        processes = with_kernels or sorted(self.builders)
        if not processes:
            raise TraceError("holds no kernel and no NVTX range", file=self.path)
        recordings = []
        for process, rank in self._ranks(processes).items():
            metadata = {"rank": rank} if rank >= 0 else {}
            events = self.builders[process].events(self.path, {"distributedInfo": metadata})
            recordings.append(self._noted(recording_of(events, rules), processes))
        return recordings

    def _noted(self, recording: Recording, processes: Sequence[int]) -> Recording:
        notes = list(recording.notes)
        if _KERNEL in self.tables and _RUNTIME not in self.tables:
            notes.append(f"{self.path.name} has no {_RUNTIME}: its kernels belong to no action")
        if _KERNEL not in self.tables:
            notes.append(f"{self.path.name} has no {_KERNEL}: actions last as long as their ranges on the host")
        if len(processes) > 1 and not self.ranks:
            notes.append(f"{self.path.name}: ranks of its {len(processes)} processes are taken from their GPUs")
        return replace(recording, origin_ns=None, notes=tuple(notes))

    def _add(
        self, owner: Any, name: str, category: str, times: tuple[Any, Any], correlation: Any = -1, stream: Any = -1
    ) -> None:
        if not isinstance(owner, int):
            return
        process = owner & _PROCESS
        start, end = (time_ns + self.offset_ns if isinstance(time_ns, int) else None for time_ns in times)
        self.builders[process].add(
            name, category, (process, owner), start, end,
            correlation=whole(correlation, -1), stream=whole(stream, -1),
        )  # fmt: skip

    def _on_gpu(self) -> None:
        columns = ("start", "end", "streamId", "correlationId", "deviceId", "globalPid")
        for *row, long, short in self.tables.rows(_KERNEL, columns, ("demangledName", "shortName")):
            self._operation(row, "kernel", str(self.strings.get(long if long is not None else short, "kernel")))
        for *row, kind in self.tables.rows("CUPTI_ACTIVITY_KIND_MEMCPY", columns, ("copyKind",)):
            self._operation(row, "gpu_memcpy", f"Memcpy {_COPIES.get(kind, '')}".strip())
        for memset in self.tables.rows("CUPTI_ACTIVITY_KIND_MEMSET", columns):
            self._operation(memset, "gpu_memset", "Memset")

    def _operation(self, row: Sequence[Any], category: str, name: str) -> None:
        start, end, stream, correlation, device, owner = row
        self._add(owner, name, category, (start, end), correlation, stream)
        if isinstance(owner, int) and isinstance(device, int):
            self.devices[owner & _PROCESS].add(device)

    def _calls(self) -> None:
        for start, end, correlation, owner, name in self.tables.rows(
            _RUNTIME, ("start", "end", "correlationId", "globalTid"), ("nameId",)
        ):
            call = str(self.strings.get(name, "call"))
            self._add(owner, call, "cuda_runtime", (start, end), correlation)

    def _ranges(self) -> None:
        for start, end, owner, kind, text, number in self.tables.rows(
            _NVTX, ("start", "end", "globalTid"), ("eventType", "text", "textId")
        ):
            name = _SUFFIX.sub("", str(text if text is not None else self.strings.get(number, "")))
            rank = _SAYS_RANK.fullmatch(name)
            if rank is not None and isinstance(owner, int):
                self.ranks.setdefault(owner & _PROCESS, int(rank[1]))
            if end is not None and (kind in _RANGES or kind is None):
                self._add(owner, name, "user_annotation", (start, end))

    def _ranks(self, processes: Sequence[int]) -> Mapping[int, int]:
        """Return the rank of each process: from MPI, NVTX, file name or environment, by default its GPU."""
        for owner, rank in self._of_mpi():
            self.ranks[owner & _PROCESS] = rank
        if all(process in self.ranks for process in processes):
            return {process: self.ranks[process] for process in processes}
        if len(processes) == 1:
            return {processes[0]: self._of_job()}
        self.ranks.clear()
        devices = [sorted(self.devices[process]) for process in processes]
        if any(len(used) != 1 for used in devices) or len({used[0] for used in devices}) < len(devices):
            message = (
                f"holds {len(processes)} processes and does not say their ranks: "
                "push an NVTX range named 'rank 3' in each, or record one file per rank"
            )
            raise TraceError(message, file=self.path)
        return {process: used[0] for process, used in zip(processes, devices, strict=True)}

    def _of_mpi(self) -> Iterator[tuple[int, int]]:
        for rank, thread, process in self.tables.rows("MPI_RANKS", ("rank",), ("globalTid", "globalPid")):
            owner = thread if thread is not None else process
            if isinstance(owner, int) and isinstance(rank, int) and rank >= 0:
                yield owner, rank

    def _of_job(self) -> int:
        rank = FILE_NAME.read(self.path.name)
        if rank >= 0:
            return rank
        environment = dict(self.tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")))
        texts = [str(environment[key]) for key in _VARIABLES if key in environment]
        rank = whole(texts[0], -1) if texts else -1
        return rank if rank < MOST_RANKS else -1


_BATCH = 1 << 8
"""Rows between two looks at how many there are, and how long their texts."""
_MOST_TEXT, _LEAST_TEXT = 4, 64 << 20
"""How many times a database's bytes its texts may have together, and what they always may."""
_TEXTS = frozenset({str, bytes})


class Tables:
    """A database's tables by name; columns of other versions are None."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        """Look up what there is.

        Raises:
            TraceError: it is no export of Nsight Systems.
        """
        self._path, self._database, self._read, self._text = path, database, 0, 0
        self._most_text = max(_MOST_TEXT * path.stat().st_size, _LEAST_TEXT)
        # Tables without a page (views, virtual tables) may yield rows without end.
        stored = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        names = [str(name) for (name,) in stored]
        self._columns = {
            name: {str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(name)})")}
            for name in names
        }
        if "StringIds" not in self._columns:
            known = ", ".join(sorted(names)[:4]) or "none"
            message = f"has no table StringIds, so is no export of Nsight Systems; its tables: {known}"
            raise TraceError(message, file=path)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def rows(self, table: str, needed: Sequence[str], wanted: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield a table's rows; none where there is no such table.

        Args:
            table: its name.
            needed: columns that it must have.
            wanted: columns that are None where it has them not.

        Raises:
            TraceError: a needed column is missing, or all tables have more rows than a trace may have events, or
                more text than their file: a column's default is stored once, and is every row's.
        """
        if table not in self._columns:
            return
        missing = next((column for column in needed if column not in self._columns[table]), None)
        if missing is not None:
            message = f"table {table} has no column {missing}: exported by a version that is not known here"
            raise TraceError(message, file=self._path)
        chosen = [*needed, *(column if column in self._columns[table] else None for column in wanted)]
        columns = ", ".join("NULL" if column is None else _quoted(column) for column in chosen)
        cursor = self._database.execute(f"SELECT {columns} FROM {_quoted(table)}")  # noqa: S608 - names cannot be bound; quoted
        while part := cursor.fetchmany(_BATCH):
            self._read += len(part)
            check_events(self._read, self._path)
            self._text += sum([len(value) for row in part for value in row if value.__class__ in _TEXTS])
            if self._text > self._most_text:
                message = f"table {table} has more text than its file: export it again"
                raise TraceError(message, file=self._path)
            yield from part

    def first(self, table: str, column: str) -> int | None:
        """Return a whole number from a table's first row, None where there is none."""
        if column not in self._columns.get(table, set()):
            return None
        row = next(self.rows(table, (column,)), (None,))
        return row[0] if isinstance(row[0], int) else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
