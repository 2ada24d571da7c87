"""FLOPs agree with the closed forms of the literature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_parameters import count_parameters

from pptrace.plugins.requests import CostRequest
from pptrace_models import flops
from pptrace_models.layer import shard
from pptrace_models.transformer import Layer, Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload


def layer_flops(values: dict[str, Any], *, moe: bool = False, **sizes: Any) -> list[int]:
    model = checked(Transformer, values, "model")
    request = CostRequest(**{"ranks": 1, "stages": 1, "microbatches": 1, "sequence": 2048, **sizes})
    operations = flops.layer(model, shard(model, request), 4, Layer(feed_forward="experts" if moe else "mlp"))
    return [
        sum(getattr(operation, name).flops for operation in operations)
        for name in ("forward", "input_gradient", "weight_gradient")
    ]


@given(b=st.integers(1, 4), s=st.sampled_from([256, 1024, 4096]), heads=st.sampled_from([8, 16]))
def test_a_multi_head_layer_costs_what_zero_bubble_states(b: int, s: int, heads: int) -> None:
    h = 64 * heads
    values = {"layers": 1, "hidden": h, "heads": heads, "ffn": 4 * h, "gated": False, "vocabulary": 1000}
    values["flash_attention"] = False
    f, i, w = layer_flops(values, micro=b, sequence=s)
    assert f == s * b * h * (24 * h + 4 * s)
    assert i == s * b * h * (24 * h + 8 * s)
    assert w == 24 * s * b * h * h


def test_flash_attention_skips_the_masked_half(classic: dict[str, Any]) -> None:
    s, h = 2048, 1024
    assert layer_flops(classic | {"flash_attention": True})[0] == s * h * (24 * h + 2 * s)
    assert layer_flops(classic | {"flash_attention": True, "causal": False})[0] == s * h * (24 * h + 4 * s)


def test_grouped_heads_and_gating_change_the_matrices(classic: dict[str, Any]) -> None:
    s, h, f = 2048, 1024, 4096
    model = classic | {"kv_heads": 4, "gated": True}
    assert layer_flops(model)[2] == 2 * s * (h * (h + 2 * h // 4) + h * h + 3 * h * f)


def test_the_weight_gradient_has_no_attention_core(classic: dict[str, Any]) -> None:
    short, long = layer_flops(classic, sequence=1024, micro=2), layer_flops(classic, sequence=2048, micro=1)
    assert short[2] == long[2]
    assert short[0] < long[0]


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"tp": 8}, {"cp": 4}, {"tp": 4, "cp": 2}])
def test_tensor_and_context_parallelism_split_the_flops_evenly(
    classic: dict[str, Any], sizes: dict[str, Any]
) -> None:
    devices = sizes.get("tp", 1) * sizes.get("cp", 1)
    assert [devices * share for share in layer_flops(classic, **sizes)] == layer_flops(classic)


def test_experts_cost_what_their_tokens_cost_wherever_they_are(classic: dict[str, Any]) -> None:
    moe = classic | {"num_experts": 8, "top_k": 2, "expert_ffn": 2048}
    s, h = 2048, 1024
    dense, routed = layer_flops(classic), layer_flops(moe, moe=True)
    assert routed[2] - dense[2] == 2 * s * h * (8 + 2 * 2 * 2048 - 2 * 4096)
    assert layer_flops(moe, moe=True, dp=4, ep=4) == routed


def test_the_embeddings_gradient_is_written_and_added_for_all_words(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    words = 32_000
    moved = words * 1024 * (2 + 2 + 2 * 4)  # written and read in BF16, and added to a sum in FP32
    rate = devices["h100-sxm"]["memory_bandwidth"] * 0.8 / 1e9

    added_ns = costs({"vocabulary": 2 * words}).i_ns[0] - costs({"vocabulary": words}).i_ns[0]

    assert added_ns == pytest.approx(moved / rate, abs=2)


def test_step_flops_are_thrice_the_forward_with_a_halved_causal_core(classic: dict[str, Any]) -> None:
    model = checked(Transformer, classic, "model")
    s, h, v, layers = 2048, 1024, 32000, 8
    forward = layers * s * h * (24 * h + 2 * s) + 2 * s * h * v
    assert flops.step_flops(model, 5, s) == 3 * 5 * forward


def test_step_flops_are_near_six_per_parameter_and_token() -> None:
    values = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocabulary": 128256}
    model = checked(Transformer, values, "model")
    multiplied = count_parameters(model) - model.hidden * model.vocabulary
    assert flops.step_flops(model, 1, 128) == pytest.approx(6 * 128 * multiplied, rel=0.01)


def test_recomputation_does_not_change_the_model_flops(costs: Callable[..., Workload]) -> None:
    none = costs()
    for recompute in ("selective", "full"):
        assert costs({"recompute": recompute}).model_flops == none.model_flops


def test_two_implementations_of_the_step_agree(classic: dict[str, Any]) -> None:
    # The step's own sum against the operations of one device, without flash halving on either side.
    values = classic | {"causal": False, "num_experts": 4, "top_k": 2, "expert_ffn": 512, "moe_every": 2}
    model = checked(Transformer, values, "model")
    part = shard(model, CostRequest(ranks=1, stages=1, microbatches=1, sequence=1024))
    per_layer = [sum(layer_flops(values, moe=moe, sequence=1024)) for moe in (False, True)]
    head = sum(
        work.flops
        for operation in flops.head(model, part, 4, fused_loss=False)
        for work in (operation.forward, operation.input_gradient, operation.weight_gradient)
    )
    assert flops.step_flops(model, 1, 1024) == 4 * per_layer[0] + 4 * per_layer[1] + head


UNFUSED = dict.fromkeys(("fused_activation", "fused_norms", "fused_projections", "fused_rotary"), False)


def test_separate_kernels_move_more_bytes_for_the_same_products(classic: dict[str, Any]) -> None:
    s, h, f, kv = 2048, 1024, 4096, 256
    model = classic | {"gated": True, "flash_attention": True, "kv_heads": 4}

    def moved(**changed: Any) -> list[int]:
        part = checked(Transformer, model | changed, "model")
        request = CostRequest(ranks=1, stages=1, microbatches=1, sequence=s)
        operations = flops.layer(part, shard(part, request), 4, Layer())
        return [
            sum(work.size_bytes + (0 if work.products else work.beside_bytes) for work in passes)
            for passes in zip(*((each.forward, each.input_gradient) for each in operations), strict=True)
        ]

    forward, backward = moved()
    assert layer_flops(model) == layer_flops(model | UNFUSED)
    # silu and its product with the gate; backward also the concatenation of both halves.
    assert moved(fused_activation=False) == [forward + 2 * 2 * s * f, backward + 8 * 2 * s * f]
    # Per norm, 36 in place of 4 bytes, and 76 in place of 6 in the backward.
    assert moved(fused_norms=False) == [forward + 2 * s * h * 32, backward + 2 * s * h * 70]
    # fp32 copies before and after the rotation.
    assert moved(fused_rotary=False) == [forward + 16 * s * (h + kv), backward + 16 * s * (h + kv)]
    # The input is read by five products, not two; the sums read five input gradients and write two. Queries and
    # values are not copied out of a common result, and three gradients not concatenated.
    again, split, joined = 2 * s * h * 3, 2 * 2 * s * (h + kv), 2 * 2 * s * (h + 2 * kv)
    assert moved(fused_projections=False) == [forward + again - split, backward + again + 2 * s * h * 7 - joined]
    # Only the MLP's two inputs are separate: one product more, and a sum of two input gradients.
    separate = moved(fused_projections="attention")
    assert separate == [forward + 2 * s * h, backward + 2 * s * h * 4]
    # All three copied, keys and values joined and transposed; backward: joined, all three joined and transposed.
    both, whole = 2 * 2 * s * 2 * kv, 2 * 2 * s * (h + 2 * kv)
    assert moved(copied_kv=True) == [forward - split + whole + 2 * both, backward - joined + both + 2 * whole]


def test_pytorchs_collectives_copy_the_sequences_of_a_microbatch(costs: Callable[..., Workload]) -> None:
    def forward(**changed: Any) -> list[int]:
        options = {"kernels": "shapes", "sequence_first": False} | changed.pop("options", {})
        return costs(options=options, **{"tp": 4, "sequence_parallel": True, "micro": 2, **changed}).f_ns.tolist()

    first = {"options": {"sequence_first": True}}
    # Gather and reduce-scatter of both halves, each with one read and one write, at 0.8 of 3.35 TB/s after 5 us.
    layer_ns = 4 * (2 * 2 * (2 * 2048) * 1024 / (0.8 * 3350) + 5000)
    assert forward()[1] - forward(**first)[1] == pytest.approx(2 * layer_ns, rel=1e-3)
    for sizes in ({"micro": 1}, {"tp": 1, "sequence_parallel": False}):
        assert forward(**sizes) == forward(**sizes, **first)


def test_fsdp_copies_weights_after_both_gathers_and_gradients_before_their_reduction(
    costs: Callable[..., Workload],
) -> None:
    def times(**options: Any) -> list[int]:
        sizes = {"ranks": 1, "stages": 10, "units": 10, "dp": 8, "shard": 8}
        workload = costs({"dropout": False}, options={"kernels": "shapes", "zero": 3, **options}, **sizes)
        return [workload.f_ns.tolist()[5], workload.b_ns.tolist()[5]]

    weights, rate = 12 * 1024 * 1024, 0.8 * 3350
    copies = [2 * 2 * weights / rate + 5000, (2 * 2 + 2 + 4) * weights / rate + 10000]
    longer = [after - before for before, after in zip(times(), times(copied_shards=True), strict=True)]
    assert longer == pytest.approx(copies, abs=2)
    assert times(copied_shards=True, zero=2) == times(zero=2)
