"""Parquet tables of a job's operations.

Source: ByteDance-Seed/StragglerAnalysis (OSDI 2025), readme. ``start_ts`` and ``duration`` are seconds, ``mc`` the
model chunk within a stage, ``mb_id`` the microbatch of a computation, and ``seq_id`` counts the operations of one
type of a worker's step. Times are often float32 since the step's start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import PptraceError, TraceError, check_events
from pptrace_profilers.recording import list_some

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_INTEGERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id")
_SECONDS = ("start_ts", "duration")
_TYPES = "optype"
_BOUNDS = {
    "rank": (-1, 2**31), "mc": (-1, 2**31), "mb_id": (-1, 2**31), "dp_rank": (0, 2**22), "stage": (0, 2**22),
    "start_ts": (-(2**32), 2**32), "duration": (0, 2**32),
}  # fmt: skip
"""Minimum and smallest excluded value of columns; by default, 0 and 2**31."""
_MOST_NAMED = 5
_MOST_RATIO, _FREE_BYTES, _VALUE_BYTES = 100, 32 << 20, 8
"""Maximum ratio of the unpacked to the packed size, unpacked size that is always allowed, and size of a value."""
_LONGEST_TYPE, _FEWEST_ROWS = 128, 1 << 16
"""Maximum bytes of types per row, and the minimum of rows that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedOperation:
    """One operation of every replica and step."""

    type: str
    """Its ``optype``."""
    stage: int
    """The rank of the pipeline that runs it."""
    number: int
    """Its index among the operations of its type in a worker's step."""
    chunk: int
    """Model chunk within its stage; -1 for none."""
    microbatch: int
    """The microbatch; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTable:
    """A job's operations. Times have the shape (operations, replicas, steps) and count from the step's start."""

    path: Path
    """The file."""
    operations: tuple[TypedOperation, ...]
    """The operations of one replica, by stage and then by their first start."""
    replicas: tuple[int, ...]
    """Data-parallel ranks."""
    steps: tuple[int, ...]
    """Numbers of the steps."""
    workers: NDArray[np.int64]
    """Global ranks, shape (replicas, stages)."""
    start_ns: NDArray[np.int64]
    """Start of each operation."""
    end_ns: NDArray[np.int64]
    """End of each operation."""
    notes: tuple[str, ...]
    """Notes on omitted steps."""

    @property
    def stages(self) -> int:
        """Ranks of a pipeline."""
        return int(self.workers.shape[1])


def read_job_table(path: Path) -> JobTable:
    """Return the operations of a file, without steps in which a replica lacks operations.

    Raises:
        TraceError: the file cannot be read, lacks columns, has invalid values, or is too large for memory.
    """
    columns, types = _read_columns(path)
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
    usual_operations, complete = _complete_steps(
        step[order] * replicas.size + replica[order], operation[order], replicas.size, path
    )  # fmt: skip
    if np.unique(usual_operations).size < usual_operations.size:
        repeated = operations[:, int(np.argmax(np.bincount(usual_operations)))].tolist()
        name = f"{types[repeated[1]]} {repeated[2]} of stage {repeated[0]}"
        raise TraceError(f"counts operations of one type twice: {name}", file=path)
    rows = (
        order[np.isin(step[order], complete)]
        .reshape(len(complete), replicas.size, usual_operations.size)
        .transpose(2, 1, 0)
    )
    start = np.rint(columns["start_ts"][rows] * 1e9).astype(np.int64)
    start -= start.min(axis=(0, 1))
    end = start + np.rint(columns["duration"][rows] * 1e9).astype(np.int64)
    by_start = np.lexsort(
        (
            operations[1][usual_operations],
            operations[2][usual_operations],
            start[:, 0, 0],
            operations[0][usual_operations],
        )
    )
    workers = np.full((replicas.size, present.size), -1, dtype=np.int64)
    workers[replica, stage] = columns["rank"]
    return JobTable(
        path=path,
        operations=tuple(
            TypedOperation(
                type=types[type_], stage=rank, number=number,
                chunk=int(columns["mc"][row]), microbatch=int(columns["mb_id"][row]),
            )
            for (rank, type_, number), row in zip(
                operations[:, usual_operations[by_start]].T.tolist(), rows[by_start, 0, 0].tolist(), strict=True
            )
        ),
        replicas=tuple(replicas.tolist()), steps=tuple(steps[complete].tolist()), workers=workers,
        start_ns=start[by_start], end_ns=end[by_start], notes=tuple(_omitted_steps(steps, complete)),
    )  # fmt: skip


def _complete_steps(
    cell: NDArray[np.int64], operation: NDArray[np.int64], replicas: int, path: Path
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the operations of most replicas and steps, and the steps in which all replicas have them.

    Args:
        cell: step * replicas + replica of each row; ascending.
        operation: index of each row's operation, ascending within a cell.
        replicas: number of replicas.
        path: the file.

    Raises:
        TraceError: no step is complete in all replicas.
    """
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    by_cell = {
        index: rows.tobytes()
        for index, rows in zip(cell[begins].tolist(), np.split(operation, begins[1:]), strict=True)
    }
    usual_operations = Counter(by_cell.values()).most_common(1)[0][0]
    complete = [
        step
        for step in range(int(cell[-1]) // replicas + 1)
        if all(by_cell.get(step * replicas + replica) == usual_operations for replica in range(replicas))
    ]
    if not complete:
        raise TraceError("holds no step in which all replicas run the same operations", file=path)
    return np.frombuffer(usual_operations, dtype=operation.dtype), complete


def _omitted_steps(steps: NDArray[np.int64], complete: list[int]) -> list[str]:
    omitted = np.delete(steps, complete).tolist()
    if not omitted:
        return []
    named = list_some(omitted, len(omitted), _MOST_NAMED)
    return [f"steps {named} do not hold the same operations of every replica: left out"]


def _read_columns(path: Path) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Return the columns, with an index for each type, and the names of the types."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install 'pptrace-stragglers[parquet]'"
        raise PptraceError(message) from error
    needed = [*_INTEGERS, *_SECONDS, _TYPES]
    try:
        with parquet.ParquetFile(path) as file:
            count = Counter(file.schema_arrow.names)
            missing = [name for name in needed if not count[name]]
            if missing:
                message = f"lacks the columns {', '.join(missing)} of a job's operations, one per row"
                raise TraceError(message, file=path)
            duplicates = [name for name in needed if count[name] > 1]
            if duplicates:
                raise TraceError(f"has the column {duplicates[0]} twice: keep one", file=path)
            _check_size(file.metadata, path)
            table = file.read(columns=needed)
        types = table.column(_TYPES).cast(pa.string()).combine_chunks().dictionary_encode()
        types = types.chunk(0) if isinstance(types, pa.ChunkedArray) else types
        columns: dict[str, NDArray[Any]] = {name: _numbers(table, name, path) for name in (*_INTEGERS, *_SECONDS)}
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"is no parquet of operations that can be read: {reason}", file=path) from error
    if not table.num_rows:
        raise TraceError("holds no operation", file=path)
    if types.null_count:
        raise TraceError(f"column {_TYPES} has rows without a value", file=path)
    columns[_TYPES] = types.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return columns, tuple(types.dictionary.to_pylist())


