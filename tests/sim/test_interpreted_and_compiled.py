"""Steps are equal with interpreted and with compiled kernels, in one thread and in two."""

from __future__ import annotations

import _thread
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import pytest
from interpreted import interpreted_kernels
from two_threads import two_threads

import pptrace_kernel
from pptrace.network.contract import Flat
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy, PolicyName, Receive
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import Dialect, in_dialect
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import Metrics, measure

if TYPE_CHECKING:
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


def step(policy: Policy, *, waits: bool = False) -> tuple[Timeline, Metrics]:
    workload = Workload.uniform(
        RANKS, f_ns=[10, 12, 9, 14], i_ns=11, w_ns=[7, 9, 8, 5], boundary_bytes=1000, activation_bytes=64,
        weight_activation_bytes=16, reduce_ns=5, optimizer_ns=3, b_collective_ns=2,
    )  # fmt: skip
    network = Flat(rate_kbps=333_000_000, latency_ns=2, overhead_ns=1)
    schedule = in_dialect(one_f_one_b(), Dialect.WAITS) if waits else one_f_one_b()
    validate(schedule)
    timeline = simulate(schedule, workload, network, policy)
    return timeline, measure(timeline, workload)


POLICIES = [Policy(name=name) for name in PolicyName] + [
    Policy(name=PolicyName.BLOCKING, receive=Receive.DEFERRED),
    Policy(name=PolicyName.ORDERED, receive=Receive.DEFERRED, eager_bytes=1000),
]


REGISTRY = Registry.load()
PROGRAMS = sorted({*REGISTRY.message_policies} - {*PolicyName.words()})


def program(name: str) -> Policy:
    provided = REGISTRY.message_policies[name]
    return build_policy(provided, one_f_one_b(), checked_options(provided, {}, "p2p.options"))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name.value}-{p.placing.value}-{p.eager_bytes}")
@pytest.mark.parametrize("waits", [False, True])
def test_interpreted_and_compiled_kernels_give_the_same_step(policy: Policy, *, waits: bool) -> None:
    with interpreted_kernels():
        interpreted, by_list = step(policy, waits=waits)
    with pptrace_kernel.always_compiled():
        compiled, by_array = step(policy, waits=waits)

    check_equal(interpreted, compiled, by_list, by_array)


@pytest.mark.parametrize(
    "policy", [*POLICIES, *map(program, PROGRAMS)], ids=lambda p: f"{p.label}-{p.placing.value}"
)
@pytest.mark.parametrize("patience", [0, 10**7])
def test_one_and_two_threads_give_the_same_step(
    policy: Policy, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = _thread._count()
    with pptrace_kernel.always_compiled():
        expected, figures = step(policy)
    monkeypatch.setattr("pptrace.sim.engines._MAX_POLLS_PER_TASK", patience)  # with 0, one thread runs all tasks
    with pptrace_kernel.always_compiled(), two_threads():
        compiled, by_array = step(policy)
    monkeypatch.setattr("pptrace.sim.engines._MAX_POLLS_PER_TASK", 1)  # one part after the other
    with interpreted_kernels(), two_threads():
        interpreted, by_list = step(policy)

    assert _thread._count() == threads
    check_equal(expected, compiled, figures, by_array)
    check_equal(expected, interpreted, figures, by_list)


def check_equal(step: Timeline, other_step: Timeline, metrics: Metrics, other_metrics: Metrics) -> None:
    assert step.difference(other_step) == ""
    for field in fields(Metrics):
        one, other = getattr(metrics, field.name), getattr(other_metrics, field.name)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other), field.name
    assert metrics.path.by_kind_ns == other_metrics.path.by_kind_ns
    for name in ("send", "recv", "producer", "consumer"):
        assert np.array_equal(getattr(messages(step), name), getattr(messages(other_step), name))


def test_a_small_step_never_loads_llvm() -> None:
    code = (
        "import sys; from pptrace.steps.schedule import Schedule; from pptrace.steps.workload import Workload;"
        "from pptrace.sim.simulation import simulate; from pptrace.timeline.metrics import measure;"
        "w = Workload.uniform(1, f_ns=1, b_ns=2);"
        "measure(simulate(Schedule.from_rows([['0F0', '0B0']]), w), w);"
        "sys.exit('llvmlite' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
