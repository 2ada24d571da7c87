"""Weights, gradients and optimizer state are conserved over every split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_parameters import count_parameters

from pptrace.plugin import ConfigError
from pptrace.plugins.requests import CostRequest
from pptrace_models.roofline import build
from pptrace_models.transformer import Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

GIB = 2**30
DEVICE = {"peak_bf16": 10**15, "memory": 80 * GIB, "memory_bandwidth": 10**12, "scale_up_bandwidth": 10**11}


def test_stages_hold_every_parameter_once(costs: Callable[..., Workload], classic: dict[str, Any]) -> None:
    for extra in ({}, {"bias": True, "learned_positions": 512}, {"gated": True, "kv_heads": 4}):
        parameters = count_parameters(checked(Transformer, classic | extra, "model"))
        workload = costs(extra)
        assert workload.weights_bytes.sum() == 2 * parameters
        assert workload.gradients_bytes.sum() == 4 * parameters
        assert workload.optimizer_bytes.sum() == 12 * parameters


def test_a_tied_embedding_is_held_twice_only_on_two_stages(
    costs: Callable[..., Workload], classic: dict[str, Any]
) -> None:
    tied = {"tied_embeddings": True}
    parameters = count_parameters(checked(Transformer, classic | tied, "model"))
    assert costs(tied, ranks=1, stages=1).weights_bytes.sum() == 2 * parameters
    assert costs(tied).weights_bytes.sum() == 2 * (parameters + 32000 * 1024)


@given(
    tp=st.sampled_from([1, 2, 4, 8]), moe=st.booleans(), ep=st.sampled_from([1, 2, 4]), stages=st.integers(1, 8)
)
def test_tensor_and_expert_parallel_shares_sum_to_the_model(*, tp: int, moe: bool, ep: int, stages: int) -> None:
    h, layers, experts = 512, 8, 4
    values = {"layers": layers, "hidden": h, "heads": 8, "ffn": 2048, "vocabulary": 4096}
    values |= {"num_experts": experts, "top_k": 2, "moe_every": 2} if moe else {}
    ep = ep if moe else 1
    request = CostRequest(
        ranks=stages, stages=stages, microbatches=4, sequence=256, tp=tp, dp=4, ep=ep, model=values, device=DEVICE
    )
    weights = int(build(request).weights_bytes.sum()) // 2
    # Norms and routers are on every tensor-parallel device; experts are split over the expert group besides.
    everywhere = h * (2 * layers + 1) + (layers // 2 * h * experts if moe else 0)
    expert = layers // 2 * experts * 3 * h * 2048 if moe else 0
    parameters = count_parameters(checked(Transformer, values, "model"))
    assert weights == (parameters - everywhere - expert) // tp + everywhere + expert // (tp * ep)


def test_zero_one_shards_the_optimizer_over_the_replicas(costs: Callable[..., Workload]) -> None:
    plain, sharded = costs(dp=8), costs(dp=8, options={"zero": 1})
    assert (sharded.optimizer_bytes * 8 == plain.optimizer_bytes).all()
    assert (sharded.weights_bytes == plain.weights_bytes).all()
    assert (sharded.gradients_bytes == plain.gradients_bytes).all()
    assert (sharded.optimizer_ns < plain.optimizer_ns).all()
    assert (costs(dp=4, cp=2, options={"zero": 1}).optimizer_bytes * 8 == plain.optimizer_bytes).all()


def test_zero_two_and_three_shard_gradients_and_weights(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 1_000_000, "latency_ns": 100}
    plain, two, three = (costs(dp=8, data_parallel=network, options={"zero": zero}) for zero in (0, 2, 3))
    for sharded in (two, three):
        assert (sharded.gradients_bytes * 8 == plain.gradients_bytes).all()
        assert (sharded.gradients_bytes + sharded.unreduced_bytes == plain.gradients_bytes).all()
        assert (sharded.optimizer_bytes * 8 == plain.optimizer_bytes).all()
        for stage in range(4):
            scattered, gathered = int(plain.gradients_bytes[stage]), int(plain.weights_bytes[stage])
            assert sharded.reduce_ns[stage] == 7 * 100 + -(-7 * scattered // 8)
            assert sharded.unshard_ns[stage] == 7 * 100 + -(-7 * gathered // 8)
    assert (two.weights_bytes == plain.weights_bytes).all()
    assert not two.gathered_bytes.any()
    assert (three.weights_bytes * 8 == plain.weights_bytes).all()
    assert (three.gathered_bytes == plain.weights_bytes).all()


def test_gathered_and_reduced_layer_by_layer_two_are_there_at_once(costs: Callable[..., Workload]) -> None:
    few = costs(dp=8, options={"zero": 3}, reshard="always", reduce_each=True, stages=2, ranks=2)
    plain = costs(dp=8, stages=2, ranks=2)
    layer = plain.weights_bytes.sum() - costs({"layers": 6}, dp=8, stages=2, ranks=2).weights_bytes.sum()
    head = 1024 * (1 + 32000) * 2
    # The last stage's largest items are its LM head and a layer.
    assert few.gathered_bytes[1] == head + layer // 2
    assert few.unreduced_bytes[1] == 2 * few.gathered_bytes[1]


def test_options_choose_the_gradients_and_the_reserve(costs: Callable[..., Workload]) -> None:
    options = {"gradients": "bf16", "reserved": "1 GiB"}
    workload = costs({"flash_attention": True}, options=options, ranks=1, stages=1)
    assert (workload.gradients_bytes == workload.weights_bytes).all()
    assert workload.reserved_bytes == GIB


@pytest.mark.parametrize(("options", "state", "touched"), [
    ({}, 12, 4 + 24 + 2),
    ({"exp_avg": "bf16", "exp_avg_sq": "fp8"}, 4 + 2 + 1, 4 + 14 + 2),
    ({"main_params": "fp16", "gradients": "bf16"}, 2 + 8, 2 + 20 + 2),
    ({"main_params": "remainder", "exp_avg": "fp16", "exp_avg_sq": "fp16"}, 2 + 4, 4 + 12 + 4),
])  # fmt: skip
def test_a_precision_aware_optimizer_keeps_and_moves_fewer_bytes(
    costs: Callable[..., Workload], options: dict[str, str], state: int, touched: int
) -> None:
    workload = costs(dp=4, options={"zero": 1, **options}, device=DEVICE | {"memory_efficiency": 1.0})
    parameters = workload.weights_bytes // 2

    assert (workload.optimizer_bytes == state * parameters // 4).all()
    latency = 1000  # a group's, at 10^12 bytes/s
    assert workload.optimizer_ns.tolist() == [latency + -(-touched * int(n) // 4000) for n in parameters]


def test_moments_in_mxfp8_have_a_scale_byte_per_32_elements(costs: Callable[..., Workload]) -> None:
    """OCP Microscaling Formats 1.0: 32 elements of a block share a scale of 8 bits."""
    fp8, mxfp8 = (
        costs(dp=4, options={"zero": 1, "exp_avg": name, "exp_avg_sq": name}) for name in ("fp8", "mxfp8")
    )
    owned = -(-fp8.weights_bytes // 2 // 4)

    assert (mxfp8.optimizer_bytes - fp8.optimizer_bytes == -(-2 * owned // 32)).all()
    assert (mxfp8.optimizer_ns > fp8.optimizer_ns).all()


def test_fp32_weights_need_no_master_copy(costs: Callable[..., Workload]) -> None:
    workload = costs({"precision": "fp32"})
    assert (workload.optimizer_bytes == 2 * workload.weights_bytes).all()


def test_gradients_added_apart_take_the_place_of_activations(
    costs: Callable[..., Workload], classic: dict[str, Any]
) -> None:
    fused, apart = costs(), costs(options={"accumulation": "separate"})
    gradients = fused.weights_bytes  # in the weights' precision, as long as those
    beyond = max(int(left) - int(kept) for left, kept in zip(gradients, fused.activation_bytes, strict=True))
    assert apart.reserved_bytes - fused.reserved_bytes == max(0, beyond)

    full = {"recompute": "full"}
    checkpoints, late = costs(full), costs(full, options={"accumulation": "separate"})
    kept = checkpoints.activation_bytes
    once_more = max(int(left) - int(own) for left, own in zip(gradients, kept, strict=True))
    assert late.reserved_bytes - checkpoints.reserved_bytes == once_more > 0
    in_place = costs(full, options={"accumulation": "separate", "gradients": "bf16"})
    assert in_place.reserved_bytes == checkpoints.reserved_bytes

    sharded, by_layer = (
        costs(full, dp=2, options={"zero": 3, "accumulation": how}) for how in ("fused", "separate")
    )
    largest = 2 * classic["vocabulary"] * classic["hidden"]  # the embedding's gradients, and those of the head
    assert by_layer.reserved_bytes - sharded.reserved_bytes == largest - int(kept[0]) < once_more


def test_pytorch_has_a_buffer_per_microbatch_and_returns_logits(
    costs: Callable[..., Workload], classic: dict[str, Any]
) -> None:
    plain, buffered = costs(), costs(options={"message_buffers": "microbatches"})
    returned = costs(options={"message_buffers": "microbatches", "returned_outputs": True})
    assert (2 * buffered.buffer_bytes == 8 * plain.buffer_bytes).all()  # of 8 microbatches
    logits = 2048 * classic["vocabulary"] * 2
    assert (2 * (returned.buffer_bytes - buffered.buffer_bytes)).tolist() == [[0, 0, 0], [0, 0, 8 * logits]]
    kept = costs(options={"message_buffers": "all"})  # also a gradient per input
    assert (kept.buffer_bytes == buffered.buffer_bytes * [[1], [2]]).all()


def test_buckets_hold_gradients_once_more_for_several_replicas(costs: Callable[..., Workload]) -> None:
    buckets = {"gradient_buckets": True}
    assert (costs(options=buckets).gradients_bytes == costs().gradients_bytes).all()
    plain, reduced = costs(dp=2), costs(dp=2, options=buckets)
    assert (reduced.gradients_bytes - plain.gradients_bytes == plain.weights_bytes).all()
    assert (reduced.reduce_ns == plain.reduce_ns).all()


def test_copied_keys_and_values_are_kept_twice(costs: Callable[..., Workload], classic: dict[str, Any]) -> None:
    twice = costs({"copied_kv": True}).activation_bytes - costs().activation_bytes
    assert (twice == 2 * (2 * 2048 * 1024 * 2)).all()  # of two layers on each stage
    grouped = {"kv_heads": classic["heads"] // 2}
    assert (costs(grouped | {"copied_kv": True}).activation_bytes == costs(grouped).activation_bytes).all()


def test_sequence_parallelism_holds_tensors_of_the_whole_sequence(costs: Callable[..., Workload]) -> None:
    buffers = {"sequence_buffers": 3}
    split, whole = ({"tp": 2, "sequence_parallel": is_split} for is_split in (True, False))
    assert costs(**whole, options=buffers).reserved_bytes == costs(**whole).reserved_bytes
    assert costs(**split, options=buffers).reserved_bytes - costs(**split).reserved_bytes == 3 * 2048 * 1024 * 2


def test_copied_shards_have_gather_buffers_and_reduced_gradients_besides(costs: Callable[..., Workload]) -> None:
    sharded, copied = (costs(dp=4, options={"zero": 3, "copied_shards": copies}) for copies in (False, True))
    assert copied.reserved_bytes - sharded.reserved_bytes == 2 * 2 * 32001 * 1024  # two of the LM head's size
    assert (copied.gradients_bytes == sharded.gradients_bytes).all()
    assert (copied.unreduced_bytes == sharded.unreduced_bytes + sharded.gradients_bytes).all()
    alone = costs(options={"zero": 3, "copied_shards": True})
    assert alone.reserved_bytes == costs(options={"zero": 3}).reserved_bytes


def test_weights_gathered_after_the_optimizer_are_copied_out_of_a_buffer(costs: Callable[..., Workload]) -> None:
    sharded, copied = (costs(dp=4, options={"zero": 1, "copied_shards": copies}) for copies in (False, True))
    assert (copied.weights_bytes == 2 * sharded.weights_bytes).all()
    for unsharded in ({"dp": 4}, {"options": {"zero": 1, "copied_shards": True}}):
        assert (costs(**unsharded).weights_bytes == sharded.weights_bytes).all()


def test_collectives_hold_their_tensors_while_kernels_are_in_the_queue(costs: Callable[..., Workload]) -> None:
    split = {"tp": 2, "sequence_parallel": True}

    def held(host: str, **sizes: Any) -> int:
        slow = {"host_kernel": host}
        deferred = costs(**split, **sizes, options={"deferred_frees": True} | slow)
        return deferred.reserved_bytes - costs(**split, **sizes, options=slow).reserved_bytes

    layer = 2 * (2048 + 1024) * 1024 * 2  # two outputs, of the whole sequence and of a half
    # A host that is never ahead: two layers of the third and fourth microbatch, which messages delay.
    assert held("10 ms", microbatches=4) == layer * 2 * 2
    # A host that needs no time: a full queue, or the only forward.
    assert held("0 ms", microbatches=16) == layer * 18
    assert held("0 ms", microbatches=1) == layer * 2
    assert costs(tp=2, options={"deferred_frees": True}).reserved_bytes == costs(tp=2).reserved_bytes


def test_each_shape_of_a_matrix_has_a_tensor_in_place_of_its_gradient(costs: Callable[..., Workload]) -> None:
    plain, dummies = costs(tp=2), costs(tp=2, options={"dummy_gradients": True})
    # Queries, keys and values; attention's output; both of the MLP: a layer's weights, once for all layers.
    layer = 12 * 1024 * 1024
    assert dummies.reserved_bytes - plain.reserved_bytes == 2 * layer // 2
    mixture = {"num_experts": 8, "top_k": 2, "expert_ffn": 512, "moe_every": 2}
    both = costs(mixture, options={"dummy_gradients": True}).reserved_bytes - costs(mixture).reserved_bytes
    assert both == 2 * (layer + 2 * 1024 * 512)  # of dense layers, and of one expert
    with pytest.raises(ConfigError, match="dummy_gradients: they take the place of gradients"):
        costs(options={"dummy_gradients": True, "accumulation": "separate"})


def test_the_reserve_is_two_gib_and_the_gradients_of_scores(costs: Callable[..., Workload]) -> None:
    workload, with_scores = costs({"flash_attention": True}), costs(tp=2)
    assert workload.boundary_bytes.tolist() == [2048 * 1024 * 2] * 3
    assert workload.reserved_bytes == 2 * GIB
    assert with_scores.reserved_bytes == 2 * GIB + 2 * (16 // 2) * 2048 * 2048 * 2
    assert workload.capacity_bytes == 81_559 * 2**20


def test_the_reserve_holds_one_layer_while_it_is_computed_again(costs: Callable[..., Workload]) -> None:
    none, full = costs(), costs({"recompute": "full"})
    layer = none.activation_bytes[1] // 2
    assert full.reserved_bytes - none.reserved_bytes == layer - 2 * 2048 * 1024


def test_gradients_are_reduced_by_a_ring(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 1_000_000, "latency_ns": 100}
    workload = costs(dp=4, data_parallel=network)
    for stage in range(4):
        size = int(workload.gradients_bytes[stage])
        assert workload.reduce_ns[stage] == 6 * 100 + -(-6 * size // 4)  # 10^9 bytes/s: a byte a ns
    sharded = costs(dp=4, data_parallel=network, options={"zero": 1})
    for stage in range(4):
        sizes = int(workload.gradients_bytes[stage]), int(workload.weights_bytes[stage])
        assert sharded.reduce_ns[stage] == sum(3 * 100 + -(-3 * size // 4) for size in sizes)
    reduced = costs(dp=4, data_parallel=network, options={"zero": 1, "all_reduce": True})
    gathered_ns = [3 * 100 + -(-3 * int(size) // 4) for size in workload.weights_bytes]
    assert reduced.reduce_ns.tolist() == (workload.reduce_ns + gathered_ns).tolist()


def test_whole_gradients_are_read_scaled_and_cleared_and_gathered_weights_copied(
    costs: Callable[..., Workload],
) -> None:
    plain, whole, copied = (
        costs(dp=4, options={"zero": 1, **options}).optimizer_ns
        for options in ({}, {"all_reduce": True}, {"copied_shards": True})
    )
    parameters = costs().weights_bytes / 2
    assert whole - plain == pytest.approx(parameters * 4 * 4 / 2680, abs=2)
    assert copied - plain == pytest.approx(parameters * 3 * 2 * 2 / 2680, abs=2)


@pytest.mark.parametrize("network", [{}, {"rate_kbps": 1, "latency_ns": 1}])
def test_one_replica_reduces_nothing(costs: Callable[..., Workload], network: dict[str, int]) -> None:
    assert costs(data_parallel=network).reduce_ns.tolist() == [0] * 4


def test_context_parallel_devices_share_the_reduction(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 1_000_000, "latency_ns": 0}
    alone = costs(dp=4, data_parallel=network).reduce_ns
    shared = costs(dp=4, cp=2, data_parallel=network).reduce_ns
    inside = costs(dp=1, cp=2, data_parallel=network).reduce_ns
    assert (abs(shared - inside - alone / 2) <= 1).all()


def test_a_network_that_is_not_described_is_noted(costs: Callable[..., Workload]) -> None:
    workload = costs(dp=2)
    assert workload.reduce_ns.tolist() == [0] * 4
    assert any("not described" in note for note in workload.notes)


def test_the_update_is_bound_by_memory(costs: Callable[..., Workload]) -> None:
    device = DEVICE | {"memory_efficiency": 1.0, "memory_latency": "10 ns"}
    workload = costs(device=device)
    # Gradient, twice weights and moments in fp32, bf16 weights: 4 + 24 + 2 bytes at 10^12 bytes/s.
    parameters = workload.weights_bytes // 2
    assert workload.optimizer_ns.tolist() == [10 + -(-30 * int(count) // 1000) for count in parameters]


def test_a_fused_loss_keeps_its_gradient_in_place_of_the_logits(
    costs: Callable[..., Workload], classic: dict[str, Any]
) -> None:
    separate, compiled, fused = (costs(options={"fused_loss": kind}) for kind in (False, "compiled", True))
    logits = 2048 * classic["vocabulary"]

    assert (separate.activation_bytes - fused.activation_bytes).tolist() == [0, 0, 0, 2 * logits]
    assert (compiled.activation_bytes == fused.activation_bytes).all()
    for loss in (separate, compiled):
        assert loss.transient_bytes.tolist() == [0, 0, 0, 2 * logits]
    assert not fused.transient_bytes.any()
    assert (compiled.f_ns == fused.f_ns).all()
    assert (separate.weight_activation_bytes == fused.weight_activation_bytes).all()
    assert fused.f_ns[3] < separate.f_ns[3]
    assert (fused.f_ns[:3] == separate.f_ns[:3]).all()


@pytest.mark.parametrize(("tp", "tensors"), [(1, 2), (4, 3)])
def test_pytorchs_loss_needs_fp32_tensors_of_the_size_of_the_logits_once(
    costs: Callable[..., Workload], classic: dict[str, Any], tp: int, tensors: int
) -> None:
    megatron, eager = costs(tp=tp), costs(tp=tp, options={"eager_loss": True})
    logits = 2048 * classic["vocabulary"] // tp

    assert (eager.activation_bytes == megatron.activation_bytes).all()
    assert eager.transient_bytes.tolist() == [0, 0, 0, 4 * tensors * logits]
    assert eager.f_ns[3] > megatron.f_ns[3]
    assert eager.b_ns[3] > megatron.b_ns[3]
    in_place = costs(tp=tp, options={"eager_loss": "in-place"})
    assert (in_place.activation_bytes == megatron.activation_bytes).all()
    # 38 bytes per logit in place of 14, and 14 in place of 6, at 0.8 of 3.35 TB/s.
    longer_ns = [
        times[0][3] - times[1][3] for times in ((in_place.f_ns, megatron.f_ns), (in_place.b_ns, megatron.b_ns))
    ]
    assert longer_ns == pytest.approx([24 * logits / 2680, 8 * logits / 2680], abs=2)
    with pytest.raises(ConfigError, match="eager_loss: the loss is fused"):
        costs(options={"eager_loss": True, "fused_loss": True})


@pytest.mark.parametrize("tp", [1, 4])
def test_a_loss_in_chunks_keeps_the_gradient_of_its_input_in_place_of_the_logits(
    costs: Callable[..., Workload], classic: dict[str, Any], tp: int
) -> None:
    whole, chunked = (costs(tp=tp, options={"eager_loss": True, "loss_chunks": count}) for count in (1, 8))
    tokens, hidden, logits = 2048, classic["hidden"], 2048 * classic["vocabulary"] // tp

    # The input of the norm and of the LM head, and fp32 logits; then the former and a gradient.
    saved = (whole.activation_bytes - chunked.activation_bytes).tolist()
    assert saved == [0, 0, 0, 4 * logits]
    assert (whole.weight_activation_bytes - chunked.weight_activation_bytes).tolist()[:3] == [0, 0, 0]
    # The logits in BF16 and in fp32, and the additional tensors of a whole loss.
    transient = (whole.transient_bytes[3] + 6 * logits) // 8 + 4 * tokens * hidden
    assert chunked.transient_bytes.tolist() == [0, 0, 0, transient]
    # All passes of LM head and loss are in the forward; each chunk reads the weights and adds to their gradient.
    passes = [workload.f_ns[3] + workload.b_ns[3] for workload in (whole, chunked)]
    assert passes[0] < passes[1] < 1.3 * passes[0]
    assert chunked.b_ns[3] < whole.b_ns[3]
    assert chunked.w_ns[3] == chunked.w_ns[2]


def test_offloaded_layers_keep_nothing_and_passes_last_as_long_as_their_copies(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    whole = costs(stages=1, ranks=1)
    slow, fast = (
        costs({"offloaded_layers": 2}, stages=1, ranks=1, device={**devices["h100-sxm"], "host_bandwidth": rate})
        for rate in (10**9, 10**15)
    )
    layer = costs(stages=4).activation_bytes[1] // 2

    assert whole.activation_bytes[0] - fast.activation_bytes[0] == 2 * layer
    assert fast.reserved_bytes - whole.reserved_bytes == 2 * layer
    assert (fast.f_ns, fast.b_ns) == (whole.f_ns, whole.b_ns)
    assert slow.f_ns[0] == slow.b_ns[0] == 2 * layer


@pytest.mark.parametrize(
    ("modules", "rows"),
    [(["core_attn"], 3), (["core_attn", "attn_proj"], 4), (["qkv_linear"], 2), (["attn_norm", "mlp_norm"], 0)],
)
def test_copied_modules_keep_nothing_and_two_layers_of_them_are_on_the_device(
    costs: Callable[..., Workload], modules: list[str], rows: int
) -> None:
    """Fused norms are part of the products; the core and the next product share attention's output."""
    whole, copied = (costs({"flash_attention": True, "offload_modules": names}) for names in ([], modules))
    layer = rows * 2048 * 1024 * 2

    assert (whole.activation_bytes - copied.activation_bytes).tolist() == [2 * layer] * 4
    assert copied.reserved_bytes - whole.reserved_bytes == 2 * layer
    assert (copied.f_ns == whole.f_ns).all()


