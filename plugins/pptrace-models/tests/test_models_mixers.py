"""Layers of unlike kinds: one half each, recurrences, chosen keys, latent experts, and wide messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_parameters import count_parameters

from pptrace.plugin import ConfigError, ConstraintError
from pptrace.plugins.requests import CostRequest
from pptrace_models import flops, memory
from pptrace_models.kernel_times import Shaped, shaped_ns
from pptrace_models.layer import active_weights, linears, shard
from pptrace_models.presets import MODELS
from pptrace_models.transformer import Delta, Layer, Mamba, Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload
    from pptrace_models.layer import Shard

PRESETS = {offer.name: offer.values for offer in MODELS}
SMALL = {
    "layers": 4, "hidden": 1024, "heads": 8, "ffn": 2048, "gated": True, "vocabulary": 32000, "dropout": False,
    "flash_attention": True,
}  # fmt: skip
DELTA = {"heads": 16, "key_heads": 8}
MAMBA = {"heads": 16, "groups": 8}
MIXED = [
    {"mixers": ["delta", "attention"], "delta": DELTA},
    {"mixers": ["delta"], "delta": {"heads": 8, "decay_rank": 64, "gate_rank": 64}},
    {"mixers": ["mamba", "attention"], "mamba": MAMBA},
    {
        "kv_heads": 1, "query_rank": 256, "window": 64, "indexer": {"heads": 4, "dim": 32, "top_k": 64},
        "compressed": {"ratios": [0, 4, 128], "output_groups": 4, "output_rank": 64}, "residual_streams": 2,
    },
]  # fmt: skip


def model(**values: Any) -> Transformer:
    return checked(Transformer, {**SMALL, **values}, "model")


def on_device(whole: Transformer, **sizes: int) -> Shard:
    return shard(whole, CostRequest(**{"ranks": 1, "stages": 1, "microbatches": 1, "sequence": 1024, **sizes}))


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_of_one_half_cost_and_keep_what_whole_layers_do(
    costs: Callable[..., Workload], devices: dict[str, Any], tp: int
) -> None:
    """Stages of equal halves have the times, weights, activations and FLOPs of the whole layers that they form."""
    whole = {**SMALL, "dropout": True}
    halves = {**whole, "layers": 8, "hybrid_pattern": "*-*-*-*-"}
    device = {**devices["h100-sxm"], "memory_latency": 0, "launch_latency": 0}
    first, second = (
        costs(model=values, device=device, ranks=2, stages=2, tp=tp, sequence_parallel=tp > 1)
        for values in (whole, halves)
    )
    for name in ("weights_bytes", "activation_bytes", "weight_activation_bytes", "f_collective_ns", "reduce_ns"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist(), name
    for name in ("f_ns", "i_ns", "w_ns"):  # each group of kernels is rounded up
        assert getattr(first, name) == pytest.approx(getattr(second, name), abs=8), name
    assert flops.step_flops(model(), 4, 512) == flops.step_flops(model(layers=8, hybrid_pattern="*-" * 4), 4, 512)


def _of_compressed_keys(mixed: Transformer, kind: Layer) -> int:
    """Return the parameters of keys, compression, indexer and streams, which every device has."""
    if not mixed.compressed:
        return 0
    matrices = linears(mixed, on_device(mixed), kind)
    whole = sum(matrix.weights for matrix in matrices if matrix.whole)
    return whole + mixed.query_rank + mixed.compressed_vectors(kind.ratio)


@pytest.mark.parametrize("extra", MIXED)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_devices_together_hold_each_weight_once(extra: dict[str, Any], tp: int) -> None:
    """Replicated: norms, the norm of a head, and the first of two matrices."""
    mixed = model(**extra)
    for index in range(mixed.layers):
        kind = mixed.layer(index)
        part = mixed.recurrence(kind)
        replicated = kind.halves * mixed.hidden
        if part:
            replicated += sum(rank * mixed.hidden for rank, _ in part.ranks)
            replicated += part.value_dim if isinstance(part, Delta) else 0
        replicated += _of_compressed_keys(mixed, kind)
        whole, share = (
            memory.layer_parameters(mixed, on_device(mixed, tp=size), kind).total() for size in (1, tp)
        )
        assert tp * (share - replicated) == whole - replicated


@pytest.mark.parametrize("extra", MIXED)
def test_parameters_are_those_that_stages_hold(costs: Callable[..., Workload], extra: dict[str, Any]) -> None:
    workload = costs(model={**SMALL, **extra})
    assert workload.weights_bytes.sum() == 2 * count_parameters(model(**extra))


def test_recurrences_take_their_bytes_and_operations(devices: dict[str, Any]) -> None:
    """A device with half of the heads has half of the bytes; memory traffic and computation take turns."""
    hopper = checked(Shaped, devices["h100-sxm"], "device")
    for extra, part in ((MIXED[0], Delta(**DELTA)), (MIXED[2], Mamba(**MAMBA))):
        mixed = model(**extra)
        whole, half = (
            next(each for each in flops.layer(mixed, on_device(mixed, tp=tp), 4, mixed.layer(0))
                 if each.name == flops.RECURRENCE)
            for tp in (1, 2)
        )  # fmt: skip
        assert whole.forward.size_bytes == 2 * half.forward.size_bytes
        assert whole.input_gradient.flops == 2 * half.input_gradient.flops
        assert 0.8 < whole.forward.flops / (1024 * part.token_flops) <= 1  # masked scores are skipped
        rates = hopper.memory_bandwidth * hopper.memory_efficiency, 132 * 1.2e12
        seconds = whole.forward.size_bytes / rates[0] + whole.forward.flops / rates[1]
        launches = whole.forward.kernels * hopper.launch_latency
        assert shaped_ns(whole.forward, "recurrence", "bf16", hopper) == pytest.approx(
            1e9 * seconds + launches, abs=2
        )


@given(sequence=st.integers(1, 12).map(lambda count: count * 256), top_k=st.sampled_from([128, 512, 2**20]))
def test_sparse_attention_counts_the_chosen_keys_of_each_token(sequence: int, top_k: int) -> None:
    """The core has two operations per key and width; the indexer has scores for all earlier keys."""
    latent = {"kv_rank": 64, "rope_dim": 32, "head_dim": 64, "value_dim": 64}
    sparse = model(**latent, indexer={"heads": 4, "dim": 32, "top_k": top_k})
    work = {operation.name: operation.forward.flops for operation in flops.layer(
        sparse, on_device(sparse, sequence=sequence), 4, sparse.layer(0)
    )}  # fmt: skip
    chosen = sum(min(token + 1, top_k) for token in range(sequence))
    assert work[flops.CORE] == pytest.approx(2 * 8 * (2 * 64 + 32) * chosen, rel=0.01)
    assert work["indexer scores"] == pytest.approx(2 * 4 * 33 * sequence * (sequence + 1) / 2, rel=0.01)


@given(sequence=st.integers(2, 12).map(lambda count: count * 256), top_k=st.sampled_from([16, 64, 2**20]))
def test_compressed_keys_are_counted_for_each_token(sequence: int, top_k: int) -> None:
    """Model FLOPs have the keys before each token; kernels compute all places for them."""
    values = {**MIXED[3], "indexer": {"heads": 4, "dim": 32, "top_k": top_k}}
    for ratio in (0, 4, 128):
        whole = model(**{**values, "layers": 1, "compressed": {**MIXED[3]["compressed"], "ratios": [ratio]}})
        operations = flops.layer(whole, on_device(whole, sequence=sequence), 4, whole.layer(0))
        (core,) = [operation.forward.flops for operation in operations if operation.name == flops.CORE]
        keys = sum(min(token + 1, 64) for token in range(sequence))
        places, scores = min(64, sequence), 0
        if ratio:
            most = top_k if ratio == 4 else sequence
            keys += sum(min((token + 1) / ratio, most) for token in range(sequence))
            places += min(most, sequence // ratio)
            scores = 2 * 4 * 32 * sequence * sequence // ratio * (ratio == 4)
        assert core == 4 * 1024 * sequence * places
        matrices = active_weights(whole, whole.layer(0)) + whole.hidden * whole.vocabulary
        mixing = flops.step_flops(whole, 1, sequence) / 3 - 2 * sequence * matrices
        assert mixing == pytest.approx(4 * 1024 * keys + scores, rel=0.05)


def test_residual_streams_are_read_and_written_as_counted() -> None:
    """A half with 4 streams moves 14 widths in place of a sum's 3, and 39 backward."""
    plain, streamed = (model(residual_streams=streams) for streams in (1, 4))
    width = on_device(plain).split_tokens * plain.hidden * 2
    operations = [
        {each.name: each for each in flops.layer(whole, on_device(whole), 4, whole.layer(0))}
        for whole in (plain, streamed)
    ]
    norms = [each["norms and residuals"] for each in operations]
    assert norms[0].forward.size_bytes - norms[1].forward.size_bytes == 2 * 3 * width
    assert operations[1]["streams"].forward.size_bytes == 2 * 14 * width
    assert operations[1]["streams"].input_gradient.size_bytes == 2 * 39 * width
    assert "streams" not in operations[0]


