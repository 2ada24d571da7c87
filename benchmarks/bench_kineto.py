"""Chrome JSON: slices written in a second, beside f-strings in a stream that write the same events.

A slice is a row of the timeline, which becomes one kernel event with its facts. Its launch, its
annotation, the flow between launch and kernel, and the flows of messages come on top; the table
also counts slices as Perfetto does, by complete events. Each run writes a new file, uncompressed.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.messages import messages
from pptrace.timeline.timeline import Timeline
from pptrace.traces.kineto import read, write

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ("kind", "stage", "microbatch", "enter_ns", "start_ns", "end_ns", "lag_ns", "size_bytes", "cause")
FORWARD_NS, BACKWARD_NS, TRANSFER_NS = 2_500_007, 5_000_013, 300_011


def staircase(ranks: int, microbatches: int) -> Timeline:
    """Return forwards and backwards in turn on each rank, each sent on from a stream of its own."""
    lanes: list[tuple[int, int, int, int]] = []
    columns: list[np.ndarray] = []
    microbatch = np.arange(microbatches)
    period = FORWARD_NS + BACKWARD_NS
    for rank in range(ranks):
        forward = microbatch * period + rank * (FORWARD_NS + TRANSFER_NS)
        start = np.stack([forward, forward + FORWARD_NS], axis=1).ravel()
        duration = np.tile([FORWARD_NS, BACKWARD_NS], microbatches)
        columns.append(
            _rows(rank, np.tile([Kind.F, Kind.B], microbatches), np.repeat(microbatch, 2), start, duration, 0)
        )
        lanes.append((rank, Stream.COMPUTE, -1, 2 * microbatches))
        for peer, kind, at in (
            (rank - 1, Kind.SEND_B, forward + period),
            (rank + 1, Kind.SEND_F, forward + FORWARD_NS),
        ):
            if 0 <= peer < ranks:
                columns.append(
                    _rows(
                        rank,
                        np.full(microbatches, kind),
                        microbatch,
                        at,
                        np.full(microbatches, TRANSFER_NS),
                        1 << 24,
                    )
                )
                lanes.append((rank, Stream.SEND, peer, microbatches))
    kind, stage, microbatches_of, start, duration, size = np.concatenate(columns, axis=1)
    lane = np.array(lanes)
    return Timeline(
        placement=Placement.looped(ranks, microbatches),
        lane_rank=lane[:, 0], lane_stream=lane[:, 1], lane_peer=lane[:, 2],
        lane_ptr=np.concatenate([[0], np.cumsum(lane[:, 3])]),
        kind=kind, stage=stage, microbatch=microbatches_of, span=np.ones_like(kind),
        enter_ns=start, start_ns=start, end_ns=start + duration,
        lag_ns=np.where(size > 0, 5000, 0), uncontended_ns=duration, collective_ns=np.zeros_like(kind),
        size_bytes=size, cause=np.arange(kind.size) - 1, pair=np.full_like(kind, -1),
    )  # fmt: skip


def _rows(
    rank: int, kind: np.ndarray, microbatch: np.ndarray, start: np.ndarray, took: np.ndarray, size: int
) -> np.ndarray:
    return np.stack(
        [kind, np.full_like(microbatch, rank), microbatch, start, took, np.full_like(microbatch, size)]
    )


def f_strings(timeline: Timeline, path: Path, *, kernels_only: bool) -> None:
    """Write the same events line by line, as a straightforward exporter would; or the kernels alone."""
    flows = {} if kernels_only else _flows(timeline)
    columns = [getattr(timeline, name).tolist() for name in COLUMNS]
    lanes = timeline.lane_of_row().tolist()
    rank_of = timeline.lane_rank.tolist()
    stream_of = [7 if stream == Stream.COMPUTE else 20 for stream in timeline.lane_stream.tolist()]
    word = {int(kind): kind.name for kind in Kind}
    with path.open("w") as out:
        out.write('{"traceEvents": [\n')
        rows = zip(lanes, *columns, strict=True)
        for row, (lane, kind, stage, microbatch, enter, start, end, lag, size, cause) in enumerate(rows):
            name = word[kind]
            at = f'"pid":{rank_of[lane] + 1},"tid":{stream_of[lane]},"ts":{start / 1000:.3f}'
            host = f'"pid":{1001 + rank_of[lane]},"tid":{1001 + rank_of[lane]},"ts":{enter / 1000:.3f}'
            if not kernels_only:
                out.write(
                    f'{{"ph":"X","cat":"user_annotation","name":"PP:{stage}{name}{microbatch}",{host},"dur":0,'
                    f'"args":{{"External id":{row}}}}},\n'
                    f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel",{host},"dur":0,'
                    f'"args":{{"External id":{row},"correlation":{row}}}}},\n'
                    f'{{"ph":"s","id":{row},{host},"cat":"ac2g","name":"ac2g"}},\n'
                )
            title = "ncclDevKernel_SendRecv" if size else f"{name} {microbatch}"
            sent = f',"Collective name":"send","In msg nelems":{size},"dtype":"Byte"' if size else ""
            out.write(
                f'{{"ph":"X","cat":"kernel","name":"{title}",{at},"dur":{(end - start) / 1000:.3f},"args":{{'
                f'"stream":{stream_of[lane]},"correlation":{row},"kind":"{name}","stage":{stage},'
                f'"microbatch":{microbatch},"lag_ns":{lag},"bytes":{size},"cause":{cause}{sent}}}}},\n'
            )
            if not kernels_only:
                out.write(f'{{"ph":"f","id":{row},{at},"cat":"ac2g","name":"ac2g","bp":"e"}},\n')
                for phase, flow in flows.get(row, ()):
                    out.write(f'{{"ph":"{phase}","id":{flow},{at},"cat":"p2p","name":"p2p"}},\n')
        out.write("{}]}\n")


def _flows(timeline: Timeline) -> dict[int, list[tuple[str, int]]]:
    found = messages(timeline)
    columns = (found.producer, found.send, found.recv, found.consumer)
    flows: dict[int, list[tuple[str, int]]] = {}
    for row in zip(*(column.tolist() for column in columns), strict=True):
        points = [point for point in row if point >= 0]
        for phase, point in zip("stt"[: len(points) - 1] + "f", points, strict=True):
            flows.setdefault(point, []).append((phase, row[1]))
    return flows


def timed(call: Callable[[Path], object], path: Path) -> float:
    """Return the seconds that a new file takes."""
    path.unlink(missing_ok=True)
    begin = time.perf_counter()
    call(path)
    return time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--read", action="store_true", help="read the file back, too")
    options = parser.parse_args()
    microbatches = -(-options.slices // (4 * 64 - 2))
    timeline = staircase(64, microbatches)
    print(f"{len(timeline):,} slices; best of {options.repeat} runs after the first; events are lines")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        _report("pptrace", lambda to: write(timeline, to, {}), path, len(timeline), options.repeat + 1)
        if options.read:
            begin = time.perf_counter()
            same = read([path]).difference(timeline) == ""
            print(f"{'read back':28} {time.perf_counter() - begin:.2f} s, equal: {same}")
        for label, alone in (("f-strings, the same events", False), ("f-strings, kernels only", True)):
            call = partial(f_strings, timeline, kernels_only=alone)
            _report(label, call, path, len(timeline), 1)


def _report(label: str, call: Callable[[Path], object], path: Path, slices: int, repeat: int) -> None:
    before = resident_bytes()
    times = [timed(call, path) for _ in range(repeat)]
    seconds = min(times[1:] or times)
    held = (resident_bytes() - before) / slices
    with path.open("rb") as file:
        complete = sum(b'"ph":"X"' in line for line in file)
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
    print(
        f"{label:28} {slices / seconds / 1e6:5.2f} M slices/s {complete / seconds / 1e6:5.2f} M complete events/s "
        f"{lines / seconds / 1e6:5.2f} M events/s {seconds:6.2f} s (first {times[0]:.2f}) "
        f"{path.stat().st_size / slices:5.0f} B/slice, {held:.0f} B/slice of memory"
    )


def resident_bytes() -> int:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
