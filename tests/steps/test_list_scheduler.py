"""The list scheduler plays a rule as a slow second one does, and what it plays keeps the laws of tables."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import interpreted_kernels
from msgspec.structs import replace
from oracle_list_scheduler import Cell, Stuck, World, play, replay
from strategies import placements

import pptrace_kernel
from pptrace.errors import ScheduleError
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.list_scheduler import Actions, InFlight, Priority, backward_first, list_schedule
from pptrace.steps.placement import Placement
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from pptrace.steps.schedule import Schedule

SLOTS = {Kind.F: 1, Kind.B: 2}


@dataclass
class Case:
    """A world and a rule, as both schedulers take them."""

    world: World
    weights: dict[Cell, tuple[int, int]]

    def priority(self, actions: Actions) -> Sequence[np.ndarray]:
        columns = actions.kind, actions.stage, actions.microbatch, actions.span
        cells = zip(*(column.tolist() for column in columns), strict=True)
        keys = np.array([self.weights[Cell(Kind(kind), *rest)] for kind, *rest in cells], dtype=np.int64)
        return [keys[:, 0], keys[:, 1]]

    def table(self, priority: Priority | None = None) -> Schedule:
        world, placement = self.world, self.world.placement
        stage = np.full((placement.routes, placement.stages), -1)
        for where, most in world.stage_bound.items():
            stage[where] = most
        rank = [world.rank_bound.get(rank, -1) for rank in range(placement.ranks)]
        return list_schedule(
            placement, {kind: list(times) for kind, times in world.times.items()},
            priority=priority or self.priority,
            in_flight=InFlight(stage=stage, rank=rank), spans=world.spans, transfer=world.transfer,
        )  # fmt: skip


def played(case: Case) -> list[list[Cell]] | Stuck:
    try:
        return play(case.world, lambda cell: case.weights[cell])
    except Stuck as stuck:
        return stuck


@st.composite
def graphs(draw: DrawFn) -> Placement:
    """Draw a placement, and now and then branches between its stages."""
    placement = draw(placements(max_ranks=3, max_microbatches=4, max_chunks=2))
    if draw(st.booleans()):
        return placement
    pairs = [(low, high) for high in range(placement.stages) for low in range(high)]
    kept = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return replace(placement, edges=np.array(sorted(kept), dtype=np.int32).reshape(-1, 2))


@st.composite
def cases(draw: DrawFn, *, least: int = 0, bounds: bool = True) -> Case:
    placement = draw(graphs())
    kinds = draw(st.sampled_from([(Kind.F, Kind.B), (Kind.F, Kind.I, Kind.W)]))
    times = {
        kind: draw(st.lists(st.integers(least, 4), min_size=placement.stages, max_size=placement.stages))
        for kind in kinds
    }
    widths = [span for span in range(1, placement.microbatches + 1) if fills(placement, span)]
    spans = {kind: draw(st.sampled_from(widths)) for kind in kinds}
    world = World(placement, times, spans, transfer=draw(st.sampled_from([0, 0, 1, 5])))
    if bounds:
        some = st.integers(spans[Kind.F], placement.microbatches + 1)
        held = [(route, stage) for route in range(placement.routes) for stage in range(placement.stages)]
        world.stage_bound = draw(st.dictionaries(st.sampled_from(held), some))
        world.rank_bound = draw(st.dictionaries(st.integers(0, placement.ranks - 1), some))
    random = Random(draw(st.integers(0, 2**32 - 1), label="seed"))  # noqa: S311 - tests, not secrets
    cells = sorted(world.cells())
    return Case(world, {cell: (random.randrange(3), random.randrange(3)) for cell in cells})


def fills(placement: Placement, span: int) -> bool:
    route = placement.microbatch_route.tolist()
    blocks = [set(route[first : first + span]) for first in range(0, len(route), span)]
    return len(route) % span == 0 and all(len(block) == 1 for block in blocks)


def cells_of(schedule: Schedule) -> list[list[Cell]]:
    return [
        [Cell(action.kind, action.stage, action.microbatch, action.span) for action in schedule[rank]]
        for rank in range(schedule.ranks)
    ]


@given(cases())
def test_a_second_implementation_plays_the_same_table(case: Case) -> None:
    expected = played(case)

    if isinstance(expected, Stuck):
        with pytest.raises(ScheduleError, match="can never start") as refused:
            case.table()
        assert refused.value.action in map(str, expected.cells)
    else:
        schedule = case.table()
        assert cells_of(schedule) == expected
        assert schedule == case.table()


@given(cases())
def test_the_default_rule_has_the_order_of_its_sort_keys(case: Case) -> None:
    world = dataclasses.replace(case.world, spans=dict.fromkeys(case.world.spans, 1), transfer=0)
    alike = Case(world, {})

    def queued(actions: Actions) -> Sequence[np.ndarray]:
        return backward_first(actions)

    assert outcome(alike, backward_first) == outcome(alike, queued)


def outcome(case: Case, priority: Priority) -> Schedule | str:
    try:
        return case.table(priority)
    except ScheduleError as stuck:
        return str(stuck)


@given(cases())
def test_what_is_played_is_a_valid_table(case: Case) -> None:
    try:
        schedule = case.table()
    except ScheduleError:
        return

    validate(schedule)
    assert sorted(cell for row in cells_of(schedule) for cell in row) == sorted(case.world.cells())
    assert schedule.placement == case.world.placement


@given(cases(least=1))
def test_nobody_waits_while_one_of_its_actions_may_run(case: Case) -> None:
    try:
        rows = cells_of(case.table())
    except ScheduleError:
        return
    world, starts = case.world, replay(case.world, rows)
    ends = {cell: start + world.time(cell) for cell, start in starts.items()}

    for now in sorted({*starts.values(), *ends.values(), *(end + world.transfer for end in ends.values())}):
        ended = {cell: end for cell, end in ends.items() if end <= now}
        begun = {cell for cell, start in starts.items() if start <= now}
        busy = {world.rank(cell) for cell in begun - ended.keys()}
        for cell in starts.keys() - begun:
            ready = world.ready(cell, ended)
            if world.rank(cell) not in busy and ready is not None and ready <= now:
                assert not world.has_room(cell, begun, set(ended)), f"{cell} could run at {now}"


@given(cases())
def test_no_stage_and_no_rank_ever_holds_more_than_its_bound(case: Case) -> None:
    try:
        rows = cells_of(case.table())
    except ScheduleError:
        return
    world = case.world

    for rank, row in enumerate(rows):
        on_stage = defaultdict[tuple[int, int], int](int)
        for cell in row:
            change = {Kind.F: cell.span, world.last: -cell.span}.get(cell.kind, 0)
            where = int(world.placement.microbatch_route[cell.microbatch]), cell.stage
            on_stage[where] += change
            assert on_stage[where] <= world.stage_bound.get(where, 10**9)
            assert sum(on_stage.values()) <= world.rank_bound.get(rank, 10**9)


@given(cases(least=1, bounds=False))
def test_a_rank_alone_with_a_choice_takes_the_first_by_priority(case: Case) -> None:
    rows = cells_of(case.table())
    world, starts = case.world, replay(case.world, rows)
    ends = {cell: start + world.time(cell) for cell, start in starts.items()}

    for row in rows:
        for at, cell in enumerate(row):
            ended = {one: end for one, end in ends.items() if end <= starts[cell]}
            for later in row[at + 1 :]:
                ready = world.ready(later, ended)
                if ready is not None and ready <= starts[cell]:
                    assert (*case.weights[cell], cell) < (*case.weights[later], later)


@given(cases())
def test_interpreted_and_compiled_agree(case: Case) -> None:
    def outcome() -> object:
        try:
            return case.table()
        except ScheduleError as error:
            return str(error)

    with interpreted_kernels():
        interpreted = outcome()
    with pptrace_kernel.always_compiled():
        compiled = outcome()

    assert interpreted == compiled


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4))
def test_a_simulation_of_the_table_takes_as_long(
    ranks: int, microbatches: int, v: int, f_ns: int, b_ns: int
) -> None:
    placement = Placement.v_shaped(ranks, microbatches, v) if v else Placement.looped(ranks, microbatches)
    world = World(placement, {Kind.F: [f_ns] * placement.stages, Kind.B: [b_ns] * placement.stages})

    schedule = list_schedule(placement, {Kind.F: f_ns, Kind.B: b_ns})

    costs = Workload.uniform(placement.stages, f_ns=f_ns, b_ns=b_ns)
    starts = replay(world, cells_of(schedule))
    assert measure(simulate(schedule, costs), costs).step_ns == max(
        start + world.time(cell) for cell, start in starts.items()
    )


def test_one_microbatch_in_flight_everywhere_runs_microbatch_after_microbatch() -> None:
    placement = Placement.looped(3, 4)

    schedule = list_schedule(placement, SLOTS, in_flight=InFlight(stage=1))

    costs = Workload.uniform(3, f_ns=1, b_ns=2)
    assert schedule.rows()[0] == ["0F0", "0B0", "0F1", "0B1", "0F2", "0B2", "0F3", "0B3"]
    assert measure(simulate(schedule, costs), costs).step_ns == 4 * 3 * 3


def test_a_transfer_is_waited_for_between_ranks_and_not_within_one() -> None:
    placement = Placement.of_stages([0, 1, 1, 0], microbatches=1)
    starts = {}

    for transfer in (0, 10):
        world = World(placement, {Kind.F: [1] * 4, Kind.B: [2] * 4}, transfer=transfer)
        rows = cells_of(list_schedule(placement, SLOTS, transfer=transfer))
        starts[transfer] = max(replay(world, rows).values())

    assert starts[10] - starts[0] == 4 * 10


def test_actions_that_take_no_time_stand_in_the_order_of_their_starts() -> None:
    schedule = list_schedule(Placement.v_shaped(2, 1), {Kind.F: 0, Kind.B: 0})

    validate(schedule)
    assert schedule.rows() == [["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]


def test_no_microbatches_make_an_empty_table() -> None:
    assert list_schedule(Placement.looped(2, 0), SLOTS).rows() == [[], []]


def test_stages_and_ranks_beyond_32_bits_together_are_distinguished() -> None:
    ranks = 50_000
    schedule = list_schedule(Placement.looped(ranks, 1), SLOTS, in_flight=InFlight(stage=1))

    assert schedule.stage.tolist() == np.repeat(np.arange(ranks), 2).tolist()
