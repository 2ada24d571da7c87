"""Nsight Systems exports.

Source: NVIDIA's Nsight Systems exporter documentation (SQLite schema). Empty tables are missing, and columns
differ by version, so the reader looks up both. Process and correlation link a kernel to its launch. The process of
a global id is the id without its lowest 24 bits.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pptrace.plugin import TraceError, check_events
from pptrace_profilers.events import EventBuilder, parse_integer
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
"""Maximum bytes of a value of a database."""
_RANK_RANGE = re.compile(r"(?:global[ _])?rank[ _:=]*(\d{1,9})", re.IGNORECASE)
_SUFFIX = re.compile(r", (?:seq|op_id|sizes) = .*", re.DOTALL)
"""Suffix that PyTorch's ``emit_nvtx`` appends to the name of an annotation."""
_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_RANGES = frozenset({59, 60})
"""Types of NVTX events that are ranges: push and pop, start and end."""
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_KERNEL, _RUNTIME, _NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"


def read_nsys(path: Path, rules: Rules) -> list[Recording]:
    """Read one database.

    Returns:
        One recording per process with kernels; without kernels, one per process with NVTX ranges.

    Raises:
        TraceError: the file has another format, a table or column is missing, or ranks of processes are unknown.
    """
    try:
        with closing(_open(path)) as database:
            return _Export(path, Tables(path, database)).recordings(rules)
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(f"is not a complete SQLite database: {error}", file=path) from None
    except UnicodeDecodeError as error:  # in SQLite's message, which quotes the schema of the database
        message = error.object.decode(errors="replace")
        raise TraceError(f"is not a complete SQLite database: {message}", file=path) from None


def _open(path: Path) -> sqlite3.Connection:
    # Without "immutable", SQLite writes to a database that has a journal.
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
    database.text_factory = lambda text: text.decode("utf-8", errors="replace")
    return database


