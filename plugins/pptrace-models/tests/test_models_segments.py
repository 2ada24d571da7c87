"""Segments of roofline costs sum to its plain times, layer by layer in the order of the issue of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.api import simulate
from pptrace.errors import ConfigError
from pptrace.plugins.requests import CostRequest
from pptrace.steps.kinds import Kind, Stream
from pptrace_models.plugin import pptrace_devices
from pptrace_models.roofline import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

DEVICE = next(offer.values for offer in pptrace_devices() if offer.name == "h100-sxm")
DENSE = {"layers": 7, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn": 4096, "vocabulary": 32001}
EXPERTS = {"num_experts": 8, "top_k": 2, "expert_ffn": 1024, "moe_every": 2}
EVERY = {**EXPERTS, "layers": 8, "moe_every": 1}
FORWARD, BACKWARD = ["attention", "mlp"], ["mlp-input", "mlp-weight", "attention-input", "attention-weight"]


@given(
    sizes=st.fixed_dictionaries({
        "tp": st.sampled_from([1, 2, 4]), "cp": st.sampled_from([1, 2]), "dp": st.sampled_from([4, 8]),
        "ep": st.sampled_from([1, 4]), "sequence_parallel": st.booleans(), "micro": st.integers(1, 3),
        "stages": st.sampled_from([1, 2, 4, 7]), "sequence": st.sampled_from([64, 1000, 4096]),
    }),
    model=st.fixed_dictionaries({
        "recompute": st.sampled_from(["none", "selective", "full"]), "gated": st.booleans(),
        "flash_attention": st.booleans(), "precision": st.sampled_from(["bf16", "fp8"]),
    }),
    experts=st.booleans(),
)  # fmt: skip
def test_segments_sum_to_the_plain_times(sizes: dict[str, Any], model: dict[str, Any], *, experts: bool) -> None:
    sizes = sizes if experts else {**sizes, "ep": 1}
    values = {"ranks": sizes["stages"], "microbatches": 8,
              "model": {**DENSE, **model, **(EXPERTS if experts else {})},
              "device": DEVICE, **sizes}  # fmt: skip

    plain = build(CostRequest(**values))
    parts = build(CostRequest(**values, options={"segments": True}))
    default = build(CostRequest(**values, has_pairs=True))

    communicates = any(plain.collective_ns(kind).any() for kind in parts.segments)
    assert default.segments == (parts.segments if communicates else {})
    for kind in parts.segments:
        assert default.duration_ns(kind).tolist() == plain.duration_ns(kind).tolist(), kind
        assert parts.duration_ns(kind).tolist() == plain.duration_ns(kind).tolist(), kind
        assert parts.collective_ns(kind).tolist() == plain.collective_ns(kind).tolist(), kind
    for name in (
        "f_ns",
        "b_ns",
        "i_ns",
        "w_ns",
        "recompute_ns",
        "activation_bytes",
        "boundary_bytes",
        "reduce_ns",
    ):
        assert np.array_equal(getattr(parts, name), getattr(plain, name)), name

    held, for_weights = plain.activation_bytes, plain.weight_activation_bytes
    changes = {Kind.F: held, Kind.B: -held, Kind.I: for_weights - held, Kind.W: -for_weights}
    for kind, expected in changes.items():
        found = [sum(part.activation_bytes or 0 for part in stage) for stage in parts.segments[kind]]
        assert found == expected.tolist(), kind


def test_a_pair_of_whole_passes_holds_one_microbatch_and_at_most_some_layers_more() -> None:
    step = {
        "model": "qwen3-30b-a3b", "device": "gb300", "parallel": {"pp": 1, "dp": 8, "ep": 8, "etp": 1}, "batch": {
            "micro": 1, "sequence": 4096, "microbatches": 8,
        },
    }  # fmt: skip
    alone = simulate({**step, "schedule": "1f1b"}).memory.peak_activation_bytes[0]
    paired = simulate({**step, "schedule": "combined-1f1b"}).memory.peak_activation_bytes[0]

    assert alone <= paired < alone * (1 + 3 / 48)


def named(workload: Workload, kind: Kind, stage: int = 1) -> list[str]:
    return [segment.name for segment in workload.segments[kind][stage]]


def test_segments_are_the_default_where_there_are_pairs_alone(costs: Callable[..., Workload]) -> None:
    assert not costs(tp=2).segments
    assert costs(tp=2, has_pairs=True).segments == costs(tp=2, options={"segments": True}).segments
    assert not costs(tp=2, has_pairs=True, options={"segments": False}).segments


@pytest.mark.parametrize("options", [{"overlap_tp": True}, {"accumulation": "separate"}])
def test_options_that_segments_exclude_keep_actions_whole(
    costs: Callable[..., Workload], options: dict[str, Any]
) -> None:
    paired, alone = (costs(tp=2, has_pairs=has_pairs, options=options) for has_pairs in (True, False))

    assert not paired.segments
    assert paired.b_ns.tolist() == alone.b_ns.tolist()


@pytest.mark.parametrize(
    ("sizes", "forward", "backward"),
    [
        ({}, FORWARD, BACKWARD),
        (
            {"tp": 2},
            ["attention", "all-reduce", "mlp", "all-reduce"],
            ["mlp-input", "all-reduce", "mlp-weight", "attention-input", "all-reduce", "attention-weight"],
        ),
        (
            {"tp": 2, "sequence_parallel": True},
            ["all-gather", "attention", "reduce-scatter", "all-gather", "mlp", "reduce-scatter"],
            ["all-gather", "mlp-input", "reduce-scatter", "mlp-weight",
             "all-gather", "attention-input", "reduce-scatter", "attention-weight"],
        ),
        (
            {"cp": 2},
            ["projections", "key-value-gather", "attention", "mlp"],
            ["mlp-input", "mlp-weight", "key-value-gather", "attention-input", "key-value-scatter",
             "projections-input", "attention-weight"],
        ),
    ],
)  # fmt: skip
def test_a_layer_is_its_halves_and_their_collectives(
    costs: Callable[..., Workload], sizes: dict[str, Any], forward: list[str], backward: list[str]
) -> None:
    workload = costs(options={"segments": True}, **sizes)

    assert named(workload, Kind.F) == forward * 2
    assert named(workload, Kind.B) == backward * 2
    assert named(workload, Kind.I) == [name for name in backward if not name.endswith("weight")] * 2
    assert named(workload, Kind.W) == ["mlp-weight", "attention-weight"] * 2
    assert [item.result for item in workload.segments[Kind.B][1]].count(True) == 1


def test_experts_lie_between_dispatch_and_combine(costs: Callable[..., Workload]) -> None:
    workload = costs({**EXPERTS, "layers": 4}, options={"segments": True}, dp=4, ep=4)

    assert named(workload, Kind.F) == ["attention", "dispatch", "experts", "combine"]
    assert named(workload, Kind.B) == [
        "combine", "experts-input", "dispatch", "experts-weight", "attention-input", "attention-weight",
    ]  # fmt: skip
    assert named(workload, Kind.F, 0) == ["embedding", *FORWARD]


def test_computations_beside_experts_include_other_collectives(costs: Callable[..., Workload]) -> None:
    """As in Megatron-LM's combined 1F1B, one computation is between two exchanges of tokens."""
    sizes = {"tp": 2, "cp": 2, "sequence_parallel": True, "dp": 4, "ep": 4}
    parts, plain = costs(EVERY, options={"segments": True}, **sizes), costs(EVERY, **sizes)

    assert named(parts, Kind.F)[:4] == ["attention", "dispatch", "experts", "combine"]
    assert named(parts, Kind.B)[:6] == [
        "combine", "experts-input", "dispatch", "experts-weight", "attention-input", "attention-weight",
    ]  # fmt: skip
    assert parts.collective_ns(Kind.B).tolist() == plain.collective_ns(Kind.B).tolist()