def test_recomputed_streams_are_kept_once_per_stage(costs: Callable[..., Workload]) -> None:
    """A half keeps its output alone, and the first half of a stage its streams, too."""
    values = {**SMALL, "layers": 8, "residual_streams": 4}
    kept, again = (costs(model={**values, **key}) for key in (
        {}, {"recompute": "selective", "recompute_modules": ["mhc"]}
    ))  # fmt: skip
    width = 2048 * 1024 * 2
    # Two layers of two halves, each without five widths and its norm's output; the stage has its input.
    freed = kept.activation_bytes[1] - again.activation_bytes[1]
    assert freed == 2 * 2 * 6 * width - 4 * width
    backward = (kept.i_ns + kept.w_ns)[1], (again.i_ns + again.w_ns)[1]
    assert backward[1] > backward[0]
    assert again.f_ns[1] == kept.f_ns[1]


def test_experts_of_latent_width_exchange_as_much_less(costs: Callable[..., Workload]) -> None:
    mixture = {**SMALL, "num_experts": 8, "top_k": 2, "expert_ffn": 512}
    full, narrow = (
        costs(model={**mixture, "expert_latent": latent}, ep=4, dp=4, micro=16).f_collective_ns[1]
        for latent in (1024, 256)
    )
    assert narrow == pytest.approx(full / 4, rel=0.05)


