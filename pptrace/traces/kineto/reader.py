"""Reader of the Kineto JSON that pptrace writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.limits import UnpackedFile, check_events, gibibytes, memory_key, most_parsed
from pptrace.errors import TraceError
from pptrace.steps.columns import find
from pptrace.timeline.timeline import Counter
from pptrace.traces.assembly import DAMAGE, StepPart, join_parts, links_of
from pptrace.traces.kineto.writer import FORMAT, process_of
from pptrace.traces.scene import NAMES, column_defaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.timeline.timeline import Timeline

_KINDS = {name: kind for kind, name in enumerate(NAMES)}
_KERNELS = frozenset({"kernel", "gpu_memcpy"})
_KEYS = ("stage", "microbatch", "cause", "correlation")
"""Arguments that all kernels have, with a column of the timeline."""


def _part(path: Path, step: dict[str, Any], batches: Iterable[list[dict[str, Any]]]) -> StepPart:
    pieces: dict[str, list[NDArray[np.int64]]] = {}
    launches: list[NDArray[np.int64]] = []
    points: dict[tuple[int, str, str], list[tuple[int, int]]] = {
        (process_of(rank, step["placement"]["ranks"]), name, unit): [] for rank, name, unit in step["counters"]
    }
    hops: list[NDArray[np.int64]] = []
    for events in batches:
        slices = [event for event in events if event["ph"] == "X"]
        kernels = [e for e in slices if e["cat"] in _KERNELS]
        for name, values in _kernels(kernels, step.get("segments", ())).items():
            pieces.setdefault(name, []).append(values)
        launches.append(_launches([e for e in slices if e["cat"] == "cuda_runtime"]))
        hops.append(_hops([e["args"] for e in slices if e["cat"] == "link"]))
        for event in events:
            if event["ph"] == "C":
                ((unit, value),) = event["args"].items()
                points[event["pid"], event["name"], unit].append((_ns(event["ts"]), value))
    columns = {name: np.concatenate(values) for name, values in pieces.items()}
    columns["enter_ns"] = _enter_ns(columns["row"], np.concatenate(launches, axis=1))
    lanes = _integers(step["lanes"]).reshape(-1, 4)
    if lanes[:, 3].sum() != columns["row"].size:
        raise TraceError("slices are missing; was it cut short or edited?", file=path)
    counters = zip(step["counters"], points.values(), strict=True)
    part = StepPart(
        path=path, step=step, provenance=step["provenance"], lanes=lanes, columns=columns, links=links_of(step),
        counters=tuple(_counter(rank, name, unit, values) for (rank, name, unit), values in counters),
        hops=np.concatenate(hops),
    )  # fmt: skip
    if len(part.hops) != (step["routes"][2] if part.links else 0):
        raise TraceError("slices on links are missing; was it cut short or edited?", file=path)
    return part


def _hops(args: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    return _integers([[a["transfer"], a["hop"], a["link"]] for a in args]).reshape(-1, 3)


def _kernels(events: Sequence[dict[str, Any]], segments: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    start, dur = _times(events, "ts"), _times(events, "dur")
    args = [event["args"] for event in events]
    columns = {key: _integers([a.get(key, 0) for a in args]) for key in _KEYS}
    columns["row"] = columns.pop("correlation")
    for name, default in {**column_defaults(dur), "segment_number": -1}.items():
        key, defaults = name.removeprefix("size_"), np.broadcast_to(default, dur.shape).tolist()
        columns[name] = _integers([a.get(key, value) for a, value in zip(args, defaults, strict=True)])
    kind = _integers([_KINDS[a["kind"]] for a in args])
    number = {name: index for index, name in enumerate(segments)}
    columns["segment"] = _integers([number[a["segment"]] if "segment" in a else -1 for a in args])
    return {**columns, "kind": kind, "start_ns": start, "end_ns": start + dur}


def _launches(events: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    """Return the launched rows and their times, shape (2, launches)."""
    return np.stack([_integers([event["args"]["correlation"] for event in events]), _times(events, "ts")])


def _enter_ns(row: NDArray[np.int64], launches: NDArray[np.int64]) -> NDArray[np.int64]:
    launched, launch_ns = launches[:, np.argsort(launches[0], kind="stable")]
    index = find(launched, row)
    if (index < 0).any():
        msg = "a kernel has no launch"
        raise ValueError(msg)
    enter_ns: NDArray[np.int64] = launch_ns[index]
    return enter_ns


def _counter(rank: int, name: str, unit: str, steps: Sequence[tuple[int, int]]) -> Counter:
    table = np.array(steps, dtype=np.int64).reshape(-1, 2)
    return Counter(rank=rank, name=name, unit=unit, at_ns=table[:, 0], value=table[:, 1])


def _times(events: Sequence[dict[str, Any]], key: str) -> NDArray[np.int64]:
    return _integers([_ns(event[key]) for event in events])


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _integers(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


_EVENTS = b'"traceEvents": [\n'
_END = b"]}\n"
_BLOCK, _LONGEST_LINE = 4 << 20, 64 << 20
_LINE_STARTS = (
    b'{"ph":"X","cat":"kernel"',
    b'{"ph":"X","cat":"gpu_memcpy"',
    b'{"ph":"X","cat":"cuda_runtime"',
    b'{"ph":"X","cat":"link"',
    b'{"ph":"C"',
)
"""Starts of the lines with the content of a timeline."""
_MARKS = [b"\n" + start for start in _LINE_STARTS]


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows of ranks without a file are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, was not written by pptrace, or is of another run.
    """
    return join_parts([_read_part(path) for path in paths])