def test_copied_modules_of_experts_are_those_that_are_not_recomputed(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    experts = {"num_experts": 8, "top_k": 2, "kv_rank": 512, "rope_dim": 64}

    def kept(*modules: str, **changed: Any) -> int:
        return int(costs({**experts, "offload_modules": list(modules), **changed}).activation_bytes[1])

    again = {"recompute": "selective", "recompute_modules": ["moe_act", "layernorm", "mla_up_proj"]}
    first, inner = kept() - kept("expert_fc1"), kept() - kept("moe_act")
    assert kept() - kept("fused_group_mlp") == first + inner
    assert kept(**again) - kept("expert_fc1", **again) == first
    assert kept(**again) - kept("moe_act", **again) == inner // 2
    assert kept() - kept("attn_norm", "mlp_norm") == 2 * 2 * 2048 * 1024 * 2
    attention = kept() - kept("qkv_linear", "core_attn")
    assert 0 < kept(**again) - kept("qkv_linear", "core_attn", **again) < attention
    slow = costs(
        {**experts, "offload_modules": ["moe_act"]}, device={**devices["h100-sxm"], "host_bandwidth": 10**9}
    )
    assert slow.f_ns[1] == slow.b_ns[1] == inner


@pytest.mark.parametrize("beside", [
    {"offloaded_layers": 1}, {"recompute": "full"}, {"recompute": "selective", "recompute_modules": ["moe"]},
])  # fmt: skip
def test_copied_modules_are_refused_beside_what_holds_them(
    costs: Callable[..., Workload], beside: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="offload_modules: write "):
        costs({"offload_modules": ["core_attn"], **beside})
