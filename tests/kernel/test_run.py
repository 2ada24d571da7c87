"""When a kernel runs compiled, and what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import pptrace_kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from conftest import RunProgram

REPORTED = """
import numpy as np
from kernels import double
from pptrace_kernel import compiled, run
compiled.REPORTED_BYTES = 0
out = np.zeros(4, dtype=np.int32)
run(double, (np.arange(4, dtype=np.int32),), (out,), work=10**9)
print(out.tolist())
"""
WITHOUT_A_CACHE = """
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from kernels import double, triple
from pptrace_kernel import always_compiled, run

def results():
    outs = [np.zeros(3, dtype=np.int64) for _ in range(2)]
    with always_compiled():
        run(double, (np.arange(3),), (outs[0],), work=3)
        run(triple, (np.arange(3),), (outs[1],), work=3)
    return [out.tolist() for out in outs]

if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        of_workers = [pool.submit(results) for _ in range(4)]
        print([results(), *(result.result() for result in of_workers)] == [[[0, 2, 4], [0, 3, 6]]] * 5)
"""

EQUAL_KERNELS = """
import importlib, kernels
import numpy as np
from pptrace_kernel import always_compiled, run
first = kernels.double
second = importlib.reload(kernels).double
out = np.zeros((2, 3), dtype=np.int64)
with always_compiled():
    for kernel, row in zip((first, second), out):
        run(kernel, (np.arange(3),), (row,), work=3)
print(first is second, out.tolist())
"""


def test_two_kernels_with_equal_code_run_compiled_in_one_process(run_program: RunProgram) -> None:
    result = run_program(EQUAL_KERNELS)

    assert result.stdout == "False [[0, 2, 4], [0, 2, 4]]\n", result.stderr


def test_loaded_code_also_runs_small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    column_types = []

    def double(values: Any, out: Any) -> int:
        column_types.append(type(values))
        for i in range(len(values)):
            out[i] = 2 * values[i]
        return len(values)

    def doubled(count: int) -> list[int]:
        out = np.zeros(count, dtype=np.int64)
        assert pptrace_kernel.run(double, (np.arange(count),), (out,), work=count) == count
        return out.tolist()

    monkeypatch.setattr("pptrace_kernel.compiled.is_ready", lambda *_: True)
    monkeypatch.setattr("pptrace_kernel.compiled.call", lambda function, arguments: function(*arguments))
    before = doubled(3)
    with pptrace_kernel.always_compiled():
        inside = doubled(3)
    after = doubled(3)

    assert column_types == [list, np.ndarray, np.ndarray]
    assert before == inside == after == [0, 2, 4]


def test_pptrace_interpret_interprets_any_amount_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_INTERPRET", "1")

    assert not pptrace_kernel.compiles(10**9, loaded=True)
    with pptrace_kernel.always_compiled():
        assert not pptrace_kernel.compiles(1)


def test_compilation_is_reported_once_and_cached_code_is_not(run_program: RunProgram) -> None:
    first, second = run_program(REPORTED), run_program(REPORTED)

    assert first.stdout == second.stdout == "[0, 2, 4, 6]\n"
    assert first.stderr.count("\n") == 1
    assert "compiling" in first.stderr
    assert second.stderr == ""


def test_code_that_cannot_be_cached_runs_with_one_warning_in_all_processes(
    run_program: RunProgram, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    done = run_program(WITHOUT_A_CACHE, PPTRACE_KERNEL_CACHE=str(tmp_path / "file"))

    assert done.stdout == "True\n"
    assert done.stderr.count("code cannot be kept") == 1, done.stderr
    assert "make the folder in PPTRACE_KERNEL_CACHE (or ~/.cache) writable" in done.stderr


def test_long_columns_are_compiled_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    row_counts = []
    monkeypatch.setattr(pptrace_kernel, "compiles", lambda work, **_: bool(row_counts.append(work)))
    columns = [np.zeros(length, dtype=np.int64) for length in (3, 64 * pptrace_kernel.COMPILE_FROM - 3)]

    pptrace_kernel.run(lambda *_: 0, [columns[0], 7], [columns[1]], work=3)

    assert row_counts == [pptrace_kernel.COMPILE_FROM]
