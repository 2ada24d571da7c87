"""The host: how many operations it issues, counted by hand, and how it bounds layers, actions and pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugin import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

SECOND = 10**9
DENSE = {"flash_attention": True, "dropout": False}
EXPERTS = {**DENSE, "num_experts": 16, "top_k": 2, "expert_ffn": 512}
ATTENTION = (
    30 + 2 + 1 + 2 + 4
)  # beside kernels; two products, the core, two kernels of the rotation, four of norms
MLP = 10 + 2 + 1  # beside kernels; two products and the activation function
ROUTER = 20 + 1
PREPROCESS = 20
MOE = 30 + 1 + 8  # beside kernels; the activation function and eight kernels of the routing
ACTION, PAIRED = 110, 300
GRAPHS = ["attn", "moe_router", "moe_preprocess"]


@pytest.fixture
def issued(costs: Callable[..., Workload]) -> Callable[..., float]:
    """Return a function that counts operations per layer: those of a stage of two layers at a second each."""

    def count(model: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **sizes: Any) -> float:
        workload = costs({**EXPERTS, **(model or {})}, options={"host_launch": SECOND, **(options or {})}, **sizes)
        assert workload.b_ns[1] == 2 * workload.f_ns[1]
        return (int(workload.f_ns[1]) / SECOND - ACTION) / 2

    return count


@pytest.mark.parametrize("ep", [1, 4, 16])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_host_issues_a_product_and_a_cast_per_local_expert(
    issued: Callable[..., float], ep: int, precision: str
) -> None:
    local = 16 // ep
    casts = (1 + 2 * local) * (precision == "fp8")  # of the attention's output, and of both products of experts
    exchanges = 4 * (ep > 1)

    count = issued({"precision": precision}, ep=ep, dp=16)

    # Three copies align the rows of experts.
    assert count == (
        ATTENTION + ROUTER + PREPROCESS + MOE + 2 * local + casts + 3 * (precision == "fp8") + exchanges
    )


def test_a_fused_kernel_has_the_products_of_all_experts(issued: Callable[..., float]) -> None:
    assert issued() - issued({"fused_experts": True}) == 2 * 16 - 2


def test_a_fixed_capacity_needs_no_counts_on_the_host(issued: Callable[..., float]) -> None:
    assert issued() - issued({"capacity": 1.0}) == 14 - 5


def test_a_router_without_fused_kernels_has_more_operations(issued: Callable[..., float]) -> None:
    assert issued(options={"fused_routing": False}) - issued() == 25 + 20
    assert issued(options={"fused_routing": ["permutation"]}) - issued() == 25


def test_groups_of_a_layer_add_their_collectives(issued: Callable[..., float]) -> None:
    split = {"tp": 2, "etp": 1, "dp": 2}
    assert issued(**split) - issued() == 2 * 2
    assert issued(cp=4) - issued() == 8 * 4


def test_layers_without_experts_are_issued_too(costs: Callable[..., Workload]) -> None:
    workload = costs(DENSE, options={"host_launch": SECOND})
    assert workload.f_ns[1] == (2 * (ATTENTION + MLP) + ACTION) * SECOND


@pytest.mark.parametrize(
    ("parts", "captured"),
    [
        (["attn"], ATTENTION),
        (["moe_router", "moe_preprocess"], ROUTER + PREPROCESS),
        (GRAPHS, ATTENTION + ROUTER + PREPROCESS),
        (["moe"], ROUTER + PREPROCESS + MOE + 2 * 16),
        (["mlp"], 1),
    ],
)
def test_graphs_issue_what_they_capture_at_once(
    issued: Callable[..., float], parts: list[str], captured: int
) -> None:
    assert issued() - issued(options={"cuda_graphs": parts}) == captured - 1


def test_graphs_of_mamba_issue_its_layers(issued: Callable[..., float]) -> None:
    mixer = {"mixers": ["mamba"], "mamba": {"heads": 8, "groups": 1}}
    kernels = 2 + 5 + 1 + 1 + 4  # products; the scan, the convolution and its norm; four kernels of norms
    assert issued(mixer) - issued(mixer, options={"cuda_graphs": ["mamba"]}) == 30 + kernels - 1
    assert issued(mixer) == issued(mixer, options={"cuda_graphs": ["attn"]})


def test_graphs_of_everything_leave_the_device_alone(costs: Callable[..., Workload]) -> None:
    captured = costs(EXPERTS, options={"host_launch": SECOND, "cuda_graphs": True})
    assert captured.f_ns.tolist() == costs(EXPERTS).f_ns.tolist()


def test_a_time_per_layer_takes_the_place_of_a_time_per_operation(costs: Callable[..., Workload]) -> None:
    given = {"host": 3 * SECOND, "host_action": SECOND}
    both = costs(EXPERTS, options={**given, "host_launch": 1000})
    assert both.f_ns.tolist() == costs(EXPERTS, options=given).f_ns.tolist()


def test_units_share_the_operations_of_their_action(costs: Callable[..., Workload]) -> None:
    given = {"options": {"host_launch": SECOND, "zero": 3}, "ranks": 1, "dp": 8}
    whole, units = costs(EXPERTS, stages=1, **given), costs(EXPERTS, stages=10, units=10, shard=8, **given)
    layers = units.f_ns[1:-1]

    assert whole.f_ns[0] == pytest.approx(layers.sum(), rel=1e-6)
    assert layers.tolist() == [layers[0]] * 8


@pytest.mark.parametrize("launch_ns", [2_000, 20_000, 200_000, SECOND])
def test_a_pair_lasts_as_long_as_its_host_and_no_longer(costs: Callable[..., Workload], launch_ns: int) -> None:
    sizes: dict[str, Any] = {"dp": 4, "ep": 4}
    workload = costs(EXPERTS, options={"host_launch": launch_ns, "segments": True}, **sizes)
    device = costs(EXPERTS, options={"segments": True}, **sizes)

    layer = ATTENTION + ROUTER + PREPROCESS + MOE + 2 * 4 + 4
    host_ns = 3 * (2 * layer + ACTION) * launch_ns
    members = [workload.segments[kind][1] for kind in (Kind.F, Kind.B)]
    longest = max(sum(segment.duration_ns for segment in member) for member in members)
    computed = sum(segment.duration_ns for member in members for segment in member if segment.is_computation)
    without = sum(
        segment.duration_ns for kind in (Kind.F, Kind.B) for segment in device.segments[kind][1]
        if segment.is_computation
    )  # fmt: skip
    if host_ns > without:
        assert max(computed, longest) >= host_ns - 20
    # Waits outside pairs are those of the actions: what pairs add is left out there.
    for kind, factor in ((Kind.F, 1), (Kind.B, 2)):
        alone = sum(segment.duration_ns for segment in workload.segments[kind][1] if not segment.paired)
        assert alone == workload.duration_ns(kind)[1] >= factor * (2 * layer + ACTION) * launch_ns


def test_a_member_of_a_pair_has_more_operations_in_narrow_formats_alone(costs: Callable[..., Workload]) -> None:
    options, sizes = {"host_launch": SECOND, "segments": True}, {"dp": 4, "ep": 4}

    def waits(precision: str) -> int:
        workload = costs({**EXPERTS, "precision": precision}, options=options, **sizes)
        segments = workload.segments[Kind.F][1]
        paired = sum(segment.duration_ns for segment in segments if segment.is_computation)
        alone = sum(segment.duration_ns for segment in segments if segment.is_computation and not segment.paired)
        return paired - alone

    assert waits("bf16") < SECOND
    assert waits("fp8") == pytest.approx((PAIRED - ACTION) * SECOND, abs=SECOND)


def test_modules_computed_again_stand_before_what_needs_them(costs: Callable[..., Workload]) -> None:
    again = {"recompute": "selective", "recompute_modules": ["layernorm", "mlp", "moe_act"]}
    workload = costs({**EXPERTS, **again}, options={"segments": True})
    names = [segment.name for segment in workload.segments[Kind.B][1]]

    layer = ["recompute-modules", "experts-input", "experts-weight", "recompute-modules", "attention-input"]
    assert names[:5] == layer
    dense = costs({**EXPERTS, **again, "recompute_modules": ["layernorm", "mlp"]}, options={"segments": True})
    names = [segment.name for segment in dense.segments[Kind.B][1]]
    # No MLP is in a layer with experts: only its norms are computed again.
    assert names[:4] == ["experts-input", "experts-weight", "recompute-modules", "attention-input"]
