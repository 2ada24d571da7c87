"""A kernel is compiled once its rows in a process, with those of earlier runs, reach the threshold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pptrace_kernel import COMPILE_FROM

if TYPE_CHECKING:
    from conftest import RunProgram

LOOP = """
import hashlib, json, sys
import numpy as np
import pptrace_kernel
from kernels import double

ROWS = int(sys.argv[1])

def run():
    out = np.zeros(ROWS, dtype=np.int64)
    pptrace_kernel.run(double, (np.arange(ROWS),), (out,), work=ROWS)
    return hashlib.sha256(out.tobytes()).hexdigest(), bool(pptrace_kernel._loaded), "llvmlite" in sys.modules

print(json.dumps([run() for _ in range(4)]))
"""


def test_a_loop_of_small_runs_compiles_after_a_few_with_the_same_result(run_program: RunProgram) -> None:
    runs = [json.loads(run_program(LOOP, str(COMPILE_FROM // 2 - 1)).stdout) for _ in range(2)]
    (results, loaded, imported), (later_results, later_loaded, _) = (zip(*run, strict=True) for run in runs)

    assert len({*results, *later_results}) == 1
    assert loaded == imported == later_loaded == (False, False, True, True)
