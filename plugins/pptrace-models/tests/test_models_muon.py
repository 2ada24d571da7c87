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


def test_sharded_gradients_are_refused(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError, match="zero: muon updates whole matrices; write 0 or 1"):
        costs(options={"optimizer": "muon", "zero": 2}, **ONE_STAGE)
