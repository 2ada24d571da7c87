"""Forward and backward passes of a rank.

PyTorch gives an operation that autograd will go back through a sequence number, and the function that goes back
through it the same one (``autograd::engine::evaluate_function: MulBackward0``). So which backward belongs to which
forward is known; where one forward ends and the next begins is where a message was posted, or work went back, or
where no pass of autograd goes back through both sides: a rank that hands over to itself posts nothing between.

PyTorch launches forward kernels from the thread that runs the model and backward kernels from autograd's own.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.gpu_spans import compute_stream, window_around
from pptrace_profilers.json_events import Keep, read_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import Int64s
    from pptrace_profilers.events import Events
    from pptrace_profilers.recording import Operations, Recording

_KEEP = Keep(categories=frozenset({"cpu_op"}), details=("",))
_BACKWARD = "autograd::engine::evaluate_function"
_NEVER = ("autograd::", "torch::autograd::", "c10d::", "record_param_comms")
_MOST_BYTES = 512 << 20
"""Files beyond this size are not read a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Contiguous work of one direction."""

    forward: bool
    """Whether it goes forward."""
    start_ns: int
    """When it starts, on the host."""
    end_ns: int
    """When it ends."""
    forward_number: int
    """Number of the forward, or of the forward of a backward, in the recording."""
    operations: tuple[str, ...] = ()
    """Names of what ran in it, in order, for a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    forward: bool
    start_ns: int
    end_ns: int
    sequence: int
    name: str


