"""The workload's times: the roofline, the split of the backward, partitions, scaling laws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from pptrace.memo import Memo, memoizing
from pptrace.plugins.requests import CostRequest
from pptrace_models.plugin import pptrace_cost_models, pptrace_devices, pptrace_models
from pptrace_models.roofline import build
from pptrace_models.stages import partition
from pptrace_models.transformer import Transformer, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

MODELS = {offer.name: offer.values for offer in pptrace_models()}
DEVICES = {offer.name: offer.values for offer in pptrace_devices()}
IDEAL = {
    "peak_bf16": 10**9,
    "memory": "1 GiB",
    "memory_bandwidth": 10**17,
    "scale_up_bandwidth": 10**17,
    "launch_latency": "0 ns",
    "memory_latency": "0 ns",
    "compute_efficiency": 1.0,
    "attention_efficiency": 1.0,
}


def test_a_compute_bound_stage_takes_its_flops_over_the_peak(costs: Callable[..., Workload]) -> None:
    workload = costs(device=IDEAL)
    s, h, v, layers = 2048, 1024, 32000, 2
    memory_bound = 1000  # at 10^17 bytes/s: nanoseconds
    assert workload.f_ns[1] == pytest.approx(layers * s * h * (24 * h + 4 * s), abs=memory_bound)
    assert workload.i_ns[1] == pytest.approx(layers * s * h * (24 * h + 8 * s), abs=memory_bound)
    assert workload.w_ns[1] == layers * 24 * s * h * h
    assert workload.w_ns[3] - workload.w_ns[1] == 2 * s * h * v
    assert workload.f_ns[3] - workload.f_ns[1] == pytest.approx(2 * s * h * v, abs=memory_bound)


def test_full_backward_is_exactly_both_halves(costs: Callable[..., Workload]) -> None:
    for recompute in ("none", "selective", "full"):
        workload = costs({"recompute": recompute}, tp=2, cp=2)
        assert (workload.b_ns == workload.i_ns + workload.w_ns).all()


def test_recomputation_adds_forward_to_the_input_gradient(costs: Callable[..., Workload]) -> None:
    none, full, selective = (costs({"recompute": kind}) for kind in ("none", "full", "selective"))
    assert full.i_ns[1] == none.i_ns[1] + none.f_ns[1]
    assert none.i_ns[1] < selective.i_ns[1] < full.i_ns[1]
    for again in (full, selective):
        assert (again.w_ns == none.w_ns).all()
        assert (again.f_ns == none.f_ns).all()
    assert full.i_ns[3] - none.i_ns[3] == none.f_ns[1]  # the head is not computed again


def test_an_action_that_computes_again_takes_a_forward_unless_the_backward_already_does(
    costs: Callable[..., Workload],
) -> None:
    assert (costs().recompute_ns == costs().f_ns).all()
    assert not costs({"recompute": "full"}).recompute_ns.any()


def test_copies_to_the_host_take_its_rate(costs: Callable[..., Workload], devices: dict[str, Any]) -> None:
    device = devices["h100-sxm"]
    workload = costs(device={**device, "host_bandwidth": 10**9})

    assert costs(device=device).offload_ns.tolist() == [0, 0, 0, 0]
    assert workload.offload_ns.tolist() == workload.reload_ns.tolist() == workload.activation_bytes.tolist()


def test_latencies_bound_small_work_from_below(costs: Callable[..., Workload]) -> None:
    device = IDEAL | {"peak_bf16": 10**20, "launch_latency": "7 us"}
    workload = costs(device=device, sequence=16)
    computing, moving = 3, 2  # projections, MLP and core; activation function and norms
    assert workload.f_ns[1] == 2 * (computing * (7000 + 1) + moving * 7000)


def test_the_step_is_counted_over_the_whole_job(costs: Callable[..., Workload]) -> None:
    workload = costs(tp=2, cp=2, dp=3, global_batch=48, micro=2)
    assert workload.tokens == 48 * 2048
    assert workload.peak_flops == 989_500 * 10**9 * 2 * 2 * 3 * 4
    assert workload.model_flops == 2 * costs(global_batch=24).model_flops
    assert costs(dp=3, micro=2).tokens == 8 * 2 * 3 * 2048


def test_fp8_speeds_up_linear_layers_alone(costs: Callable[..., Workload]) -> None:
    bf16, fp8 = costs(), costs({"precision": "fp8"})
    assert (fp8.w_ns[1:3] < bf16.w_ns[1:3]).all()
    assert (fp8.activation_bytes < bf16.activation_bytes).all()
    assert fp8.peak_flops == 2 * bf16.peak_flops


def test_boundary_messages_shrink_with_sequence_and_context_parallelism(costs: Callable[..., Workload]) -> None:
    whole = costs(tp=4).boundary_bytes[0]
    assert whole == 2048 * 1024 * 2
    assert costs(tp=4, sequence_parallel=True).boundary_bytes[0] * 4 == whole
    assert costs(cp=2).boundary_bytes[0] * 2 == whole
    assert costs(micro=2).boundary_bytes[0] == 2 * whole


def test_boundary_messages_follow_the_given_edges(costs: Callable[..., Workload]) -> None:
    assert costs(edges=((0, 1), (1, 2), (2, 3), (0, 3))).boundary_bytes.size == 4


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        (80, 8, [10] * 8),
        (126, 16, [7, *[8] * 14, 7]),
        (30, 8, [3, *[4] * 6, 3]),
        (9, 4, [2, 2, 3, 2]),
        (7, 4, [2, 2, 2, 1]),
        (3, 2, [2, 1]),
        (5, 1, [5]),
    ],
)
def test_the_remainder_goes_to_the_middle_stages_later_ones_first(
    classic: dict[str, Any], layers: int, stages: int, split: list[int]
) -> None:
    assert partition(checked(Transformer, classic | {"layers": layers}, "model"), stages) == split


@given(layers=st.integers(1, 200), data=st.data())
def test_a_default_split_is_even_and_whole(layers: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, layers))
    values = {"layers": layers, "hidden": 8, "heads": 1, "ffn": 8, "vocabulary": 8}
    split = partition(checked(Transformer, values, "model"), stages)
    assert (len(split), sum(split)) == (stages, layers)
    assert max(split) - min(split) <= 1


def test_a_given_split_is_taken(costs: Callable[..., Workload]) -> None:
    workload = costs({"layers_per_stage": [1, 3, 4, 0]})
    layer = (workload.f_ns[2] - workload.f_ns[1]).item()
    assert workload.f_ns[1] == 3 * layer
    assert workload.f_ns[3] > 0  # the head alone


def test_experts_are_on_every_nth_layer(costs: Callable[..., Workload]) -> None:
    workload = costs({"num_experts": 4, "moe_every": 3, "layers": 8})
    dense, first, second = workload.weights_bytes[3], workload.weights_bytes[1], workload.weights_bytes[2]
    assert first == second  # layers 3 and 6 of 8, two a stage
    assert costs().weights_bytes[3] == dense


GROWING = st.fixed_dictionaries(
    {
        "micro": st.sampled_from([1, 2, 4]),
        "sequence": st.sampled_from([256, 1024]),
        "tp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "sequence_parallel": st.booleans(),
    }
)


@given(sizes=GROWING, recompute=st.sampled_from(["none", "selective", "full"]), flash=st.booleans())
def test_more_work_never_costs_less(sizes: dict[str, Any], recompute: str, *, flash: bool) -> None:
    model = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 2048, "vocabulary": 1000}
    model |= {"recompute": recompute, "flash_attention": flash}

    def cost(sizes: dict[str, Any] = sizes, **more: Any) -> Workload:
        request = {"ranks": 2, "stages": 2, "microbatches": 4, "device": DEVICES["h100-sxm"], **sizes}
        return build(CostRequest(**request, model=model | more))

    base = cost()
    larger = [cost({**sizes, "micro": 2 * sizes["micro"]}), cost({**sizes, "sequence": 2 * sizes["sequence"]})]
    larger += [cost(layers=8), cost(ffn=4096), cost(vocabulary=2000)]
    for more in larger:
        for name in ("f_ns", "i_ns", "w_ns", "b_ns", "f_collective_ns", "activation_bytes", "weights_bytes"):
            assert (getattr(more, name) >= getattr(base, name)).all(), name
        assert more.model_flops > base.model_flops


@given(sizes=GROWING, name=st.sampled_from(["compute", "attention", "memory", "network"]), share=st.floats(0.1, 1))
def test_a_higher_efficiency_never_costs_more(sizes: dict[str, Any], name: str, share: float) -> None:
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 2048, "vocabulary": 1000}

    def cost(value: float) -> Workload:
        device = {**DEVICES["a100-sxm"], f"{name}_efficiency": value}
        return build(CostRequest(ranks=2, stages=2, microbatches=4, device=device, model=model, **sizes))

    slow, fast = cost(share / 2), cost(share)
    for column in ("f_ns", "i_ns", "w_ns", "optimizer_ns"):
        assert (getattr(fast, column) <= getattr(slow, column)).all()


@pytest.mark.parametrize(
    ("model", "device", "pp", "tp", "microbatches", "sequence"),
    [
        ("llama3-70b", "h100-sxm", 8, 8, 64, 8192),
        ("llama3-405b", "h100-sxm", 16, 8, 128, 8192),
        ("gpt3-175b", "a100-sxm", 8, 8, 64, 2048),
        ("qwen2-12.1b", "a800-sxm", 4, 4, 64, 6144),
    ],
)
def test_a_well_known_run_reaches_a_credible_share_of_the_peak(
    model: str, device: str, pp: int, tp: int, microbatches: int, sequence: int
) -> None:
    request = CostRequest(
        ranks=pp,
        stages=pp,
        microbatches=microbatches,
        model=MODELS[model],
        device=DEVICES[device],
        tp=tp,
        sequence_parallel=True,
        sequence=sequence,
    )
    workload = build(request)
    step_ns = (microbatches + pp - 1) * int((workload.f_ns + workload.b_ns).max()) + int(
        workload.optimizer_ns.max()
    )
    assert 0.30 < workload.model_flops / (workload.peak_flops * step_ns / 1e9) < 0.60


@pytest.mark.parametrize(
    ("model", "device"),
    [*((model, "h100-sxm") for model in MODELS), *(("llama3-8b", device) for device in DEVICES)],
)
def test_every_model_runs_on_every_device(model: str, device: str) -> None:
    request = CostRequest(
        ranks=2, stages=4, microbatches=4, model=MODELS[model], device=DEVICES[device], tp=2, sequence=1024
    )
    workload = build(request)
    assert workload.stages == 4
    assert (workload.f_ns > 0).all()
    assert (workload.w_ns > 0).all()
    # Weight gradients of experts with few tokens each are bound by memory.
    assert (workload.i_ns > workload.w_ns).all() or "num_experts" in MODELS[model]


def test_the_same_request_gives_the_same_workload() -> None:
    (offer,) = pptrace_cost_models()
    request = CostRequest(
        ranks=8,
        stages=8,
        microbatches=8,
        model=MODELS["llama3-70b"],
        device=DEVICES["h100-sxm"],
        tp=8,
        sequence=8192,
    )
    first, second = offer.build(request), build(request)
    assert np.array_equal(first.f_ns, second.f_ns)
    assert first.notes == second.notes


def test_notes_are_sentences(costs: Callable[..., Workload]) -> None:
    for note in costs({"recompute": "selective", "flash_attention": True}).notes:
        assert note.endswith(".")
        assert "\n" not in note


SHARED = (
    {}, {"dp": 4}, {"dp": 4, "shard": 2}, {"dp": 4, "reduce_each": True, "reshard": "always"},
    {"tp": 2, "micro": 2}, {"tp": 2, "has_pairs": True}, {"stages": 8},
    {"model": {"layers_per_stage": [1, 2, 2, 3]}},
    {"edges": ((0, 1), (1, 2), (1, 3))}, {"dp": 4, "data_parallel": {"rate_kbps": 10**6, "latency_ns": 10**5}},
    {"dp": 4, "data_parallel": {"rate_kbps": 10**7, "latency_ns": 10**4}},
    {"tp": 16, "dp": 2, "data_parallel": {"rate_kbps": 10**6, "latency_ns": 10**5}},
    {"tp": 16, "dp": 2, "data_parallel": {"rate_kbps": 10**7, "latency_ns": 10**4}},
    {"ranks": 1, "stages": 10, "units": True, "dp": 4}, {"sequence": 1024}, {"microbatches": 16},
)  # fmt: skip
"""Changes of a request, each of which changes other values of layers and stages."""


@pytest.mark.parametrize("options", [{}, {"zero": 3, "copied_shards": True}])
def test_costs_that_share_values_equal_separate_ones(
    costs: Callable[..., Workload], options: dict[str, Any]
) -> None:
    def build_all() -> list[dict[str, str]]:
        built = []
        for changed in (*SHARED, *reversed(SHARED)):
            zero = {"zero": 1} if "shard" in changed and not options else {}
            workload = costs(**{**changed, "options": options | zero})
            built.append({name: repr(value) for name, value in asdict(workload).items()
                          if name not in {"kernels", "segments"}})  # fmt: skip
        return built

    separate = build_all()
    with memoizing(Memo()):
        assert build_all() == separate
