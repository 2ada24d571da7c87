"""Tables of operations of straggler studies, and their recordings.

Source: ByteDance-Seed/StragglerAnalysis (OSDI 2025), readme. ``start_ts`` and ``duration`` are seconds, ``mc`` the
model chunk within a stage, ``mb_id`` the microbatch of a computation, and ``seq_id`` counts the operations of one
type of a worker's step. Times are often float32 since the step's start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import (
    COMMUNICATION,
    COMPUTE,
    SENDS,
    ConfigError,
    PptraceError,
    TraceError,
    Unattributed,
    check_events,
)
from pptrace_profilers.recording import Execution, MessageEnd, Recording

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Action, Int64s, Job

__all__ = ["StragglerTable", "TypedOperation", "read_straggler_table", "recordings_of", "replica_of"]

_WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id")
_SECONDS = ("start_ts", "duration")
_TYPES = "optype"
_LONGEST_S = 2.0**32
_MOST_NAMED = 5
_UNFOLDS, _UNFOLDED, _VALUE_BYTES = 100, 32 << 20, 8
"""How far a file's columns may unfold, from which size on that is looked at, and what a value takes."""
_LONGEST_TYPE, _FEWEST_ROWS = 128, 1 << 16
"""Bytes that a row's type may take, in files of so many rows or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedOperation:
    """One operation, which every replica runs in every step."""

    type: str
    """Its ``optype``."""
    stage: int
    """The rank of the pipeline that runs it."""
    number: int
    """How many of its type its worker ran before it in the step."""
    chunk: int
    """Model chunk within its stage; -1 for none."""
    microbatch: int
    """The microbatch; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StragglerTable:
    """A job's operations; times have the shape (operations, replicas, steps) and are since the step's start."""

    path: Path
    """The file."""
    operations: tuple[TypedOperation, ...]
    """Those of one replica, by stage and then by their first start."""
    replicas: tuple[int, ...]
    """Data-parallel ranks."""
    steps: tuple[int, ...]
    """The steps' numbers."""
    workers: NDArray[np.int64]
    """Shape (replicas, stages): global ranks."""
    start_ns: NDArray[np.int64]
    """When each operation started."""
    end_ns: NDArray[np.int64]
    """When each ended."""
    notes: tuple[str, ...]
    """What was left out."""

    @property
    def stages(self) -> int:
        """Ranks of a pipeline."""
        return int(self.workers.shape[1])


