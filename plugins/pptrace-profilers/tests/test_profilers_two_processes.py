"""Events of a trace that two processes parse equal those that one parses."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pptrace.plugin import second_process
from pptrace_profilers import json_events
from pptrace_profilers.events import Arguments, Events
from pptrace_profilers.json_events import Keep, read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEEP = Keep(
    categories=frozenset({"kernel", "user_annotation"}), prefixes=("nccl:", json_events.MEMORY),
    without=frozenset({"idle"}), details=("nccl",),
)  # fmt: skip
EVENTS = 4000


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

    values: dict[str, Any] = {field.name: getattr(events, field.name) for field in fields(Events)}
    values["arguments"] = {row: plain(arguments) for row, arguments in events.arguments.items()}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


class DyingProcess(Executor):
    """An executor whose process dies after three calls."""

    calls = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self.calls += 1
        if self.calls > 4:
            raise BrokenExecutor
        future: Future[Any] = Future()
        if self.calls == 4:
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(call(*args, **options))
        return future


@contextmanager
def dying_process() -> Iterator[Executor]:
    yield DyingProcess()


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("cut", [False, True])
def test_two_processes_read_the_events_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, cut: bool
) -> None:
    path = write(tmp_path / name, cut=cut)
    alone = columns(read_events(path, KEEP))
    monkeypatch.setattr(json_events, "_LARGE_BYTES", 0)
    monkeypatch.setattr(json_events, "_LARGE_PACKED_BYTES", 0)
    monkeypatch.setattr(json_events, "_BLOCK", 1 << 12)
    monkeypatch.setattr(json_events, "_CHUNK_BYTES", 1 << 14)
    for process in (second_process, dying_process):
        monkeypatch.setattr(json_events, "second_process", process)
        assert columns(read_events(path, KEEP)) == alone
    assert alone["bad"] > 0
    assert alone["cut"] is cut
    assert len(alone["names"]) > EVENTS // 50
