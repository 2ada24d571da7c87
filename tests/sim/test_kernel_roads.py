"""Kernels have one source: interpreted on lists and compiled on arrays, they agree bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from interpreted import interpreted_kernels

import pptrace_kernel
from pptrace.config.choices import PolicyName, Receive
from pptrace.network.links import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import Metrics, measure

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

RANKS, MICROBATCHES = 4, 6


def one_f_one_b() -> Schedule:
    rows = []
    for rank in range(RANKS):
        warm = RANKS - 1 - rank
        row = [f"{rank}F{microbatch}" for microbatch in range(warm)]
        for microbatch in range(MICROBATCHES - warm):
            row += [f"{rank}F{microbatch + warm}", f"{rank}I{microbatch}", f"{rank}W{microbatch}"]
        rows.append(row + [f"{rank}B{microbatch}" for microbatch in range(MICROBATCHES - warm, MICROBATCHES)])
    return Schedule.from_rows(rows)


def step(policy: Policy) -> tuple[Timeline, Metrics]:
    workload = Workload.uniform(
        RANKS, f_ns=[10, 12, 9, 14], i_ns=11, w_ns=[7, 9, 8, 5], boundary_bytes=1000, activation_bytes=64,
        weight_activation_bytes=16, reduce_ns=5, optimizer_ns=3, b_collective_ns=2,
    )  # fmt: skip
    network = Flat(rate_kbps=333_000_000, latency_ns=2, overhead_ns=1)
    schedule = one_f_one_b()
    validate(schedule)
    timeline = simulate(schedule, workload, network, policy)
    return timeline, measure(timeline, workload)


POLICIES = [Policy(name=name) for name in PolicyName] + [
    Policy(name=PolicyName.BLOCKING, receive=Receive.DEFERRED),
    Policy(name=PolicyName.ORDERED, receive=Receive.DEFERRED, eager_bytes=1000),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name.value}-{p.placing.value}-{p.eager_bytes}")
def test_both_roads_give_the_same_step(policy: Policy) -> None:
    with interpreted_kernels():
        interpreted, by_list = step(policy)
    with pptrace_kernel.always_compiled():
        compiled, by_array = step(policy)

    assert interpreted.difference(compiled) == ""
    for field in fields(Metrics):
        one, other = getattr(by_list, field.name), getattr(by_array, field.name)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other), field.name
    assert by_list.path.by_kind_ns == by_array.path.by_kind_ns
    for name in ("send", "recv", "producer", "consumer"):
        assert np.array_equal(getattr(messages(interpreted), name), getattr(messages(compiled), name))


def test_a_small_step_never_loads_llvm() -> None:
    code = (
        "import sys; from pptrace.steps.schedule import Schedule; from pptrace.steps.workload import Workload;"
        "from pptrace.sim.simulation import simulate; from pptrace.timeline.metrics import measure;"
        "w = Workload.uniform(1, f_ns=1, b_ns=2);"
        "measure(simulate(Schedule.from_rows([['0F0', '0B0']]), w), w);"
        "sys.exit('llvmlite' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_compiled_code_runs_small_work_too_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    roads = []

    def double(values: Any, out: Any) -> int:
        roads.append(type(values))
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

    assert roads == [list, np.ndarray, np.ndarray]
    assert before == inside == after == [0, 2, 4]


def test_long_columns_are_compiled_however_few_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(pptrace_kernel, "compiles", lambda work, **_: bool(asked.append(work)))
    columns = [np.zeros(length, dtype=np.int64) for length in (3, 64 * pptrace_kernel.COMPILE_FROM - 3)]

    pptrace_kernel.run(lambda *_: 0, [columns[0], 7], [columns[1]], work=3)

    assert asked == [pptrace_kernel.COMPILE_FROM]


def test_disabling_compilation_interprets_steps_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")

    assert not pptrace_kernel.compiles(10**9, loaded=True)
    with pptrace_kernel.always_compiled():
        assert not pptrace_kernel.compiles(1)


WITHOUT_A_CACHE = """
import numpy as np
import pptrace_kernel as kernel
from pptrace.plugins.builtin_executors import Processes

def double(values, out):
    for i in range(len(values)):
        out[i] = 2 * values[i]

def treble(values, out):
    for i in range(len(values)):
        out[i] = 3 * values[i]

def results():
    outs = [np.zeros(3, dtype=np.int64) for _ in range(2)]
    with kernel.always_compiled():
        kernel.run(double, (np.arange(3),), (outs[0],), work=3)
        kernel.run(treble, (np.arange(3),), (outs[1],), work=3)
    return [out.tolist() for out in outs]

if __name__ == "__main__":
    with Processes(2) as pool:
        of_workers = [pool.submit(results) for _ in range(4)]
        print([results(), *(one.result() for one in of_workers)] == [[[0, 2, 4], [0, 3, 6]]] * 5)
"""


def test_code_that_cannot_be_kept_still_runs_with_one_warning_in_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "program.py").write_text(WITHOUT_A_CACHE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file")}

    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout == "True\n"
    assert done.stderr.count("code cannot be kept") == 1, done.stderr
    assert "make the folder in NUMBA_CACHE_DIR (or ~/.cache) writable" in done.stderr
