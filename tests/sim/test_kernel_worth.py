"""When a kernel is compiled: at once where that pays, else little by little, or found on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pptrace.kernel.worth import AS_COMPILING, AS_ONE_BYTE, SEVERAL, SPREAD, Account, is_worth

if TYPE_CHECKING:
    from pathlib import Path

USED_UP = SPREAD


@pytest.mark.parametrize(
    ("work", "before", "expected"),
    [
        (AS_COMPILING, 0, True),
        (AS_COMPILING - 1, 0, False),
        (AS_COMPILING - 1, (SEVERAL - 1) * AS_COMPILING, False),
        (AS_COMPILING - 1, (SEVERAL - 1) * AS_COMPILING + 1, True),
    ],
)
def test_work_pays_at_once_or_by_and_by(work: int, before: int, *, expected: bool) -> None:
    assert is_worth(work=work, before=before, size=1, spent=USED_UP) is expected


def test_a_larger_kernel_takes_longer_to_compile_and_so_more_work() -> None:
    size = 2 * AS_COMPILING // AS_ONE_BYTE

    assert not is_worth(work=AS_COMPILING, before=0, size=size, spent=USED_UP)
    assert is_worth(work=2 * AS_COMPILING, before=0, size=size, spent=USED_UP)


def test_a_process_compiles_a_bounded_amount_for_later_ones_and_always_something() -> None:
    assert is_worth(work=1, before=0, size=100 * SPREAD, spent=0)
    assert is_worth(work=1, before=0, size=SPREAD - 1, spent=1)
    assert not is_worth(work=1, before=0, size=SPREAD, spent=1)


def test_a_loop_of_steps_compiles_after_a_few() -> None:
    def one() -> None: ...

    account = Account(spent=USED_UP)
    roads = [account.compiles(one, AS_COMPILING // 2, size=1) for _ in range(2 * SEVERAL)]

    assert roads == [False] * (2 * SEVERAL - 1) + [True]
    assert account.spent == USED_UP + 1


def test_what_is_ahead_counts_as_work_and_not_as_interpreted() -> None:
    def one() -> None: ...

    account = Account(spent=USED_UP)

    assert not account.compiles(one, 5, size=1, ahead=AS_COMPILING - 1)
    assert account.interpreted[one] == 5
    assert account.compiles(one, 5, size=1, ahead=AS_COMPILING)


TWO_KERNELS = """
import hashlib, json, numpy as np
from pptrace import kernel
from pptrace.kernel import worth
from pptrace.timeline.kernels.following import follow_causes
from pptrace.sim.kernels.running import enter_times

worth.SPREAD = 1
ROWS = kernel.COMPILE_FROM

def follow():
    cause, path = np.arange(ROWS, dtype=np.int32) - 1, np.zeros(ROWS, dtype=np.int32)
    kernel.run(follow_causes, (cause, ROWS - 1), (path,), work=ROWS)
    return path.tobytes()

def enter():
    start = np.arange(ROWS, dtype=np.int64)
    out = np.zeros(ROWS, dtype=np.int64)
    lanes, fork = np.array([0, ROWS], dtype=np.int32), np.full(ROWS, -1, dtype=np.int32)
    kernel.run(enter_times, (lanes, fork, start, start + 1), (out,), work=ROWS)
    return out.tobytes()

told = [hashlib.sha256(run()).hexdigest() for run in (follow, enter)]
print(json.dumps([told, sorted(one.__name__ for one in kernel._loaded)]))
"""


def test_each_process_adds_to_what_the_next_one_finds_and_all_give_the_same_bytes(tmp_path: Path) -> None:
    def run() -> tuple[list[str], list[str], str]:
        kept = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
        command = [sys.executable, "-c", TWO_KERNELS]
        ran = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
        told, loaded = json.loads(ran.stdout)
        return told, loaded, ran.stderr

    first, second, third = run(), run(), run()

    assert first[0] == second[0] == third[0]
    assert [first[1], second[1], third[1]] == [
        ["follow_causes"], ["enter_times", "follow_causes"], ["enter_times", "follow_causes"],
    ]  # fmt: skip
    assert ["compiling" in ran[2] for ran in (first, second, third)] == [True, True, False]
