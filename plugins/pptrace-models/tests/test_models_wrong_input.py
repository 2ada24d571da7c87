"""Every wrong input is one line that names the key and what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.errors import ConfigError, ConstraintError, CostError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

MODEL_ERRORS = [
    ({"layer": 8}, "model.layer: unknown key (did you mean 'layers'?"),
    ({"layers": 0}, "model.layers: must be at least 1, not 0"),
    ({"layers": "many"}, "model.layers: must be a whole number, not 'many'"),
    ({"hidden": 1.5}, "model.hidden: must be a whole number, not 1.5"),
    ({"heads": 80}, "model.heads: 80 do not divide hidden (1024): write 64 or 128, or give head_dim"),
    ({"kv_heads": 3}, "model.kv_heads: 3 do not divide heads (16); nearest that do: 2 or 4"),
    ({"head_dim": 0.3}, "model.head_dim: 16 heads of 0.3 are not a whole width"),
    ({"precision": "int8"}, "model.precision: unknown value 'int8' (known: bf16, fp16, fp32, fp8, mxfp8, nvfp4)"),
    ({"recompute": "some"}, "model.recompute: unknown value 'some' (did you mean 'none'?"),
    ({"recompute_method": "block"}, "model.recompute_method: write recompute: full beside it"),
    (
        {"recompute_num_layers": 2},
        "model.recompute_num_layers: write recompute_method: uniform or block beside it",
    ),
    ({"layers_per_stage": [2, 2, 2]}, "model.layers_per_stage: 3 entries for 4 stages; give one per stage"),
    ({"layers_per_stage": [2, 2, 2, 1]}, "model.layers_per_stage: sums to 7, not to model.layers (8); add 1"),
    ({"layers_per_stage": [2, 2, 2, 4]}, "sums to 10, not to model.layers (8); take away 2"),
    ({"layers_per_stage": [2, 2, 2, -1]}, "model.layers_per_stage[3]: must be at least 0, not -1"),
    ({"num_experts": 2, "top_k": 3}, "model.top_k: 3 passes num_experts (2)"),
    ({"num_experts": 8, "expert_groups": 3}, "model.expert_groups: 3 do not divide num_experts (8)"),
    ({"num_experts": 8, "top_groups": 2}, "model.top_groups: 2 passes expert_groups (1)"),
    (
        {"num_experts": 8, "expert_groups": 4, "top_k": 3},
        "model.top_k: 3 passes the experts of top_groups (2)",
    ),
    ({"vocabulary": 10**9}, "model.vocabulary: must be at most 10000000, not 1000000000"),
]


@pytest.mark.parametrize(("values", "line"), MODEL_ERRORS)
def test_a_wrong_model_is_one_line(costs: Callable[..., Workload], values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        costs(values)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError, match=r"^model\.hidden: missing: width of the residual stream$"):
        costs({"hidden": None})


STEP: dict[str, Any] = {
    "schedule": "1f1b", "pp": 2, "dp": 2, "microbatches": 4, "model": "llama3-8b", "device": "h100-sxm",
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["costs.forward=1 ms"], "roofline costs do not take it: remove it, or write costs.name: "),
        (["costs.fused_loss=maybe"], "must be true or false or 'compiled', not 'maybe'"),
        (["costs.zero=7"], "must be one of 0, 1, 2, 3, not 7"),
        (["costs.zero=true"], "must be one of 0, 1, 2, 3, not true"),
        (["costs.zero='1'"], "must be one of 0, 1, 2, 3, not '1'; remove the quotes"),
        (["model.name=x"], "it is not a parameter: write model.preset"),
        (["data_parallel.spread=0.1", "costs.spread=0.1"], "costs.spread lengthens all"),
        (["model.heads=7"], "7 do not divide hidden (4096): write 4 or 8, or give head_dim"),
        (["model.kv_heads=7"], "7 do not divide heads (32); nearest that do: 4 or 8"),
        (
            ["batch.micro=9999999"],
            "micro 9,999,999 x sequence 4,096: a message of 3355442864",
        ),
        (["batch.sequence=2147483647"], "micro 1 x sequence 2,147,483,647: a message"),
    ],
)
def test_a_wrong_setting_beside_a_model_is_one_line(settings: list[str], line: str) -> None:
    with pytest.raises(PptraceError) as caught:
        pptrace.simulate(sets=["batch.sequence=4096", *settings], **STEP)
    assert str(caught.value).startswith(f"sets {settings[0]}: {line}")
    assert "\n" not in str(caught.value)


def test_options_of_the_cost_model_by_default_need_no_name() -> None:
    plain, unnamed, named = (
        pptrace.simulate(sets=["batch.sequence=4096", *sets], **STEP)
        for sets in (["costs.zero=0"], ["costs.zero=1"], ["costs.name=roofline", "costs.zero=1"])
    )

    assert unnamed.to_dict() == named.to_dict()
    assert unnamed.metrics.memory.peak_bytes.max() < plain.metrics.memory.peak_bytes.max()


DEVICE_ERRORS = [
    ({"memory_bandwith": 1}, "device.memory_bandwith: unknown key (did you mean 'memory_bandwidth'?"),
    ({"memory_bandwidth": 0}, "device.memory_bandwidth: must be at least 1, not 0"),
    ({"memory_bandwidth": "0 B/s"}, "device.memory_bandwidth: '0 B/s': a rate must be above zero"),
    ({"memory": "80 parsecs"}, "device.memory: unknown unit 'parsecs'"),
    ({"compute_efficiency": 1.2}, "device.compute_efficiency: must be at most 1, not 1.2"),
    ({"compute_efficiency": 0}, "device.compute_efficiency: must be above 0, not 0"),
    ({"peak_bf16": None}, "device.peak_bf16: missing: dense BF16 peak"),
    ({"scale_up_size": 0}, "device.scale_up_size: must be at least 1, not 0"),
]


@pytest.mark.parametrize(("values", "line"), DEVICE_ERRORS)
def test_a_wrong_device_is_one_line(
    costs: Callable[..., Workload], devices: dict[str, Any], values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        costs(device={**devices["h100-sxm"], **values})
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_precision_that_the_device_lacks_names_those_it_has(costs: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError) as caught:
        costs({"precision": "fp8"}, device="a100-sxm")
    line = "model.precision: fp8 has no peak on this device; use bf16, fp16, fp32, or give device.peak_fp8"
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"zero": 4}, "costs.options.zero: must be one of 0, 1, 2, 3, not 4"),
        ({"zeros": 1}, "costs.options.zeros: unknown key (did you mean 'zero'?"),
        ({"gradients": "fp8"}, "costs.options.gradients: unknown value 'fp8' (did you mean 'fp32'?"),
        ({"reserved": "2 GiP"}, "costs.options.reserved: unknown unit 'GiP'"),
        ({"exp_avg": "fp8"}, "costs.exp_avg: Megatron-LM's precision-aware optimizer needs the distributed one: "),
        ({"zero": 1, "exp_avg": "int8"}, "costs.options.exp_avg: unknown value 'int8' (known: "),
        ({"alone": "overlapped"}, "costs.alone: overlapped needs segments: write segments: true beside it"),
    ],
)
def test_a_wrong_option_is_one_line(costs: Callable[..., Workload], options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        costs(options=options)
    assert str(caught.value).startswith(line)


CONSTRAINTS = [
    ({}, {"tp": 3}, "parallel.tp: 3 does not divide model.heads (16); nearest that work: 2 or 4"),
    ({}, {"tp": 32}, "parallel.tp: 32 does not divide model.heads (16); nearest that work: 16"),
    ({"ffn": 1500}, {"tp": 8}, "parallel.tp: 8 does not divide model.ffn (1500); nearest that work: 4"),
    (
        {"heads": 12, "kv_heads": 6, "hidden": 1200},
        {"tp": 4},
        "parallel.tp: 4 neither divides model.kv_heads (6) nor is a multiple of it; nearest that work: 2",
    ),
    ({"head_dim": 0.25}, {"tp": 8}, "parallel.tp: 8 does not split heads of 0.25 into whole widths"),
    ({}, {"cp": 3}, "parallel.cp: 3 does not divide batch.sequence (2048); nearest that work: 2 or 4"),
    (
        {},
        {"tp": 16, "sequence": 24, "sequence_parallel": True},
        "parallel.tp: 16 does not divide the tokens that sequence parallelism splits (24)",
    ),
    ({}, {"ep": 2}, "parallel.ep: 2 splits experts, and the model has none (model.num_experts)"),
    ({"num_experts": 6}, {"ep": 4, "dp": 4}, "parallel.ep: 4 does not divide model.num_experts (6)"),
    ({"num_experts": 8}, {"ep": 8, "dp": 4}, "parallel.ep: 8 does not divide parallel.dp x parallel.cp (4)"),
    ({}, {"stages": 16}, "parallel: 16 stages are more than model.layers (8); nearest that work: 8 stages"),
]


@pytest.mark.parametrize(("values", "sizes", "line"), CONSTRAINTS)
def test_sizes_that_do_not_divide_name_the_nearest_that_do(
    costs: Callable[..., Workload], values: dict[str, Any], sizes: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConstraintError) as caught:
        costs(values, **sizes)
    assert str(caught.value).startswith(line)
    assert "; nearest that work: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tp", "cp", "dp", "ep", "ranks", "micro", "sequence", "stages", "microbatches"])
def test_a_size_below_one_is_one_line(costs: Callable[..., Workload], name: str) -> None:
    with pytest.raises(PptraceError) as caught:
        costs(**{name: 0})
    assert "at least" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_beyond_64_bits_are_one_line(costs: Callable[..., Workload]) -> None:
    with pytest.raises(CostError, match=r"passes 2\*\*62"):
        costs(micro=10**14)