def _read_part(path: Path) -> StepPart:
    try:
        with UnpackedFile.open(path) as file:
            top, batches = _events(file, path)
            return _part(path, top["metadata"]["pptrace"], batches)
    except json.JSONDecodeError as error:
        raise TraceError(f"{error}; was it cut short?", file=path) from None
    except RecursionError:
        raise TraceError("nests its values too deeply to be a trace that pptrace wrote", file=path) from None
    except DAMAGE as error:
        raise TraceError(f"not a trace that pptrace wrote: {type(error).__name__} {error}", file=path) from None


def _events(file: UnpackedFile, path: Path) -> tuple[dict[str, Any], Iterable[list[dict[str, Any]]]]:
    """Return the top-level keys before the events, and the events in batches that bound memory.

    A file that another tool has reformatted is read as a single batch.
    """
    first = file.readline(most_parsed())
    if first.endswith(_EVENTS):
        top = json.loads(first + _END)
        batches: Iterable[list[dict[str, Any]]] = _batches(file, path)
    else:
        top = json.loads(first + _rest(file, len(first), path))
        check_events(len(top["traceEvents"]), path)
        batches = [top["traceEvents"]]
    if top.get("pptraceFormat") != FORMAT:
        msg = f"format {top.get('pptraceFormat')}, and this version reads {FORMAT}"
        raise ValueError(msg)
    return top, batches


def _rest(file: UnpackedFile, read_bytes: int, path: Path) -> bytes:
    parts, limit_bytes = [], most_parsed()
    while part := file.read(_BLOCK):
        parts.append(part)
        read_bytes += len(part)
        if read_bytes > limit_bytes:
            size = gibibytes(limit_bytes)
            message = f"is larger than {size} and not laid out as pptrace writes it: {memory_key()}"
            raise TraceError(message, file=path)
    return b"".join(parts)


def _batches(file: UnpackedFile, path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of the lines of a file, a block at a time."""
    incomplete, last, count = b"", b"", 0
    while True:
        part = file.read(_BLOCK)
        end = part.rfind(b"\n") + 1
        if not end and part:
            incomplete += part
            if len(incomplete) > _LONGEST_LINE:
                raise TraceError(f"a line is longer than {gibibytes(_LONGEST_LINE)}: not a trace", file=path)
            continue
        lines = (incomplete + part[:end]).splitlines(keepends=True)
        incomplete = part[end:]
        event_lines = [line for line in lines if line.startswith(_LINE_STARTS)]
        count += len(event_lines)
        check_events(count, path)
        file.expect(count, _MARKS)
        yield json.loads(b"[" + b"".join(event_lines).rstrip().rstrip(b",") + b"]")
        last = lines[-1] if lines else last
        if not part:
            break
    if last != _END:
        msg = "cannot be read: the end is missing"
        raise TraceError(msg, file=path)
