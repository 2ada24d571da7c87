"""Muon: operations of its iterations, its state, and matrices dealt to replicas."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugin import ConfigError
from pptrace.plugins.requests import CostRequest
from pptrace_models.layer import linears, shard
from pptrace_models.transformer import Layer, Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

MODEL = {
    "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "gated": True, "vocabulary": 32000, "dropout": False,
    "flash_attention": True,
}  # fmt: skip
ONE_STAGE = {"ranks": 1, "stages": 1, "model": MODEL}


@pytest.fixture
def device(devices: dict[str, Any]) -> dict[str, Any]:
    """Return a device with a peak of 1 PFLOP/s, all of it attained, and memory that takes no time."""
    free = {"memory_latency": 0, "launch_latency": 0, "memory_bandwidth": 10**17, "memory_efficiency": 1.0}
    return {**devices["h100-sxm"], **free, "peak_bf16": 10**15, "compute_efficiency": 1.0}


def of_layer(tp: int = 1, **values: Any) -> list[tuple[int, int]]:
    """Return the sides of a layer's matrices on one device."""
    whole = checked(Transformer, {**MODEL, **values}, "model")
    request = CostRequest(ranks=1, stages=1, microbatches=1, sequence=1024, tp=tp)
    return [(each.inputs, each.outputs) for each in linears(whole, shard(whole, request), Layer())]


def iterations_ns(sides: list[tuple[int, int]], steps: int = 5) -> Fraction:
    """Return 4 m^2 n + 2 m^3 operations of each iteration at 1 PFLOP/s, in ns."""
    flops = sum(4 * min(pair) ** 2 * max(pair) + 2 * min(pair) ** 3 for pair in sides)
    return Fraction(steps * flops * 10**9, 10**15)


@pytest.mark.parametrize("steps", [1, 5])
def test_iterations_have_the_operations_of_their_products(
    costs: Callable[..., Workload], device: dict[str, Any], steps: int
) -> None:
    options = {"optimizer": "muon", "muon_steps": steps}
    workload = costs(device=device, options=options, **ONE_STAGE)
    assert workload.optimizer_ns[0] == pytest.approx(float(4 * iterations_ns(of_layer(), steps)), rel=1e-3)


def test_matrices_have_one_moment_and_everything_else_two(costs: Callable[..., Workload]) -> None:
    adam, muon = (costs(options={"optimizer": name}, **ONE_STAGE).optimizer_bytes[0] for name in ("adam", "muon"))
    assert adam - muon == 4 * 4 * sum(inputs * outputs for inputs, outputs in of_layer())


def test_the_busiest_of_many_replicas_has_the_slowest_matrix(
    costs: Callable[..., Workload], device: dict[str, Any]
) -> None:
    times = {
        dp: costs(device=device, options={"optimizer": "muon", "zero": 1}, dp=dp, **ONE_STAGE).optimizer_ns[0]
        for dp in (1, 2, 64)
    }
    slowest = max(iterations_ns([sides]) for sides in of_layer())
    total = 4 * iterations_ns(of_layer())
    assert times[1] == pytest.approx(float(total), rel=1e-3)
    assert float(total / 2) <= times[2] <= float(total / 2 + slowest) * 1.001
    assert times[64] == pytest.approx(float(slowest), rel=1e-2)


def test_tensor_parallel_devices_iterate_on_whole_matrices_or_on_their_parts(
    costs: Callable[..., Workload], device: dict[str, Any]
) -> None:
    device |= {"scale_up_bandwidth": 10**17, "scale_up_latency": 0}
    whole, part = (
        costs(device=device, options={"optimizer": "muon", "muon_tp": mode}, tp=2, **ONE_STAGE).optimizer_ns[0]
        for mode in ("duplicated", "blockwise")
    )
    assert whole == pytest.approx(float(4 * iterations_ns(of_layer())), rel=1e-3)
    assert part == pytest.approx(float(4 * iterations_ns(of_layer(tp=2))), rel=1e-3)


def test_replicas_all_reduce_gradients_and_gather_weights(costs: Callable[..., Workload]) -> None:
    """Adam scatters FP32 gradients and gathers BF16 weights; an all-reduce moves twice as much as a scatter."""
    network = {"rate_kbps": 10**7, "latency_ns": 0}
    adam, muon = (
        costs(options={"optimizer": name, "zero": 1}, dp=8, data_parallel=network, **ONE_STAGE).reduce_ns[0]
        for name in ("adam", "muon")
    )
    assert muon / adam == pytest.approx((2 * 4 + 2) / (4 + 2), rel=1e-3)


