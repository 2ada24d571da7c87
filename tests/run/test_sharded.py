"""Sharded weights and gradients asked for in a configuration: what is put into a table, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import pptrace
from pptrace.config.choices import PolicyName
from pptrace.errors import ConfigError, ConstraintError
from pptrace.sim.cross_rank import find_collectives
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.timeline.idle import IdleCause

pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 16, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
EXPERTS = {"num_experts": 8, "top_k": 2, "expert_ffn": 1024}


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


def run_units(
    *,
    layers: int = 4,
    gather_us: int = 50,
    subgroup_us: int | None = 250,
    reduce_us: int = 50,
    dp: int = 4,
    schedule: str = "1f1b",
    batch: dict[str, Any] | None = None,
    **data: Any,
) -> pptrace.Run:
    """Simulate two microbatches of a job without a pipeline: units of 100 us forward and 200 us backward."""
    return pptrace.simulate({
        "parallel": {"pp": 1, "dp": dp}, "batch": {"microbatches": 2, **(batch or {})}, "schedule": schedule,
        "costs": {
            "name": "table", "forward": "100us", "backward": "200us", "gather": f"{gather_us}us",
            "subgroup_gather": None if subgroup_us is None else f"{subgroup_us}us",
            "reduction": f"{reduce_us}us", "gathered": "8MiB", "weights": "2MiB",
        },
        "data_parallel": {"overlap": True, "units": layers, **data},
    })  # fmt: skip


def test_short_collectives_of_units_are_exposed_at_the_ends_of_microbatches() -> None:
    step = run_units()

    # A microbatch waits for its first gather, and the next gather and the end for the last reduction.
    assert step.metrics.step_ns == 2 * (4 * 300 + 50 + 50) * 1000
    assert step.metrics.exposed_ns.tolist() == [2 * (50 + 50) * 1000]
    assert count(step, Kind.UNSHARD) == 2 * (2 * 4 - 1)  # the last unit stays gathered for its backward
    assert count(step, Kind.REDUCE_GRAD) == 2 * 4


def test_a_step_with_slow_links_takes_as_long_as_its_collectives() -> None:
    step = run_units(gather_us=500, reduce_us=300)

    # The gathers of a backward start with it: after the last forward, which no collective overlaps.
    assert step.metrics.step_ns == 2 * (7 * 500 + 4 * 300 + 100) * 1000


@pytest.mark.parametrize("prefetch", range(4))
def test_gathered_units_are_those_of_the_prefetch_and_the_current_one(prefetch: int) -> None:
    memory = run_units(prefetch=prefetch).metrics.memory

    assert memory.weights_bytes.tolist() == [(4 * 2 + (prefetch + 1) * 8) * 2**20]


@pytest.mark.parametrize("zero", [2, 3])
def test_units_have_the_same_memory_without_a_network(zero: int) -> None:
    """Reductions that take no time free unreduced gradients, too."""
    peaks = [
        pptrace.simulate({
            "model": MODEL, **place, "parallel": {"pp": 1, "dp": 8}, "schedule": "1f1b",
            "batch": {"microbatches": 2, "sequence": 1024}, "costs": {"zero": zero},
        }).metrics.memory.gradients_bytes.tolist()
        for place in ({"device": "h100-sxm"}, {"cluster": "dgx-h100"})
    ]  # fmt: skip

    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(("reshard", "gathers", "units"), [("never", 4, 4), ("backward", 8, 4), ("always", 14, 2)])
def test_units_are_gathered_again_when_they_were_freed(reshard: str, gathers: int, units: int) -> None:
    step = run_units(reshard=reshard)

    assert count(step, Kind.UNSHARD) == gathers
    assert step.metrics.memory.weights_bytes.tolist() == [(4 * 2 + units * 8) * 2**20]


@pytest.mark.parametrize("gpus", [2, 4])
def test_units_stay_sharded_over_a_part_of_the_group_between_their_passes(gpus: int) -> None:
    step = run_units(reshard=gpus, dp=8)

    # As with `always`, the last unit stays gathered. The gathers of the other backwards are in the part.
    assert count(step, Kind.UNSHARD) == 2 * 4
    assert count(step, Kind.UNSHARD_SUBGROUP) == 2 * 3
    assert count(step, Kind.RESHARD) == count(run_units(reshard="always", dp=8), Kind.RESHARD)
    # At the first backward, two units are gathered, and a device has a share of the others.
    assert step.metrics.memory.weights_bytes.tolist() == [(4 * 2 + 2 * 8 + 2 * 8 // gpus) * 2**20]


def test_slow_gathers_take_their_time_in_the_group_or_in_its_part() -> None:
    step = run_units(gather_us=500, reduce_us=300, reshard=2)

    assert step.metrics.step_ns == 2 * ((4 * 500 + 3 * 250) + 4 * 300 + 100) * 1000


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("gpus", "rule"), [(4, "always"), (1, "backward")])
def test_resharding_to_the_whole_group_or_to_one_gpu_is_a_rule(schedule: str, gpus: int, rule: str) -> None:
    steps = [run_units(reshard=value, schedule=schedule) for value in (gpus, rule)]

    assert steps[0].prepared.schedule == steps[1].prepared.schedule
    for name in ("start_ns", "end_ns"):
        assert (getattr(steps[0].timeline, name) == getattr(steps[1].timeline, name)).all()
    assert (steps[0].metrics.memory.peak_bytes == steps[1].metrics.memory.peak_bytes).all()


def test_gathers_of_forwards_follow_forwards_in_the_part_of_the_group() -> None:
    """As ``FSDPParamGroup._all_gather_process_group`` in PyTorch 2.13."""
    table = run_units(reshard=2, schedule="gpipe").prepared.schedule

    gathers = [cell for cell in table.rows()[0] if cell.startswith("0UNSHARD") or cell[:2] in {"0F", "0B"}]
    assert gathers == [
        "0UNSHARD", "0F0", "0UNSHARD_SUBGROUP", "0F1", "0UNSHARD_SUBGROUP", "0B0", "0UNSHARD", "0B1",
    ]  # fmt: skip


@pytest.mark.parametrize("cluster", [None, {"preset": "dgx-h100", "nodes": 2}])
@pytest.mark.parametrize("model", [MODEL, {**MODEL, **EXPERTS}], ids=["dense", "experts"])
def test_a_gather_in_a_part_takes_as_long_as_in_a_shard_group_of_its_size(
    cluster: dict[str, Any] | None, model: dict[str, Any]
) -> None:
    hardware = {"cluster": cluster} if cluster else {"device": "h100-sxm"}
    network = {} if cluster else {"bandwidth": "50 GB/s"}
    part, groups = (
        pptrace.simulate({
            "model": model, "parallel": {"pp": 1, "dp": 16}, "batch": {"microbatches": 1, "sequence": 1024},
            "schedule": "1f1b", "costs": {"zero": 3}, "data_parallel": {**data, **network}, **hardware,
        }).prepared.workload
        for data in ({"reshard": 4}, {"shard": 4})
    )  # fmt: skip

    assert (part.unshard_subgroup_ns == groups.unshard_ns).all()
    assert (part.unshard_subgroup_ns < part.unshard_ns).all()
    assert (part.subgroup_bytes == -(-part.gathered_bytes // 4)).all()


@pytest.mark.parametrize(("keys", "said"), [
    ({"reshard": 3}, "data_parallel.reshard: 3 does not divide the 4 GPUs of a shard group"),
    ({"reshard": 2, "units": 1}, "data_parallel.reshard: only units are resharded to a part of a group: write "),
    ({"reshard": 2, "active_stages": 2}, "data_parallel.active_stages: reshard: 2 frees weights itself"),
    ({"reshard": 2, "subgroup_us": None}, "data_parallel.reshard: these costs have no times of gathers in a part"),
])  # fmt: skip
def test_parts_of_groups_that_units_cannot_have_are_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run_units(**keys)
    assert said in str(refused.value)


def test_experts_are_resharded_to_no_more_gpus_than_share_their_state() -> None:
    with pytest.raises(ConstraintError, match=r"4 does not divide the devices that share an expert's state \(2\)"):
        run_alone(3, model=EXPERTS, expert_ranks=4, dp=8, reshard=4)


@pytest.mark.parametrize("reshard", ["always", "backward", 2])
def test_all_replicas_gather_and_reduce_units_with_the_slowest(reshard: str | int) -> None:
    equal, named, slow, all_slow = (
        run_units(reshard=reshard, speeds=speeds) for speeds in (None, {"0-3": 1.0}, {"1": 0.8}, {"0-3": 0.8})
    )
    fast = run_units(reshard=reshard, speeds={"1": 0.8}, batch={"replica": 0})

    assert (named.timeline.start_ns == equal.timeline.start_ns).all()
    assert (named.timeline.end_ns == equal.timeline.end_ns).all()
    assert equal.metrics.step_ns < slow.metrics.step_ns == fast.metrics.step_ns == all_slow.metrics.step_ns
    assert fast.metrics.busy_ns.tolist() == equal.metrics.busy_ns.tolist()
    assert slow.metrics.memory.peak_bytes.tolist() == equal.metrics.memory.peak_bytes.tolist()
    assert "this is number 1, which computes longest: 3 ms, the fastest 2.4 ms" in slow.prepared.workload.notes[-1]
    late_ns = slow.metrics.step_ns - equal.metrics.step_ns
    assert 0 < fast.metrics.idle_ns[0, IdleCause.SLOWER_REPLICA] <= late_ns
    assert slow.metrics.idle_ns[0, IdleCause.SLOWER_REPLICA] == 0


def test_replicas_that_are_slow_one_after_the_other_add_up() -> None:
    """A collective starts when the last replica has issued it, and no later."""
    runs = [run_units(dp=2, batch=lengths(5, 10, 10, 5, replica=number)) for number in range(2)]

    # In each microbatch, all units take as long as those of the replica with the long sequence.
    assert runs[0].prepared.differing is not None
    assert runs[0].metrics.step_ns == run_units(dp=2, batch=lengths(10, 10, 10, 10)).metrics.step_ns
    timelines = [run.timeline for run in runs]
    first, second = (find_collectives(each.kind, each.lane_stream, each.lane_ptr) for each in timelines)
    starts_ns = timelines[0].start_ns[first]
    assert (starts_ns == timelines[1].start_ns[second]).all()
    issued = (timelines[0].cause[first] >= 0) | (timelines[1].cause[second] >= 0) | (starts_ns == 0)
    assert issued.all()


def lengths(*tokens: int, replica: int | None = None) -> dict[str, Any]:
    return {"sequence": 10, "lengths": [*tokens], "replica": replica}


def test_replicas_with_other_numbers_of_microbatches_gather_no_units() -> None:
    batch = {"microbatches": None, "sequence": 100, "documents": {"lengths": [100], "count": 3}}
    with pytest.raises(ConfigError, match=r"replicas have 1 to 2 microbatches, .*: write equal: true"):
        run_units(dp=2, batch=batch)


def run_alone(
    zero: int,
    schedule: str = "1f1b",
    *,
    costs: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    dp: int = 4,
    expert_ranks: int = 1,
    **data: Any,
) -> pptrace.Run:
    """Simulate a model without a pipeline."""
    if schedule == "combined-1f1b":
        model, expert_ranks = EXPERTS, 4
    return pptrace.simulate({
        "model": {**MODEL, **(model or {})},
        "device": {"preset": "h100-sxm", "network_efficiency": 1, "scale_up_latency": "0 ns"},
        "parallel": {"pp": 1, "dp": dp, "ep": expert_ranks},
        "batch": {"microbatches": 3, "sequence": 1024}, "schedule": {"name": schedule},
        "costs": {"zero": zero, "every_nic": False, **(costs or {})},
        "data_parallel": {"overlap": True, "bandwidth": "50 GB/s", **data},
    })  # fmt: skip


def test_units_divide_the_costs_of_the_model() -> None:
    whole, units = (run_alone(3, **keys).prepared.workload for keys in ({"units": 1}, {}))

    assert units.stages == whole.units == MODEL["layers"] + 2
    for name in ("f_ns", "b_ns", "weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_bytes"):
        assert getattr(units, name).sum() == pytest.approx(getattr(whole, name).sum(), rel=1e-3), name
    assert units.gathered_bytes.sum() == whole.gathered_bytes.sum()


def test_shard_groups_gather_in_the_group_and_reduce_between_groups() -> None:
    full, hybrid = (run_alone(3, **keys).prepared.workload for keys in ({}, {"shard": 2, "reduce_groups": "each"}))

    layer = 1
    count, inside, between = int(full.gathered_bytes[layer]) // 2, 450, 50  # BF16 weights; bytes per ns
    all_reduce_ns = 2 * (count // 2) * 4 / 2 / between
    assert hybrid.gathered_bytes[layer] == full.gathered_bytes[layer]
    assert hybrid.weights_bytes[layer] == 2 * full.weights_bytes[layer]
    assert hybrid.optimizer_bytes[layer] == 2 * full.optimizer_bytes[layer]
    assert hybrid.unshard_ns[layer] == pytest.approx(count * 2 / 2 / inside, rel=1e-4)
    assert hybrid.reduce_ns[layer] == pytest.approx(count * 4 / 2 / inside + all_reduce_ns, rel=1e-4)


def test_groups_reduce_once_where_the_stack_does() -> None:
    each, last = (run_alone(3, shard=2, **keys) for keys in ({"reduce_groups": "each"}, {}))
    costs, every = last.prepared.workload, each.prepared.workload

    assert (costs.reduce_ns + costs.reduce_groups_ns == every.reduce_ns).all()
    assert count(last, Kind.REDUCE_GRAD) == count(each, Kind.REDUCE_GRAD) == 3 * 18
    assert [count(step, Kind.REDUCE_GROUPS) for step in (each, last)] == [0, 18]
    # Reductions of one stream do not overlap: all of their time counts.
    assert last.metrics.reduction_ns[0] == 3 * costs.reduce_ns.sum() + costs.reduce_groups_ns.sum()
    table = last.prepared.schedule
    ends = [
        np.flatnonzero((table.kind == kind) & (table.stage == 5))
        for kind in (Kind.REDUCE_GRAD, Kind.REDUCE_GROUPS)
    ]
    assert ends[1].tolist() == [ends[0].max() + 1]


def test_groups_that_share_the_optimizer_state_scatter_and_gather() -> None:
    copies, shared = (
        run_alone(3, shard=2, costs={"outer_sharding": outer}).prepared.workload for outer in (False, True)
    )

    assert (shared.weights_bytes == copies.weights_bytes).all()
    assert (shared.gradients_bytes == copies.gradients_bytes).all()
    assert shared.optimizer_bytes.sum() == pytest.approx(copies.optimizer_bytes.sum() / 2, rel=1e-6)
    # FP32 gradients are scattered and BF16 weights gathered, in place of an all-reduce of gradients.
    assert shared.reduce_groups_ns.sum() == pytest.approx(copies.reduce_groups_ns.sum() * (4 + 2) / 8, rel=1e-4)


def test_only_sharded_state_and_overlapped_reductions_have_units_by_default() -> None:
    assert [run_alone(zero, overlap=False).prepared.units for zero in range(4)] == [1, 1, 18, 18]
    assert [run_alone(zero).prepared.units for zero in range(4)] == [18] * 4


@pytest.mark.parametrize("zero", [0, 1])
def test_reductions_of_buckets_overlap_the_last_backward(zero: int) -> None:
    whole, units = (run_alone(zero, units=number) for number in (1, 18))
    costs = units.prepared.workload

    assert count(units, Kind.REDUCE_GRAD) == 18
    assert whole.metrics.exposed_ns[0] == whole.prepared.workload.reduce_ns.sum()
    # The embedding is reduced last, and every reduction waits for the one before it.
    assert costs.reduce_ns[0] <= units.metrics.exposed_ns[0] < whole.metrics.exposed_ns[0]


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "combined-1f1b"])
def test_each_unit_computes_each_microbatch_once(schedule: str) -> None:
    table = run_alone(3, schedule).prepared.schedule

    for kinds in ((Kind.F,), (Kind.B, Kind.I), (Kind.B, Kind.W)):
        rows = np.flatnonzero(np.isin(table.kind, kinds))
        cells = {*zip(table.stage[rows].tolist(), table.microbatch[rows].tolist(), strict=True)}
        assert len(rows) == len(cells) == 3 * 18


@pytest.mark.parametrize(("zero", "keys", "said"), [
    (3, {"units": 4}, "data_parallel.units: a pipeline gathers and reduces stages: write pp: 1 and one chunk"),
    (3, {"prefetch": 2, "reshard": "always"}, "data_parallel.prefetch: the step has no units: write pp: 1, or "),
    (3, {"shard": 3}, "data_parallel.shard: 3 does not divide dp 4"),
    (0, {"shard": 2}, "data_parallel.shard: no state is sharded: write costs.zero: 3, or remove the key"),
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


@pytest.mark.parametrize("model", [{}, EXPERTS, {"recompute": "full"}], ids=["dense", "experts", "recomputed"])
def test_matrices_as_units_divide_the_costs_of_layers(model: dict[str, Any]) -> None:
    layers, weights = (
        run_alone(3, model=model, expert_ranks=4 if "top_k" in model else 1, units=units).prepared.workload
        for units in (None, "weights")
    )

    # Queries, keys and values; output; two of the MLP or of experts. The router is part of the first.
    assert weights.stages == 2 + 4 * MODEL["layers"] == layers.weights
    for name in (
        "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "activation_bytes",
        "weight_activation_bytes", "recompute_ns", "gathered_bytes", "weights_bytes", "gradients_bytes",
    ):  # fmt: skip
        assert getattr(weights, name).sum() == pytest.approx(getattr(layers, name).sum(), abs=weights.stages), name
    assert weights.gathered_bytes.max() < layers.gathered_bytes[1:-1].max() + weights.gathered_bytes[[0, -1]].max()
    assert (weights.f_ns > 0).all()


def test_replicas_of_experts_can_share_state_beyond_a_group() -> None:
    alone, shared = (
        run_alone(3, model=EXPERTS, expert_ranks=2, dp=8, shard=2, expert_shard=count).prepared.workload
        for count in (1, 4)
    )

    experts = 8 // 2 * 3 * 1024 * 1024 * 2  # bytes of three matrices of a device's experts in BF16
    layer = 3
    assert alone.weights_bytes[layer] - shared.weights_bytes[layer] == pytest.approx(experts * 3 / 4, rel=1e-3)
    assert shared.unshard_ns[layer] > alone.unshard_ns[layer]
