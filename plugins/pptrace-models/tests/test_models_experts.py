"""Experts and attentions of today: active parameters, exchanges, windows, modules computed again."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.plugin import ConfigError, ConstraintError, Kind
from pptrace_models.accelerator import TokenExchange, _fewest_in_a_node
from pptrace_models.flops import doubled_reach, step_flops
from pptrace_models.presets import MODELS
from pptrace_models.transformer import Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

PRESETS = {offer.name: offer.values for offer in MODELS}
MOE = {"num_experts": 8, "top_k": 2, "expert_ffn": 512}
LAUNCH_NS = 5000
_MIXTURE = {**PRESETS["qwen3-30b-a3b"], "layers": 8}


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("deepseek-v3", 37.6),
        ("deepseek-v2", 21.4),
        ("kimi-k2", 32.9),
        ("qwen3-235b-a22b", 22.1),
        ("qwen3-30b-a3b", 3.3),
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.1),
        ("gpt-oss-120b", 5.7),
        ("llama4-maverick", 17.2),
        ("llama4-scout", 17.2),
        ("gpt-oss-20b", 4.2),
        ("glm-4.5", 33.6),
        ("glm-4.5-air", 13.4),
        ("glm-5", 41.8),
        ("minimax-m1", 48.4),
        ("minimax-m2", 11.0),
        ("deepseek-v3.2", 38.4),
        ("deepseek-v4-flash", 13.8),
        ("deepseek-v4-pro", 49.8),
        ("qwen3-next-80b-a3b", 3.9),
        ("qwen3.5-397b-a17b", 17.4),
        ("qwen3.5-122b-a10b", 9.8),
        ("qwen3.5-35b-a3b", 3.45),
        ("qwen3.5-27b", 26.9),
        ("kimi-linear-48b-a3b", 3.48),
        ("kimi-k3", 105.4),
        ("nemotron-h-8b", 8.1),
        ("nemotron-h-47b", 46.8),
        ("nemotron-h-56b", 56.3),
        ("nemotron-3-nano", 3.58),
        ("nemotron-3-super", 12.8),
        ("nemotron-3-ultra", 56.1),
        ("grok-1", 85.0),
        ("nemotron4-340b", 341.0),
        ("bloom-176b", 176.2),
    ],
)
def test_a_preset_has_as_many_active_parameters(name: str, active: float) -> None:
    model = checked(Transformer, {**PRESETS[name], "mtp": 0}, "model")
    # Six operations a token for each active parameter; the attention core's grow with the sequence.
    whole = checked(Transformer, {**PRESETS[name], "mtp": 0, "window": 2**20}, "model")
    per_token = [step_flops(whole, 1, sequence) / sequence for sequence in (1024, 2048)]
    embedding = 0 if model.tied_embeddings else model.hidden * model.vocabulary
    assert (2 * per_token[0] - per_token[1]) / 6 + embedding == pytest.approx(active * 1e9, rel=0.03)


@given(sequence=st.integers(1, 40), window=st.integers(0, 50), chunks=st.booleans(), causal=st.booleans())
def test_a_window_reaches_as_many_keys_as_counted_one_by_one(
    sequence: int, window: int, *, chunks: bool, causal: bool
) -> None:
    model = checked(Transformer, {
        "layers": 1, "hidden": 8, "heads": 1, "ffn": 8, "vocabulary": 8, "causal": causal, "window_chunks": chunks,
    }, "model")  # fmt: skip
    reach = window or sequence

    def sees(query: int, key: int) -> bool:
        near = query // reach == key // reach if chunks else abs(query - key) < reach
        return near and (key <= query or not causal)

    pairs = sum(sees(query, key) for query in range(sequence) for key in range(sequence))
    # Half of the diagonal is left out, as everywhere; parts of chunks and both ends count as whole ones.
    own = sequence * doubled_reach(model, sequence, window)
    assert abs(own - 2 * pairs) <= 2 * sequence * (1 if causal and not chunks else reach)


def test_a_token_goes_once_to_each_place_as_counted_over_all_choices() -> None:
    experts, top_k, places = 8, 3, 4
    chosen = list(combinations(range(experts), top_k))
    mean = sum(len({expert * places // experts for expert in own}) for own in chosen) / len(chosen)
    exchange = TokenExchange(size_bytes=3_000_000, top_k=top_k, experts=experts)
    assert exchange.to_places_bytes(places) == pytest.approx(1_000_000 * mean, abs=1)
    assert exchange.to_places_bytes(experts) == 3_000_000


@pytest.mark.parametrize("places", [2, 4, 8])
@pytest.mark.parametrize(("groups", "top_groups"), [(4, 1), (4, 2), (2, 1), (8, 3)])
def test_groups_limit_the_places_of_a_token_as_counted_over_all_choices(
    groups: int, top_groups: int, places: int
) -> None:
    experts, top_k = 16, 2
    chosen = [
        experts_of_token
        for own in combinations(range(groups), top_groups)
        for experts_of_token in combinations([e for e in range(experts) if e * groups // experts in own], top_k)
    ]
    mean = sum(len({expert * places // experts for expert in own}) for own in chosen) / len(chosen)
    exchange = TokenExchange(
        size_bytes=2_000_000, top_k=top_k, experts=experts, groups=groups, top_groups=top_groups
    )
    assert exchange.to_places_bytes(places) == pytest.approx(1_000_000 * mean, abs=1)


@pytest.mark.parametrize("segments", [False, True])
def test_tokens_go_to_experts_in_fp8_and_return_in_bf16(costs: Callable[..., Workload], *, segments: bool) -> None:
    def exchanged(**options: Any) -> Workload:
        return costs({**MOE, "top_k": 4}, dp=4, ep=4, options={"segments": segments, **options})

    bf16, fp8 = exchanged(), exchanged(fp8_dispatch=True)
    latency_ns = 2 * 2000
    share = (1 + (1 + 4 / 128) / 2) / 2  # one exchange in two bytes, the other one in one with a scale per 128
    for name in ("f_collective_ns", "i_collective_ns"):
        whole, part = (int(getattr(each, name)[1]) - 2 * latency_ns for each in (bf16, fp8))
        assert part == pytest.approx(share * whole, rel=1e-4)


def test_deduplicated_exchanges_are_shorter_and_only_receivers_permute(costs: Callable[..., Workload]) -> None:
    sizes: dict[str, Any] = {"dp": 4, "ep": 4}
    once = costs({**MOE, "top_k": 4}, **sizes, options={"dispatcher": "deduplicated"})
    each = costs({**MOE, "top_k": 4}, **sizes)
    assert (once.f_collective_ns < each.f_collective_ns).all()
    assert (once.f_ns - once.f_collective_ns < each.f_ns - each.f_collective_ns).all()


def test_copies_align_the_rows_of_experts_where_no_exchange_capacity_or_kernel_does(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    def times(model: dict[str, Any], *, aligned: bool) -> tuple[int, int]:
        options = {"kernels": "shapes", "dispatcher": "deduplicated", "aligned_dispatch": aligned}
        workload = costs({"precision": "fp8", **MOE, **model}, options=options)
        return int(workload.f_ns[1]), int(workload.i_ns[1])

    rate = devices["h100-sxm"]["memory_bandwidth"] * 0.8 / 1e9
    # Two layers: tokens and results are read and written, and probabilities in one more kernel.
    copied_ns = 2 * (3 * LAUNCH_NS + 2 * 2 * (2 * 2048) * 1024 * 2 / rate)

    for copied, aligned in zip(times({}, aligned=False), times({}, aligned=True), strict=True):
        assert copied - aligned == pytest.approx(copied_ns, abs=4)
    for model in ({"fused_experts": True}, {"capacity": 1.0}, {"precision": "bf16"}):
        assert times(model, aligned=False) == times(model, aligned=True)


def test_hybrid_ep_gathers_a_byte_per_token_and_expert_of_the_group(costs: Callable[..., Workload]) -> None:
    def collective_ns(devices: int, *, segments: bool) -> tuple[int, int]:
        forward_ns = [
            costs(MOE, dp=devices, ep=devices, options={
                "dispatcher": "deduplicated", "aligned_dispatch": aligned, "segments": segments,
            }).f_collective_ns[1]
            for aligned in (True, False)
        ]  # fmt: skip
        return int(forward_ns[0]), int(forward_ns[1])

    for segments in (False, True):
        gathered_ns, plain_ns = collective_ns(4, segments=segments)
        ring_ns = 3 * (2000 + 2048 * 8 / (450 * 0.8))  # each of 3 steps passes a device's map over NVLink
        assert gathered_ns - plain_ns == pytest.approx(2 * ring_ns, abs=4)  # two layers
    assert len({*collective_ns(1, segments=False)}) == 1


def test_experts_that_are_not_split_need_no_gathering(costs: Callable[..., Workload]) -> None:
    sizes: dict[str, Any] = {"tp": 4, "dp": 2, "ep": 8, "sequence_parallel": True}
    whole = costs(MOE, **sizes, etp=1)
    split = costs(MOE, **{**sizes, "ep": 2})
    # Two devices' worth of experts either way: eight of one each, or two times four quarters of four.
    assert whole.weights_bytes.tolist() == split.weights_bytes.tolist()
    assert (whole.optimizer_bytes == split.optimizer_bytes).all()
    assert (whole.f_collective_ns < split.f_collective_ns).all()


def test_sizes_that_expert_parallelism_cannot_have_are_one_line(costs: Callable[..., Workload]) -> None:
    for sizes, line in (
        ({"tp": 4, "etp": 3}, "3 does not divide model.expert_ffn (512)"),
        ({"tp": 2, "dp": 2, "ep": 8, "etp": 1}, "8 does not divide parallel.tp x parallel.dp x parallel.cp (4)"),
    ):
        with pytest.raises(ConstraintError) as caught:
            costs(MOE, **sizes)
        assert line in str(caught.value)


def test_imbalance_and_capacity_scale_the_experts_work(costs: Callable[..., Workload]) -> None:
    even, busy, capped = (costs({**MOE, **more}) for more in ({}, {"imbalance": 1.5}, {"capacity": 1.5}))
    assert (busy.f_ns > even.f_ns).all()
    assert busy.activation_bytes.tolist() == capped.activation_bytes.tolist()
    assert busy.model_flops == even.model_flops
    with pytest.raises(ConfigError, match="as many tokens each"):
        costs({**MOE, "capacity": 1.0, "imbalance": 1.5})


def test_shared_experts_and_leading_dense_layers_add_up(costs: Callable[..., Workload]) -> None:
    none, shared, leading = (costs({**MOE, **more}) for more in ({}, {"shared_ffn": 512}, {"dense_layers": 2}))
    per_layer = 2  # matrices of an MLP that is not gated
    added = shared.weights_bytes[1] - none.weights_bytes[1]
    assert added == 2 * 2 * per_layer * 1024 * 512  # two layers, two bytes
    assert leading.weights_bytes[1:].tolist() == none.weights_bytes[1:].tolist()
    assert leading.weights_bytes[0] < none.weights_bytes[0]


def test_multi_token_prediction_adds_a_layer_a_projection_and_a_head(costs: Callable[..., Workload]) -> None:
    without, one, two = (costs({"mtp": count}) for count in (0, 1, 2))
    assert (without.f_ns[:-1] == one.f_ns[:-1]).all()
    assert one.f_ns[-1] - without.f_ns[-1] == two.f_ns[-1] - one.f_ns[-1] > without.f_ns[1] // 2
    assert one.model_flops - without.model_flops == two.model_flops - one.model_flops


@pytest.mark.parametrize("module", ["mla_up_proj", "layernorm", "moe", "moe_act", "shared_experts"])
def test_a_module_computed_again_costs_time_and_frees_memory(costs: Callable[..., Workload], module: str) -> None:
    values = {**PRESETS["deepseek-v2"], "layers": 8}
    kept = costs(model=values)
    again = costs(model={**values, "recompute": "selective", "recompute_modules": [module]})
    assert (again.i_ns > kept.i_ns).all()
    assert (again.f_ns == kept.f_ns).all()
    assert (again.activation_bytes < kept.activation_bytes).all()
    whole = costs(model={**values, "recompute": "full"})
    assert (again.i_ns < whole.i_ns).all()


@pytest.mark.parametrize("name", ["deepseek-v2", "gpt-oss-120b", "llama4-maverick"])
@pytest.mark.parametrize("again", [[], ["mla_up_proj", "moe"], ["layernorm", "moe_act", "mlp"]])
def test_segments_of_every_sort_of_layer_sum_to_the_plain_times(
    costs: Callable[..., Workload], name: str, again: list[str]
) -> None:
    model = {**PRESETS[name], "layers": 8, "mtp": 1, "layout": "Et*3|t*2|t*3m|L"}
    model |= {"recompute": "selective", "recompute_modules": again} if again else {}
    sizes: dict[str, Any] = {"model": model, "tp": 2, "cp": 2, "dp": 2, "ep": 4, "sequence_parallel": True}
    plain, apart = costs(**sizes), costs(**sizes, options={"segments": True})
    for column in ("f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "i_collective_ns"):
        assert getattr(plain, column).tolist() == getattr(apart, column).tolist(), column


def test_biases_and_clamps_of_experts_move_what_their_kernels_read_and_write(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    options = {"kernels": "shapes"}
    plain = {"layers": 4, "gated": True, **MOE}
    rows, device = 2 * 2048, devices["h100-sxm"]
    rate = device["memory_bandwidth"] * 0.8 / 1e9
    # Product; sum; laid together; cast. Then cast and sum back, and of either factor a product and its sum.
    sums = (0 + 4, 2 + 4 + 4, 4 + 4, 4 + 2), (2 + 4, 4 + 2, 4 + 4 + 4, 4 + 4 + 4)
    # Clamped; laid together. Then taken apart and clamped back, which reads what was clamped, too.
    halves = (2 + 2, 2 + 2), (2 + 2 + 2, 2 + 2)
    added: tuple[tuple[dict[str, Any], int, Any, tuple[int, int]], ...] = (
        ({"bias": True}, 1024, sums, (2 * 8 + 2, 5 * 8 + 1)),
        ({"clamped_experts": True}, 2 * 512, halves, (3, 3)),
    )
    for keys, width, passes, kernels in added:
        without, with_them = (
            costs(model={**plain, **own, "dropout": False, "flash_attention": True}, options=options)
            for own in ({}, keys)
        )
        for name, moved, count in zip(("f_ns", "i_ns"), passes, kernels, strict=True):
            more = getattr(with_them, name)[1] - getattr(without, name)[1]
            launched = more - sum(moved) * rows * width / rate
            assert launched == pytest.approx(count * LAUNCH_NS, abs=2)

    fused = [
        costs(model={**plain, **own, "dropout": False, "fused_experts": True}, options=options)
        for own in ({}, {"bias": True, "clamped_experts": True})
    ]
    assert (fused[0].f_ns == fused[1].f_ns).all()


def test_a_host_that_issues_kernels_slowly_bounds_layers_with_experts(costs: Callable[..., Workload]) -> None:
    slow = costs(MOE, options={"host": 10**9})
    assert slow.f_ns[1] == 2 * 10**9
    assert slow.b_ns[1] == 2 * 2 * 10**9
    assert costs(options={"host": 10**9}).f_ns.tolist() == costs().f_ns.tolist()


def test_a_host_issues_what_an_action_has_beside_its_layers_once(costs: Callable[..., Workload]) -> None:
    slow = costs(MOE, options={"host": 10**9, "host_action": 10**8})
    assert slow.f_ns[1] == 2 * 10**9 + 10**8
    assert slow.b_ns[1] == 2 * slow.f_ns[1]
    captured = costs(MOE, options={"host": 10**9, "host_action": 10**8, "cuda_graphs": True})
    assert captured.f_ns.tolist() == costs(MOE).f_ns.tolist()


@pytest.mark.parametrize("host", [10**5, 10**6, 10**9])
def test_the_host_bounds_an_action_as_a_whole_with_segments_too(costs: Callable[..., Workload], host: int) -> None:
    sizes: dict[str, Any] = {"model": _MIXTURE, "dp": 4, "ep": 4}
    options = {"host": host, "host_action": host // 10}
    whole, parts = (costs(**sizes, options={**options, "segments": segments}) for segments in (False, True))

    assert parts.segments
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        assert parts.duration_ns(kind).tolist() == whole.duration_ns(kind).tolist()
        assert whole.duration_ns(kind)[1] >= (2 * host + host // 10) * (kind in {Kind.F, Kind.B})


def test_replicas_in_a_node_share_its_nics_and_its_links_at_most(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 40_000_000, "latency_ns": 0}
    apart, shared, whole = (
        costs(dp=dp, tp=tp, data_parallel=network, options={"every_nic": True})
        for tp, dp in ((8, 16), (2, 16), (2, 4))
    )
    alone = costs(dp=16, tp=2, data_parallel=network)
    # Eight devices hold four replicas of two, which have four NICs; within a node the links count.
    assert alone.reduce_ns[1] == pytest.approx(4 * shared.reduce_ns[1], rel=1e-3)
    assert costs(dp=16, tp=8, data_parallel=network).reduce_ns.tolist() == apart.reduce_ns.tolist()
    assert whole.reduce_ns[1] < shared.reduce_ns[1] * 40 / 90


def test_a_tensor_parallel_group_across_nodes_has_the_nics_of_a_node(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 40_000_000, "latency_ns": 0}
    one, every = (
        costs(tp=16, data_parallel=network, options={"every_nic": shared}).f_collective_ns[1]
        for shared in (False, True)
    )
    assert one == pytest.approx(8 * every, rel=1e-3)


def test_a_group_has_the_measured_rate_of_its_nodes(costs: Callable[..., Workload]) -> None:
    def reduce_ns(dp: int, **options: Any) -> int:
        network = {"rate_kbps": 40_000_000, "latency_ns": 0}
        return int(costs(dp=dp, data_parallel=network, options={"every_nic": True, **options}).reduce_ns[1])

    rates = {"nic_rates": {2: "20 GB/s", 4: "10 GB/s"}}
    assert reduce_ns(8, **rates) == reduce_ns(8)  # on the links of a node
    for dp, times in ((16, 2), (24, 2), (32, 4), (64, 4)):
        assert reduce_ns(dp, **rates) == pytest.approx(times * reduce_ns(dp), rel=1e-3)


@pytest.mark.parametrize("replicas", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("groups", [1, 2, 4, 9])
@pytest.mark.parametrize("places", [1, 2, 4, 8])
def test_a_group_across_nodes_has_the_nics_of_its_least_node(replicas: int, groups: int, places: int) -> None:
    # Device by device: each node's share of each group.
    held = [Counter((group * replicas + index) // places for index in range(replicas)) for group in range(groups)]
    assert _fewest_in_a_node(places, replicas, groups) == min(min(nodes.values()) for nodes in held)


def test_three_replicas_of_four_in_nodes_of_eight_reduce_through_one_nic(costs: Callable[..., Workload]) -> None:
    network = {"rate_kbps": 40_000_000, "latency_ns": 0}
    crossing, apart, whole = (
        costs(dp=dp, tp=4, data_parallel=network, options={"every_nic": shared})
        for dp, shared in ((3, True), (3, False), (4, True))
    )
    assert crossing.reduce_ns.tolist() == apart.reduce_ns.tolist()
    # Four fill their nodes: 3/4 of the weights through two NICs, where three have 2/3 through one.
    assert crossing.reduce_ns[1] == pytest.approx(whole.reduce_ns[1] * (2 / 3) / (3 / 4 / 2), rel=1e-2)


@pytest.mark.parametrize(
    ("precision", "device"), [("mxfp8", "h100-sxm"), ("nvfp4", "h200-sxm"), ("fp8", "a100-sxm")]
)
def test_a_precision_that_a_device_has_not_is_one_line(
    costs: Callable[..., Workload], precision: str, device: str
) -> None:
    with pytest.raises(ConfigError, match=f"{precision} has no peak on this device") as caught:
        costs({"precision": precision}, device=device)
    assert "\n" not in str(caught.value)


def test_narrower_formats_are_faster_on_the_devices_that_have_them(costs: Callable[..., Workload]) -> None:
    options = {"kernels": "shapes"}
    times = [
        costs({"precision": precision, "hidden": 8192, "heads": 64, "ffn": 32768}, "gb200", options=options).f_ns[
            1
        ]
        for precision in ("bf16", "mxfp8", "nvfp4")
    ]
    assert np.all(np.diff(times) < 0)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"rope_dim": 64}, "model.rope_dim: belongs to latent attention; give kv_rank, too"),
        ({"kv_rank": 512, "kv_heads": 4}, "model.kv_heads: latent attention has as many as heads"),
        ({"recompute_modules": ["moe"]}, "model.recompute_modules: write recompute: selective beside them"),
        (
            {"recompute": "selective", "recompute_modules": ["mhc"]},
            "model.recompute_modules: mhc belongs to residual streams; give residual_streams, too",
        ),
        ({"layout": "E", "layers_per_stage": [8]}, "model.layout: defines the same as layers_per_stage"),
    ],
)
def test_keys_that_contradict_each_other_are_one_line(
    costs: Callable[..., Workload], values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        costs(values)
    assert line in str(caught.value)