def autograd_runs(path: Path, posts_ns: Sequence[int]) -> list[Run]:
    """Return the runs of a file by time; none where it holds no operations of autograd, or is too large.

    Args:
        path: a file of PyTorch's profiler.
        posts_ns: when messages were posted.

    Raises:
        TraceError: the file cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        return []
    operations = _operations(read_events(path, _KEEP))
    posts = np.searchsorted(
        np.sort(np.array(posts_ns, dtype=np.int64)), [operation.start_ns for operation in operations]
    ).tolist()
    runs, of_run = _runs(operations, posts, frozenset())
    begins = _begun_apart(operations, of_run)
    return _runs(operations, posts, begins)[0] if begins else runs


def _runs(
    operations: Sequence[_Operation], posts: Sequence[int], begins: frozenset[int]
) -> tuple[list[Run], list[int]]:
    """Return the runs, and the run of each operation.

    Args:
        operations: by time.
        posts: how many messages were posted before each.
        begins: numbers of operations with which a forward begins, beside those behind posts and backwards.
    """
    runs: list[Run] = []
    names: list[list[str]] = []
    of_run: list[int] = []
    forward_of: dict[int, int] = {}
    gone_through: set[int] = set()
    forwards, last_post = -1, -1
    for number, (operation, post) in enumerate(zip(operations, posts, strict=True)):
        current = runs[-1] if runs and post == last_post else None
        last_post = post
        if operation.forward:
            joins = current is not None and current.forward and number not in begins
            forwards += not joins
            forward = forward_of[operation.sequence] = forwards
        else:
            forward = forward_of.get(operation.sequence, -1)
            joins = (
                current is not None
                and not current.forward
                and forward in {-1, current.forward_number}
                # A pass of autograd goes through each function once: a second time is the next pass.
                and operation.sequence not in gone_through
            )
        if current is not None and joins:
            runs[-1] = replace(current, end_ns=max(current.end_ns, operation.end_ns))
        elif forward >= 0:
            runs.append(Run(
                forward=operation.forward, start_ns=operation.start_ns, end_ns=operation.end_ns,
                forward_number=forward,
            ))  # fmt: skip
            names.append([])
            gone_through = set()
        if operation.forward:
            names[-1].append(operation.name)
        else:
            gone_through |= {operation.sequence} - {-1}
        of_run.append(len(runs) - 1 if joins or forward >= 0 else -1)
    return [replace(run, operations=tuple(held)) for run, held in zip(runs, names, strict=True)], of_run


def _begun_apart(operations: Sequence[_Operation], of_run: Sequence[int]) -> frozenset[int]:
    """Return operations inside a forward that share no backward pass with the operations before them."""
    passes: dict[int, set[int]] = {}
    for operation, run in zip(operations, of_run, strict=True):
        if not operation.forward and operation.sequence >= 0:
            passes.setdefault(operation.sequence, set()).add(run)
    rows = [number for number, operation in enumerate(operations) if operation.forward]
    last_of: dict[int, int] = {}
    for number in rows:
        for run in passes[operations[number].sequence]:
            last_of[run] = number
    begins, reaches = set(), -1
    for before, number in zip([-1, *rows], rows, strict=False):
        if before >= 0 and of_run[before] == of_run[number] and reaches < number:
            begins.add(number)
        reaches = max(reaches, *(last_of[run] for run in passes[operations[number].sequence]))
    return frozenset(begins)


def _operations(events: Events) -> list[_Operation]:
    """Return the outer operations with a backward, and the backward operations, by time."""
    rows = np.argsort(events.start_ns, kind="stable").tolist()
    sequences = {row: _sequence(events, row) for row in rows}
    back = {row for row in rows if events.name_of(row).startswith(_BACKWARD)}
    returning = {sequences[row] for row in back} - {-1}
    operations: list[_Operation] = []
    busy_until = -1
    for row in rows:
        start, end, name = int(events.start_ns[row]), int(events.end_ns[row]), events.name_of(row)
        forward = row not in back
        if forward and (sequences[row] not in returning or name.startswith(_NEVER) or _goes_back(events, row)):
            continue
        if start < busy_until:  # inside of another: recomputed, or a part of it
            continue
        busy_until = end
        operations.append(
            _Operation(forward=forward, start_ns=start, end_ns=end, sequence=sequences[row], name=name)
        )
    # What autograd does not go back through has the number of the next operation that it does.
    last = {operation.sequence: number for number, operation in enumerate(operations) if operation.forward}
    return [
        operation
        for number, operation in enumerate(operations)
        if not operation.forward or last[operation.sequence] == number
    ]


def _sequence(events: Events, row: int) -> int:
    arguments = events.arguments.get(row)
    number = arguments.sequence_number if arguments is not None else None
    return number if isinstance(number, int) else -1


def _goes_back(events: Events, row: int) -> bool:
    """Whether an operation runs backward: the forward's thread is written on those alone."""
    arguments = events.arguments.get(row)
    return arguments is not None and arguments.forward_thread not in {None, 0}


_SHORT = 2
"""A run of fewer kernels than this part of the median is none: gradients set to zero, losses summed."""


def launch_runs(operations: Operations | None, posts_ns: Sequence[int]) -> list[Run]:
    """Return the runs by launch; none where fewer than two threads launched what computes.

    The k-th backward is taken for the k-th forward's.

    Args:
        operations: a GPU's.
        posts_ns: when messages were launched.
    """
    rows = _of_two_threads(operations) if operations is not None else None
    if operations is None or operations.thread is None or rows is None:
        return []
    post = np.searchsorted(np.sort(np.array(posts_ns, dtype=np.int64)), operations.launch_ns[rows])
    forward = operations.thread[rows] == operations.thread[rows[0]]  # a step begins with a forward
    cuts = np.flatnonzero((np.diff(forward) != 0) | (np.diff(post) != 0)) + 1
    parts = np.split(np.arange(rows.size), cuts)
    least = {
        direction: np.median([len(p) for p in parts if forward[p[0]] == direction]) / _SHORT
        for direction in (True, False)
    }
    runs, count = [], {True: 0, False: 0}
    for part in parts:
        direction = bool(forward[part[0]])
        if len(part) < least[direction]:
            continue
        launched = operations.launch_ns[rows[part]]
        names = tuple(operations.names[name] for name in operations.name[rows[part]].tolist()) if direction else ()
        runs.append(Run(
            forward=direction, start_ns=int(launched[0]), end_ns=int(launched[-1]),
            forward_number=count[direction], operations=names,
        ))  # fmt: skip
        count[direction] += 1
    return runs


