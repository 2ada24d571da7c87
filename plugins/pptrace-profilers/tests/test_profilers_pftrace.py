"""Perfetto traces of PyTorch's profiler: interned names, slices that do not end, broken files."""

from __future__ import annotations

import gzip
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.errors import TraceError
from pptrace.run.trace_files import head_of
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.naming_rules import BUILT_IN
from pptrace_profilers.plugin import is_pftrace, measure_kineto, measure_pftrace
from pptrace_profilers.torch_perfetto import read_pftrace

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = 1, 2


def event(trace: Any, at: int, sort: int, track: int = 9, **more: Any) -> Any:
    return trace.packet.add(
        timestamp=at, trusted_packet_sequence_id=1, track_event={"type": sort, "track_uuid": track, **more}
    ).track_event


def written(folder: Path, trace: Any, name: str = "rank3.pftrace") -> Path:
    path = folder / name
    path.write_bytes(trace.SerializeToString())
    return path


def test_names_and_arguments_may_be_interned(tmp_path: Path) -> None:
    trace = Trace()
    interned = trace.packet.add(trusted_packet_sequence_id=1).interned_data
    interned.event_names.add(iid=4, name="PP:3F1")
    event(trace, 100, BEGIN, name_iid=4)
    event(trace, 900, END)

    (found,) = read_pftrace(written(tmp_path, trace), BUILT_IN)

    executions = found.executions
    assert list(map(str, executions.action)) == ["3F1"]
    assert (executions.start_ns.tolist(), executions.end_ns.tolist()) == ([100], [900])
    assert found.rank == 3


def test_slices_of_one_track_nest_and_those_without_an_end_are_counted(tmp_path: Path) -> None:
    trace = Trace()
    event(trace, 0, BEGIN, name="ProfilerStep#2")
    event(trace, 10, BEGIN, name="PP:0F0")
    event(trace, 20, END)
    event(trace, 30, END)
    event(trace, 40, END)
    event(trace, 50, BEGIN, name="PP:0F1")

    (found,) = read_pftrace(written(tmp_path, trace), BUILT_IN)

    assert found.windows == (("ProfilerStep#2", 0, 30),)
    assert list(map(str, found.executions.action)) == ["0F0"]
    assert "2 events have no time" in found.notes[0]