class _Export:
    """Reader of a database."""

    def __init__(self, path: Path, tables: Tables) -> None:
        self.path, self.tables = path, tables
        self.strings = dict(tables.rows("StringIds", ("id", "value")))
        self.offset_ns = tables.first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
        self.builders: dict[int, EventBuilder] = defaultdict(EventBuilder)
        self.devices: dict[int, set[int]] = defaultdict(set)
        self.ranks: dict[int, int] = {}

    def recordings(self, rules: Rules) -> list[Recording]:
        """Return the recordings of the processes."""
        tables = self.tables
        if _KERNEL not in tables and _NVTX not in tables:
            message = f"has neither {_KERNEL} nor {_NVTX}: record with nsys profile --trace=cuda,nvtx"
            raise TraceError(message, file=self.path)
        self._add_gpu_operations()
        kernel_processes = sorted(self.builders)
        self._add_calls()
        self._add_ranges()
        processes = kernel_processes or sorted(self.builders)
        if not processes:
            raise TraceError("holds no kernel and no NVTX range", file=self.path)
        recordings = []
        for process, rank in self._ranks(processes).items():
            metadata = {"rank": rank} if rank >= 0 else {}
            events = self.builders[process].events(self.path, {"distributedInfo": metadata})
            recordings.append(self._with_notes(recording_of(events, rules), processes))
        return recordings

    def _with_notes(self, recording: Recording, processes: Sequence[int]) -> Recording:
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
            correlation=parse_integer(correlation, -1), stream=parse_integer(stream, -1),
        )  # fmt: skip

    def _add_gpu_operations(self) -> None:
        columns = ("start", "end", "streamId", "correlationId", "deviceId", "globalPid")
        for *row, long, short in self.tables.rows(_KERNEL, columns, ("demangledName", "shortName")):
            self._add_operation(
                row, "kernel", str(self.strings.get(long if long is not None else short, "kernel"))
            )
        for *row, kind in self.tables.rows("CUPTI_ACTIVITY_KIND_MEMCPY", columns, ("copyKind",)):
            self._add_operation(row, "gpu_memcpy", f"Memcpy {_COPIES.get(kind, '')}".strip())
        for memset in self.tables.rows("CUPTI_ACTIVITY_KIND_MEMSET", columns):
            self._add_operation(memset, "gpu_memset", "Memset")

    def _add_operation(self, row: Sequence[Any], category: str, name: str) -> None:
        start, end, stream, correlation, device, owner = row
        self._add(owner, name, category, (start, end), correlation, stream)
        if isinstance(owner, int) and isinstance(device, int):
            self.devices[owner & _PROCESS].add(device)

    def _add_calls(self) -> None:
        for start, end, correlation, owner, name in self.tables.rows(
            _RUNTIME, ("start", "end", "correlationId", "globalTid"), ("nameId",)
        ):
            call = str(self.strings.get(name, "call"))
            self._add(owner, call, "cuda_runtime", (start, end), correlation)

    def _add_ranges(self) -> None:
        for start, end, owner, kind, text, number in self.tables.rows(
            _NVTX, ("start", "end", "globalTid"), ("eventType", "text", "textId")
        ):
            name = _SUFFIX.sub("", str(text if text is not None else self.strings.get(number, "")))
            rank = _RANK_RANGE.fullmatch(name)
            if rank is not None and isinstance(owner, int):
                self.ranks.setdefault(owner & _PROCESS, int(rank[1]))
            if end is not None and (kind in _RANGES or kind is None):
                self._add(owner, name, "user_annotation", (start, end))

    def _ranks(self, processes: Sequence[int]) -> Mapping[int, int]:
        """Return the rank of each process: from MPI, NVTX, file name or environment, by default its GPU."""
        for rank, thread, process in self.tables.rows("MPI_RANKS", ("rank",), ("globalTid", "globalPid")):
            owner = thread if thread is not None else process
            if isinstance(owner, int) and isinstance(rank, int) and rank >= 0:
                self.ranks[owner & _PROCESS] = rank
        if all(process in self.ranks for process in processes):
            return {process: self.ranks[process] for process in processes}
        if len(processes) == 1:
            return {processes[0]: self._single_rank()}
        self.ranks.clear()
        devices = [sorted(self.devices[process]) for process in processes]
        if any(len(ids) != 1 for ids in devices) or len({ids[0] for ids in devices}) < len(devices):
            message = (
                f"holds {len(processes)} processes and does not say their ranks: "
                "push an NVTX range named 'rank 3' in each, or record one file per rank"
            )
            raise TraceError(message, file=self.path)
        return {process: ids[0] for process, ids in zip(processes, devices, strict=True)}

    def _single_rank(self) -> int:
        rank = FILE_NAME.read(self.path.name)
        if rank >= 0:
            return rank
        environment = dict(self.tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")))
        texts = [str(environment[key]) for key in _VARIABLES if key in environment]
        rank = parse_integer(texts[0], -1) if texts else -1
        return rank if rank < MOST_RANKS else -1


_BATCH = 1 << 8
"""Rows between two checks of the number of rows and the length of texts."""
_MOST_TEXT, _LEAST_TEXT = 4, 64 << 20
"""Maximum ratio of text bytes to file bytes, and bytes of text below which the ratio does not count."""
_TEXTS = frozenset({str, bytes})


class Tables:
    """Tables of a database by name; missing columns are None."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        """Read the names of tables and columns.

        Raises:
            TraceError: the database is no export of Nsight Systems.
        """
        self._path, self._database, self._read, self._text = path, database, 0, 0
        self._most_text = max(_MOST_TEXT * path.stat().st_size, _LEAST_TEXT)
        # Tables without a page (views, virtual tables) may yield an unlimited number of rows.
        stored = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        names = [str(name) for (name,) in stored]
        self._columns = {
            name: {str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(name)})")}
            for name in names
        }
        if "StringIds" not in self._columns:
            known = ", ".join(sorted(names)[:4]) or "none"
            message = f"has no table StringIds, so it is not an export of Nsight Systems; its tables: {known}"
            raise TraceError(message, file=path)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def rows(self, table: str, needed: Sequence[str], wanted: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table; none if the table is missing.

        Args:
            table: name of the table.
            needed: required columns.
            wanted: optional columns; None in the rows if missing.

        Raises:
            TraceError: a required column is missing, all tables have more rows than a trace may have events, or
                they have more text than the file: SQLite stores the default of a column once for all rows.
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
        """Return an integer from the first row of a table, None without one."""
        if column not in self._columns.get(table, set()):
            return None
        row = next(self.rows(table, (column,)), (None,))
        return row[0] if isinstance(row[0], int) else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