@pytest.mark.parametrize("zero", [2, 3])
def test_sharded_gradients_are_reduced_as_those_of_adam(costs: Callable[..., Workload], zero: int) -> None:
    network = {"rate_kbps": 10**7, "latency_ns": 0}
    adam, muon = (
        costs(options={"optimizer": name, "zero": zero}, dp=8, data_parallel=network, **ONE_STAGE)
        for name in ("adam", "muon")
    )
    assert (muon.reduce_ns == adam.reduce_ns).all()
    assert (muon.unshard_ns == adam.unshard_ns).all()
    assert (muon.gradients_bytes == adam.gradients_bytes).all()


def muon_ns(costs: Callable[..., Workload], rate_kbps: int, *, zero: int = 3, **values: Any) -> int:
    """Return the time of an update by 8 replicas on a network of a rate, beyond that with any rate."""
    options = {"optimizer": "muon", "zero": zero, "overlap_muon": values.pop("overlap", False)}
    network = {"rate_kbps": rate_kbps, "latency_ns": 0}
    values = {**ONE_STAGE, "dp": 8, **values}
    return int(costs(options=options, data_parallel=network, **values).optimizer_ns[0])


def test_sharded_matrices_are_sent_to_their_devices_and_back(costs: Callable[..., Workload]) -> None:
    """Each of 8 devices sends 7 of 8 parts of its share, in BF16 and twice, at 10 GB/s."""
    parameters = 4 * sum(inputs * outputs for inputs, outputs in of_layer())
    exchange = Fraction(2 * 2 * parameters * 7, 8 * 8 * 10)
    fast, slow = (muon_ns(costs, rate) for rate in (0, 10**7))
    assert slow - fast == pytest.approx(float(exchange), rel=1e-6)
    assert muon_ns(costs, 0, zero=2) == fast == muon_ns(costs, 10**7, zero=2)


def test_an_overlapped_exchange_or_iterations_are_exposed_for_one_layer(costs: Callable[..., Workload]) -> None:
    free = muon_ns(costs, 0)
    for rate in (10**6, 10**9):
        exchange = muon_ns(costs, rate) - free
        adam = costs(options={"zero": 3}, dp=8, **ONE_STAGE).optimizer_ns[0]
        overlapped = muon_ns(costs, rate, overlap=True)
        assert max(free - adam, exchange) <= overlapped < free + exchange
        if rate == 10**9:
            assert overlapped - free == -(-exchange // MODEL["layers"])


def test_devices_that_hold_whole_experts_do_not_exchange_them(costs: Callable[..., Workload]) -> None:
    sent = {}
    for experts in (4, 8):
        moe = {**MODEL, "num_experts": experts, "top_k": 2}
        fast, slow = (muon_ns(costs, rate, model=moe) for rate in (0, 10**7))
        sent[experts] = slow - fast
    assert 0 < sent[8] < sent[4] / 4


def test_shard_groups_and_whole_matrices_exclude_each_other(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError, match=r"among all replicas: write costs.zero: 3"):
        costs(options={"optimizer": "muon", "zero": 2}, dp=8, shard=4, **ONE_STAGE)
    with pytest.raises(ConfigError, match="muon exchanges matrices in a shard group only"):
        costs(options={"optimizer": "muon", "zero": 3, "outer_sharding": True}, dp=8, shard=4, **ONE_STAGE)


def test_replicas_balance_the_matrices_of_all_units(costs: Callable[..., Workload]) -> None:
    """Embedding, layers and head are units. Their iterations take as long as those of one stage."""

    def of_muon(stages: int) -> int:
        muon, adam = (
            costs(
                options={"optimizer": name, "zero": 2},
                dp=16,
                **{**ONE_STAGE, "stages": stages, "units": stages > 1},
            )
            for name in ("muon", "adam")
        )
        return int(muon.optimizer_ns.sum() - adam.optimizer_ns.sum())

    assert of_muon(6) == pytest.approx(of_muon(1), rel=0.01)


def test_matrices_that_are_units_are_refused(costs: Callable[..., Workload]) -> None:
    units = {"units": True, "stages": 2 + 4 * len(of_layer())}
    with pytest.raises(ConfigError, match="muon balances whole layers: write a number of units"):
        costs(options={"optimizer": "muon", "zero": 3}, **{**ONE_STAGE, **units})


def test_each_shard_group_updates_all_matrices(costs: Callable[..., Workload], device: dict[str, Any]) -> None:
    device |= {"scale_up_bandwidth": 10**17, "scale_up_latency": 0}
    groups, four, eight = (muon_ns(costs, 0, device=device, **sizes) for sizes in ({"shard": 4}, {"dp": 4}, {}))
    assert groups == pytest.approx(four, rel=1e-3)
    assert four > 1.2 * eight
