"""A folder of many sorts is sorted: each file is for one importer, strangers are for none."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugins.builtin import pptrace_importers as own_importers
from pptrace.run import trace_files
from pptrace.run.trace_files import head_of
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.plugin import (
    is_chrome,
    is_inspector,
    is_kineto,
    is_nccl,
    is_nsys,
    is_pftrace,
    is_rocprofv3,
    is_xplane,
    measure_kineto,
    pptrace_importers,
)

if TYPE_CHECKING:
    from pathlib import Path

SORTS = (is_kineto, is_nccl, is_inspector, is_nsys, is_pftrace, is_rocprofv3, is_xplane, is_chrome)


def readers(path: Path) -> list[str]:
    head = head_of(path)
    offers = [*own_importers(), *pptrace_importers()]
    return [offer.name for offer in offers if offer.recognises(path, head)]


def test_each_format_is_recognised_by_its_importer_and_no_other(pipeline: Any, tmp_path: Path) -> None:
    files = {
        "pytorch": pipeline.kineto(tmp_path)[0],
        "nccl-profiler": pipeline.nccl(tmp_path)[0],
        "nccl-inspector": pipeline.inspector(tmp_path)[0],
        "nsys": pipeline.nsys(tmp_path / "run.sqlite"),
        "pytorch-perfetto": pipeline.pftrace(tmp_path)[0],
        "rocprofv3": pipeline.rocprofv3(tmp_path)[0],
        "xplane": pipeline.xplane(tmp_path),
        "chrome": pipeline.chrome(tmp_path),
    }

    assert {name: readers(path) for name, path in files.items()} == {name: [name] for name in files}


@pytest.mark.parametrize("sort", ["perfetto", "kineto"])
def test_traces_that_pptrace_wrote_are_left_to_its_own_importers(sort: str, pipeline: Any, tmp_path: Path) -> None:
    from pptrace.traces import kineto, perfetto

    timeline = measure_kineto(pipeline.kineto(tmp_path), ImportRequest()).steps[0].timeline
    path = tmp_path / "ours"
    {"perfetto": perfetto, "kineto": kineto}[sort].write(timeline, path, {})

    assert readers(path) == [sort]


STRANGERS = {
    "nothing": b"",
    "a newline": b"\n",
    "text": b"\nhello, this is a log\n",
    "a blank object": b"{}",
    "an empty list": b"[]",
    "a list of numbers": b"[1, 2, 3]",
    "ground truth": b'{"rank": 0, "world_size": 4, "wall_ns": [1, 2]}',
    "a container's manifest": b'{"schemaVersion": 2, "mediaType": "application/vnd.oci"}',
    "a log of objects": b'{"header": {"a": 1}}\n{"b": 2}\n',
    "YAML": b"actions:\n  - name: x\n",
    "a picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "zeros": bytes(64),
    "another database": b"SQLite format 2\x00",
    "lines of JSON": b'\n{\n  "name": "x",\n  "schemaVersion": 3\n}',
}


@pytest.mark.parametrize("content", STRANGERS.values(), ids=STRANGERS.keys())
def test_strangers_are_for_no_importer(content: bytes) -> None:
    assert [sort.__name__ for sort in SORTS if sort(content)] == []


HEADS = {
    "the first key on a later line": (b'\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n', is_kineto),
    "no description": (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"}', is_kineto),
    "a rank and nothing else": (b'{"distributedInfo": {"rank": 0}, "traceEvents": [', is_kineto),
    "a byte order mark": (b'\xef\xbb\xbf{"distributedInfo": {"rank": 0}, "traceEvents": [', is_kineto),
    "a bare list of PyTorch's": (b'[{"ph": "X", "cat": "kernel", "name": "a"}', is_kineto),
    "a bare list of anybody's": (b'[\n{"name": "a", "ph": "B", "ts": 0}', is_chrome),
    "an object of anybody's": (b'{"otherData": {}, "traceEvents" : [', is_chrome),
    "a list of NCCL's, unquoted": (
        b'[\n{"name": "KernelLaunch", "cat": "KERNEL_LAUNCH", "ph": "b", "args": {"Stream": 0x26}}', is_nccl
    ),
    "an operator of PyTorch 1.7": (
        b'\n{\n  "schemaVersion": 1,\n  "traceEvents": [\n{"ph": "X", "cat": "Operator", "name": "add"}', is_kineto
    ),
    "a schema and counters": (
        b'{"schemaVersion": 1, "computeProperties": [], "traceEvents": [{"ph": "C", "name": "GPU 0"}', is_kineto
    ),
    "a plane without an id": (b"\n\x20\x12\x0d/device:TPU:0\x1a\x00", is_xplane),
    "a plane with an id": (b"\n\x20\x08\x07\x12\x0d/device:GPU:0\x1a\x00", is_xplane),
    "a schedule that PyTorch dumped": (b'{"traceEvents": [{"cat": "computation", "ph": "X"}', is_chrome),
    "lines without a communicator's name": (b'{"header":{"rank":0},"coll_perf":{"coll":"A"}}', is_inspector),
}  # fmt: skip


@pytest.mark.parametrize(("head", "sort"), HEADS.values(), ids=HEADS.keys())
def test_variants_are_recognised_by_one(head: bytes, sort: Any) -> None:
    assert [one.__name__ for one in SORTS if one(head)] == [sort.__name__]


METADATA = '{"a nested {object}": ["\\"traceEvents\\"", {"x": {}}]}'


@pytest.mark.parametrize("size", [10, 5_000, 21_000, 300_000])
@pytest.mark.parametrize("packed", [False, True])
def test_metadata_may_precede_the_events(size: int, tmp_path: Path, *, packed: bool) -> None:
    """A harness that merges its report with PyTorch's trace writes the report first."""
    event = '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5, "dur": 2, "args": {"stream": 7}}'
    text = (
        f'{{"metadata": {METADATA}, "log": "{"x" * size}", "traceEvents": [{event}, {event}], "schemaVersion": 1}}'
    )
    path = tmp_path / "rank0.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    assert readers(path) == ["pytorch"]
    assert [row.count for row in measure_kineto([path], ImportRequest()).summaries] == [2]


def test_a_large_object_without_events_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "_MOST_METADATA", 20_000)
    path = tmp_path / "report.json"
    path.write_text(
        json.dumps({"log": "x" * 90_000, "traceEvents": [{"ph": "X", "cat": "kernel"}]}), encoding="utf-8"
    )

    assert len(head_of(path)) == 4096
    assert readers(path) == []


def test_a_head_takes_no_more_memory_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "_MOST_METADATA", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"{" + bytes(64 << 20)))

    tracemalloc.start()
    head = head_of(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(head) == 4096
    assert peak < 8 << 20


def test_a_packed_trace_is_recognised_by_what_is_in_it(pipeline: Any, tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(pipeline.pftrace(tmp_path)[1].read_bytes()))

    assert readers(packed) == ["pytorch-perfetto"]
