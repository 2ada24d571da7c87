"""A measured side with a file per rank, each by a clock and from a time of its own."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from compared_steps import MS, side_of_step
from msgspec.structs import replace

from pptrace.timeline.measurement import Clock, Measurement, Source

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.measured.sides import Side
    from pptrace.timeline.timeline import Timeline

__all__ = ["BEGINS", "recorded"]

ORIGINS = (5_000_000_000, 4_990_000_000, 5_030_000_000)
"""What each rank's clock shows when its file's times are 0."""
OFFSETS = (0, 2 * MS, -7 * MS)
"""What is added to each rank's clock to give rank 0's."""
BEGINS = 6_200_000_000
"""When the step begins, by rank 0's clock."""


def recorded(
    folder: Path,
    timeline: Timeline,
    names: tuple[str, ...] = ("r0.json", "r1.json.gz", "r2.json"),
    begins_ns: int = BEGINS,
) -> Side:
    """Write a file per rank, in which every computation is an event in the file's own times, and return a side."""
    folder.mkdir(exist_ok=True)
    sources = []
    for rank, name in enumerate(names):
        rows = [row for row in range(len(timeline)) if timeline[row].rank == rank and timeline[row].stream == 0]
        zero = ORIGINS[rank] + OFFSETS[rank]
        events = [
            {
                "name": str(timeline[row].action), "ph": "X", "pid": 1, "tid": 1,
                "ts": (int(timeline.start_ns[row]) + begins_ns - zero) / 1000,
                "dur": int(timeline.end_ns[row] - timeline.start_ns[row]) / 1000,
            }
            for row in rows
        ]  # fmt: skip
        raw = json.dumps({"traceEvents": events}).encode()
        (folder / name).write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
        sources.append(Source(rank=rank, path=folder / name, origin_ns=ORIGINS[rank]))
    clocks = tuple(
        Clock(rank=rank, offset_ns=offset, bound_ns=0, pairs=1 if rank else 0)
        for rank, offset in enumerate(OFFSETS)
    )
    side = side_of_step(timeline, "run", measured=True)
    steps = (replace(side.steps[0], begins_ns=begins_ns),)
    measurement = Measurement(steps=steps, clocks=clocks, sources=tuple(sources))
    return replace(side, steps=steps, measurement=measurement)
