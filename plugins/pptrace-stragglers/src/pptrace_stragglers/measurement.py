"""Measurement of a job's table: one replica's steps, and all replicas with the dependencies of their operations.

The dependencies are those of Megatron-LM's 1F1B, plain or interleaved. Source: ByteDance-Seed/StragglerAnalysis
and section 3 of its paper (OSDI 2025). The computations of a worker run one after another, and so do its sends
and its receives of each direction. A send depends on its computation, a receive on the computation before its
consumer. A step begins with the all-gather of weights. It ends with garbage collection, reductions, the clipping
of gradients by all workers, and the optimizer. The tables also have spurious messages: before the first stage of a
pipeline, after its last stage, and at both ends of a step.

In the Parquet tables of operations, ``start_ts`` and ``duration`` are seconds, ``mc`` the model chunk within a
stage, ``mb_id`` the microbatch of a computation, and ``seq_id`` counts the operations of one type of a worker's
step. Times are often float32 since the step's start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import (
    Action,
    ConfigError,
    ImportRequest,
    Kind,
    PptraceError,
    TraceError,
    Unattributed,
    check_events,
    kinds,
)
from pptrace_profilers.measurement import measure_recordings
from pptrace_profilers.recording import Executions, MessageEnds, Recording, list_some
from pptrace_stragglers.simulation import Job, JobOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s, Measurement

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


class TypedOperation(Struct, frozen=True, kw_only=True):
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


class JobTable(Struct, frozen=True, kw_only=True, eq=False):
    """A job's operations. Times have the shape (operations, replicas, steps) and count from the step's start."""

    path: Path
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
    return [f"steps {named} do not hold the same operations of every replica: skipped"]


def _read_columns(path: Path) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Return the columns, with an index for each type, and the names of the types."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        message = "reading parquet needs pyarrow: pip install pyarrow"
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
        raise TraceError(f"is not a readable Parquet file of operations: {reason}", file=path) from error
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
            f"column {_TYPES} holds {type_bytes >> 20} MiB of text: those are not operation types", file=path
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


_GAP_NS = 1_000_000
"""Time between two steps, which the file does not have."""
_ROUNDING_NS = 10_000
"""Error of float32 seconds since a step's start, for steps of up to a minute."""


def measure_job(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Return the steps of one replica, and all replicas as a job.

    Raises:
        TraceError: the file cannot be read, several files are given, or the operations do not form a pipeline.
        ConfigError: the job does not have the replica.
        PptraceError: pyarrow is not installed.
    """
    if len(paths) > 1:
        raise TraceError("holds a whole job, as other files here do: name one of them", file=paths[0])
    table = read_job_table(paths[0])
    job = job_of_table(table)
    replica = _replica_index(job, request.replica)
    start, end = _concatenate_steps(job, replica)
    recordings = [_recording(table, job, rank, start, end) for rank in range(job.ranks)]
    chosen = [f"replica {job.replicas[replica]} of {len(job.replicas)}"] if len(job.replicas) > 1 else []
    measurement = measure_recordings(recordings, ImportRequest(), [*table.notes, *chosen])
    return replace(measurement, job=job)


def _replica_index(job: Job, name: str) -> int:
    """Return the index of ``dp=3``, ``slowest`` or ``median``; of the first replica for an empty name.

    Raises:
        ConfigError: no such replica.
    """
    if name in {"slowest", "median"}:
        # Replicas end together, so their computations are compared.
        computations = [
            index for index, operation in enumerate(job.operations)
            if operation.action and operation.action.kind in kinds.COMPUTE
        ]  # fmt: skip
        spans = job.end_ns[computations].max(axis=0) - job.start_ns[computations].min(axis=0)
        order = np.argsort(spans.mean(axis=1), kind="stable")
        return int(order[-1 if name == "slowest" else (order.size - 1) // 2])
    if not name:
        return 0
    if name not in job.replicas:
        known = f"{job.replicas[0]} to {job.replicas[-1]}" if len(job.replicas) > 1 else job.replicas[0]
        raise ConfigError(f"no such replica; there are {known}, slowest and median", file=f"--replica {name}")
    return job.replicas.index(name)


def _concatenate_steps(job: Job, replica: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and ends of a replica's operations with consecutive steps, shape (operations, steps)."""
    start, end = job.start_ns[:, replica], job.end_ns[:, replica]
    lengths = end.max(axis=0) - start.min(axis=0) + _GAP_NS
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]) - start.min(axis=0)
    return start + offsets, end + offsets