def _check_size(metadata: Any, path: Path) -> None:
    """Check the number of rows and the unpacked size before columns are read."""
    check_events(metadata.num_rows, path)
    unpacked = metadata.num_rows * metadata.num_columns * _VALUE_BYTES
    if unpacked > max(_MOST_RATIO * path.stat().st_size, _FREE_BYTES):
        message = f"unpacks to more than {_MOST_RATIO} times its size: operations of a real job differ in time"
        raise TraceError(message, file=path)
    type_bytes = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = map(row_group.column, range(row_group.num_columns))
        type_bytes += sum(column.total_uncompressed_size for column in columns if column.path_in_schema == _TYPES)
    if type_bytes > _LONGEST_TYPE * max(metadata.num_rows, _FEWEST_ROWS):
        raise TraceError(
            f"column {_TYPES} holds {type_bytes >> 20} MiB of text: those are no operation types", file=path
        )


def _numbers(table: Any, name: str, path: Path) -> NDArray[Any]:
    """Return a column of integers, with -1 for a missing value, or of seconds."""
    import pyarrow as pa

    values = table.column(name)
    type_, absent, what = (pa.int64(), -1, "numbers") if name in _INTEGERS else (pa.float64(), np.nan, "times")
    if not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        kind = "whole numbers" if name in _INTEGERS else "seconds"
        raise TraceError(f"column {name} holds {values.type} and no {kind}", file=path)
    numbers: NDArray[Any] = values.cast(type_).fill_null(absent).to_numpy()
    low, high = _BOUNDS.get(name, (0, 2**31))
    if not ((numbers >= low) & (numbers < high)).all():
        raise TraceError(f"column {name} holds invalid {what}, or rows without one", file=path)
    return numbers
