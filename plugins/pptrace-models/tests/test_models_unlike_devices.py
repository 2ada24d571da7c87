"""Ranks with unlike devices: each stage costs what it does where all ranks have its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config.resolution import load
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import build_costs, prepare
from pptrace.run.run import Run
from pptrace.search.basis import limit_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

RANKS = ("h100-sxm", "a100-sxm", "a100-sxm", "h200-sxm")
PER_STAGE = ("f_ns", "b_ns", "i_ns", "w_ns", "i_collective_ns", "optimizer_ns", "reduce_ns", "offload_ns")
STEP: dict[str, Any] = {
    "model": "llama3-8b", "parallel": {"pp": 4, "tp": 8}, "batch": {"microbatches": 4, "sequence": 2048},
    "schedule": "1f1b", "device": {"preset": "h100-sxm", "ranks": {"2-3": "a100-sxm"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def run(registry: Registry) -> Callable[..., Run]:
    """Return a function that runs the step, with settings laid over it."""

    def make(**sections: Any) -> Run:
        return Run.of(prepare(load({**STEP, **sections}), registry), registry)

    return make


@pytest.mark.parametrize("options", [{}, {"kernels": "shapes", "zero": 1}, {"segments": True, "spread": 0.02}])
@pytest.mark.parametrize(
    "holders", [(), ((3,), (0,), (1,), (2,)), ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))]
)
def test_a_stage_costs_what_it_does_where_all_ranks_have_its_device(
    costs: Callable[..., Workload],
    devices: dict[str, Any],
    options: dict[str, Any],
    holders: tuple[tuple[int, ...], ...],
) -> None:
    own = {
        name: {**devices[name], "host_bandwidth": (1 + at) * 10**10}
        for at, name in enumerate(dict.fromkeys(RANKS))
    }
    stages = len(holders) or 4
    sizes: dict[str, Any] = {"stages": stages, "tp": 2, "dp": 2, "options": options}
    mixed = costs(device="h100-sxm", rank_devices=tuple(own[name] for name in RANKS), stage_ranks=holders, **sizes)
    alike = {name: costs(device=values, **sizes) for name, values in own.items()}

    for stage in range(stages):
        name = RANKS[holders[stage][0] if holders else stage]
        for column in PER_STAGE:
            assert getattr(mixed, column)[stage] == getattr(alike[name], column)[stage], (stage, column)
        for kind, parts in mixed.segments.items():
            assert parts[stage] == alike[name].segments[kind][stage]
    assert mixed.peak_flops == sum(alike[name].peak_flops for name in RANKS) // 4
    assert mixed.rank_capacity_bytes.tolist() == [alike[name].capacity_bytes for name in RANKS]
    assert mixed.capacity_bytes == min(mixed.rank_capacity_bytes)
    assert (mixed.activation_bytes == alike["h100-sxm"].activation_bytes).all()


def test_kernels_are_listed_as_on_each_stages_device(
    costs: Callable[..., Workload], devices: dict[str, Any]
) -> None:
    mixed = costs(rank_devices=tuple(devices[name] for name in RANKS))
    listed = mixed.kernels() if mixed.kernels else ()

    for stage in range(4):
        alone = costs(device=RANKS[stage]).kernels
        assert alone is not None
        assert [item for item in listed if item.stage == stage] == [
            item for item in alone() if item.stage == stage
        ]


def test_ranks_of_the_same_device_are_a_step_of_one_device(run: Callable[..., Run]) -> None:
    item = run(device="a100-sxm")
    for device in (
        {"preset": "a100-sxm", "ranks": {"0-1": "a100-sxm", "2": {"peak_bf16": "312 TFLOP/s"}}},
        {"ranks": {"0-3": "a100-sxm"}},
    ):
        same = run(device=device)
        assert same.prepared.workload.rank_capacity_bytes.size == 0
        assert same.metrics.step_ns == item.metrics.step_ns
        assert same.metrics.mfu == item.metrics.mfu


def test_mfu_counts_the_peaks_of_all_devices(run: Callable[..., Run]) -> None:
    metrics = run().metrics
    peaks = 8 * (2 * 989_500 + 2 * 312_000) * 10**9

    assert metrics.peak_flops == peaks
    assert metrics.mfu == metrics.model_flops * 1e9 / (peaks * metrics.step_ns)


def test_each_rank_fits_its_own_device_and_the_one_with_least_left_is_shown(run: Callable[..., Run]) -> None:
    plain = run().metrics.memory
    need = int(plain.peak_bytes[2])
    just = run(device={"preset": "h100-sxm", "ranks": {"2": {"memory": f"{need} B"}}})
    over = run(device={"preset": "h100-sxm", "ranks": {"2": {"memory": f"{need - 1} B"}}})

    assert just.metrics.memory.over_capacity is None
    assert just.metrics.memory.fullest == 2
    assert over.metrics.memory.over_capacity == (2, int(over.metrics.memory.peak_at_ns[2]), 1)
    assert over.to_dict()["device_memory_bytes"] == need - 1
    assert [row["device_memory_bytes"] for row in over.to_dict()["ranks"]][1:3] == [81_559 * 2**20, need - 1]


def test_a_schedule_that_fills_memory_fills_each_ranks_own(run: Callable[..., Run]) -> None:
    def step(device: Any) -> Run:
        return run(schedule="zb-v", batch={"microbatches": 8, "sequence": 8192}, device=device)

    plain = step("h100-sxm")
    less = int(plain.metrics.memory.peak_bytes[3]) - 1
    tight = step({"preset": "h100-sxm", "ranks": {"3": {"memory": f"{less} B"}}})
    room = tight.prepared.request.rank_bytes
    assert plain.prepared.request.rank_bytes == ()
    assert (len(room), min(room)) == (4, room[3])
    assert tight.metrics.memory.peak_bytes[3] <= less


def test_a_limit_gives_no_rank_more_than_its_device_has(run: Callable[..., Run], registry: Registry) -> None:
    own = run(device={"preset": "h100-sxm", "ranks": {"1": {"memory": "40 GiB"}, "2-3": "h200-sxm"}}).prepared
    settings = limit_settings(load(own.resolved.written), build_costs(own.resolved, registry), 60 * 2**30)
    limited = prepare(load(own.resolved.written, [f"{key}={value}" for key, value in settings.items()]), registry)

    assert (limited.workload.rank_capacity_bytes // 2**30).tolist() == [60, 40, 60, 60]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"device": {"ranks": {"0-2": "b200"}}},
         "device.ranks: rank 3 has no device: write it here, or a preset beside ranks, which all others have"),
        ({"device": {"preset": "b200", "ranks": {"x": "h20"}}},
         "device.ranks.x: 'x' names no ranks: write one such as 3, or a range such as 4-7"),
        ({"device": {"preset": "b200", "ranks": {"3-2": "h20"}}}, "device.ranks.3-2: '3-2' names no ranks"),
        ({"device": {"preset": "b200", "ranks": {"3-5": "h20"}}},
         "device.ranks.3-5: rank 4 is not there: pipeline ranks are 0 to 3"),
        ({"device": {"preset": "b200", "ranks": {"1-2": "h20", "2": "h20"}}},
         "device.ranks.2: rank 2 is also listed under 1-2: list it once"),
        ({"device": {"preset": "b200", "ranks": {"1": {"memry": 3}}}},
         "device.ranks.1.memry: unknown key (did you mean 'memory'?"),
        ({"device": {"preset": "b200", "ranks": {"1": {"preset": 3}}}},
         "device.ranks.1.preset: a preset's name, or a file of parameters (.yaml)"),
        ({"device": {"preset": "b200", "ranks": {"1": "h101-sxm"}}}, "no installed plugin offers a device named"),
        ({"model": {"preset": "llama3-8b", "precision": "fp8"}}, "model.precision: rank 2: fp8 has no peak"),
        ({"schedule": "chimera"}, "stage 0 is on ranks 0 and 3, whose devices differ, and a stage has one cost"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(run: Callable[..., Run], sections: dict[str, Any], line: str) -> None:
    with pytest.raises(PptraceError) as caught:
        run(**sections)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_filled_in_loads_again_as_the_same_step(run: Callable[..., Run], registry: Registry) -> None:
    device = {"preset": "h100-sxm", "ranks": {"1": "a100-sxm", "2": {"compute_efficiency": 0.5}}}
    own = run(device=device, costs={"host_kernel": "0 ms"})
    again = prepare(load(own.prepared.resolved.to_dict()), registry)

    assert (again.workload.b_ns == own.prepared.workload.b_ns).all()
    assert (again.workload.rank_capacity_bytes == own.prepared.workload.rank_capacity_bytes).all()
    assert len(set(own.prepared.workload.b_ns[1:3].tolist())) == 2