def test_collectives_carry_their_arguments(tmp_path: Path) -> None:
    trace = Trace()
    call = event(trace, 5, BEGIN, name="cudaLaunchKernelExC")
    call.debug_annotations.add(name="correlation", int_value=7)
    event(trace, 6, END)
    kernel = event(trace, 10, BEGIN, track=8, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    said = {
        "correlation": 7,
        "stream": 40,
        "device": 0,
        "In msg nelems": 10,
        "Out msg nelems": 10,
        "Group size": 2,
    }
    for key, value in said.items():
        kernel.debug_annotations.add(name=key, int_value=value)
    for key, text in (("Collective name", "allreduce"), ("dtype", "Float"), ("Process Group Description", "dp")):
        kernel.debug_annotations.add(name=key, string_value=text)
    event(trace, 30, END, track=8)

    operations = read_pftrace(written(tmp_path, trace), BUILT_IN)[0].operations

    assert operations is not None
    ((said_of,),) = operations.payloads.values()
    assert (said_of.operation, said_of.size_bytes, said_of.group) == ("allreduce", 40, "dp")
    assert (operations.launch_ns.tolist(), operations.communicates.tolist()) == ([5], [True])


def test_pytorch_2_15_s_traces_give_what_its_chrome_json_gives(pipeline: Any, tmp_path: Path) -> None:
    (expected,) = measure_kineto(pipeline.kineto(tmp_path), ImportRequest()).steps
    paths = pipeline.native_pftrace(tmp_path)

    found = measure_pftrace(paths, ImportRequest())

    assert is_pftrace(head_of(paths[0]))
    (step,) = found.steps
    columns = ("kind", "stage", "microbatch", "start_ns", "end_ns", "lane_rank", "lane_stream")
    for column in columns:
        assert np.array_equal(getattr(step.timeline, column), getattr(expected.timeline, column)), column
    assert found.unattributed == ()


def test_starts_before_all_ends_pair_in_their_order(tmp_path: Path) -> None:
    """An annotation of a message lasts until its wait, and so crosses the annotation of the next action."""
    trace = Trace()
    spans = [("ProfilerStep#1", 0, 90), ("gloo:send", 10, 40), ("PP:0F0", 20, 60), ("PP:0F1", 61, 80)]
    for name, start, _ in spans:
        event(trace, start, BEGIN, name=name)
    for _, _, end in spans:
        event(trace, end, END)

    (found,) = read_pftrace(written(tmp_path, trace), BUILT_IN)

    assert found.windows == (("ProfilerStep#1", 0, 90),)
    executions = found.executions
    assert (executions.start_ns.tolist(), executions.end_ns.tolist()) == ([20, 61], [60, 80])


def test_waits_of_a_stream_are_no_work_and_copies_are_copies(tmp_path: Path) -> None:
    trace = Trace()
    wait = event(trace, 5, BEGIN, name="Stream Wait Event")
    for key, value in (("stream", 7), ("device", 0), ("correlation", 3)):
        wait.debug_annotations.add(name=key, int_value=value)
    wait.debug_annotations.add(name="cuda_sync_kind", string_value="Stream Wait Event")
    event(trace, 50, END)
    interned = trace.packet.add(trusted_packet_sequence_id=1).interned_data
    for iid, name in enumerate(("Kernel", "Memcpy", "Memset", "Annotation", "EventRecord"), 1):
        interned.gpu_specifications.add(iid=iid, name=name)
        stage = trace.packet.add(timestamp=100 * iid, trusted_packet_sequence_id=1).gpu_render_stage_event
        stage.duration, stage.stage_iid = 10, iid

    operations = read_pftrace(written(tmp_path, trace), BUILT_IN)[0].operations

    assert operations is not None
    assert [operations.names[number] for number in operations.name] == ["Kernel", "Memcpy", "Memset"]
    assert operations.copies.tolist() == [False, True, True]


def test_a_packed_trace_is_read_as_an_unpacked_one(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.pftrace(tmp_path)[0]
    (plain,) = read_pftrace(path, BUILT_IN)
    path.write_bytes(gzip.compress(path.read_bytes()))

    packed = read_pftrace(path, BUILT_IN)[0].executions
    for column in fields(packed):
        assert np.array_equal(getattr(packed, column.name), getattr(plain.executions, column.name))


def test_a_trace_that_was_cut_gives_what_came_before(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.pftrace(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-3])

    (found,) = read_pftrace(path, BUILT_IN)

    assert any("ends in the middle" in note for note in found.notes)
    assert len(found.executions) == 8


WRONG = {
    "empty": (b"", "is empty"),
    "text": (b"hello", "is no Perfetto trace: byte 0 starts no packet"),
    "a later byte": (b"\n\x02\x08\x01zz", "byte 4 starts no packet"),
    "a broken packet": (b"\n\x02\x5a\xff", "is damaged: the packet at byte 2 is none"),
    "no slice": (b"\n\x02\x40\x01", "holds no slice of PyTorch's profiler"),
    "a size without end": (b"\n" + b"\xff" * 12, "holds no slice"),
    "half a gzip file": (gzip.compress(b"\n\x02\x40\x01" * 99)[:-9], "cannot be unpacked"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_trace_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=message) as caught:
        read_pftrace(path, BUILT_IN)

    assert str(caught.value).startswith(f"{path}: ")


def test_a_trace_that_unfolds_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(gzip.compress(b"\n\x00" * 100_000))
    monkeypatch.setenv("PPTRACE_MOST_UNPACKED", "1000")

    with pytest.raises(TraceError, match="is larger than"):
        read_pftrace(path, BUILT_IN)
