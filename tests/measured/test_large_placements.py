"""Steps of few actions with many stages, edges or microbatches: work and memory follow what is recorded."""

from __future__ import annotations

from collections import defaultdict
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np
import pytest
from executed_lines import executed_lines
from hypothesis import given
from msgspec.structs import replace
from strategies import valid_schedules

from pptrace.measured.computations import depends_on_missing, extract_computations
from pptrace.measured.diff import ComparedStep, order_share
from pptrace.measured.matching import fold_first_stages
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure
from pptrace.traces.scene import Peers

if TYPE_CHECKING:
    from pptrace.steps.actions import CellColumns
    from pptrace.timeline.timeline import Timeline


def step_of(placement: Placement) -> Timeline:
    """Return a step of one microbatch on the first two stages of a placement."""
    schedule = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]])
    timeline = simulate(schedule, Workload.uniform(2, f_ns=10, b_ns=20))
    return replace(timeline, placement=placement)


def star(stages: int) -> Placement:
    """Return a placement whose first stage feeds all others."""
    after = np.arange(1, stages, dtype=np.int32)
    return Placement(
        ranks=2, stage_rank=np.arange(stages)[None] % 2, microbatch_route=np.zeros(1, dtype=np.int32),
        edges=np.stack([np.zeros_like(after), after], axis=1),
    )  # fmt: skip


def needed(cells: CellColumns, placement: Placement) -> list[bool]:
    """Return what :func:`depends_on_missing` does, action by action."""
    computed = defaultdict(set)
    rows = list(zip(*(column.tolist() for column in cells), strict=True))
    for kind, stage, microbatch, span, _ in rows:
        computed[kind == Kind.F].update((stage, each) for each in range(microbatch, microbatch + span))

    def lacks(kind: int, stage: int, microbatch: int, *_: int) -> bool:
        forward = kind == Kind.F
        makers = [
            low if forward else high
            for low, high in placement.edges.tolist()
            if (high if forward else low) == stage
        ]
        return kind in {Kind.F, Kind.B, Kind.I} and any(
            (maker, microbatch) not in computed[forward] for maker in makers
        )

    return list(starmap(lacks, rows))


@given(schedule=valid_schedules())
def test_what_needs_an_action_that_is_missing_is_found(schedule: Schedule) -> None:
    kept = (np.arange(len(schedule)) % 3 > 0) & np.isin(schedule.kind, [Kind.F, Kind.B])
    cells, placement = schedule.cells.taken(np.flatnonzero(kept)), schedule.placement

    assert depends_on_missing(cells, placement, lacks_ranks=False).tolist() == needed(cells, placement)


@pytest.mark.parametrize("stages", [2, 500])
def test_times_of_a_step_are_as_many_as_its_actions_and_messages(stages: int) -> None:
    step = extract_computations(step_of(Placement.looped(2, 1000, chunks=stages // 2)))

    assert step.times().place.size == len(step) + len(step.transfers) == 6


def test_work_does_not_grow_with_the_product_of_edges_and_stages() -> None:
    few, many = (step_of(star(stages)) for stages in (20, 400))

    def work(timeline: Timeline) -> None:
        step = extract_computations(timeline)
        fold_first_stages(step, step)
        measure_memory(timeline, Workload.uniform(timeline.placement.stages, f_ns=1))
        Peers.of(timeline.placement)

    assert executed_lines(lambda: work(many)) < executed_lines(lambda: work(few)) + 10 * 380


def replayed(rows: list[list[str]], b_ns: int) -> ComparedStep:
    workload = Workload.uniform(2, f_ns=10, b_ns=b_ns)
    timeline = simulate(Schedule.from_rows(rows), workload)
    step, metrics = extract_computations(timeline), measure(timeline, workload)
    return ComparedStep(step=step, metrics=metrics, parts_ns={}, microbatches=step.placement.microbatches)


def test_whole_backwards_take_what_both_gradients_of_the_other_step_take() -> None:
    whole = replayed([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], 20)
    split = replayed([["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"], ["1F0", "1F1", "1I0", "1W0", "1I1", "1W1"]], 26)

    forth, back = order_share(whole, split), order_share(split, whole)

    assert forth is not None
    assert back is not None
    assert forth.times_ns.value == 3 * (26 - 20)
    assert back.times_ns.value == -15
