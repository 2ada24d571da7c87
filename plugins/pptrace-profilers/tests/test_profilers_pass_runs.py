"""Forwards and backwards of autograd's operations, where threads of one process overlap."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pptrace_profilers.pass_runs import autograd_runs

if TYPE_CHECKING:
    from pathlib import Path

NO_POSTS = np.zeros(0, dtype=np.int64)
MODEL, AUTOGRAD = 1, 2


def operation(name: str, thread: int, ts: float, dur: float, number: int) -> dict[str, Any]:
    args = {"Sequence number": number, "Fwd thread id": MODEL if thread == AUTOGRAD else 0}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur, "args": args}


def forward(thread: int, ts: float, dur: float, number: int) -> dict[str, Any]:
    return operation("aten::mul", thread, ts, dur, number)


def backward(ts: float, dur: float, number: int, thread: int = AUTOGRAD) -> dict[str, Any]:
    return operation("autograd::engine::evaluate_function: MulBackward0", thread, ts, dur, number)


def runs(tmp_path: Path, *events: dict[str, Any]) -> list[tuple[bool, int, int]]:
    """Return the direction, the start in microseconds and the number of the forward of each run."""
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return [(run.forward, run.start_ns // 1000, run.forward_number) for run in autograd_runs(path, NO_POSTS)]


def test_a_backward_that_overlaps_an_operation_of_another_thread_counts(tmp_path: Path) -> None:
    events = (forward(MODEL, 0, 10, 1), forward(MODEL, 20, 40, 2), backward(30, 10, 1), backward(70, 10, 2))

    assert runs(tmp_path, *events) == [(True, 0, 0), (False, 30, 0)]


def test_a_forward_whose_backward_is_part_of_another_is_none(tmp_path: Path) -> None:
    events = (forward(MODEL, 0, 10, 1), forward(MODEL, 20, 10, 2), backward(40, 30, 1), backward(50, 10, 2))

    assert runs(tmp_path, *events) == [(True, 0, 0), (False, 40, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_each_backward_follows_its_forward_however_threads_overlap(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    events = []
    for number in range(30):
        thread, start, length = (int(random.integers(*bounds)) for bounds in ((1, 4), (0, 300), (1, 60)))
        events.append(forward(thread, start, length, number))
        events += [
            backward(start + int(random.integers(1, 200)), int(random.integers(1, 60)), number, 4 + thread)
            for _ in range(int(random.integers(0, 3)))
        ]

    seen = set()
    for is_forward, _, number in runs(tmp_path, *events):
        assert is_forward or number in seen
        seen.add(number)
