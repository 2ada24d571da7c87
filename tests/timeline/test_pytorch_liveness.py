"""Activations are held as long as PyTorch 2.15 says, and their peak is its number of slots.

``lifetimes`` and ``slots`` are written after ``analyze_pipeline_activation_liveness`` of
``torch/distributed/pipelining/schedules.py``, PyTorch 2.15, with the granularity ``stage_microbatch``.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given
from strategies import valid_schedules

import pptrace
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import memory_counters
from pptrace.timeline.memory import measure_memory

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.timeline import Timeline

CLASSES = {
    "gpipe": 1, "1f1b": 1, "looped-bfs": 2, "interleaved-1f1b": 2, "interleaved-zb": 2, "zb-v": 2, "dualpipe-v": 2,
}  # fmt: skip
"""Schedules of PyTorch's classes, with stages per rank."""
SIZES = [(2, 4), (3, 6), (4, 12)]
"""Ranks and microbatches."""
EACH_CLASS = pytest.mark.parametrize(
    ("name", "ranks", "microbatches"), [(name, *size) for name in CLASSES for size in SIZES]
)
Lifetimes = dict[Any, tuple[int, int]]


def lifetimes(row: list[str]) -> Lifetimes:
    """Return the positions of the forward and of the release of each stage and microbatch, both inclusive."""
    found: Lifetimes = {}
    for position, cell in enumerate(row):
        for stage, kind, microbatch in re.findall(r"(\d+)([FBIW])(\d+)", cell):
            key = int(stage), int(microbatch)
            if kind == "F":
                found[key] = position, -1
            elif kind in {"B", "W"}:
                found[key] = found[key][0], position
    return found


def slots(spans: Lifetimes) -> int:
    """Return the number of slots, each of which is used again after the release of its activation."""
    released = list[int]()
    for forward, release in sorted(spans.values()):
        free = [slot for slot, end in enumerate(released) if end < forward]
        if free:
            released[free[0]] = release
        else:
            released.append(release)
    return len(released)


def table_of(name: str, ranks: int, microbatches: int) -> Schedule:
    sizes = {"pp": ranks, "vp": CLASSES[name], "microbatches": microbatches}
    return pptrace.simulate(schedule=name, **sizes).prepared.schedule


def held(stages: int, stage: int | None = None) -> Workload:
    """Return costs with activations of one byte, of one stage or of all, until their weight gradient."""
    size = np.ones(stages, dtype=np.int64) if stage is None else (np.arange(stages) == stage).astype(np.int64)
    return Workload.uniform(stages, f_ns=1, b_ns=2, activation_bytes=size, weight_activation_bytes=size)


def check_peaks(table: Schedule) -> None:
    workload = held(table.stages)
    memory = measure_memory(simulate(table, workload), workload)

    wanted = [slots(lifetimes(row)) for row in table.rows()]
    assert memory.peak_activations.tolist() == wanted
    assert memory.peak_activation_bytes.tolist() == wanted


@pytest.mark.needs_plugins
@EACH_CLASS
def test_the_peak_is_the_number_of_slots(name: str, ranks: int, microbatches: int) -> None:
    check_peaks(table_of(name, ranks, microbatches))


@given(table=valid_schedules(spans=False, pairs=False))
def test_the_peak_of_any_order_is_the_number_of_slots(table: Schedule) -> None:
    assume((table.placement.stage_rank == table.placement.stage_rank[0]).all())

    check_peaks(table)


@pytest.mark.needs_plugins
@EACH_CLASS
def test_each_stage_holds_its_activations_for_their_lifetimes(name: str, ranks: int, microbatches: int) -> None:
    table = table_of(name, ranks, microbatches)
    for stage in range(table.stages):
        workload = held(table.stages, stage)
        step = simulate(table, workload)
        rank = int(table.placement.stage_rank[0, stage])
        counter = memory_counters(step, workload)[rank]
        row = table.rows()[rank]
        begin_ns, end_ns = times_of(step, row)
        spans = [span for key, span in lifetimes(row).items() if key[0] == stage]

        assert max(counter.value) == slots(dict(enumerate(spans)))
        for at_ns, value in zip(counter.at_ns, counter.value, strict=True):
            assert value == sum(begin_ns[forward] <= at_ns < end_ns[release] for forward, release in spans)


def times_of(step: Timeline, row: list[str]) -> tuple[list[int], list[int]]:
    """Return the start and the end of each cell of a row."""
    slices = {str(step[index].action): step[index] for index in range(len(step))}
    members = [[slices[action] for action in re.findall(r"\d+[FBIW]\d+", cell)] for cell in row]
    begin_ns = [min(member.start_ns for member in cell) for cell in members]
    return begin_ns, [max(member.end_ns for member in cell) for cell in members]


@pytest.mark.torch
@pytest.mark.needs_plugins
@EACH_CLASS
def test_the_second_implementation_agrees_with_pytorch(name: str, ranks: int, microbatches: int) -> None:
    pytorch: Any = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(pytorch, "analyze_pipeline_activation_liveness"):
        pytest.skip("PyTorch before 2.15 does not analyse liveness")
    table = table_of(name, ranks, microbatches)
    stage = SimpleNamespace(group_rank=0, group_size=ranks, submod=None, num_stages=table.stages)
    runtime = pytorch._PipelineScheduleRuntime([stage] * CLASSES[name], microbatches)
    actions = {rank: list(map(pytorch._Action.from_str, row)) for rank, row in enumerate(table.rows())}
    runtime._prepare_schedule_with_comms(actions)

    for rank, row in enumerate(table.rows()):
        plan = pytorch.analyze_pipeline_activation_liveness(
            runtime, pp_rank=rank, stage_indices=table.placement.stages_of(rank), granularity="stage_microbatch"
        )
        assert plan.num_slots == slots(lifetimes(row))
