"""On a cluster, collectives take what its links say for the sizes that the formulas give."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.network.cluster import Cluster, Layout
from pptrace.network.collectives import LinkCollectives
from pptrace.network.contract import Flat

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

HIDDEN = 2048 * 1024 * 2
"""Bytes of a microbatch's activations between layers: tokens, width, bf16."""
LOSS = 2048 * 4
"""Bytes of a row's fp32 figure for each token."""
NS = {"all-reduce": 10**3, "all-gather": 10**6, "reduce-scatter": 10**9, "all-to-all": 10**12}
"""Nanoseconds of each collective, whatever its size."""
MOE = {"num_experts": 8, "top_k": 2, "moe_every": 2}


@dataclass
class Recorded:
    """Collectives of a fixed time that note what was asked."""

    asked: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        self.asked[collective, axis, size_bytes] += 1
        return NS[collective]

    def members(self, axis: str) -> int:
        return 1 if axis.endswith("-rail") else 4

    def of(self, *axes: str) -> set[tuple[str, str, int]]:
        return {asked for asked in self.asked if asked[1] in axes}


@dataclass
class Alone(Recorded):
    """The same for a job with one kind of group; the others have one member and take nothing."""

    axes: tuple[str, ...] = ()

    def ns(self, collective: str, axis: str, size_bytes: int) -> int:
        return super().ns(collective, axis, size_bytes) if axis in self.axes else 0


def test_tensor_parallel_layers_sum_their_activations(costs: Callable[..., Workload]) -> None:
    links = Alone(axes=("tp",))

    workload = costs(tp=4, collectives=links)

    assert links.of("tp") == {("all-reduce", "tp", HIDDEN), ("all-reduce", "tp", LOSS)}
    layers, each = 2, 2 * NS["all-reduce"]
    assert workload.f_collective_ns.tolist() == [layers * each + n * NS["all-reduce"] for n in (1, 0, 0, 3)]
    assert workload.i_collective_ns.tolist() == [layers * each + n * NS["all-reduce"] for n in (0, 0, 0, 1)]


def test_with_sequence_parallelism_they_gather_and_scatter_the_same_bytes(costs: Callable[..., Workload]) -> None:
    links = Alone(axes=("tp",))

    workload = costs(tp=4, sequence_parallel=True, collectives=links)

    assert links.of("tp") == {
        ("all-gather", "tp", HIDDEN),
        ("reduce-scatter", "tp", HIDDEN),
        ("all-reduce", "tp", LOSS),
    }
    gather, scatter, loss = NS["all-gather"], NS["reduce-scatter"], NS["all-reduce"]
    layers = 2 * 2 * (gather + scatter)
    assert workload.f_collective_ns.tolist() == [layers + scatter, layers, layers, layers + 3 * loss + gather]
    assert workload.i_collective_ns.tolist() == [layers + gather, layers, layers, layers + scatter]


def test_context_parallelism_gathers_keys_and_values_and_scatters_their_gradients(
    costs: Callable[..., Workload],
) -> None:
    links = Alone(axes=("cp",))

    workload = costs({"kv_heads": 4}, cp=4, collectives=links)

    keys_values = 2 * 2048 * 256 * 2
    assert links.of("cp") == {("all-gather", "cp", keys_values), ("reduce-scatter", "cp", keys_values)}
    assert workload.f_collective_ns[1] == 2 * NS["all-gather"]
    assert workload.i_collective_ns[1] == 2 * (NS["all-gather"] + NS["reduce-scatter"])


def test_experts_exchange_the_tokens_that_a_device_routes(costs: Callable[..., Workload]) -> None:
    links = Alone(axes=("ep",))

    workload = costs(MOE, dp=4, ep=4, collectives=links)

    assert links.of("ep") == {("all-to-all", "ep", 2 * HIDDEN)}
    assert workload.f_collective_ns[1] == workload.i_collective_ns[1] == 2 * NS["all-to-all"]


def test_recomputing_a_layer_repeats_what_its_links_take(costs: Callable[..., Workload]) -> None:
    none, full = (
        costs({"recompute": kind}, tp=2, cp=2, collectives=Alone(axes=("tp", "cp"))) for kind in ("none", "full")
    )

    assert full.i_collective_ns[1] == none.i_collective_ns[1] + none.f_collective_ns[1]


