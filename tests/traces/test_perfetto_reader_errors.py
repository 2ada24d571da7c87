"""A file that cannot be read gets one line that names it."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.errors import TraceError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.counters import in_flight
from pptrace.timeline.timeline import Slice, Timeline
from pptrace.traces.perfetto import read, recognises, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    actions = [Action(kind=Kind.F, stage=0, microbatch=microbatch) for microbatch in range(3)]
    slices = [
        Slice(rank=0, stream=Stream.COMPUTE, action=action, start_ns=10 * at, end_ns=10 * at + 10)
        for at, action in enumerate(actions)
    ]
    timeline = Timeline.from_slices(slices, Placement.looped(1, 3))
    force_setattr(timeline, "counters", in_flight(timeline))
    path = tmp_path / "step.pftrace"
    write(timeline, path, {})
    return path


@given(share=st.floats(0, 0.9999))
def test_a_truncated_file_is_refused_wherever_it_ends(share: float, trace: Path) -> None:
    whole = trace.read_bytes()
    cut = trace.with_name("cut.pftrace")
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TraceError, match=r"cut\.pftrace: ") as error:
        read([cut])
    assert "\n" not in str(error.value)


@given(at=st.floats(0, 0.9999), bits=st.integers(1, 255))
def test_a_damaged_byte_gives_a_timeline_or_one_line(at: float, bits: int, trace: Path) -> None:
    raw = bytearray(trace.read_bytes())
    raw[int(len(raw) * at)] ^= bits
    damaged = trace.with_name("damaged.pftrace")
    damaged.write_bytes(raw)
    try:
        read([damaged])
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


def test_a_truncated_compressed_file_is_refused(trace: Path) -> None:
    cut = trace.with_name("cut.pftrace.gz")
    cut.write_bytes(gzip.compress(trace.read_bytes())[:-20])
    with pytest.raises(TraceError, match="cannot be unpacked"):
        read([cut])


def test_a_damaged_compressed_file_is_refused(trace: Path) -> None:
    broken = trace.with_name("broken.pftrace.gz")
    packed = bytearray(gzip.compress(trace.read_bytes()))
    packed[40:60] = bytes(20)
    broken.write_bytes(packed)
    with pytest.raises(TraceError, match=r"broken\.pftrace\.gz"):
        read([broken])


def test_a_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    foreign = Trace()
    foreign.packet.add(timestamp=1).track_event.name = "work"
    path = tmp_path / "foreign.pftrace"
    path.write_bytes(foreign.SerializeToString())
    assert not recognises(path, path.read_bytes())
    with pytest.raises(TraceError, match="not a trace that pptrace wrote"):
        read([path])


@pytest.mark.parametrize("raw", [b'{"traceEvents": []}', b"", b"\n", b"SQLite format 3\x00"])
def test_a_file_of_another_format_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(raw)
    assert not recognises(path, raw)
    with pytest.raises(TraceError, match="other: is "):
        read([path])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read([tmp_path / "none.pftrace"])


def test_files_of_the_same_ranks_are_refused(trace: Path) -> None:
    with pytest.raises(TraceError, match="rank 0 is in another of the files too"):
        read([trace, trace])
    with pytest.raises(TraceError, match="no trace file was given"):
        read([])


def test_files_of_two_runs_are_refused(trace: Path) -> None:
    other = trace.with_name("other.pftrace")
    action = Action(kind=Kind.F, stage=1, microbatch=0)
    slices = [Slice(rank=1, stream=Stream.COMPUTE, action=action, start_ns=0, end_ns=1)]
    write(Timeline.from_slices(slices, Placement.looped(2, 3)), other, {})
    with pytest.raises(TraceError, match=r"other\.pftrace: is not of the same run"):
        read([trace, other])


def test_a_trace_of_a_later_format_is_refused(trace: Path) -> None:
    whole = Trace.FromString(trace.read_bytes())
    whole.packet[0].trace_attributes.attribute[0].long_value = 9
    trace.write_bytes(whole.SerializeToString())
    with pytest.raises(TraceError, match="has format 9; this pptrace reads 2"):
        read([trace])


def test_a_trace_that_another_program_wrote_anew_is_refused(trace: Path) -> None:
    trace.write_bytes(Trace.FromString(trace.read_bytes()).SerializeToString())
    with pytest.raises(TraceError, match="write it again"):
        read([trace])


def test_packets_behind_the_last_are_refused(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes() * 2)
    with pytest.raises(TraceError, match="holds other packets than pptrace wrote"):
        read([trace])


def test_a_lost_slice_is_noticed(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes().replace(b'"slices":3', b'"slices":4'))
    with pytest.raises(TraceError, match="holds 3 of its 4 slices"):
        read([trace])


def test_slices_that_overlap_are_noticed(trace: Path) -> None:
    timeline = read([trace])
    write(replace(timeline, end_ns=timeline.end_ns + 5), trace, {})
    with pytest.raises(TraceError, match="slices that overlap"):
        read([trace])
