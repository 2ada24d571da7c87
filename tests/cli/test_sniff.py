"""A file is told by its content: a trace passes, anything else is one line."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.cli.open import check
from pptrace.errors import TraceError

EVENT = {"ph": "X", "name": "F 3", "ts": 0, "dur": 5, "pid": 1, "tid": 1}


def perfetto_trace(packets: int = 3, name: str = "F 3") -> bytes:
    trace = Trace()
    for stamp in range(packets):
        packet = trace.packet.add()
        packet.timestamp = stamp
        packet.track_event.name = name
    return trace.SerializeToString()


TRACES = {
    "perfetto": perfetto_trace(),
    "one packet longer than a chunk": perfetto_trace(1, "x" * (2 << 20)),
    "many chunks": perfetto_trace(200, "x" * 20_000),
    "an empty packet": b"\x0a\x00",
    "object": json.dumps({"traceEvents": [EVENT]}).encode(),
    "array": json.dumps([EVENT], indent=2).encode(),
    "byte order mark": b"\xef\xbb\xbf \n" + json.dumps({"traceEvents": [EVENT]}).encode(),
    "events after a long preamble": json.dumps({"job": "x" * (3 << 20), "traceEvents": [EVENT]}).encode(),
    "the key across two chunks": b'{"job":"' + b"x" * ((1 << 20) - 16) + b'","traceEvents":[]}',
}

NO_TRACES = {
    "text": b"hello\n",
    "text after an empty line": b"\nhello, and more of it than that length byte says" * 9,
    "yaml": b"schedule: 1f1b\n",
    "csv": b"0F0,0F1,0B0\n",
    "another object": b'{"schedule": "1f1b"}',
    "another array": b'[{"schedule": "1f1b"}]',
    "an array of numbers": b"[1, 2]",
    "a cut packet": perfetto_trace()[:-3],
    "a length that never ends": b"\x0a" + b"\xff" * 20,
    "a png": b"\x89PNG\r\n\x1a\n" + bytes(40),
    "a zip": b"PK\x03\x04" + bytes(40),
    "zeros": bytes(100),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_trace_passes_whatever_it_is_called(tmp_path: Path, name: str, *, packed: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(TRACES[name], 1) if packed else TRACES[name])

    check(path)


@pytest.mark.parametrize("name", NO_TRACES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_another_file_is_named_with_what_is_accepted(tmp_path: Path, name: str, *, packed: bool) -> None:
    path = tmp_path / "step.pftrace"
    path.write_bytes(gzip.compress(NO_TRACES[name]) if packed else NO_TRACES[name])

    with pytest.raises(TraceError, match=r"step\.pftrace: is not a trace; expected .*\.pftrace.*\.json.*\.gz$"):
        check(path)


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    for content in (b"", gzip.compress(b"")):
        (tmp_path / "step.json").write_bytes(content)
        with pytest.raises(TraceError, match=r"is empty; expected .*\.json"):
            check(tmp_path / "step.json")


@pytest.mark.parametrize("kept", [3, 12, 40, -6], ids=["header", "start", "body", "checksum"])
def test_a_cut_gzip_file_is_damaged(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "step.json.gz"
    noise = "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(9))
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [EVENT | {"name": noise}]}).encode())[:kept])

    with pytest.raises(TraceError, match="truncated or damaged gzip file; write it again"):
        check(path)


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "is not a regular file"),
        (tmp_path / ("long" * 100), "cannot be read: File name too long|no such file"),
    ):
        with pytest.raises(TraceError, match=message) as caught:
            check(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(path))


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(b"{}")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TraceError, match=r"step\.json: cannot be read: Permission denied$"):
        check(path)


@given(st.binary(max_size=300))
def test_no_bytes_bring_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "sniffed"
    for content_or_packed in (content, b"\x1f\x8b" + content):
        path.write_bytes(content_or_packed)
        try:
            check(path)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017 - any bytes may also pass