def test_weight_parts_wait_for_their_input_part_and_nothing_waits_for_them(costs: Callable[..., Workload]) -> None:
    segments = costs(options={"segments": True}, tp=2).segments[Kind.B][1]

    for place, segment in enumerate(segments):
        needed = [segments[need].name for need in segment.needs_of(place)]
        if segment.name.endswith("weight"):
            assert needed == [segment.name.replace("weight", "input")]
        else:
            assert not any(name.endswith("weight") for name in needed)
    assert [segment.name for segment in segments if segment.result] == ["all-reduce"]
    assert {segment.stream for segment in segments} == {Stream.COMPUTE, Stream.TENSOR_PARALLEL}


def test_without_delayed_weight_gradients_exchanges_wait_for_them(costs: Callable[..., Workload]) -> None:
    options = {"segments": True, "delay_wgrad": False}
    workload = costs(EVERY, options=options, dp=4, ep=4)

    segments = workload.segments[Kind.B][1]
    names = [segment.name for segment in segments]
    layer = ["combine", "experts-input", "experts-weight", "dispatch", "attention-input", "attention-weight"]
    assert names == layer * (len(names) // len(layer))
    waits = {place: segment.needs_of(place) for place, segment in enumerate(segments)}
    assert set(waits[3]) == {1, 2}
    assert waits[4] == (3,)
    assert all(set(waits[place]) == {place - 2, place - 1} for place in range(6, len(names), 6))
    assert [segment.name for segment in segments if segment.result] == ["attention-input", "attention-weight"]
    assert (workload.b_ns == costs(EVERY, dp=4, ep=4).b_ns).all()


def test_delayed_weight_gradients_are_of_segments(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError, match="write segments: true beside it"):
        costs(options={"delay_wgrad": False})


def test_what_is_computed_again_stands_before_what_needs_it(costs: Callable[..., Workload]) -> None:
    selective, full = (costs({"recompute": kind}, options={"segments": True}) for kind in ("selective", "full"))

    assert named(selective, Kind.B)[:4] == ["mlp-input", "mlp-weight", "recompute-core", "attention-input"]
    assert named(full, Kind.B)[:3] == ["recompute-attention", "recompute-mlp", "mlp-input"]
    assert Kind.RECOMPUTE in selective.segments
    assert Kind.RECOMPUTE not in full.segments


def test_a_stage_without_layers_has_an_empty_segment(costs: Callable[..., Workload]) -> None:
    workload = costs({"layers_per_stage": [3, 0, 2, 3]}, options={"segments": True})

    assert named(workload, Kind.F) == named(workload, Kind.W) == ["nothing"]


def test_a_backward_alone_may_hide_its_collectives_behind_its_weight_gradients(
    costs: Callable[..., Workload],
) -> None:
    both = {"alone": "overlapped", "segments": True}
    whole, hidden = (costs(tp=4, options=item) for item in ({"segments": True}, both))

    assert (hidden.b_ns < whole.b_ns).all()
    for name in ("f_ns", "i_ns", "w_ns"):
        assert getattr(hidden, name).tolist() == getattr(whole, name).tolist()
    assert (hidden.b_collective_ns - whole.b_collective_ns).tolist() == (hidden.b_ns - whole.b_ns).tolist()
