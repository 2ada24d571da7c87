"""Activation bytes agree with the closed forms of the literature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.plugins.requests import CostRequest
from pptrace.steps.kinds import Kind
from pptrace_models import memory
from pptrace_models.layer import shard
from pptrace_models.transformer import Layer, Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload


def kept(values: dict[str, Any], *, moe: bool = False, **sizes: Any) -> memory.ActivationBytes:
    model = checked(Transformer, values, "model")
    request = CostRequest(**{"ranks": 1, "stages": 1, "microbatches": 1, "sequence": 2048, **sizes})
    return memory.layer_activations(model, shard(model, request), Layer(feed_forward="experts" if moe else "mlp"))


@given(
    b=st.integers(1, 4),
    s=st.sampled_from([128, 512, 2048]),
    a=st.sampled_from([8, 16]),
    tp=st.sampled_from([1, 2, 8]),
)
def test_a_classic_layer_keeps_34sbh_and_5as2b(b: int, s: int, a: int, tp: int) -> None:
    h = 64 * a
    values = {"layers": 1, "hidden": h, "heads": a, "ffn": 4 * h, "gated": False, "vocabulary": 1000}
    values |= {"dropout": True, "flash_attention": False}
    sizes = {"micro": b, "sequence": s, "tp": tp}
    assert kept(values, **sizes).activation == s * b * (10 * h + (24 * h + 5 * a * s) // tp)
    sizes["sequence_parallel"] = True
    assert kept(values, **sizes).activation == s * b * (34 * h + 5 * a * s) // tp
    selective = values | {"recompute": "selective"}
    assert kept(selective, **sizes).activation == 34 * s * b * h // tp
    assert kept(selective, **sizes).transient == 5 * a * s * s * b // tp
    full = kept(values | {"recompute": "full"}, micro=b, sequence=s)
    assert full.activation == 2 * s * b * h
    assert full.transient == s * b * (32 * h + 5 * a * s)


def test_the_weight_gradient_keeps_32sbh(classic: dict[str, Any]) -> None:
    s, h = 2048, 1024
    assert kept(classic).weight_part == 32 * s * h
    assert kept(classic, tp=4, sequence_parallel=True).weight_part == 32 * s * h // 4
    assert kept(classic, tp=4).weight_part == s * h * (8 + 24 // 4)


def test_an_activation_function_of_its_own_keeps_one_more_of_a_gated_mlp(classic: dict[str, Any]) -> None:
    apart = {"fused_activation": False}
    more = kept(classic | apart | {"gated": True}).activation - kept(classic | {"gated": True}).activation

    assert more == 2048 * classic["ffn"] * 2
    assert kept(classic | apart) == kept(classic)


def test_an_activation_function_computed_again_leaves_what_it_reads(
    classic: dict[str, Any],
) -> None:
    again = {"recompute": "selective", "recompute_modules": ["mlp_act"], "flash_attention": True}
    width = 2048 * classic["ffn"] * 2
    for gated, fused, freed in ((False, True, 1), (True, True, 1), (True, False, 2)):
        model = classic | {"gated": gated, "fused_activation": fused, "flash_attention": True}
        result = kept(model | again)
        assert kept(model).activation - result.activation == result.transient == freed * width
    with_all = again | {"recompute_modules": ["mlp", "mlp_act"]}
    assert kept(classic | with_all) == kept(classic | again | {"recompute_modules": ["mlp"]})


@pytest.mark.parametrize("modules", [[], ["mlp_act"], ["moe_act"]])
@pytest.mark.parametrize("moe", [False, True])
def test_an_activation_function_keeps_its_inputs_in_fp8(
    classic: dict[str, Any], modules: list[str], *, moe: bool
) -> None:
    values = classic | {"gated": True, "num_experts": 8, "top_k": 2}
    values |= {"recompute": "selective", "recompute_modules": modules} if modules else {}
    less = kept(values, moe=moe).activation - kept(values | {"fp8_activation_inputs": True}, moe=moe).activation
    assert less == (1 + moe) * 2048 * 2 * 4096  # tokens, each to two experts; gate and input; inner width


def test_flash_attention_keeps_no_scores(classic: dict[str, Any]) -> None:
    assert kept(classic | {"flash_attention": True}).activation == 34 * 2048 * 1024


def test_context_parallelism_divides_what_is_kept(classic: dict[str, Any]) -> None:
    assert kept(classic, cp=4).activation * 4 == kept(classic).activation


def test_a_llama_layer_keeps_exactly_what_its_weight_gradient_needs() -> None:
    values = {"layers": 1, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 128256}
    layer = kept(values)
    assert layer.activation == 2 * 2048 * (4 * 4096 + 2 * (4096 + 1024) + 3 * 14336) == layer.weight_part


def test_more_experts_per_token_keep_more(classic: dict[str, Any]) -> None:
    moe = classic | {"num_experts": 8, "expert_ffn": 1024}
    one, two = kept(moe | {"top_k": 1}, moe=True), kept(moe | {"top_k": 2}, moe=True)
    assert two.activation - one.activation == 2 * 2048 * (1024 + 2 * 1024)
    assert one.weight_part <= one.activation


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8", "fp32"])
def test_the_weight_part_never_passes_the_whole_unless_the_layer_is_computed_again(
    classic: dict[str, Any], precision: str
) -> None:
    for flash in (True, False):
        for tp in (1, 2):
            layer = kept(classic | {"precision": precision, "flash_attention": flash, "dropout": False}, tp=tp)
            assert 0 < layer.weight_part <= layer.activation
            assert layer.transient == 0


def test_the_last_stage_keeps_fp32_logits(costs: Callable[..., Workload]) -> None:
    workload = costs(tp=2, sequence_parallel=True)
    rows, logits = 2 * 2048 * 1024 * 2 // 2, 4 * 2048 * 32000 // 2
    assert workload.activation_bytes[3] - workload.activation_bytes[1] == rows + logits
    assert workload.activation_bytes[0] - workload.activation_bytes[1] == 2048 * 1024 // 2  # a dropout mask


@pytest.mark.parametrize(("precision", "numerator"), [("fp8", 32), ("mxfp8", 33), ("nvfp4", 18)])
def test_a_narrow_product_keeps_its_cast_input(precision: str, numerator: int) -> None:
    values = {"layers": 1, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 128256}
    cast = 2 * 4096 + 4096 + 14336  # both norms' outputs, that of attention and that of the activation function
    uncast = 2 * 4096 + 2 * (4096 + 1024) + 2 * 14336  # norms' inputs, attention, the activation function's inputs
    layer = kept({**values, "precision": precision})
    assert layer.activation == 2048 * (2 * uncast + cast * numerator // 32)
    assert kept(values).activation == 2048 * 2 * (uncast + cast - 4096)  # attention's output is one tensor


def test_narrow_experts_keep_their_cast_inputs_and_a_router_what_norms_return(classic: dict[str, Any]) -> None:
    moe = classic | {"num_experts": 8, "expert_ffn": 1024, "top_k": 2, "flash_attention": True}
    both = [kept(moe | extra, moe=True).activation for extra in ({}, {"precision": "fp8"})]
    routed = 2 * 2048 * (1024 + 1024)  # inputs of both products of each expert
    attention = 2048 * 1024  # the first norm's output; attention's own output is kept in both precisions
    assert both[0] - both[1] == routed + attention - 2048 * 1024
    frozen_shared = moe | {"shared_ffn": 512, "precision": "fp8"}
    more = kept(frozen_shared, moe=True).activation - both[1]
    assert more == 2048 * (2 * 512 + 512 + 1024)  # inner tensors, and the cast input of the shared experts


def test_a_norm_without_a_fused_kernel_keeps_its_input_in_fp32_and_its_unscaled_output(
    classic: dict[str, Any],
) -> None:
    s, h, apart = 2048, 1024, {"fused_norms": False}
    norms = {"recompute": "selective", "recompute_modules": ["layernorm"]}

    assert kept(classic | apart).activation - kept(classic).activation == 2 * s * h * (4 + 2)
    assert kept(classic | apart | norms).activation == kept(classic | norms).activation


LLAMA = {"gated": True, "dropout": False, "flash_attention": True, "kv_heads": 4}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("compiled", [True, False])
def test_alternate_products_are_all_but_the_core_and_every_other_product(
    classic: dict[str, Any], tp: int, *, compiled: bool
) -> None:
    s, h, f, kv = 2048, 1024, 4096, 256
    again = {"recompute": "selective", "recompute_modules": ["alternate_products"]}
    values = classic | LLAMA | {"fused_activation": compiled}

    # torchtitan keeps a layer's input, and the results of wq, wv, the core and w1, and w2 unless compiled: the
    # second, fourth and sixth of its products (wk, wo and w3) are recomputed.
    whole, part = (kept(values | more, tp=tp, sequence_parallel=tp > 1) for more in ({}, again))
    assert part.activation == 2 * s * ((1 if compiled else 2) * h + h + kv + h + f) // tp
    assert part.activation + part.transient == whole.activation


def test_alternate_products_are_recomputed_in_the_input_gradient(costs: Callable[..., Workload]) -> None:
    again = {"recompute": "selective", "recompute_modules": ["alternate_products"]}
    plain, workload = costs(LLAMA), costs(LLAMA | again)
    rows = {row.name: row for row in plain.kernels() if (row.stage, row.kind) == (1, Kind.F)}
    projections, mlp = (rows[name].duration_ns // 2 for name in ("attention projections", "mlp"))
    memory_bound = rows["activation function"].duration_ns + 0.4 * rows["norms and residuals"].duration_ns
    # wk and wo have (256 + 1024) of the 2560 columns of attention's matrices, and w3 is one of three.
    layers = 2 * (projections * 1280 // 2560 + mlp // 3) + memory_bound

    assert workload.i_ns[1] - plain.i_ns[1] == pytest.approx(layers, rel=1e-5)
    assert (workload.f_ns == plain.f_ns).all()
