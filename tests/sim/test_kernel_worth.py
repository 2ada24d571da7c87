"""When a kernel is compiled: where that takes no longer than interpreting has taken or will take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pptrace_kernel.threshold import AS_LOADING, AS_ONE_BYTE, SPREAD, Account, is_worth

if TYPE_CHECKING:
    from pathlib import Path

USED_UP = SPREAD


@pytest.mark.parametrize("size", [1, 700, 6000])
def test_what_pays_is_as_much_work_as_the_kernel_is_large(size: int) -> None:
    assert not is_worth(AS_ONE_BYTE * size - 1, size, USED_UP)
    assert is_worth(AS_ONE_BYTE * size, size, USED_UP)


def test_a_process_compiles_a_bounded_amount_for_later_ones_and_always_something() -> None:
    assert is_worth(1, 100 * SPREAD, 0)
    assert is_worth(1, SPREAD - 1, 1)
    assert not is_worth(1, SPREAD, 1)

    account = Account()
    assert [account.compiles(1, SPREAD // 2) for _ in range(3)] == [True, True, False]
    assert account.spent == SPREAD // 2 * 2


def test_work_adds_up_kernel_by_kernel_and_what_is_ahead_counts_at_once() -> None:
    def one() -> None: ...
    def other() -> None: ...

    account = Account()
    account.interpreted[one] += 5

    assert (account.rows(one, 3), account.rows(other, 3)) == (8, 3)
    assert (account.rows(one, 3, ahead=7), account.rows(one, 3, ahead=9)) == (8, 9)


A_LOOP = """
import hashlib, json, sys, numpy as np
import pptrace_kernel as kernel
from pptrace.timeline.kernels.rows import follow_causes

kernel._account.spent = 1  # something was compiled
kernel.threshold.SPREAD = 1
ROWS = int(sys.argv[1])

def follow():
    cause, path = np.arange(ROWS, dtype=np.int32) - 1, np.zeros(ROWS, dtype=np.int32)
    kernel.run(follow_causes, (cause, ROWS - 1), (path,), work=ROWS)
    return hashlib.sha256(path.tobytes()).hexdigest(), bool(kernel._loaded), "llvmlite" in sys.modules

print(json.dumps([follow() for _ in range(4)]))
"""


def test_a_loop_of_small_runs_compiles_after_a_few_and_all_give_the_same_bytes(tmp_path: Path) -> None:
    kept = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-c", A_LOOP, str(AS_LOADING // 2 - 1)]
    runs = [subprocess.run(command, env=kept, capture_output=True, text=True, check=True) for _ in range(2)]
    (told, loaded, llvm), again = (list(zip(*json.loads(ran.stdout), strict=True)) for ran in runs)

    assert len({*told, *again[0]}) == 1
    assert loaded == llvm == again[1] == (False, False, True, True)
