"""Events that the kernel scans in the text of a trace equal those that a JSON parser decodes."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from interpreted import interpreted_kernels
from msgspec.structs import asdict

from pptrace_profilers import json_events
from pptrace_profilers.events import Arguments, Events
from pptrace_profilers.json_events import Keep, read_events

if TYPE_CHECKING:
    from pathlib import Path

KEEP = Keep(
    categories=frozenset({"kernel", "user_annotation"}), prefixes=("nccl:", json_events.MEMORY),
    without=frozenset({"idle"}), details=("nccl",),
)  # fmt: skip
EVENTS = 1500
TEXTS = b"""
"" "nccl:x" "a\\"b" "a\\\\" "\\u00e9" "\\ud83d\\ude00" "\\ud83d" "\\x" "\\u12" "\x01" "\x7f" "\xc3\xa9" "\xff"
"open 0 -0 7 -1 7.25 7.0 01 1. .5 - -.5 1e3 1E-5 1.0e+2 1e999 1e -1.5e1 NaN Infinity -Infinity
9007199254740993 9007199254740993.25 1682725898236567.123 1682725898236567.1234 0.0002986564201132637
9223372036854775807 9223372036854775808 123456789012345678901234567890 0.1234567890123456789 2.0005
null true false nul tru falsy [] {} [1,2] [1,] {"a":1,} {"a":[{"b":"}"}]} {"a"} {"a":1 [} {"ph":1} 5"6
""".split()
"""Values of fields and of arguments, valid and invalid."""
KEYS = (
    "ph",
    "cat",
    "name",
    "pid",
    "tid",
    "ts",
    "dur",
    "args",
    "id",
    "correlation",
    "stream",
    "dtype",
    "Input Dims",
)


def event(number: int) -> dict[str, Any]:
    names = ("gemm", "idle", "nccl:send", json_events.MEMORY, f"PP:0F{number}")
    made = {
        "ph": "i" if number % 5 == 3 else "X", "cat": ("kernel", "cpu_op", "user_annotation")[number % 3],
        "name": names[number % 5], "pid": 1, "tid": number % 7, "ts": 1000 + number * 1.25, "dur": number % 11 - 1,
        "args": {
            "correlation": number, "stream": 7, "Total Allocated": number * 3 % 1000, "Device Type": 1,
            "Concrete Inputs": ["a", number],
        },
    }  # fmt: skip
    return made | ({"name": number} if number % 997 == 5 else {})  # a broken event


def write(path: Path, *, cut: bool) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event(number) for number in range(EVENTS)], "last": 2})
    content = text[: -len(text) // 3].encode() if cut else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def columns(events: Events) -> dict[str, Any]:
    def plain(arguments: Arguments) -> list[Any]:
        values = [getattr(arguments, name) for name in Arguments.__struct_fields__]
        return [bytes(value) if hasattr(value, "copy") else value for value in values]

    values: dict[str, Any] = asdict(events)
    values["arguments"] = {row: plain(arguments) for row, arguments in events.arguments.items()}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def scan_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "_LARGE_BYTES", 0)
    monkeypatch.setattr(json_events, "_LARGE_PACKED_BYTES", 0)
    monkeypatch.setattr(json_events, "compiles", lambda _: True)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("cut", [False, True])
def test_scanned_events_equal_decoded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, cut: bool
) -> None:
    path = write(tmp_path / name, cut=cut)
    decoded = columns(read_events(path, KEEP))
    scan_all(monkeypatch)
    monkeypatch.setattr(json_events, "_BLOCK", 1 << 12)
    monkeypatch.setattr(json_events, "_SCANNED_BYTES", 1 << 14)

    assert columns(read_events(path, KEEP)) == decoded
    assert decoded["bad"] > 0
    assert decoded["cut"] is cut
    assert len(decoded["names"]) > EVENTS // 50


def events_with(key: str, texts: bytes) -> bytes:
    """Return an event with values of a key, and another event."""
    made = event(2)
    (made if key in {*made, "id"} else made["args"])[key] = "@"
    return json.dumps([made, event(7)])[1:-1].encode().replace(b'"@"', texts)


@pytest.mark.parametrize("key", KEYS)
def test_any_value_is_scanned_as_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    path = tmp_path / "trace.json"
    twice = [b'1, "%s": %s' % (key.encode(), text) for text in TEXTS]
    path.write_bytes(b"[" + b",".join([events_with(key, text) for text in [*TEXTS, *twice]]) + b"]")
    monkeypatch.setattr(json_events, "_BLOCK", 1)
    decoded = columns(read_events(path, KEEP))
    scan_all(monkeypatch)

    assert columns(read_events(path, KEEP)) == decoded
    assert len(decoded["name"]) >= len(TEXTS)


OTHER = (b"", b"[]", b'{"a": 1', b'{"a": "', b'{"name": 5}', b'{"ts": 1e3}', b'{"\\u0061": 1}', b"{},")


@pytest.mark.parametrize("mode", [interpreted_kernels, json_events.always_compiled])
def test_the_kernel_accepts_what_profilers_write_and_stops_at_other_text(mode: Any) -> None:
    accepted = [json.dumps(event(2), indent=indent).encode() for indent in (None, 2)] + [b"{}"]

    with mode():
        counts = [json_events.scan_blocks([*accepted, other, b"{}"]).block_count for other in OTHER]
        assert json_events.scan_blocks(accepted).block_count == len(accepted)

    assert counts == [len(accepted)] * len(OTHER)
