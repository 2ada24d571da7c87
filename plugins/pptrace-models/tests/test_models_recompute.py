"""Whole layers computed again by Megatron-LM's methods: what stages keep, and how long backwards take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugin import ConfigError, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

ROW = 2048 * 1024 * 2
"""A layer's input: sequence, width and two bytes."""
STAGE = 1
"""One in the middle; of 20 layers on four stages, each has five."""


@pytest.fixture
def recomputed(costs: Callable[..., Workload]) -> Callable[..., Workload]:
    def make(
        method: str | None = None,
        layers: int | None = None,
        recompute: str = "full",
        recompute_modules: list[str] | None = None,
        **more: Any,
    ) -> Workload:
        values = {
            "recompute_method": method,
            "recompute_num_layers": layers,
            "recompute": recompute,
            "recompute_modules": recompute_modules,
        }
        return costs({"layers": 20, **{key: value for key, value in values.items() if value}}, **more)

    return make


@pytest.mark.parametrize(("layers", "inputs", "group"), [(1, 5, 1), (2, 3, 2), (3, 2, 3), (5, 1, 5), (9, 1, 5)])
def test_uniform_keeps_one_input_of_each_group(
    recomputed: Callable[..., Workload], layers: int, inputs: int, group: int
) -> None:
    none, uniform = recomputed(recompute="none"), recomputed("uniform", layers)
    whole = int(none.activation_bytes[STAGE]) // 5

    assert uniform.activation_bytes[STAGE] == inputs * ROW
    # A group of layers is there while its backward computes it again.
    assert uniform.reserved_bytes - none.reserved_bytes == group * whole - ROW
    assert uniform.i_ns[STAGE] - none.i_ns[STAGE] == none.f_ns[STAGE]


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 9])
def test_block_computes_the_first_layers_of_each_stage_again(
    recomputed: Callable[..., Workload], layers: int
) -> None:
    none, block, again = recomputed(recompute="none"), recomputed("block", layers), min(layers, 5)
    whole = int(none.activation_bytes[STAGE]) // 5

    assert block.activation_bytes[STAGE] == again * ROW + (5 - again) * whole
    assert block.reserved_bytes - none.reserved_bytes == whole - ROW
    assert 5 * (block.i_ns[STAGE] - none.i_ns[STAGE]) == again * none.f_ns[STAGE]
    assert (block.f_ns == none.f_ns).all()
    assert (block.w_ns == none.w_ns).all()


def test_one_layer_at_a_time_is_what_full_recomputation_does(recomputed: Callable[..., Workload]) -> None:
    full = recomputed()
    for same in (recomputed("uniform", 1), recomputed("uniform"), recomputed("block", 20)):
        assert (same.activation_bytes == full.activation_bytes).all()
        assert (same.b_ns == full.b_ns).all()
        assert same.reserved_bytes == full.reserved_bytes


@pytest.mark.parametrize("method", ["uniform", "block"])
def test_segments_take_as_long(recomputed: Callable[..., Workload], method: str) -> None:
    plain, parts = (recomputed(method, 2, options={"segments": segments}) for segments in (False, True))

    assert (parts.b_ns == plain.b_ns).all()
    assert (parts.i_ns == plain.i_ns).all()


@pytest.mark.parametrize("sizes", [{}, {"tp": 2}, {"tp": 4, "cp": 2, "sequence_parallel": True}])
def test_all_modules_leave_inputs_of_halves_and_residual_sums(
    costs: Callable[..., Workload], sizes: dict[str, Any]
) -> None:
    model = {"layers": 20, "dropout": False, "flash_attention": True}
    modules = {"recompute": "selective", "recompute_modules": ["full_attn", "core_attn", "layernorm", "mlp"]}
    full = costs(model | {"recompute": "full"}, **sizes)
    plain, parts = (costs(model | modules, options={"segments": segments}, **sizes) for segments in (False, True))
    norms_ns = next(
        row.duration_ns // row.times
        for row in plain.kernels()
        if (row.stage, row.kind, row.name) == (STAGE, Kind.F, "norms and residuals")
    )

    assert plain.activation_bytes[STAGE] == 2 * full.activation_bytes[STAGE]
    assert full.i_ns[STAGE] - plain.i_ns[STAGE] == 5 * (norms_ns - norms_ns * 4 // 10)
    assert full.b_collective_ns[STAGE] == plain.b_collective_ns[STAGE]
    assert (parts.i_ns == plain.i_ns).all()


@pytest.mark.parametrize("overlap_tp", [False, True])
def test_an_early_stop_leaves_out_the_last_product_and_its_sum(
    recomputed: Callable[..., Workload], *, overlap_tp: bool
) -> None:
    options = {"overlap_tp": overlap_tp, "kernels": "shapes"}
    whole, stopped = (recomputed(tp=2, options={**options, "early_stop": stop}) for stop in (False, True))
    saved, collective = whole.i_ns - stopped.i_ns, whole.i_collective_ns - stopped.i_collective_ns
    again, shorter = (
        [row.duration_ns for row in workload.kernels() if (row.stage, row.part) == (STAGE, "computed again")]
        for workload in (whole, stopped)
    )

    assert len(again) == len(shorter) + 1
    assert saved[STAGE] - collective[STAGE] == pytest.approx(sum(again) - sum(shorter), rel=1e-3)
    # A forward has two sums. Their overlapped parts differ.
    assert collective[STAGE] == pytest.approx(whole.f_collective_ns[STAGE] / 2, rel=0.15)
    assert (whole.f_ns == stopped.f_ns).all()


def test_an_early_stop_has_no_segments(recomputed: Callable[..., Workload]) -> None:
    with pytest.raises(ConfigError, match=r"costs\.early_stop: segments recompute whole layers"):
        recomputed(options={"early_stop": True, "segments": True})


def test_operator_checkpoints_gather_inputs_again(recomputed: Callable[..., Workload]) -> None:
    sizes = {"tp": 4, "sequence_parallel": True}
    none = recomputed(recompute="none", **sizes)
    again = recomputed(recompute="selective", recompute_modules=["alternate_products"], **sizes)
    # In BF16, gathers take as long as reduce-scatters.
    gathers = (again.i_collective_ns - none.i_collective_ns)[STAGE]
    assert gathers == pytest.approx(none.f_collective_ns[STAGE] / 2, rel=1e-4)