def test_messages_have_the_width_of_streams_and_of_summaries(costs: Callable[..., Workload]) -> None:
    plain = costs(model={**SMALL, "layers": 8}).boundary_bytes
    streams = costs(model={**SMALL, "layers": 8, "residual_streams": 4}).boundary_bytes
    blocks = costs(model={**SMALL, "layers": 8, "residual_block": 3}).boundary_bytes
    assert streams.tolist() == [4 * size for size in plain]
    # Stages begin with the layers 2, 4 and 6: parts of the first block, of the second, and two whole blocks.
    assert blocks[:3].tolist() == [2 * plain[0], 3 * plain[0], 3 * plain[0]]


def test_kimi_k3_sends_the_widths_that_its_pipeline_has() -> None:
    """Megatron-Bridge's pipeline of three stages passes 4 and 7 widths."""
    k3 = checked(Transformer, PRESETS["kimi-k3"], "model")
    assert [k3.boundary_width(first) // k3.hidden for first in (31, 62)] == [4, 7]


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if "nemotron-" in name or "qwen3.5" in name or "kimi-" in name]
)
def test_an_unlike_preset_has_costs_on_two_stages(costs: Callable[..., Workload], name: str) -> None:
    workload = costs(model=PRESETS[name], ranks=2, stages=2, tp=2, sequence=4096)
    assert (workload.f_ns > 0).all()
    assert (workload.i_ns + workload.w_ns > workload.f_ns).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hybrid_pattern": "M*-"}, r"hybrid_pattern: has 3 letters, and layers is 4"),
        ({"hybrid_pattern": "M*-X"}, r"hybrid_pattern: unknown letter 'X'; letters are M, G, \*, -, E"),
        ({"hybrid_pattern": "M*M-"}, r"mamba: missing; layers have it"),
        ({"hybrid_pattern": "*E*E"}, r"hybrid_pattern: E needs num_experts"),
        ({"mixers": ["delta"]}, r"delta: missing; layers have it"),
        ({"indexer": {"heads": 2}}, r"indexer: sparse attention is latent or compressed"),
        ({"compressed": {"ratios": [4], "output_groups": 1, "output_rank": 8}}, r"compressed: give kv_heads: 1"),
        ({"expert_latent": 8}, r"expert_latent: belongs to experts"),
    ],
)
def test_what_is_missing_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(**values)


def test_heads_of_recurrences_divide_over_devices() -> None:
    with pytest.raises(ConstraintError, match=r"model\.mamba\.groups"):
        on_device(model(**{**MIXED[2], "mamba": {"heads": 16, "groups": 2}}), tp=4)
