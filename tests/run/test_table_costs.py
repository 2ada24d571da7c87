"""Costs given per slice of the model follow the stages, however many a schedule makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError
from pptrace.plugins.requests import CostRequest
from pptrace.plugins.table_costs import TableOptions, table

if TYPE_CHECKING:
    from pptrace.steps.workload import Workload


def costs(stages: int, **values: object) -> Workload:
    given = TableOptions.model_validate({"forward": "8 ns", "backward": "16 ns", **values}).model_dump()
    return table(CostRequest(ranks=2, stages=stages, microbatches=4, options=given))


@pytest.mark.parametrize("stages", [1, 2, 4, 8, 16])
def test_slices_cost_the_same_in_all_however_many_stages_share_them(stages: int) -> None:
    workload = costs(stages, slices=4, activation="32 B", gradients="64 B", boundary="5 B")

    assert workload.f_ns.tolist() == [32 // stages] * stages
    assert (workload.b_ns.sum(), workload.i_ns.sum(), workload.w_ns.sum()) == (64, 32, 32)
    assert (workload.activation_bytes.sum(), workload.gradients_bytes.sum()) == (128, 256)
    assert set(workload.boundary_bytes.tolist()) <= {5}


def test_a_list_of_slices_is_spread_in_the_order_of_the_model() -> None:
    assert costs(4, slices=2, forward=["4 ns", "8 ns"]).f_ns.tolist() == [2, 2, 4, 4]
    assert costs(2, slices=4, forward=["1 ns", "2 ns", "3 ns", "4 ns"]).f_ns.tolist() == [3, 7]


def test_without_slices_figures_are_each_stages_own() -> None:
    assert costs(4).f_ns.tolist() == [8, 8, 8, 8]


def test_memory_is_one_devices_or_each_ranks() -> None:
    assert (costs(4, capacity="8 B").capacity_bytes, costs(4, capacity="8 B").rank_capacity_bytes.size) == (8, 0)
    assert costs(4, capacity=["8 B", "8 B"]).rank_capacity_bytes.size == 0
    own = costs(4, capacity=["8 B", "6 B"])
    assert (own.capacity_bytes, own.capacities(2).tolist()) == (6, [8, 6])
    with pytest.raises(ConfigError, match=r"costs\.capacity: 3 values for 2 ranks: write one each"):
        costs(4, capacity=["8 B", "6 B", "4 B"])
    with pytest.raises(ValueError, match="2 values for 4 ranks"):
        own.capacities(4)


def test_an_overhead_is_each_computations_whatever_its_share_of_the_model() -> None:
    workload = costs(8, slices=4, overhead="3 ns")

    assert (set(workload.f_ns.tolist()), set(workload.b_ns.tolist())) == ({4 + 3}, {8 + 3})
    assert (set(workload.i_ns.tolist()), set(workload.w_ns.tolist())) == ({4 + 3}, {4 + 3})


def test_an_overhead_can_differ_by_kind() -> None:
    workload = costs(4, overhead={"forward": "1 ns", "input_gradient": "2 ns"})

    assert (workload.f_ns[1], workload.recompute_ns[1]) == (8 + 1, 8 + 1)
    assert (workload.b_ns[1], workload.i_ns[1], workload.w_ns[1]) == (16, 8 + 2, 8)


@pytest.mark.parametrize("overhead", ["3 ns", {"backward": "3 ns", "input_gradient": "3 ns"}])
def test_an_empty_input_gradient_has_no_overhead(overhead: object) -> None:
    workload = costs(4, overhead=overhead, empty_input_gradient=True)

    assert (workload.i_ns[0], workload.w_ns[0]) == (0, 16 + 3)
    assert (workload.i_ns[1], workload.b_ns[0]) == (8 + 3, 16 + 3)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_a_first_stage_without_input_gradient_leaves_all_to_its_weight_gradient(stages: int) -> None:
    values = {"slices": 4, "activation": "32 B", "weight_activation": "8 B"}
    plain, workload = costs(stages, **values), costs(stages, empty_input_gradient=True, **values)

    assert (workload.i_ns[0], workload.w_ns[0]) == (0, plain.b_ns[0])
    assert workload.weight_activation_bytes[0] == workload.activation_bytes[0]
    assert workload.b_ns.tolist() == plain.b_ns.tolist()
    for name in ("i_ns", "w_ns", "weight_activation_bytes"):
        assert getattr(workload, name)[1:].tolist() == getattr(plain, name)[1:].tolist()


def test_a_batch_cut_into_more_microbatches_costs_the_same_in_all() -> None:
    workload = costs(2, microbatches=1, activation="32 B", boundary="8 B", gradients="64 B", update="5 ns")

    # Four microbatches where the figures are for one.
    assert (workload.f_ns.tolist(), workload.b_ns.tolist()) == ([2, 2], [4, 4])
    assert (workload.activation_bytes.tolist(), workload.boundary_bytes.tolist()) == ([8, 8], [2])
    assert (workload.gradients_bytes.tolist(), workload.optimizer_ns.tolist()) == ([64, 64], [5, 5])


@pytest.mark.parametrize(
    ("stages", "values", "message"),
    [
        (2, {"empty_input_gradient": True, "segments": {}}, "remove one of the keys"),
        (4, {"slices": 3}, "costs.slices: 3 slices and 4 stages do not divide one another"),
        (4, {"slices": 2, "forward": ["1 ns"] * 4}, "costs.forward: 4 values for 2 slices"),
        (4, {"slices": 2, "boundary": ["1 B"]}, "costs.boundary: 1 values for 3 boundaries"),
        (4, {"boundary": []}, "costs.boundary: 0 values for 3 boundaries"),
    ],
)
def test_slices_that_do_not_fit_are_refused(stages: int, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        costs(stages, **values)


def test_a_single_stage_has_an_empty_list_of_boundaries() -> None:
    assert costs(1, boundary=[]).boundary_bytes.size == 0


LISTS = (
    "forward", "backward", "input_gradient", "weight_gradient", "recompute", "activation", "weight_activation",
    "checkpoint", "weights", "gradients", "optimizer", "reduction", "update", "gather", "gathered", "unreduced",
    "offload", "reload", "capacity", "lengths",
)  # fmt: skip


@pytest.mark.parametrize("key", LISTS)
def test_an_empty_list_is_no_value(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"costs\.{key}: must be at least one value, not an empty list"):
        validate_options(TableOptions, {key: []}, "costs")


@pytest.mark.parametrize("key", ["F", "B", "I", "W", "RECOMPUTE"])
def test_an_action_has_segments(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"costs\.segments\.{key}: must be at least one value"):
        validate_options(TableOptions, {"segments": {key: []}}, "costs")
    with pytest.raises(ConfigError, match=rf"costs\.segments\.{key}\[1\]: must be .* not an empty list"):
        validate_options(TableOptions, {"segments": {key: [[{"name": "mlp"}], []]}}, "costs")


def test_a_checkpoint_is_no_larger_than_the_activation() -> None:
    assert costs(2, activation="8 B", checkpoint="8 B").activation_bytes.tolist() == [8, 8]
    beyond = r"costs\.checkpoint: 9 B on stage 1, more than costs\.activation, 8 B, of which it is a part"
    with pytest.raises(ConfigError, match=beyond):
        costs(2, activation="8 B", checkpoint=["8 B", "9 B"])
    with pytest.raises(ConfigError, match=r"costs\.checkpoint: 1 B on stage 0, and no costs\.activation"):
        costs(2, checkpoint="1 B")


@pytest.mark.parametrize("key", ["input_gradient", "weight_gradient"])
def test_a_part_that_is_longer_than_the_backward_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"costs\.{key}: takes longer than the whole backward"):
        costs(2, **{key: "17 ns"})


def test_only_segments_overlap() -> None:
    with pytest.raises(ConfigError, match=r"costs\.alone: overlapped needs segments"):
        costs(2, alone="overlapped")
