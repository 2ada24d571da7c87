"""Collectives follow the ring's formula and scale with the group."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from pptrace_models.accelerator import Fabric, group_fabric

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

RATE = 360 * 10**9  # of an H100: 450 GB/s per direction, 0.8 of it reached


def ring(size: int, devices: int, rounds: int, latency: int = 2000) -> int:
    steps = rounds * (devices - 1)
    return steps * latency + -(-Fraction(steps * size * 10**9, devices * RATE) // 1)


def test_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    fabric = Fabric(rate=Fraction(10**9), latency_ns=7)
    assert fabric.ring_ns(4096, 8, 2) == 2 * fabric.ring_ns(4096, 8, 1) == 2 * 7 * (7 + 512)


def test_a_group_of_one_takes_no_time() -> None:
    fabric = Fabric(rate=Fraction(1), latency_ns=10**9)
    assert fabric.ring_ns(10**9, 1, 2) == fabric.ring_ns(10**9, 1, 1) == 0


def test_an_unlimited_network_takes_its_latency() -> None:
    assert Fabric(rate=Fraction(0), latency_ns=5).ring_ns(10**9, 4, 2) == 30


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_sums_over_the_tensor_group_twice_each_way(
    costs: Callable[..., Workload], *, sequence_parallel: bool
) -> None:
    workload = costs(tp=4, sequence_parallel=sequence_parallel)
    message = ring(2048 * 1024 * 2, 4, 2)
    assert workload.f_collective_ns[1] == workload.i_collective_ns[1] == 2 * 2 * message
    assert workload.w_collective_ns.tolist() == [0] * 4
    assert workload.b_collective_ns.tolist() == workload.i_collective_ns.tolist()


def test_embedding_and_head_communicate_on_their_own_stages(costs: Callable[..., Workload]) -> None:
    workload = costs(tp=4)
    message, loss = ring(2048 * 1024 * 2, 4, 2), 3 * ring(2048 * 4, 4, 2)
    forward, backward = workload.f_collective_ns, workload.i_collective_ns
    assert forward[0] - forward[1] == message
    assert backward[0] == backward[1]
    assert forward[3] - forward[1] == loss
    assert backward[3] - backward[1] == message


def test_context_parallelism_gathers_keys_and_values(costs: Callable[..., Workload]) -> None:
    workload = costs({"kv_heads": 4}, cp=4)
    gathered = ring(2 * 2048 * 256 * 2, 4, 1)
    assert workload.f_collective_ns[1] == 2 * gathered
    assert workload.i_collective_ns[1] == 2 * 2 * gathered


def test_experts_exchange_tokens_twice_each_way(costs: Callable[..., Workload]) -> None:
    moe = {"num_experts": 8, "top_k": 2, "moe_every": 2}
    workload = costs(moe, dp=4, ep=4)
    exchanged = 2000 - (-Fraction(2048 * 2 * 1024 * 2 * 3 * 10**9, 4 * RATE) // 1)
    assert workload.f_collective_ns[1] == workload.i_collective_ns[1] == 2 * exchanged


def test_collectives_are_part_of_the_times(costs: Callable[..., Workload]) -> None:
    alone = costs()
    for sizes in ({"cp": 2}, {"tp": 2}):
        workload = costs(**sizes)
        computed = workload.f_ns - workload.f_collective_ns
        assert (computed < alone.f_ns).all()
        assert (workload.f_collective_ns > 0).all()
        assert (workload.i_ns > workload.i_collective_ns).all()


def test_recomputing_a_layer_repeats_its_collectives(costs: Callable[..., Workload]) -> None:
    none, full, selective = (costs({"recompute": kind}, tp=2, cp=2) for kind in ("none", "full", "selective"))
    assert full.i_collective_ns[1] == none.i_collective_ns[1] + none.f_collective_ns[1]
    gathered = ring(2 * 2048 * 1024 // 2 * 2, 2, 1)
    assert selective.i_collective_ns[1] == none.i_collective_ns[1] + 2 * gathered


def test_a_group_wider_than_the_node_takes_the_network(devices: dict[str, Any]) -> None:
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.transformer import checked

    device = checked(Accelerator, devices["h100-sxm"], "device")
    network = {"rate_kbps": 50_000_000, "latency_ns": 5000}
    assert group_fabric(device, network, 8).rate == RATE
    assert group_fabric(device, network, 16).rate == 50 * 10**9
    assert group_fabric(device, {}, 16).rate == RATE


def test_a_group_wider_than_the_node_is_noted(costs: Callable[..., Workload]) -> None:
    assert any("as fast as those in a node of 8" in note for note in costs(tp=16).notes)
    assert not any("as fast as" in note for note in costs(tp=8).notes)