def read_straggler_table(path: Path) -> StragglerTable:
    """Read a file; steps in which a replica lacks operations that others have are left out.

    Raises:
        TraceError: it cannot be read, lacks columns, holds values that cannot be, or more than memory does.
    """
    columns, types = _columns(path)
    replicas, replica = np.unique(columns["dp_rank"], return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    stage = columns["stage"]
    present = np.unique(stage)
    if present[-1] != present.size - 1:
        missing = int(np.argmax(present != np.arange(present.size)))
        raise TraceError(f"has no row of stage {missing}: a pipeline's stages are all needed", file=path)
    keys = np.stack([stage, columns[_TYPES], columns["seq_id"]])
    operations, operation = np.unique(keys, axis=1, return_inverse=True)
    order = np.lexsort((operation, replica, step))
    used, kept = _usual(step[order] * replicas.size + replica[order], operation[order], replicas.size, path)
    if np.unique(used).size < used.size:
        raise TraceError(f"counts operations of one type twice: {_named(used, operations, types)}", file=path)
    rows = order[np.isin(step[order], kept)].reshape(len(kept), replicas.size, used.size).transpose(2, 1, 0)
    start = np.rint(columns["start_ts"][rows] * 1e9).astype(np.int64)
    start -= start.min(axis=(0, 1))
    end = start + np.rint(columns["duration"][rows] * 1e9).astype(np.int64)
    by_start = np.lexsort((operations[1][used], operations[2][used], start[:, 0, 0], operations[0][used]))
    workers = np.full((replicas.size, present.size), -1, dtype=np.int64)
    workers[replica, stage] = columns["rank"]
    return StragglerTable(
        path=path,
        operations=tuple(
            TypedOperation(
                type=types[kind], stage=rank, number=number,
                chunk=int(columns["mc"][row]), microbatch=int(columns["mb_id"][row]),
            )
            for (rank, kind, number), row in zip(
                operations[:, used[by_start]].T.tolist(), rows[by_start, 0, 0].tolist(), strict=True
            )
        ),
        replicas=tuple(replicas.tolist()), steps=tuple(steps[kept].tolist()), workers=workers,
        start_ns=start[by_start], end_ns=end[by_start], notes=tuple(_left_out(steps, kept)),
    )  # fmt: skip


def _usual(
    cell: NDArray[np.int64], operation: NDArray[np.int64], replicas: int, path: Path
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the operations that most replicas and steps have, and the steps in which all replicas have them.

    Args:
        cell: the step, times replicas, plus the replica of each row; ascending.
        operation: each row's number among the operations, ascending within a cell.
        replicas: how many there are.
        path: the file.

    Raises:
        TraceError: there is no such step.
    """
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    parts = dict(zip(cell[begins].tolist(), np.split(operation, begins[1:]), strict=True))
    usual = Counter(part.tobytes() for part in parts.values()).most_common(1)[0][0]
    kept = [
        at
        for at in range(int(cell[-1]) // replicas + 1)
        if all(_is(parts.get(at * replicas + one), usual) for one in range(replicas))
    ]
    if not kept:
        raise TraceError("holds no step in which all replicas run the same operations", file=path)
    return np.frombuffer(usual, dtype=operation.dtype), kept


def _is(part: NDArray[np.int64] | None, usual: bytes) -> bool:
    return part is not None and part.tobytes() == usual


def _named(used: NDArray[np.int64], operations: NDArray[np.int64], types: tuple[str, ...]) -> str:
    twice = int(np.argmax(np.bincount(used)))
    stage, kind, number = operations[:, twice].tolist()
    return f"{types[kind]} {number} of stage {stage}"


def _left_out(steps: NDArray[np.int64], kept: list[int]) -> list[str]:
    odd = np.delete(steps, kept).tolist()
    if not odd:
        return []
    more = f" and {len(odd) - _MOST_NAMED} others" if len(odd) > _MOST_NAMED else ""
    named = ", ".join(map(str, odd[:_MOST_NAMED]))
    return [f"steps {named}{more} do not hold the same operations of every replica: left out"]


def _columns(path: Path) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Return the columns, types as numbers, and the types' names."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'pptrace-profilers[parquet]'"
        raise PptraceError(message) from error
    wanted = [*_WHOLE, *_SECONDS, _TYPES]
    try:
        with parquet.ParquetFile(path) as file:
            count = Counter(file.schema_arrow.names)
            missing = [name for name in wanted if not count[name]]
            if missing:
                message = f"lacks the columns {', '.join(missing)} of a job's operations, one per row"
                raise TraceError(message, file=path)
            twice = [name for name in wanted if count[name] > 1]
            if twice:
                raise TraceError(f"has the column {twice[0]} twice: keep one", file=path)
            _check_size(file.metadata, path)
            table = file.read(columns=wanted)
        kinds = table.column(_TYPES).cast(pa.string()).combine_chunks().dictionary_encode()
        kinds = kinds.chunk(0) if isinstance(kinds, pa.ChunkedArray) else kinds
        columns: dict[str, NDArray[Any]] = {name: _whole(table, name, path) for name in _WHOLE}
        columns |= {name: _seconds(table, name, path) for name in _SECONDS}
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"is no parquet of operations that can be read: {reason}", file=path) from error
    if not table.num_rows:
        raise TraceError("holds no operation", file=path)
    if kinds.null_count:
        raise TraceError(f"column {_TYPES} has rows without a value", file=path)
    columns[_TYPES] = kinds.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return columns, tuple(kinds.dictionary.to_pylist())


def _check_size(metadata: Any, path: Path) -> None:
    """Check before they are read that as many rows may be held, and that types are words."""
    check_events(metadata.num_rows, path)
    unfolded = metadata.num_rows * metadata.num_columns * _VALUE_BYTES
    if unfolded > max(_UNFOLDS * path.stat().st_size, _UNFOLDED):
        message = f"unfolds more than {_UNFOLDS} times: operations of a real job have times of their own"
        raise TraceError(message, file=path)
    names = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = map(row_group.column, range(row_group.num_columns))
        names += sum(one.total_uncompressed_size for one in columns if one.path_in_schema == _TYPES)
    if names > _LONGEST_TYPE * max(metadata.num_rows, _FEWEST_ROWS):
        raise TraceError(
            f"column {_TYPES} holds {names >> 20} MiB of text: those are no operation types", file=path
        )


def _whole(table: Any, name: str, path: Path) -> NDArray[np.int64]:
    """Return a column of whole numbers; an absent one is -1."""
    import pyarrow as pa

    values = table.column(name)
    if not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        raise TraceError(f"column {name} holds {values.type} and no whole numbers", file=path)
    numbers: NDArray[np.int64] = values.cast(pa.int64()).fill_null(-1).to_numpy().astype(np.int64)
    low, high = (-1, 2**31) if name in {"mc", "mb_id", "rank"} else (0, 2**31)
    if name in {"dp_rank", "stage"}:
        high = 2**22
    if numbers.size and not low <= int(numbers.min()) <= int(numbers.max()) < high:
        raise TraceError(f"column {name} holds numbers that cannot be, or rows without one", file=path)
    return numbers


def _seconds(table: Any, name: str, path: Path) -> NDArray[np.float64]:
    import pyarrow as pa

    values = table.column(name)
    if not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        raise TraceError(f"column {name} holds {values.type} and no seconds", file=path)
    seconds: NDArray[np.float64] = values.cast(pa.float64()).fill_null(np.nan).to_numpy().astype(np.float64)
    low = 0.0 if name == "duration" else -_LONGEST_S
    if not bool(((seconds >= low) & (seconds < _LONGEST_S)).all()):
        raise TraceError(f"column {name} holds times that cannot be, or rows without one", file=path)
    return seconds


_BETWEEN_NS = 1_000_000
"""Time between two steps, of which the file says none."""
_ROUNDED_NS = 10_000
"""By how much seconds since a step's start are off where they have 24 bits, for steps of up to a minute."""


def replica_of(job: Job, asked: str) -> int:
    """Return which replica is asked for: ``dp=3``, ``slowest`` or ``median``; the first unless one is.

    Raises:
        ConfigError: no such replica.
    """
    if asked in {"slowest", "median"}:
        # Replicas end together, so their computations are compared.
        computes = [at for at, one in enumerate(job.operations) if one.action and one.action.kind in COMPUTE]
        lengths = (job.end_ns[computes].max(axis=0) - job.start_ns[computes].min(axis=0)).mean(axis=1)
        order = np.argsort(lengths, kind="stable")
        return int(order[-1 if asked == "slowest" else (order.size - 1) // 2])
    if not asked:
        return 0
    if asked not in job.replicas:
        known = f"{job.replicas[0]} to {job.replicas[-1]}" if len(job.replicas) > 1 else job.replicas[0]
        raise ConfigError(f"no such replica; there are {known}, slowest and median", file=f"--replica {asked}")
    return job.replicas.index(asked)


def recordings_of(table: StragglerTable, job: Job, replica: int) -> list[Recording]:
    """Return a replica's recordings; what none of its actions stands for is unattributed."""
    start, end = job.start_ns[:, replica], job.end_ns[:, replica]
    length = end.max(axis=0) - start.min(axis=0) + _BETWEEN_NS
    begins = np.concatenate([[0], np.cumsum(length)[:-1]]) - start.min(axis=0)
    return [_recording(table, job, rank, start + begins, end + begins) for rank in range(job.ranks)]


def _recording(
    table: StragglerTable, job: Job, rank: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Recording:
    executions: list[Execution] = []
    ends: list[MessageEnd] = []
    others: dict[str, list[Int64s]] = {}
    for at, one in enumerate(job.operations):
        if one.rank != rank:
            continue
        if one.action is None:
            if one.account == "":
                others.setdefault(one.sort, []).append(end[at] - start[at])
            continue
        times = zip(start[at].tolist(), end[at].tolist(), strict=True)
        if one.action.kind in COMMUNICATION:
            ends += [_end(one.action, rank, job.ranks, begin, until) for begin, until in times]
        else:
            executions += [Execution(action=one.action, start_ns=begin, end_ns=until) for begin, until in times]
    first, last = start.min(axis=0).tolist(), end.max(axis=0).tolist()
    return Recording(
        path=table.path, rank=rank, world=job.ranks,
        windows=tuple(zip(job.steps, first, last, strict=True)),
        executions=tuple(_apart(sorted(executions, key=lambda one: (one.start_ns, one.end_ns)))),
        ends=tuple(sorted(ends, key=lambda one: (one.start_ns, one.end_ns))),
        unattributed=tuple(
            Unattributed(rank=rank, what=sort, count=sum(map(len, took)), total_ns=int(np.sum(took)))
            for sort, took in others.items()
        ),
    )  # fmt: skip


def _apart(executions: list[Execution]) -> list[Execution]:
    """Return computations without the overlaps that rounded seconds make of what follows at once."""
    computing = [at for at, one in enumerate(executions) if one.action.kind in COMPUTE]
    for at, later in pairwise(computing):
        begins = executions[later].start_ns
        if 0 < executions[at].end_ns - begins <= _ROUNDED_NS:
            executions[at] = replace(executions[at], end_ns=begins)
    return executions


def _end(action: Action, rank: int, ranks: int, start: int, end: int) -> MessageEnd:
    """Return an end of a message; its peer is the neighbour that its way leads to."""
    sends = action.kind in SENDS
    ahead = sends == (action.kind.name.endswith("_F"))
    return MessageEnd(
        sends=sends, peer=(rank + (1 if ahead else -1)) % ranks, start_ns=start, end_ns=end, size_bytes=0,
        action=action,
    )  # fmt: skip
