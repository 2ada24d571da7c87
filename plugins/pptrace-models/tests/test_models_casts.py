"""Casts of each recipe have the bytes and kernels of their closed forms; gathers and hosts follow."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace_models.casts import OPERAND_BYTES, Casting
from pptrace_models.layer import Cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.plugin import Workload

COUNTS = st.integers(1, 10**9)
RECIPES: list[dict[str, Any]] = [
    {"precision": "fp8", "recipe": "delayed"},
    {"precision": "fp8", "recipe": "tensorwise"},
    {"precision": "fp8", "recipe": "blockwise"},
    {"precision": "mxfp8"},
    {"precision": "nvfp4"},
]
SHAPES = {"kernels": "shapes"}


def casting(recipe: int, **values: Any) -> Casting:
    return Casting(**(RECIPES[recipe] | values))


@pytest.mark.parametrize(
    ("recipe", "transposed", "any_layout", "kernels"),
    [
        (0, 2 + 1 + 1, 2 + 1, 1),
        (1, 2 * 2 + 1 + 1, 2 * 2 + 1, 4),
        (2, 2 + 1 + 1, 2 + 1 + 1, 1),
        (3, 2 + Fraction(66, 32), 2 + Fraction(66, 32), 1),
        (4, 3 * 2 + Fraction(18, 16), 3 * 2 + Fraction(18, 16), 3),
    ],
)
@given(count=COUNTS)
def test_a_cast_reads_bf16_and_writes_a_copy_and_what_the_device_cannot_multiply_transposed(
    recipe: int, transposed: Fraction, any_layout: Fraction, kernels: int, count: int
) -> None:
    cast = Cast(elements=count)

    assert casting(recipe, transposes=True).work(cast) == (pytest.approx(float(transposed * count)), kernels)
    assert casting(recipe, transposes=False).work(cast) == (pytest.approx(float(any_layout * count)), kernels)


@given(count=COUNTS)
def test_a_norm_casts_with_a_known_scale_and_saves_one_read_of_current_scaling(count: int) -> None:
    normed = Cast(elements=count, normed=True)

    assert casting(0, transposes=False).work(normed) == (0, 0)
    assert casting(0, transposes=True).work(normed) == (2 * count, 1)
    assert casting(1, transposes=False).work(normed) == (3 * count, 2)
    for recipe in (2, 3, 4):
        assert casting(recipe).work(normed) == casting(recipe).work(Cast(elements=count))


@given(count=COUNTS, devices=st.integers(2, 16))
def test_a_gathered_factor_is_transposed_whole(count: int, devices: int) -> None:
    gathered = Cast(elements=count, gathered=devices * count)

    assert casting(0).work(gathered) == ((2 + 1 + 2 * devices) * count, 2)
    assert casting(1).work(gathered) == ((4 + 1 + 2 * devices) * count, 5)
    assert casting(3).work(gathered) == casting(3).work(Cast(elements=count))


@given(count=COUNTS, tensors=st.integers(1, 64))
def test_kernels_cast_one_expert_each_unless_they_take_a_list_of_tensors(count: int, tensors: int) -> None:
    for recipe, kernels in enumerate((1, 4 * tensors, tensors, tensors, 3)):
        moved, _ = casting(recipe).work(Cast(elements=count))
        assert casting(recipe).work(Cast(elements=count, tensors=tensors)) == (moved, kernels)


@given(count=COUNTS)
def test_other_precisions_cast_nothing(count: int) -> None:
    for precision in ("bf16", "fp16", "fp32"):
        assert Casting(precision=precision).work(Cast(elements=count)) == (0, 0)


def test_devices_gather_one_copy_of_inputs_and_both_of_gradients_that_blocks_scale() -> None:
    for recipe, copies in enumerate((1, 1, 2, 2, 2)):
        element = OPERAND_BYTES[casting(recipe).precision]
        assert casting(recipe).gathered_bytes(gradient=False) == element
        assert casting(recipe).gathered_bytes(gradient=True) == copies * element
    assert Casting(precision="bf16").gathered_bytes(gradient=True) == 2


def test_tensor_parallel_gathers_in_fp8_move_half_of_the_bytes(costs: Callable[..., Workload]) -> None:
    bf16, fp8 = (
        costs({"precision": precision}, tp=2, sequence_parallel=True, options={"zero": 1}).f_collective_ns[1]
        for precision in ("bf16", "fp8")
    )
    sums = costs({"precision": "bf16"}, tp=2, options={"zero": 1}).f_collective_ns[1]
    gathers = 2 * bf16 - sums  # an all-reduce is a gather and a sum of the same size

    assert 0 < bf16 - fp8 < gathers


@pytest.mark.parametrize("recipes", [("delayed", "tensorwise"), ("delayed", "blockwise")])
def test_recipes_that_read_or_write_more_take_longer(
    costs: Callable[..., Workload], recipes: tuple[str, str]
) -> None:
    fast, slow = (
        costs({"precision": "fp8"}, options={**SHAPES, "fp8_recipe": recipe}).f_ns[1] for recipe in recipes
    )

    assert fast < slow


@pytest.mark.parametrize(
    ("device", "recipe", "gather", "size_bytes"),
    [
        ("h100-sxm", "delayed", False, 4), ("h100-sxm", "tensorwise", False, 6), ("h100-sxm", "delayed", True, 2),
        ("b200", "delayed", False, 3), ("b200", "delayed", True, 0),
    ],
)  # fmt: skip
def test_weights_are_cast_once_per_step(
    costs: Callable[..., Workload], *, device: str, recipe: str, gather: bool, size_bytes: int
) -> None:
    options = {**SHAPES, "zero": 1, "fp8_recipe": recipe, "fp8_param_gather": gather}
    bf16, fp8 = (costs({"precision": precision}, device, options=options) for precision in ("bf16", "fp8"))
    rate = {"h100-sxm": 3350, "b200": 7700}[device] * 0.8
    weights = int(fp8.weights_bytes[1]) // 2

    added = int(fp8.optimizer_ns[1]) - int(bf16.optimizer_ns[1])
    assert added == pytest.approx(size_bytes * weights / rate, abs=2)


@pytest.mark.parametrize(
    ("device", "precision", "gather", "size_bytes"),
    [
        ("h100-sxm", "bf16", False, 0), ("h100-sxm", "fp8", False, 2), ("h100-sxm", "fp8", True, 0),
        ("b200", "fp8", False, 1), ("b200", "fp8", True, -1), ("b200", "mxfp8", False, 33 / 16),
        ("b200", "mxfp8", True, 1 / 16), ("b200", "nvfp4", False, 9 / 8),
    ],
)  # fmt: skip
def test_microbatches_share_cast_weights_in_memory(
    costs: Callable[..., Workload], classic: dict[str, Any], *, device: str, precision: str, gather: bool,
    size_bytes: float,
) -> None:  # fmt: skip
    options = {**SHAPES, "zero": 1, "fp8_param_gather": gather}
    casts, kept = (
        costs({"precision": precision}, device, options={**options, "kept_casts": is_kept})
        for is_kept in (False, True)
    )
    matrices = classic["layers"] // casts.stages * 12 * classic["hidden"] ** 2

    added = (kept.weights_bytes - casts.weights_bytes).tolist()
    assert added == [round(matrices * size_bytes)] * casts.stages


def test_weights_gathered_in_fp8_take_half_of_the_time_of_bf16(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 10**7, "latency_ns": 0}

    def reduce_ns(precision: str, *, gather: bool) -> int:
        options = {"zero": 1, "gradients": "bf16", "fp8_param_gather": gather}
        values = {"precision": precision}
        return int(costs(values, dp=4, data_parallel=network, options=options).reduce_ns[1])

    assert reduce_ns("fp8", gather=True) == pytest.approx(0.75 * reduce_ns("fp8", gather=False), rel=1e-6)
    assert reduce_ns("bf16", gather=True) == reduce_ns("bf16", gather=False)


def test_a_host_that_issues_kernels_bounds_a_dense_layer_by_their_number(costs: Callable[..., Workload]) -> None:
    model = {"dropout": False, "flash_attention": True, "learned_positions": 1}

    def per_layer(precision: str, **more: Any) -> int:
        options = {**SHAPES, "host_kernel": 10**9, **more.pop("options", {})}
        workload = costs(model | {"precision": precision}, options=options, **more)
        assert int(workload.b_ns[1]) == 2 * int(workload.f_ns[1])
        return int(workload.f_ns[1]) // 2 // 10**9

    products, core, activation, norms = 4, 1, 1, 4
    computed = products + core + activation + norms
    assert per_layer("bf16") == computed
    assert per_layer("fp8") == computed + 2 + 2  # casts after attention and activation, transposes after norms
    assert per_layer("bf16", tp=2) == computed + 2
    assert per_layer("bf16", tp=2, sequence_parallel=True) == computed + 4


def test_cuda_graphs_issue_the_kernels_of_dense_layers(costs: Callable[..., Workload]) -> None:
    free = costs({}, options=SHAPES)
    captured = costs({}, options={**SHAPES, "host_kernel": 10**9, "cuda_graphs": True})

    assert list(captured.f_ns) == list(free.f_ns)


@pytest.mark.parametrize("kernels", ["shapes", "groups"])
def test_layers_in_bf16_cost_what_they_cost_in_a_bf16_model(costs: Callable[..., Workload], kernels: str) -> None:
    options: dict[str, Any] = {"kernels": kernels, "host_launch": 20_000, "fused_routing": False}
    experts = {"num_experts": 8, "top_k": 2, "dense_layers": 1, "layers": 8}
    sizes: dict[str, Any] = {"ep": 4, "tp": 2, "etp": 1, "dp": 2, "sequence_parallel": True, "options": options}

    def build(**model: Any) -> Workload:
        return costs({**experts, **model}, "b200", **sizes)

    whole, narrow = build(precision="bf16"), build(precision="nvfp4")
    mixed = build(precision="nvfp4", first_bf16_layers=2, last_bf16_layers=4)

    for name in ("f_ns", "i_ns", "w_ns", "activation_bytes"):
        of_stages = getattr(mixed, name)
        assert of_stages[[0, 2, 3]].tolist() == getattr(whole, name)[[0, 2, 3]].tolist(), name
        assert of_stages[1] == getattr(narrow, name)[1] != getattr(whole, name)[1], name


def test_products_have_precisions_of_their_own(costs: Callable[..., Workload]) -> None:
    model: dict[str, Any] = {
        "layers": 4, "hybrid_pattern": "M*EE", "mamba": {"heads": 16}, "num_experts": 8, "top_k": 2,
        "expert_latent": 256, "mtp": 1, "precision": "nvfp4",
    }  # fmt: skip

    def stages(**precisions: str) -> list[int]:
        workload = costs({**model, "product_precisions": precisions}, "b200", options=SHAPES)
        return (workload.f_ns + workload.b_ns).tolist()

    plain = stages()
    changes = {"mamba_output": [0], "attention": [1, 3], "latent": [2, 3], "mtp": [3], "head": [3]}
    for name, changed in changes.items():
        found = [
            stage for stage, (a, b) in enumerate(zip(plain, stages(**{name: "mxfp8"}), strict=True)) if a != b
        ]
        assert found == changed, name


def test_an_unfused_router_reads_and_writes_its_scores_again(costs: Callable[..., Workload]) -> None:
    def stage(*, fused: bool) -> Workload:
        return costs({"num_experts": 64, "top_k": 2}, options={**SHAPES, "fused_routing": fused})

    unfused, whole = stage(fused=False), stage(fused=True)

    layers, scores, rate, launch = 2, 2048 * 64, 3.35e3 * 0.8, 5_000  # bytes per ns; ns
    assert unfused.f_ns[1] - whole.f_ns[1] == pytest.approx(
        layers * (25 * launch + 59 * scores / rate), abs=layers
    )
    assert unfused.i_ns[1] - whole.i_ns[1] == pytest.approx(
        layers * (11 * launch + 32 * scores / rate), abs=layers
    )
    assert (unfused.w_ns == whole.w_ns).all()
