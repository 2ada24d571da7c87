"""Write a timeline as Chrome JSON in Kineto's dialect, as PyTorch's profiler does for NCCL runs.

Perfetto, chrome://tracing and Holistic Trace Analysis read it. An event is a line; blanks within a
line align its numbers. Lines are made by the thousand, from columns, and written while the next
thousands are made.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ConfigError
from pptrace.export.hops import Hops
from pptrace.export.kineto.cells import microseconds, number, pieces
from pptrace.export.kineto.header import header, named
from pptrace.export.kineto.lanes import lanes_of, part_of, process_of
from pptrace.export.kineto.links import LinkEncoder
from pptrace.export.kineto.slices import Encoder
from pptrace.export.kineto.spans import spans, step_of
from pptrace.export.kineto.why import WhyEncoder
from pptrace.export.write_behind import write_behind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pptrace.export.kineto.cells import Block
    from pptrace.timeline.counter import Counter
    from pptrace.timeline.timeline import Timeline

__all__ = ["COLOR_BY", "write"]

COLOR_BY = ("kind", "microbatch")
"""What slices may be coloured by, where the viewer heeds ``cname``; Perfetto goes by their names."""

_ROWS = 4096
_IN_FLIGHT = 2


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write all ranks to one file, or with ``rank`` that rank's alone; ``color`` is one of :data:`COLOR_BY`.

    Rows keep the numbers that they have in the whole timeline, so files written rank by rank can
    be read as one again. Flows between ranks are left out of such files.

    Raises:
        ConfigError: an option has no such value.
        OSError: the file cannot be written.
    """
    rank, color = _checked(timeline, options)
    part, first_row = (timeline, 0) if rank is None else part_of(timeline, rank)
    hops = Hops.of(part)
    encoder = LinkEncoder.of(Encoder.of(part, hops, first_row, color), hops)
    with path.open("wb") as file:
        write_behind(file, _texts(encoder, rank, first_row, step_of(timeline)), waiting=_IN_FLIGHT)


def _checked(timeline: Timeline, options: Mapping[str, Any]) -> tuple[int | None, str]:
    rank, color = options.get("rank"), options.get("color", COLOR_BY[0])
    if color not in COLOR_BY:
        raise ConfigError(f"{color!r} is none of {', '.join(COLOR_BY)}", key="color")
    if rank is not None and rank not in timeline.lane_rank:
        raise ConfigError(f"the timeline has no rank {rank}", key="rank")
    return rank, color


def _texts(
    links: LinkEncoder, rank: int | None, first_row: int, step: tuple[int, int]
) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece; a name comes last, for no comma may follow the last event."""
    encoder, hops = links.slices, links.hops
    timeline = encoder.timeline
    lanes = lanes_of(timeline)
    names = [json.dumps(event).encode() for event in named(timeline, lanes, hops)]
    yield header(timeline, lanes, rank) + b"".join(name + b",\n" for name in names[:-1])
    for event, start, end in spans(timeline, lanes, step):
        yield _span(event, start, end, whole=encoder.whole)
    for lane in lanes:
        for rows in _steps(lane.rows, encoder.arrows.at_once(lane.rows)):
            yield from _flat(encoder.encode(lane, rows))
    for link, (start, stop) in enumerate(pairwise(hops.lane_ptr.tolist())):
        for rows in _steps(slice(start, stop)):
            yield from _flat(links.encode(link, rows))
    if timeline.why is not None:
        why = WhyEncoder(slices=encoder, first_row=first_row)
        yield from _flat(why.waits(timeline.why.waits))
        yield from _flat(why.path(timeline.why.path))
    for counter in timeline.counters:
        for rows in _steps(slice(0, counter.at_ns.size)):
            yield from _flat(_counted(counter, process_of(counter.rank, timeline.ranks), rows))
    yield b"".join(names[-1:]) + b"\n]}\n"


def _steps(rows: slice, width: int = 1) -> Iterator[slice]:
    """Cut rows into pieces of about the same size in bytes, where a row may have ``width`` flows."""
    step = max(1, _ROWS // max(1, width))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def _flat(blocks: Iterable[Block]) -> Iterator[memoryview]:
    return (block.data.cast("B") for block in blocks)


def _span(event: bytes, start: int, end: int, *, whole: bool) -> bytes:
    times = [microseconds(np.array([time]), whole=whole).tobytes() for time in (start, end - start)]
    return b"".join([event, times[0], b',"dur":', times[1], b',"args":{}},\n'])


def _counted(counter: Counter, process: int, rows: slice) -> Iterator[Block]:
    """Yield a line per step of a counter; times keep their nanoseconds whatever the slices' do."""
    at = counter.at_ns[rows]
    name, unit = json.dumps(counter.name).encode(), json.dumps(counter.unit).encode()
    head = b'{"ph":"C","name":%s,"pid":%d,"ts":' % (name, process)
    value = number(counter.value[rows])
    return pieces(at.size, [head, microseconds(at, whole=False), b',"args":{%s:' % unit, value, b"}},\n"])