def work_starts_ns(operations: Operations | None, runs: Sequence[Run]) -> list[int]:
    """Return the start of each run's first kernel on the compute stream, by default the start on the host.

    Args:
        operations: a GPU's; None where none were recorded.
        runs: what its host launched.
    """
    if operations is None:
        return [run.start_ns for run in runs]
    rows = np.flatnonzero(~operations.communicates & (operations.stream == compute_stream(operations)))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    launched = operations.launch_ns[rows]
    first = np.searchsorted(launched, [run.start_ns for run in runs], side="left")
    after = np.searchsorted(launched, [run.end_ns for run in runs], side="right")
    return [
        int(operations.start_ns[rows[a]]) if a < b else run.start_ns
        for a, b, run in zip(first.tolist(), after.tolist(), runs, strict=True)
    ]


def _of_two_threads(operations: Operations) -> Int64s | None:
    """Return what computes and was launched by the two threads that launch the most, by launch."""
    if operations.thread is None:
        return None
    rows = np.flatnonzero(~operations.communicates & (operations.launch_ns >= 0))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    threads, count = np.unique(operations.thread[rows], return_counts=True)
    if threads.size <= 1:
        return None
    most = threads[np.argsort(-count, kind="stable")[:2]]
    return rows[np.isin(operations.thread[rows], most)]


LEAST = 0.9
"""The confidence from which actions are inferred."""
AUTOGRAD = "autograd's operations"
"""The source that ties backwards to their forwards."""
Places = dict[int, tuple[int, int]]
"""By number of a rank's forward, its stage and microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRuns:
    """One rank's runs, and which step each is in."""

    recording: Recording
    runs: list[Run]
    steps: list[int]

    @classmethod
    def of(cls, recording: Recording, runs: list[Run]) -> RankRuns:
        """Take a rank's runs; all are of one step where the profiler marked none."""
        windows = [(start, end) for _, start, end in recording.windows]
        steps = window_around(windows, [run.start_ns for run in runs]).tolist() if windows else [0] * len(runs)
        return cls(recording=recording, runs=runs, steps=steps)

    @property
    def forwards(self) -> list[Run]:
        """Return the forwards that are in a step."""
        return [run for run, step in zip(self.runs, self.steps, strict=True) if run.forward and step >= 0]

    @property
    def backwards(self) -> Counter[int]:
        """Return how many backwards each forward has."""
        return Counter(run.forward_number for run in self.runs if not run.forward)

    @property
    def usual(self) -> int:
        """Return how many backwards most forwards have."""
        counts = self.backwards
        return Counter(counts[run.forward_number] for run in self.forwards).most_common(1)[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Confidence of an inference."""

    text: str
    """The confidence, and the weakest share if it is below 1."""
    objection: str
    """Reason against the inference; empty for none."""

    @classmethod
    def of(cls, shares: Mapping[str, float], source: str) -> Verdict:
        """Return the product of shares, and the least share if the product is below 1."""
        confidence = float(np.prod(list(shares.values())))
        weakest = min(shares, key=lambda name: shares[name])
        # Rounded down: what is less than 1, or than the limit, is not to read as that.
        rounded = f"confidence {math.floor(100 * confidence) / 100:.2f}"
        why = f"as only {math.floor(100 * shares[weakest])}% {weakest}"
        if confidence < LEAST:
            return cls(text="", objection=f" from {source}: {rounded} is below {LEAST}, {why}")
        return cls(text=rounded if confidence == 1 else f"{rounded}, {why}", objection="")


def mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
