"""A kernel takes records of columns beside columns, on both roads and in one compiled signature."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from interpreted import interpreted_kernels

import pptrace_kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Given(NamedTuple):
    """Columns to read, and an integer."""

    value: Any
    weight: Any
    factor: int


class Filled(NamedTuple):
    """Columns to fill, and an integer."""

    total: Any
    seen: Any
    start: int


STEP = 3


def next_place(filled: Filled, place: int) -> int:
    filled.seen[place] += 1
    return place + STEP


def weigh(given: Given, offset: Any, bias: int, filled: Filled, last: Any) -> int:
    place = filled.start
    while place < len(given.value):
        filled.total[place] = given.value[place] * given.weight[place] * given.factor + offset[place] + bias
        last[0] = place
        place = next_place(filled, place)
    return place


def weighed(*, read_only: bool = False) -> tuple[int, list[list[int]]]:
    columns: list[Any] = [
        np.arange(7, dtype=np.int64),
        np.arange(7, dtype=np.int32) + 1,
        np.full(7, 5, dtype=np.int64),
    ]
    for column in columns:
        column.flags.writeable = not read_only
    filled = Filled(np.zeros(7, dtype=np.int64), np.zeros(7, dtype=np.int8), 1)
    last = np.full(1, -1, dtype=np.int64)
    end = pptrace_kernel.run(weigh, (Given(columns[0], columns[1], 10), columns[2], 2), (filled, last), work=7)
    return end, [filled.total.tolist(), filled.seen.tolist(), last.tolist()]


def test_records_are_read_and_filled_alike_on_both_roads() -> None:
    with interpreted_kernels():
        interpreted = weighed()
    with pptrace_kernel.always_compiled():
        compiled = weighed()

    assert interpreted == (7, [[0, 27, 0, 0, 207, 0, 0], [0, 1, 0, 0, 1, 0, 0], [4]])
    assert compiled == interpreted


def test_columns_that_may_and_may_not_be_written_or_lie_apart_compile_once() -> None:
    from pptrace_kernel import compiled

    apart = np.arange(14, dtype=np.int64)[::2]
    with pptrace_kernel.always_compiled():
        assert weighed(read_only=True) == weighed(read_only=False)
        known = len(compiled._entries)
        out = Filled(np.zeros(7, dtype=np.int64), np.zeros(7, dtype=np.int8), 0)
        pptrace_kernel.run(
            weigh, (Given(apart, np.ones(7, dtype=np.int32), 1), apart, 0), (out, np.zeros(1, np.int64)), work=7
        )

    assert out.total.tolist() == [0, 0, 0, 12, 0, 0, 24]
    assert len(compiled._entries) == known


def test_another_constant_and_other_fields_are_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from pptrace_kernel import compiled

    before = compiled._spelt(weigh)
    monkeypatch.setitem(weigh.__globals__, "STEP", 2)

    assert compiled._spelt(weigh) != before
    assert compiled._described((Given, None)) != compiled._described((Filled, None))


def test_compiling_says_so_once_and_kept_code_says_nothing(tmp_path: Path) -> None:
    code = (
        "import numpy as np; import pptrace_kernel as kernel; from pptrace_kernel import compiled;"
        "compiled.SPREAD = 0;"
        "from pptrace.timeline.kernels.rows import follow_causes;"
        "cause, path = np.arange(4, dtype=np.int32) - 1, np.zeros(4, dtype=np.int32);"
        "kernel.run(follow_causes, (cause, 3), (path,), work=10**9); print(path.tolist())"
    )
    kept = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}

    runs = [
        subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]

    assert [run.stdout for run in runs] == ["[3, 2, 1, 0]\n"] * 2
    assert runs[0].stderr.count("\n") == 1
    assert "compiling" in runs[0].stderr
    assert runs[1].stderr == ""
