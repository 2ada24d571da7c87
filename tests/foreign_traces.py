"""Traces as other tools write them: our own Kineto dialect without our marks, in the profiler's three ages."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from pptrace.traces.kineto import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

__all__ = ["as_foreign", "rewritten", "written_per_rank"]

KERNEL_ARGUMENTS = (
    "External id", "device", "stream", "correlation", "Collective name", "In msg nelems", "Out msg nelems",
    "Group size", "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks", "Dst Rank",
    "Src Rank",
)  # fmt: skip
EPOCH_US = 1_740_461_679_471_346
BASE_NS = 1_790_857_026_000_000_000


def written_per_rank(timeline: Timeline, folder: Path, **how: Any) -> list[Path]:
    """Write one foreign file per rank."""
    paths = []
    for rank in range(timeline.ranks):
        path = folder / f"rank{rank}.json"
        write(timeline, path, {"rank": rank})
        rewritten(path, lambda trace: as_foreign(trace, **how))
        paths.append(path)
    return paths


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change a trace in its file; gzipped where it was."""
    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    trace = json.loads(text)
    changed = change(trace)
    text = json.dumps(trace if changed is None else changed).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
    return path


def as_foreign(trace: dict[str, Any], *, age: str = "base", string_pids: bool = False) -> dict[str, Any]:
    """Return a trace with nothing of ours: the same pids on every rank, times of one of three ages.

    ``whole`` writes whole microseconds of the epoch, ``fraction`` fractions of them, ``base`` fractions since
    ``baseTimeNanoseconds``.
    """
    for mark in ("pptraceFormat", "metadata"):
        del trace[mark]
    events = [_event(event, age) for event in trace.pop("traceEvents") if event["ph"] in {"X", "M", "s", "f"}]
    if string_pids:
        events += [
            {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "T", "ts": 1.0},
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
             "ts": 0.0, "dur": 1e6, "args": {"Op count": 0}},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 2.0, "s": "g"},
        ]  # fmt: skip
    return {**trace, **({"baseTimeNanoseconds": BASE_NS} if age == "base" else {}), "traceEvents": events}


def _event(event: dict[str, Any], age: str) -> dict[str, Any]:
    event.pop("cname", None)
    on_gpu = "stream" in event.get("args", {}) or event.get("cat") == "gpu_user_annotation"
    event["pid"], event["args"] = (
        0 if on_gpu else 1234,
        {key: value for key, value in event.get("args", {}).items() if key in KERNEL_ARGUMENTS or key == "name"},
    )
    if "ts" in event and age != "base":
        event["ts"] += EPOCH_US
    return event
