"""Files that unfold without end, or hold more events than memory does, are refused before they are held."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.config import limits
from pptrace.config.limits import EVENTS, MEMORY, UNPACKED, UnpackedFile, most_memory, most_unpacked
from pptrace.errors import ConfigError, TraceError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Slice, Timeline
from pptrace.traces import kineto, perfetto
from pptrace.traces.perfetto import wire
from pptrace.traces.perfetto.wire import check_packets

if TYPE_CHECKING:
    from collections.abc import Callable

READERS = {".json": kineto, ".pftrace": perfetto}
ONE = Timeline.from_slices(
    [Slice(rank=0, stream=Stream.COMPUTE, action=Action.parse("0F0"), start_ns=0, end_ns=5)],
    Placement.looped(1, 1),
)
FILLERS = {".json": b" ", ".pftrace": b"\n\x02\x40\x01"}


@pytest.fixture(params=[".json", ".pftrace"])
def trace_file(request: Any, tmp_path: Path) -> Path:
    """Write a trace of ours in each format."""
    path = tmp_path / f"own{request.param}"
    READERS[request.param].write(ONE, path, {})
    return path


def read(path: Path) -> None:
    READERS[path.suffix].read([path])


def peak_of(run: Callable[[], None]) -> int:
    """Return the most bytes that were held at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_padding_that_unfolds_without_end_is_refused_in_bounded_memory(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RATIO_FROM", 4 << 20)
    trace_file.write_bytes(
        gzip.compress(
            trace_file.read_bytes() + FILLERS[trace_file.suffix] * (64 << 20 >> 2 * (trace_file.suffix != ".json"))
        )
    )

    def refused() -> None:
        with pytest.raises(TraceError, match="unpacks to more than 100 times"):
            read(trace_file)

    assert peak_of(refused) < 32 << 20


def test_a_first_line_that_never_ends_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(b'{"pptraceFormat": 2, ' + b" " * (24 << 20))
    monkeypatch.setenv(MEMORY, "16 MiB")

    def refused() -> None:
        with pytest.raises(TraceError, match=f"larger than .*: set {MEMORY}"):
            read(path)

    assert peak_of(refused) < 24 << 20


def test_blanks_in_the_first_line_are_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RATIO_FROM", 4 << 20)
    path = tmp_path / "own.json"
    path.write_bytes(gzip.compress(b'{"pptraceFormat": 2, ' + b" " * (64 << 20)))

    def refused() -> None:
        with pytest.raises(TraceError, match="unpacks to more than 100 times"):
            read(path)

    assert peak_of(refused) < 32 << 20


def test_a_description_of_slices_is_parsed_in_bounded_memory(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    READERS[trace_file.suffix].write(
        replace(ONE, provenance={"configuration": {"lists": [[]] * 2_000_000}}), trace_file, {}
    )
    monkeypatch.setenv(MEMORY, "48 MiB")

    def refused() -> None:
        with pytest.raises(TraceError, match=rf"(larger|more) than 1 MiB.*: set {MEMORY} to allow more"):
            read(trace_file)

    assert peak_of(refused) < 48 << 20


def test_a_file_may_be_as_large_as_is_said(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = trace_file.stat().st_size
    monkeypatch.setenv(UNPACKED, str(size))
    read(trace_file)
    monkeypatch.setenv(UNPACKED, str(size - 1))

    with pytest.raises(TraceError, match=f"unpacked: set {UNPACKED} to allow more"):
        read(trace_file)


def test_events_are_counted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.json"
    kineto.write(ONE, path, {})
    head, _, tail = path.read_text("utf-8").rpartition("]}")
    event = json.dumps({"ph": "C", "pid": 1, "name": "x", "ts": 0, "args": {"x": 1}}, separators=(",", ":"))
    path.write_text("".join([head.rstrip(), "\n", f"{event},\n" * 5000, "]}", tail]), encoding="utf-8")
    monkeypatch.setenv(EVENTS, "4999")

    with pytest.raises(TraceError, match=f"holds more than 4,999 events: set {EVENTS}"):
        read(path)


def test_more_events_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY, "350 MiB")
    limits.check_events(1 << 20, "a.json")

    with pytest.raises(TraceError, match=r"a.json: holds more events than memory does \(350 MiB\)"):
        limits.check_events((1 << 20) + 1, "a.json")


@pytest.mark.parametrize(
    ("text", "size"), [("64 GiB", 64 << 30), ("1000", 1000), ("5mib", 5 << 20), ("", 16 << 30)]
)
def test_a_limit_is_a_size(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(UNPACKED, text)

    assert most_unpacked() == size


@pytest.mark.parametrize("text", ["much", "-1", "0", "5 GB/s"])
def test_a_limit_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(MEMORY, text)

    with pytest.raises(ConfigError, match=f"{MEMORY}: is "):
        most_memory()


@pytest.mark.parametrize("packed", [False, True])
def test_a_rest_of_too_many_events_is_found_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    part, events = 1 << 20, 300_000
    text = b"".join(b'{"ph":"C","ts":%06d},\n' % (number * 7919 % 10**6) for number in range(events))
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    monkeypatch.setattr(limits, "_WINDOW", 1 << 12)
    monkeypatch.setenv(EVENTS, str(events // 2))

    with UnpackedFile.open(path) as file:
        result = file.read(part).count(b"ph")
        with pytest.raises(TraceError, match=f"holds more than {events // 2:,} events: set {EVENTS}"):
            file.expect(result, [b'"ph"'])

    assert result < events // 4


def test_a_beginning_that_is_denser_than_the_rest_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"ph":1},\n' * 900 + b" " * 90_000)
    monkeypatch.setattr(limits, "_WINDOW", 1 << 12)
    monkeypatch.setenv(EVENTS, "900")

    with UnpackedFile.open(path) as file:
        count = 0
        while part := file.read(5000):
            count += part.count(b"ph")
            file.expect(count, [b'"ph"'])

    assert count == 900


@pytest.mark.parametrize("body", [b"", b"\x40\x01", b"\x40" * 200, b"\x40" * 70_000])
def test_packets_are_counted_before_they_are_decoded(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    size, length = len(body), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    packet = b"\n" + length + bytes([size]) + body
    monkeypatch.setattr(wire, "_FIRST", 4)
    monkeypatch.setenv(EVENTS, "50")
    check_packets(4, packet * 50, 4 * len(packet), "a.pftrace")
    check_packets(3, packet * 51, 3 * len(packet), "a.pftrace")

    with pytest.raises(TraceError, match=f"a.pftrace: holds more than 50 events: set {EVENTS}"):
        check_packets(4, packet * 51, 4 * len(packet), "a.pftrace")
    for cut in range(1, min(len(packet), 9)):
        check_packets(4, (packet * 50)[:-cut] + b"\n\xff\xff", 4 * len(packet), "a.pftrace")


@given(st.binary(min_size=1, max_size=3000), st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_gzip_files_give_the_bytes_and_the_error_of_pythons_reader(
    content: bytes, data: st.DataObject
) -> None:
    packed = bytearray(gzip.compress(content))
    place = data.draw(st.integers(10, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    del packed[data.draw(st.integers(place, len(packed))) :]

    def unpack(file: Any) -> tuple[bytes, str]:
        parts = []
        try:
            while part := file.read(100):
                parts.append(part)
        except (OSError, EOFError, zlib.error) as error:
            return b"".join(parts), repr(error)
        return b"".join(parts), ""

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.gz"
        path.write_bytes(packed)
        with path.open("rb") as raw:
            assert unpack(UnpackedFile(path, raw)) == unpack(gzip.GzipFile(fileobj=io.BytesIO(packed)))
