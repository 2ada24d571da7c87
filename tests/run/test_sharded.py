"""Sharded weights and gradients asked for in a configuration: what is put into a table, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pptrace
from pptrace.config.choices import PolicyName
from pptrace.errors import ConfigError
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind

pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 16, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}


def run(
    zero: int = 3, *, schedule: str = "1f1b", dp: int = 4, vp: int = 1, policy: str = "async", **data: Any
) -> pptrace.Run:
    return pptrace.simulate({
        "model": MODEL, "device": {"preset": "h100-sxm"}, "parallel": {"pp": 2, "dp": dp, "vp": vp},
        "batch": {"microbatches": 4, "sequence": 1024}, "schedule": {"name": schedule},
        "network": {"name": "hockney", "bandwidth": "50 GB/s"}, "costs": {"name": "roofline", "zero": zero},
        "data_parallel": {"overlap": True, **data}, "p2p": policy,
    })  # fmt: skip


def count(one: pptrace.Run, kind: Kind, rank: int = 0) -> int:
    return sum(
        one.timeline[row].rank == rank for row in range(len(one.timeline)) if one.timeline.kind[row] == kind
    )


@pytest.mark.parametrize(("zero", "keys", "gathers", "frees", "reductions"), [
    (1, {}, 0, 0, 1),
    (2, {}, 1, 0, 1),
    (2, {"reduce_each": True}, 1, 0, 4),
    (3, {}, 1, 1, 1),
    (3, {"reshard": "forward"}, 5, 5, 1),
    (3, {"reshard": "always", "reduce_each": True}, 8, 8, 4),
])  # fmt: skip
def test_collectives_of_a_step(zero: int, keys: dict[str, Any], gathers: int, frees: int, reductions: int) -> None:
    item = run(zero, **keys)

    assert [count(item, kind) for kind in (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)] == [
        gathers, frees, reductions,
    ]  # fmt: skip


def test_memory_falls_with_each_stage_of_zero() -> None:
    steps = [run(zero, reshard="always" if zero == 3 else "never", reduce_each=zero > 1) for zero in range(4)]
    peaks = [int(item.metrics.memory.peak_bytes.max()) for item in steps]
    statics = [item.metrics.memory.static_bytes for item in steps]

    assert peaks == sorted(peaks, reverse=True)
    plain = steps[0].prepared.workload
    state = plain.weights_bytes + plain.gradients_bytes + plain.optimizer_bytes
    shards = steps[3].prepared.workload
    # All parameters divide by the replicas here.
    assert (4 * (shards.weights_bytes + shards.gradients_bytes + shards.optimizer_bytes) == state).all()
    assert (statics[0] - statics[3] == state - state // 4).all()


def test_stages_beyond_the_active_ones_are_freed_and_gathered_again() -> None:
    kept = run(schedule="interleaved-1f1b", vp=4, active_stages=4)
    freed = run(schedule="interleaved-1f1b", vp=4, active_stages=1)

    assert count(kept, Kind.UNSHARD) == 4 < count(freed, Kind.UNSHARD)
    assert (freed.metrics.memory.weights_bytes < kept.metrics.memory.weights_bytes).all()


@pytest.mark.parametrize(("schedule", "policy"), [
    *(("1f1b", policy) for policy in (*PolicyName.words(), "megatron", "torch", "deepspeed")),
    *(("interleaved-1f1b", policy) for policy in ("async", "ordered", "megatron", "torch")),
])  # fmt: skip
def test_gathers_and_reductions_that_take_no_time_change_no_message(schedule: str, policy: str) -> None:
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    step = run(reshard="always", reduce_each=True, schedule=schedule, vp=chunks, policy=policy).prepared
    zero = 0 * step.workload.unshard_ns
    free = replace(step.workload, unshard_ns=zero, reduce_ns=zero)
    table = step.schedule
    plain = table.selected(np.flatnonzero(~np.isin(table.kind, [Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD])))

    ends = [simulate(item, free, step.network, step.policy).end_ns.max() for item in (table, plain)]

    assert ends[0] == ends[1]


def test_one_replica_has_nothing_to_gather() -> None:
    assert not count(run(dp=1, reshard="always"), Kind.UNSHARD)


@pytest.mark.parametrize(("zero", "keys", "said"), [
    (2, {"reshard": "always"}, "data_parallel.reshard: no weights are gathered and freed: write costs.zero: 3, "),
    (1, {"active_stages": 1}, "data_parallel.active_stages: no weights are gathered and freed"),
    (2, {"reduce_each": True, "overlap": False}, "reduce_each: reductions after each backward need overlap: "),
    (2, {"reduce_each": True, "schedule": "chimera"}, "data_parallel.reduce_each: stages that several ranks hold"),
])  # fmt: skip
def test_what_does_not_go_together_is_one_line(zero: int, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(zero, **keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
