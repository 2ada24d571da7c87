"""Perfetto traces: slices written in a second, beside Perfetto's own builder that writes the same.

A slice is a begin and an end packet with name, category, typed fields and flow ids. Each run writes a
new file, uncompressed, which goes before the next. The first run in a process is the cold one: it
loads what it needs.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_kineto import staircase

from pptrace.steps.kinds import Kind
from pptrace.timeline.messages import messages
from pptrace.traces.perfetto import read, write
from pptrace.traces.perfetto.descriptors import descriptor_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.timeline.timeline import Timeline


def official(timeline: Timeline, path: Path) -> None:
    """Write slices, fields and flows with ``StreamingTraceProtoBuilder``, names interned."""
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    extensions = _extensions()
    leaving, ending = _flows(timeline)
    names: dict[str, int] = {}
    words = [kind.name for kind in Kind]
    fields = [extensions[name] for name in ("kind", "stage", "microbatch", "bytes", "lag_ns", "cause")]
    with path.open("wb") as out:
        builder = StreamingTraceProtoBuilder(out)
        for row, (lane, rank, start, stop, *values) in enumerate(_rows(timeline)):
            begin = builder.create_packet()
            begin.timestamp, begin.trusted_packet_sequence_id, begin.sequence_flags = start, 1, 2
            event = begin.track_event
            event.type, event.track_uuid = 1, lane + 1
            name = f"{words[values[0]]} {values[2]}"
            if name not in names:
                names[name] = len(names) + 1
                begin.interned_data.event_names.add(iid=names[name], name=name)
            event.name_iid = names[name]
            event.category_iids.append(1)
            event.Extensions[extensions["row"]] = row
            event.Extensions[extensions["rank"]] = rank
            for field, value in zip(fields, values, strict=True):
                if value > 0:
                    event.Extensions[field] = value
            event.flow_ids.extend(leaving.get(row, ()))
            event.terminating_flow_ids.extend(ending.get(row, ()))
            builder.write_packet(begin)
            end = builder.create_packet()
            end.timestamp, end.trusted_packet_sequence_id = stop, 1
            end.track_event.type, end.track_event.track_uuid = 2, lane + 1
            builder.write_packet(end)


def _extensions() -> dict[str, Any]:
    from google.protobuf import descriptor_pool
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: F401 - what the extension extends

    pool = descriptor_pool.Default()
    pool.AddSerializedFile(descriptor_set().file[0].SerializeToString())
    return dict(pool.FindMessageTypeByName("pptrace.Step").extensions_by_name)


def _flows(timeline: Timeline) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    found = messages(timeline)
    leaving: dict[int, list[int]] = {}
    ending: dict[int, list[int]] = {}
    for flow, (send, producer, consumer) in enumerate(
        zip(found.send.tolist(), found.producer.tolist(), found.consumer.tolist(), strict=True), 1
    ):
        for row in (send, producer):
            leaving.setdefault(row, []).append(flow)
        ending.setdefault(consumer, []).append(flow)
    return leaving, ending


def _rows(timeline: Timeline) -> zip[tuple[int, ...]]:
    columns = (
        timeline.lane_of_row(), timeline.rank_of_row(), timeline.start_ns, timeline.end_ns,
        timeline.kind, timeline.stage, timeline.microbatch, timeline.size_bytes, timeline.lag_ns, timeline.cause,
    )  # fmt: skip
    return zip(*(column.tolist() for column in columns), strict=True)


def timed(name: str, work: Callable[[], object], slices: int, path: Path | None = None) -> None:
    """Print how long a piece of work took, and what it wrote."""
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    size = f"{path.stat().st_size / slices:8.1f}" if path else " " * 8
    print(f"{name:<34} {took:8.3f} s {slices / took / 1e6:8.2f} M slices/s {size} bytes/slice")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--microbatches", type=int, default=2048)
    parser.add_argument("--baseline-microbatches", type=int, default=128, help="0 leaves the baseline out")
    args = parser.parse_args()
    timeline = staircase(args.ranks, args.microbatches)
    sends = sum(int((timeline.kind == kind).sum()) for kind in (Kind.SEND_F, Kind.SEND_B))
    print(f"{len(timeline):,} slices, {sends:,} messages")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for run in ("cold", "warm", "warm", "warm"):
            path = Path(folder) / f"{time.monotonic_ns()}.pftrace"
            timed(f"pptrace, {run}", lambda path=path: write(timeline, path, {}), len(timeline), path)
            path.unlink()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{'peak memory above the timeline':<34} {(after - before) * 1024 / len(timeline):8.0f} bytes/slice")
        write(timeline, path, {})
        timed("pptrace, reading", lambda: read([path]), len(timeline))
        if args.baseline_microbatches:
            small = staircase(args.ranks, args.baseline_microbatches)
            path = Path(folder) / "official.pftrace"
            timed("StreamingTraceProtoBuilder", lambda: official(small, path), len(small), path)


if __name__ == "__main__":
    main()
