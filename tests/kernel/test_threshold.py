"""When a kernel is compiled: if that takes no longer than interpreting it took or will take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pptrace_kernel import BYTES_PER_PROCESS, COMPILE_FROM, ROWS_PER_BYTE, CompileBudget

if TYPE_CHECKING:
    from conftest import RunProgram

LOOP = """
import hashlib, json, sys
import numpy as np
import pptrace_kernel
from kernels import double

pptrace_kernel._budget.compiled_bytes = 1  # something was compiled
pptrace_kernel.BYTES_PER_PROCESS = 1
ROWS = int(sys.argv[1])

def run():
    out = np.zeros(ROWS, dtype=np.int64)
    pptrace_kernel.run(double, (np.arange(ROWS),), (out,), work=ROWS)
    return hashlib.sha256(out.tobytes()).hexdigest(), bool(pptrace_kernel._loaded), "llvmlite" in sys.modules

print(json.dumps([run() for _ in range(4)]))
"""


@pytest.mark.parametrize("size", [1, 700, 6000])
def test_a_kernel_is_compiled_from_as_many_rows_as_compiling_takes(size: int) -> None:
    budget = CompileBudget(compiled_bytes=BYTES_PER_PROCESS)

    assert not budget.take(ROWS_PER_BYTE * size - 1, size)
    assert budget.take(ROWS_PER_BYTE * size, size)


def test_a_process_compiles_at_least_one_kernel_and_a_bounded_size_for_later_processes() -> None:
    assert CompileBudget().take(1, 100 * BYTES_PER_PROCESS)
    assert CompileBudget(compiled_bytes=1).take(1, BYTES_PER_PROCESS - 1)
    assert not CompileBudget(compiled_bytes=1).take(1, BYTES_PER_PROCESS)

    budget = CompileBudget()
    assert [budget.take(1, BYTES_PER_PROCESS // 2) for _ in range(3)] == [True, True, False]
    assert budget.compiled_bytes == BYTES_PER_PROCESS // 2 * 2


def test_rows_add_up_per_kernel_and_expected_rows_count_at_once() -> None:
    def first() -> None: ...
    def second() -> None: ...

    budget = CompileBudget()
    budget.interpreted[first] += 5

    assert (budget.rows(first, 3), budget.rows(second, 3)) == (8, 3)
    assert (budget.rows(first, 3, ahead=7), budget.rows(first, 3, ahead=9)) == (8, 9)


def test_a_loop_of_small_runs_compiles_after_a_few_with_the_same_result(run_program: RunProgram) -> None:
    runs = [json.loads(run_program(LOOP, str(COMPILE_FROM // 2 - 1)).stdout) for _ in range(2)]
    (results, loaded, imported), (later_results, later_loaded, _) = (zip(*run, strict=True) for run in runs)

    assert len({*results, *later_results}) == 1
    assert loaded == imported == later_loaded == (False, False, True, True)
