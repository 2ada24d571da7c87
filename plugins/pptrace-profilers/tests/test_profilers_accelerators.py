"""Profiles of other frameworks and vendors: rocprofv3's JSON, and XPlane files of JAX."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import TraceError
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import measure_kineto, measure_rocprofv3, measure_xplane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUEST = ImportRequest()


def slices(measurement: Measurement) -> list[tuple[Any, ...]]:
    (step,) = measurement.steps
    timeline = step.timeline
    rows = [timeline[row] for row in range(len(timeline))]
    return [(row.rank, str(row.action), row.start_ns, row.end_ns) for row in rows]


def test_rocprofv3_s_files_give_what_pytorch_s_give(pipeline: Any, tmp_path: Path) -> None:
    expected = measure_kineto(pipeline.kineto(tmp_path), REQUEST)

    found = measure_rocprofv3(pipeline.rocprofv3(tmp_path), REQUEST)

    assert slices(found) == slices(expected)
    assert found.unattributed == ()


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["rocprofiler-sdk-tool"][0])
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_copies_of_rocprofv3_are_records_or_kernels_of_hip(pipeline: Any, tmp_path: Path) -> None:
    def with_copies(process: dict[str, Any]) -> None:
        process["buffer_records"]["marker_api"] = []
        process["kernel_symbols"].append(
            {"kernel_id": 99, "demangled_kernel_name": "__amd_rocclr_fillBufferAligned.kd"}
        )
        times = {"start_timestamp": 5, "end_timestamp": 7}
        process["buffer_records"]["kernel_dispatch"].append(
            {**times, "dispatch_info": {"agent_id": {"handle": 77}, "queue_id": {"handle": 2}, "kernel_id": 99}}
        )
        process["strings"]["buffer_records"].append(
            {"kind": "MEMORY_COPY", "operations": ["A", "MEMORY_COPY_D2H"]}
        )
        process["buffer_records"]["memory_copy"] = [
            {**times, "kind": 2, "operation": 1, "dst_agent_id": {"handle": 1}, "src_agent_id": {"handle": 77}},
            {**times, "kind": 2, "operation": 1, "dst_agent_id": {"handle": 1}, "src_agent_id": {"handle": 8}},
        ]

    found = measure_rocprofv3([changed(pipeline.rocprofv3(tmp_path)[0], with_copies)], REQUEST)

    copies = {row.what: (row.count, row.total_ns) for row in found.summaries if row.copies}
    assert copies == {"__amd_rocclr_fillBufferAligned": (1, 2), "MEMORY_COPY_D2H": (1, 2)}


def test_several_gpus_of_a_process_are_ranks(pipeline: Any, tmp_path: Path) -> None:
    def on_two_gpus(process: dict[str, Any]) -> None:
        process["buffer_records"]["marker_api"] = []
        process["buffer_records"]["kernel_dispatch"][0]["dispatch_info"]["agent_id"]["handle"] = 3

    found = measure_rocprofv3([changed(pipeline.rocprofv3(tmp_path)[0], on_two_gpus)], REQUEST)

    assert [gpu.rank for gpu in found.occupied] == [0, 1]
    assert any("ranks of its 2 GPUs are counted in the order of the file" in note for note in found.notes)


BROKEN = {
    "cut": (b'{"rocprofiler-sdk-tool": [{"buffer_', "is not a complete JSON file of rocprofv3"),
    "of another type": (
        b'{"rocprofiler-sdk-tool": [{"buffer_records": 5}]}',
        "is not a complete JSON file of rocprofv3",
    ),
    "empty": (b'{"rocprofiler-sdk-tool": []}', "holds no kernel and no ROCTx range"),
    "deep": (b'{"rocprofiler-sdk-tool": ' + b"[" * 100_000, "is not a complete JSON file of rocprofv3"),
    "with times beyond 64 bits": (
        b'{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{"start_timestamp": 1e99}]}}]}',
        "is not a complete JSON file of rocprofv3",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_of_rocprofv3_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0_results.json"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=message) as caught:
        measure_rocprofv3([path], REQUEST)

    assert "\n" not in str(caught.value)


def test_xplane_s_streams_give_the_operations_of_each_accelerator(pipeline: Any, tmp_path: Path) -> None:
    expected = [pipeline.of(rank) for rank in (0, 1)]

    found = measure_xplane([pipeline.xplane(tmp_path)], REQUEST)

    computed = {row.rank: (row.count, row.total_ns) for row in found.summaries if row.what == "gemm"}
    assert computed == {
        rank: (len(acts), sum(act.end - act.start for act in acts)) for rank, acts in enumerate(expected)
    }
    sent = {row.rank: (row.communicates, row.count) for row in found.summaries if row.what != "gemm"}
    assert sent == {rank: (True, len(list(pipeline.ends(rank)))) for rank in (0, 1)}


def test_ranks_of_several_hosts_are_counted_host_after_host(pipeline: Any, tmp_path: Path) -> None:
    paths = [pipeline.xplane(tmp_path).rename(tmp_path / f"host{number}.xplane.pb") for number in (0, 1)]

    found = measure_xplane(paths, REQUEST)

    assert [gpu.rank for gpu in found.occupied] == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 40, 200, -1])
def test_a_broken_xplane_file_is_one_line(size: int, pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.xplane(tmp_path)
    path.write_bytes(path.read_bytes()[:size])

    with pytest.raises(TraceError, match="is not a complete XPlane file"):
        measure_xplane([path], REQUEST)


def test_a_host_alone_has_no_operation_of_an_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"\n\x10\x12\x0e/host:metadata")

    with pytest.raises(TraceError, match="holds no operation of an accelerator"):
        measure_xplane([path], REQUEST)
