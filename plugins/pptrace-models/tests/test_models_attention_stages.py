"""Stages of core attention: what the parts of a layer compute, keep, hold and send, beside whole layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugin import ConfigError, ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

LAYERS, TOKENS = 4, 8192
DENSE = {
    "layers": LAYERS, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 32000, "gated": True,
    "flash_attention": True, "dropout": False,
}  # fmt: skip
EXPERTS = {**DENSE, "num_experts": 8, "top_k": 2, "expert_ffn": 14336}
LATENT = {
    **EXPERTS, "kv_heads": None, "kv_rank": 512, "query_rank": 1536, "rope_dim": 64, "head_dim": 128,
    "shared_ffn": 2048,
}  # fmt: skip
MORE_LAUNCHES_NS = 3 * LAYERS * 5000
"""Launches of attention's products, which are two groups of kernels in each pass in place of one."""
SIZES: dict[str, Any] = {"sequence": TOKENS, "tp": 2, "sequence_parallel": True}
CASES = [
    (DENSE, {}), (DENSE, {"options": {"kernels": "shapes"}}), (DENSE, {"cp": 2}),
    (EXPERTS, {"dp": 2, "ep": 2}), (LATENT, {"dp": 2, "ep": 2, "options": {"kernels": "shapes"}}),
    ({**DENSE, "precision": "fp8"}, {"options": {"kernels": "shapes"}}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "sizes"), CASES)
def test_parts_of_layers_sum_to_whole_layers(
    costs: Callable[..., Workload], model: dict[str, Any], sizes: dict[str, Any]
) -> None:
    whole, parts = (costs(model=model, stages=count, **SIZES, **sizes) for count in (LAYERS, 2 * LAYERS + 1))

    for name in ("f_collective_ns", "b_collective_ns", "weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(parts, name).sum() == getattr(whole, name).sum(), name
    for name in ("f_ns", "b_ns", "i_ns", "w_ns"):
        assert getattr(parts, name).sum() == pytest.approx(getattr(whole, name).sum(), abs=MORE_LAUNCHES_NS), name
    assert parts.model_flops == whole.model_flops
    # Output of core attention is kept twice: by its kernel, and by the product on another rank.
    output_bytes = TOKENS // sizes.get("cp", 1) // 2 * LAYERS * 2 * parts_width(model)
    is_cast = model.get("precision") == "fp8"
    assert parts.activation_bytes.sum() - whole.activation_bytes.sum() == output_bytes * (not is_cast)
    assert 0 < parts.weight_activation_bytes.sum() <= whole.weight_activation_bytes.sum()


def parts_width(model: dict[str, Any]) -> int:
    """Return the width of attention's output."""
    return int(model["heads"] * model.get("head_dim", model["hidden"] // model["heads"]))


def test_core_attention_has_no_weights(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 10**7, "latency_ns": 1000}
    parts = costs(model=DENSE, stages=2 * LAYERS + 1, dp=4, data_parallel=network, **SIZES)

    cores = slice(1, None, 2)
    for name in (
        "w_ns", "static_bytes", "reduce_ns", "optimizer_ns", "weight_activation_bytes", "f_collective_ns",
    ):  # fmt: skip
        assert not getattr(parts, name)[cores].any(), name
    assert parts.f_ns[1] > 0
    assert (parts.f_ns[cores] == parts.f_ns[1]).all()
    assert (parts.reduce_ns[::2] > 0).all()


def test_messages_have_what_core_attention_reads_and_writes_beside_the_residual(
    costs: Callable[..., Workload],
) -> None:
    parts = costs(model=DENSE, stages=2 * LAYERS + 1, **SIZES)

    residual = TOKENS * 4096 * 2 // 2
    query, keys_values = TOKENS * 4096 * 2 // 2, 2 * TOKENS * 8 * 128 * 2 // 2
    assert parts.boundary_bytes.tolist() == [residual + query + keys_values, residual + query] * LAYERS
    assert parts.checkpoint_bytes[1:].tolist() == [residual + query + keys_values, residual + query] * LAYERS
    assert parts.buffer_bytes[0].tolist() == [*parts.boundary_bytes[:2], *[0] * (2 * LAYERS - 2)]


def test_loads_of_experts_are_those_of_their_layers(costs: Callable[..., Workload]) -> None:
    loaded = {**EXPERTS, "dense_layers": 1, "expert_load": {"name": "zipf"}}
    sizes = {**SIZES, "dp": 4, "ep": 4}
    whole, parts = (costs(model=loaded, stages=count, **sizes) for count in (LAYERS, 2 * LAYERS + 1))

    assert parts.f_ns.sum() == pytest.approx(whole.f_ns.sum(), abs=MORE_LAUNCHES_NS)
    assert parts.f_ns[6] - parts.f_ns[4] == whole.f_ns[2] - whole.f_ns[1] != 0


@pytest.mark.parametrize(("model", "stages"), [
    ({"layers": 1}, 3),
    ({"layers": 3, "layout": "E|t||t||t|L"}, 7),
    ({"layers": 2, "layers_per_stage": [1, 0, 0, 1, 0]}, 5),
    ({"layers": 2, "encoder": {"layers": 6, "hidden": 64, "heads": 2, "ffn": 64, "tokens": 16, "stages": 3}}, 5),
])  # fmt: skip
def test_stages_of_whole_layers_can_be_as_many(
    costs: Callable[..., Workload], model: dict[str, Any], stages: int
) -> None:
    """With these numbers of stages, attention is in the stages of its layers, and messages are residuals."""
    workload = costs(model={**DENSE, **model}, stages=stages, sequence=TOKENS)

    assert (workload.boundary_bytes[-1:] == TOKENS * 4096 * 2).all()
    assert not any("attention of each layer is a stage" in note for note in workload.notes)


def test_equal_numbers_of_stages_on_ranks_need_as_many_layers(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConstraintError, match="9 stages are more than"):
        costs(model=DENSE, ranks=3, stages=2 * LAYERS + 1, sequence=TOKENS)


@pytest.mark.parametrize(("change", "key"), [
    ({"model": {**DENSE, "mtp": 1}}, "model.mtp"),
    ({"model": {**DENSE, "layers_per_stage": [1] * LAYERS}}, "model.layers_per_stage"),
    ({"model": {**DENSE, "recompute": "full"}}, "model.recompute"),
    ({"model": {**DENSE, "recompute": "selective", "recompute_modules": ["full_attn"]}}, "model.recompute"),
    ({"options": {"segments": True}}, "costs.segments"),
    ({"options": {"overlap_tp": True}}, "costs.overlap_tp"),
])  # fmt: skip
def test_what_stages_of_core_attention_lack_is_refused(
    costs: Callable[..., Workload], change: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as error:
        costs(**{"model": DENSE, "stages": 2 * LAYERS + 1, **SIZES, **change})

    assert error.value.key == key