def _recording(
    table: JobTable, job: Job, rank: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Recording:
    """Return a rank's recording; operations without an action are unattributed."""
    of_actions, of_messages = [Executions()], [MessageEnds()]
    unattributed_ns: dict[str, list[Int64s]] = {}
    for index, operation in enumerate(job.operations):
        if operation.rank != rank:
            continue
        action = operation.action
        if action is None:
            if not operation.category:
                unattributed_ns.setdefault(operation.type, []).append(end[index] - start[index])
            continue
        if action.kind in kinds.COMMUNICATION:
            of_messages.append(_message_ends(action, rank, job.ranks, start[index], end[index]))
        else:
            of_actions.append(Executions(action=action, start_ns=start[index], end_ns=end[index]))
    executions, ends = Executions.concatenate(of_actions), MessageEnds.concatenate(of_messages)
    first, last = start.min(axis=0).tolist(), end.max(axis=0).tolist()
    return Recording(
        path=table.path, rank=rank, world=job.ranks,
        windows=tuple(zip(job.steps, first, last, strict=True)),
        executions=_without_overlaps(executions.sorted_by(executions.start_ns, executions.end_ns)),
        ends=ends.sorted_by(ends.start_ns, ends.end_ns),
        unattributed=tuple(
            Unattributed(rank=rank, what=type_, count=sum(map(len, times_ns)), total_ns=int(np.sum(times_ns)))
            for type_, times_ns in unattributed_ns.items()
        ),
    )  # fmt: skip


def _without_overlaps(executions: Executions) -> Executions:
    """Return executions in which consecutive computations do not overlap by rounding."""
    computations = np.flatnonzero(kinds.COMPUTE.mask(executions.kind))
    next_start_ns = executions.start_ns[computations[1:]]
    overlap_ns = executions.end_ns[computations[:-1]] - next_start_ns
    rounded = (overlap_ns > 0) & (overlap_ns <= _ROUNDING_NS)
    return executions.updated(computations[:-1][rounded], end_ns=next_start_ns[rounded])


def _message_ends(action: Action, rank: int, ranks: int, start_ns: Int64s, end_ns: Int64s) -> MessageEnds:
    """Return ends of a message, one per step; their peer is the neighbour in the message's direction."""
    sends = action.kind in kinds.SENDS
    to_next = sends == (action.kind in {Kind.SEND_F, Kind.RECV_F})
    return MessageEnds(
        action=action, sends=sends, peer=(rank + (1 if to_next else -1)) % ranks, start_ns=start_ns, end_ns=end_ns
    )


_DIRECTIONS = {"forward": 1, "backward": -1}
"""The directions of messages, and the offset of the receiving stage."""
_TOLERANCE_NS = 50_000
"""Error of clocks and rounded seconds in the detection of spurious messages."""
_GATHER, _REDUCE, _SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
_COLLECT, _NORMS, _EMBEDDING = "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
_CLIP, _OPTIMIZER = "optimizer-clip-main-grad", "optimizer"
_MESSAGES = tuple(f"{direction}-{end}" for direction in _DIRECTIONS for end in ("send", "recv"))
_FORWARD, _BACKWARD = _COMPUTATIONS = tuple(f"{direction}-compute" for direction in _DIRECTIONS)
_COLLECTIVES = (_GATHER, _REDUCE, _SEPARATE, _NORMS, _EMBEDDING, _CLIP)
_KNOWN = {*_MESSAGES, *_COMPUTATIONS, *_COLLECTIVES, _COLLECT, _OPTIMIZER}


def job_of_table(table: JobTable) -> Job:
    """Return a table's operations of known types, with their dependencies.

    Raises:
        TraceError: numbers of messages and computations do not match.
    """
    dependencies = _Dependencies(table)
    dependencies.connect()
    known = [index for index, operation in enumerate(table.operations) if operation.type in _KNOWN]
    number = {index: position for position, index in enumerate(known)}

    def job_operation(index: int) -> JobOperation:
        operation = table.operations[index]
        return JobOperation(
            type=operation.type, rank=operation.stage,
            dependencies=tuple(sorted(number[dependency] for dependency in dependencies.of[index])),
            communicates=operation.type in {*_MESSAGES, *_COLLECTIVES},
            category=f"{operation.type.partition('-')[0]}-pp-comm" if operation.type in _MESSAGES else "",
            action=dependencies.action(index),
        )  # fmt: skip

    return Job(
        operations=tuple(map(job_operation, known)),
        rendezvous=tuple(tuple(number[index] for index in members) for members in dependencies.rendezvous),
        across_replicas=frozenset(number[index] for index in dependencies.across_replicas),
        workers=table.workers, replicas=tuple(f"dp={replica}" for replica in table.replicas),
        steps=tuple(f"step {step}" for step in table.steps),
        start_ns=table.start_ns[known], end_ns=table.end_ns[known],
    )  # fmt: skip


class _Dependencies:
    """Dependencies of a table's operations, which all steps share, from the first step of the first replica."""

    def __init__(self, table: JobTable) -> None:
        self._table, self._operations = table, table.operations
        self._start, self._end = table.start_ns[:, 0, 0], table.end_ns[:, 0, 0]
        self._indices: dict[tuple[int, str], list[int]] = defaultdict(list)
        for index, operation in enumerate(self._operations):
            self._indices[operation.stage, operation.type].append(index)
        chunks = max((operation.chunk for operation in self._operations), default=0) + 1
        self._stages = table.stages * max(chunks, 1)
        self.of: dict[int, set[int]] = defaultdict(set)
        """Dependencies of each operation."""
        self.rendezvous: list[tuple[int, ...]] = []
        """Groups of operations that transfer data once all of them have started."""
        self.across_replicas: set[int] = set()
        """Operations that also wait for the same operation of all replicas."""
        self.computation: dict[int, int] = {}
        """Producer or consumer of each existing message."""

    def action(self, index: int) -> Action | None:
        """Return an operation's action in a schedule table; None for an operation that tables do not have."""
        operation = self._operations[index]
        if operation.type in _COMPUTATIONS:
            kind = Kind.F if operation.type == _FORWARD else Kind.B
            return Action(kind=kind, stage=self._stage(index), microbatch=operation.microbatch)
        if operation.type in {_GATHER, _REDUCE}:
            kind = Kind.UNSHARD if operation.type == _GATHER else Kind.REDUCE_GRAD
            return Action(kind=kind, stage=self._stage(index))
        if index not in self.computation:
            return None
        direction, end = operation.type.split("-")
        kind = kinds.message_kind(sends=end == "send", forward=direction == "forward")
        computation = self.computation[index]
        microbatch = self._operations[computation].microbatch
        return Action(kind=kind, stage=self._stage(computation), microbatch=microbatch)

    def _stage(self, index: int) -> int:
        operation = self._operations[index]
        return max(operation.chunk, 0) * self._table.stages + operation.stage

    def connect(self) -> None:
        """Find all dependencies and rendezvous."""
        for rank in range(self._table.stages):
            computations = self._computations(rank)
            self._connect_in_order(computations)
            for direction in _DIRECTIONS:
                self._connect_messages(rank, direction)
            self._delay_first_gradients(rank, computations)
            self._connect_gathers(rank)
            self._connect_end(rank, computations)
        self._pair_messages()
        self._add_collectives()

    def _computations(self, rank: int) -> list[int]:
        computations = self._by_time(self._of_types(rank, _COMPUTATIONS))
        if not computations:
            raise self._error(f"holds no forward-compute and no backward-compute of stage {rank}")
        for index in computations:
            operation = self._operations[index]
            if operation.microbatch < 0:
                name = f"{operation.type} {operation.number} of stage {rank}"
                raise self._error(f"{name} has no microbatch (mb_id)")
        return computations

    def _error(self, message: str) -> TraceError:
        return TraceError(message, file=self._table.path)

    def _of_types(self, rank: int, types: Iterable[str]) -> list[int]:
        return [index for type_ in types for index in self._indices[rank, type_]]

    def _by_time(self, indices: Iterable[int]) -> list[int]:
        return sorted(indices, key=lambda index: (self._start[index], self._operations[index].number, index))

    def _by_number(self, rank: int, type_: str) -> list[int]:
        return sorted(self._indices[rank, type_], key=lambda index: self._operations[index].number)

    def _connect_in_order(self, indices: Iterable[int]) -> None:
        for predecessor, index in pairwise(indices):
            self.of[index].add(predecessor)

    def _connect_messages(self, rank: int, direction: str) -> None:
        computations = self._by_number(rank, f"{direction}-compute")
        for end in ("send", "recv"):
            posted = self._by_time(self._indices[rank, f"{direction}-{end}"])
            self._connect_in_order(posted)
            if end == "send":
                first_ns = min((int(self._end[index]) for index in computations), default=0) - _TOLERANCE_NS
                messages = [index for index in posted if self._end[index] >= first_ns]
            else:
                last_ns = max((int(self._start[index]) for index in computations), default=0) + _TOLERANCE_NS
                messages = [index for index in posted if self._start[index] <= last_ns]
            # The receive before the first stage's first forward is not always recorded.
            skipped = int(end == "recv" and len(messages) == len(computations) - 1)
            if len(messages) not in {0, len(computations), len(computations) - 1}:
                counts = f"{len(messages)} {direction}-{end} for {len(computations)} {direction}-compute"
                raise self._error(f"stage {rank} has {counts}: operations are missing")
            for number, index in enumerate(messages, skipped):
                self.computation[index] = computations[number]
                if end == "send":
                    self.of[index].add(computations[number])
                    continue
                self.of[computations[number]].add(index)
                if number:
                    self.of[index].add(computations[number - 1])

    def _delay_first_gradients(self, rank: int, computations: Sequence[int]) -> None:
        """Let a rank's first messages of gradients wait for the forward before its last one in the warm-up."""
        types = [self._operations[index].type for index in computations]
        warm_up = types.index(_BACKWARD) if _BACKWARD in types else 0
        if warm_up > 1:
            for end in ("send", "recv"):
                for index in self._by_number(rank, f"backward-{end}")[:1]:
                    self.of[index].add(computations[warm_up - 2])

    def _connect_gathers(self, rank: int) -> None:
        """Let the first forward of each chunk wait for the all-gather of its weights."""
        self._connect_in_order(self._by_time(self._of_types(rank, (_GATHER, _REDUCE))))
        last_gather = {self._operations[index].chunk: index for index in self._by_number(rank, _GATHER)}
        for chunk, gather in last_gather.items():
            forwards = self._of_chunk(rank, _FORWARD, chunk)
            if forwards:
                self.of[min(forwards, key=lambda index: int(self._start[index]))].add(gather)

    def _of_chunk(self, rank: int, type_: str, chunk: int) -> list[int]:
        return [index for index in self._indices[rank, type_] if self._operations[index].chunk == chunk]

    def _connect_end(self, rank: int, computations: Sequence[int]) -> None:
        last = [max(computations, key=lambda index: int(self._end[index]))]
        collect, reductions = self._indices[rank, _COLLECT][:1], self._by_number(rank, _REDUCE)
        for index in collect:
            self.of[index].update(last)
        overlapped = bool(self._indices[rank, _SEPARATE])
        if overlapped:
            self._overlap_reductions(rank, reductions)
        end = [
            *self._indices[rank, _NORMS][:1], *self._indices[rank, _EMBEDDING][:1],
            *(self._indices[rank, _SEPARATE][:1] if overlapped else reductions),
            *self._indices[rank, _CLIP][:1], *self._indices[rank, _OPTIMIZER][:1],
        ]  # fmt: skip
        self._connect_in_order(end)
        for index in end[:1]:
            self.of[index].update([*(collect or last), *(reductions[-1:] if overlapped else [])])

    def _overlap_reductions(self, rank: int, reductions: Sequence[int]) -> None:
        """Let the first reduction of each chunk wait for the chunk's last backward."""
        first_reduction = {self._operations[index].chunk: index for index in reversed(reductions)}
        for chunk, reduction in first_reduction.items():
            backwards = self._of_chunk(rank, _BACKWARD, chunk)
            if backwards:
                self.of[reduction].add(max(backwards, key=lambda index: int(self._end[index])))

    def _pair_messages(self) -> None:
        """Make a rendezvous of the k-th send and the k-th receive between two ranks."""
        ranks = self._table.stages
        for direction, offset in _DIRECTIONS.items():
            for rank in range(ranks):
                sends = self._existing_messages(rank, f"{direction}-send", offset)
                receives = self._existing_messages((rank + offset) % ranks, f"{direction}-recv", -offset)
                if len(sends) != len(receives):
                    counts = f"{len(sends)} {direction}-send for {len(receives)} {direction}-recv"
                    raise self._error(f"stage {rank} has {counts} of its neighbour")
                self.rendezvous += zip(sends, receives, strict=True)

    def _existing_messages(self, rank: int, type_: str, offset: int) -> list[int]:
        """Return messages by time, without messages to or from a stage outside of the model."""
        existing = []
        for index in self._by_time(self._indices[rank, type_]):
            if index in self.computation and 0 <= self._stage(self.computation[index]) + offset < self._stages:
                existing.append(index)
            else:
                self.computation.pop(index, None)
        return existing

    def _add_collectives(self) -> None:
        """Make a rendezvous of each collective; all but the embedding's are across replicas."""
        ranks = range(self._table.stages)
        of_rank = [index for rank in ranks for index in self._of_types(rank, (_GATHER, _REDUCE, _SEPARATE))]
        clip = tuple(index for rank in ranks for index in self._indices[rank, _CLIP][:1])
        self.rendezvous += [(index,) for index in of_rank]
        self.across_replicas.update(of_rank, clip)
        first_and_last = sorted({0, self._table.stages - 1})
        embedding = tuple(index for rank in first_and_last for index in self._indices[rank, _EMBEDDING][:1])
        self.rendezvous += [members for members in (clip, embedding) if members]