@pytest.mark.parametrize(("gradients", "size"), [("fp32", 4), ("bf16", 2)])
def test_dense_gradients_are_summed_over_all_replicas(
    costs: Callable[..., Workload], gradients: str, size: int
) -> None:
    links = Alone(axes=("dp",))

    workload = costs(dp=4, cp=2, collectives=links, options={"gradients": gradients})

    parameters = [int(held) // 2 for held in workload.weights_bytes]
    assert links.of("dp", "edp") == {("all-reduce", "dp", count * size) for count in parameters}
    assert workload.reduce_ns.tolist() == [NS["all-reduce"]] * 4


def test_zero_scatters_gradients_and_gathers_weights(costs: Callable[..., Workload]) -> None:
    links = Alone(axes=("dp",))

    workload = costs(dp=4, collectives=links, options={"zero": 1})

    gradients, weights = workload.gradients_bytes.tolist(), workload.weights_bytes.tolist()
    assert links.of("dp") == {
        *(("reduce-scatter", "dp", size) for size in gradients),
        *(("all-gather", "dp", size) for size in weights),
    }
    assert workload.reduce_ns.tolist() == [NS["reduce-scatter"] + NS["all-gather"]] * 4


def test_an_expert_s_gradients_are_summed_over_those_that_hold_it(costs: Callable[..., Workload]) -> None:
    links = Recorded()

    workload = costs(MOE, dp=8, ep=4, collectives=links)

    expert = 2 * 2 * 1024 * 4096  # of eight experts two are held, of two matrices each
    dense = [size - 4 * expert for size in workload.gradients_bytes.tolist()]
    assert links.of("dp", "edp") == {
        *(("all-reduce", "dp", size) for size in dense),
        ("all-reduce", "edp", 4 * expert),
    }
    assert workload.reduce_ns.tolist() == [2 * NS["all-reduce"]] * 4


def test_a_stage_without_parameters_reduces_nothing(costs: Callable[..., Workload]) -> None:
    workload = costs({"layers_per_stage": [4, 0, 0, 4]}, dp=4, collectives=Recorded())

    assert workload.reduce_ns.tolist() == [NS["all-reduce"], 0, 0, NS["all-reduce"]]


def test_neither_the_device_s_links_nor_the_data_parallel_network_count(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    slow = {"scale_up_bandwidth": 1, "scale_up_latency": 10**9, "scale_up_size": 1, "network_efficiency": 0.01}
    sizes = {"dp": 4, "tp": 4, "cp": 2, "ep": 4}
    network = {"rate_kbps": 1, "latency_ns": 10**9}

    fast, slowed = (
        costs(MOE, device=device, data_parallel=given, collectives=Recorded(), **sizes)
        for device, given in (("h100-sxm", {}), (devices["h100-sxm"] | slow, network))
    )

    for column in ("f_ns", "b_ns", "f_collective_ns", "i_collective_ns", "reduce_ns"):
        assert getattr(fast, column).tolist() == getattr(slowed, column).tolist()


def test_notes_say_which_was_used(costs: Callable[..., Workload]) -> None:
    on_links, by_formula = costs(dp=2, tp=16, collectives=Recorded()).notes, costs(dp=2, tp=16).notes

    assert sum("on the cluster's links" in note for note in on_links) == 1
    assert not any("described" in note for note in on_links)
    assert not any("on the cluster's links" in note for note in by_formula)
    assert any(note.startswith("No network between nodes is described") for note in by_formula)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_flat_cluster_is_the_formula_of_the_same_figures(
    costs: Callable[..., Workload], devices: dict[str, Any], *, sequence_parallel: bool
) -> None:
    """Two ways to the same rings: pairs, where a tree is no better; a ns per collective for rounding."""
    device = devices["h100-sxm"] | {"scale_up_latency": 2000, "network_efficiency": 1.0}
    links = LinkCollectives(
        network=Flat(rate_kbps=450_000_000, latency_ns=2000), groups=Layout(pp=4, tp=2, dp=2).groups
    )
    sizes = {"tp": 2, "dp": 2, "sequence_parallel": sequence_parallel, "device": device}

    formula = costs(**sizes, data_parallel={"rate_kbps": 450_000_000, "latency_ns": 2000})
    linked = costs(**sizes, collectives=links)

    for column in ("f_ns", "i_ns", "w_ns", "reduce_ns"):
        assert abs(getattr(formula, column) - getattr(linked, column)).max() <= 2 * 4


@pytest.mark.parametrize(("ep", "tp"), [(4, 1), (8, 1), (8, 2), (8, 4)])
def test_a_token_crosses_the_fabric_of_a_cluster_once_per_node_as_in_the_formula(
    costs: Callable[..., Workload], devices: dict[str, Any], ep: int, tp: int
) -> None:
    device = devices["h100-sxm"] | {"scale_up_latency": 0, "network_efficiency": 1.0, "exchange_efficiency": 1.0}
    network = Cluster(
        node=Flat(rate_kbps=450_000_000), fabric=Flat(rate_kbps=50_000_000), nodes=8 * tp, gpus=4, nics=4
    )
    links = LinkCollectives(network=network, groups=Layout(pp=4, tp=tp, dp=8, ep=ep).groups)
    options = {"dispatcher": "deduplicated", "aligned_dispatch": False}
    sizes: dict[str, Any] = {"tp": tp, "dp": 8, "ep": ep, "etp": tp, "options": options}

    formula = costs(
        MOE | {"top_k": 4}, **sizes, device=device | {"scale_up_size": 4}, data_parallel={"rate_kbps": 50_000_000}
    )
    linked = costs(MOE | {"top_k": 4}, **sizes, collectives=links)

    assert linked.f_collective_ns[1] == pytest.approx(formula.f_collective_ns[1], rel=1e-6)
