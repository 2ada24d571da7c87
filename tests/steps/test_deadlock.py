"""A schedule deadlocks exactly where its rows and dependencies have a cycle, and reports such a cycle."""

from __future__ import annotations

from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import valid_schedules

from pptrace.errors import DeadlockError, ScheduleError
from pptrace.sim.simulation import simulate
from pptrace.steps.dependencies import cycle_text
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import Dialect, in_dialect
from pptrace.steps.validation import validate, validate_structure
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKWARD = {Kind.B, Kind.I}


def deadlock(rows: list[list[str]]) -> DeadlockError:
    with pytest.raises(DeadlockError) as caught:
        validate(Schedule.from_rows(rows))
    return caught.value


def test_two_ranks_that_wait_for_each_other_are_reported_action_by_action() -> None:
    error = deadlock([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])

    assert error.cycle == ("rank 0: 0B0", "rank 1: 1B0", "rank 1: 1F1", "rank 0: 0F1")
    assert str(error) == (
        "the schedule deadlocks: rank 0: 0B0 -> rank 1: 1B0 -> rank 1: 1F1 -> rank 0: 0F1 -> rank 0: 0B0; "
        "each action waits for the next: change the order on one of these ranks"
    )


def test_a_rank_that_waits_for_itself_is_a_cycle_of_one_rank() -> None:
    assert deadlock([["1F0", "0F0", "1B0", "0B0"]]).cycle == ("rank 0: 1F0", "rank 0: 0F0")


def test_a_later_member_of_a_pair_holds_the_first_back() -> None:
    error = deadlock([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])

    assert error.cycle == ("rank 0: 0B0", "rank 1: 1B0", "rank 1: 1F1", "rank 0: 0F1")


def test_a_send_behind_what_waits_for_its_answer_is_a_cycle() -> None:
    error = deadlock([["0F0", "0RECV_B0", "0B0", "0SEND_F0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]])

    assert error.cycle == ("rank 0: 0B0", "rank 1: 1SEND_B0", "rank 1: 1F0", "rank 0: 0SEND_F0")


def test_a_receive_far_ahead_of_its_consumer_holds_nothing_back() -> None:
    rows = [["0RECV_B0", "0F0", "0SEND_F0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]

    validate(Schedule.from_rows(rows))


def test_at_most_twelve_actions_are_shown_and_the_rest_counted() -> None:
    ranks = 16
    backward = [
        [f"{stage}B{microbatch}" for stage in (r + ranks, r) for microbatch in (0, 1)] for r in range(ranks)
    ]
    # The first rank's second chunk waits for microbatch 0, and every other rank for microbatch 1.
    rows = [["0F0", f"{ranks}F0", "0F1", f"{ranks}F1"]]
    rows += [[f"{r}F1", f"{r}F0", f"{r + ranks}F0", f"{r + ranks}F1"] for r in range(1, ranks)]

    error = deadlock([row + last for row, last in zip(rows, backward, strict=True)])

    assert error.cycle[:3] == ("rank 0: 16F0", "rank 15: 15F0", "rank 15: 15F1")
    assert error.cycle[-2:] == ("rank 1: 1F1", "rank 0: 0F1")
    assert len(error.cycle) == ranks + 2
    shown = " -> ".join([*error.cycle[:12], "... 6 more ...", error.cycle[0]])
    assert str(error).startswith(f"the schedule deadlocks: {shown}; ")


def test_a_cycle_of_twelve_is_shown_whole() -> None:
    cycle = [f"rank {r}: 0F{r}" for r in range(12)]

    assert cycle_text(cycle) == " -> ".join([*cycle, cycle[0]])


@given(valid_schedules(), st.booleans(), st.randoms(use_true_random=False))
def test_a_shuffled_table_deadlocks_exactly_where_its_graph_has_a_cycle(
    schedule: Schedule,
    messages: bool,  # noqa: FBT001 - drawn
    random: Any,
) -> None:
    shuffled = _shuffled(in_dialect(schedule, Dialect.COMMS) if messages else schedule, random)
    graph = _graph(shuffled)
    try:
        TopologicalSorter(graph).prepare()
        cyclic = False
    except CycleError:
        cyclic = True

    try:
        validate(shuffled)
    except DeadlockError as error:
        assert cyclic
        _assert_cycle(shuffled, graph, error.cycle)
    else:
        assert not cyclic
        simulate(shuffled, Workload.uniform(shuffled.stages, f_ns=1, b_ns=2))


def _shuffled(schedule: Schedule, random: Any) -> Schedule:
    """Exchange near actions of ranks at random; undo an exchange whose table is invalid apart from deadlocks."""
    for rank in range(schedule.ranks):
        for _ in range(random.randint(0, 3) if len(schedule[rank]) > 1 else 0):
            rows = [schedule[other] for other in range(schedule.ranks)]
            row = rows[rank]
            low = random.randrange(len(row) - 1)
            high = min(len(row) - 1, low + random.randint(1, 3))
            row[low], row[high] = row[high], row[low]
            exchanged = Schedule.from_rows(rows, schedule.placement)
            with suppress(ScheduleError):
                validate_structure(exchanged)
                schedule = exchanged
    return schedule


def _graph(schedule: Schedule) -> dict[int, set[int]]:
    """Return what each position waits for; the members of a pair are one node, its first position."""
    node = np.arange(len(schedule))
    for row in range(1, len(schedule)):
        if schedule.pair[row] >= 0 and schedule.pair[row] == schedule.pair[row - 1]:
            node[row] = node[row - 1]
    waits: dict[int, set[int]] = {int(n): set() for n in node}
    where = {(str(schedule.action(row).kind.name), int(schedule.stage[row]), microbatch): row
             for row in range(len(schedule)) for microbatch in _microbatches(schedule, row)}  # fmt: skip
    for rank in range(schedule.ranks):
        before = -1
        for row in range(int(schedule.row_ptr[rank]), int(schedule.row_ptr[rank + 1])):
            kind, me = Kind(int(schedule.kind[row])), int(node[row])
            if before not in {-1, me}:
                waits[me].add(before)
            if kind in {Kind.SEND_F, Kind.SEND_B, Kind.RECV_F, Kind.RECV_B}:
                continue
            before = me
            for microbatch in _microbatches(schedule, row):
                for needed in _needs(schedule, where, kind, int(schedule.stage[row]), microbatch):
                    waits[me].add(int(node[needed]))
    return waits


def _needs(
    schedule: Schedule, where: dict[tuple[str, int, int], int], kind: Kind, stage: int, microbatch: int
) -> Iterator[int]:
    other = stage - 1 if kind is Kind.F else stage + 1
    if kind not in {Kind.F, *BACKWARD} or not 0 <= other < schedule.stages:
        return
    near = schedule.placement.rank_of(other, microbatch) == schedule.placement.rank_of(stage, microbatch)
    names = ["F"] if kind is Kind.F else ["B", "I"]
    if schedule.has_communication and not near:
        names = ["SEND_F"] if kind is Kind.F else ["SEND_B"]
    yield from (where[name, other, microbatch] for name in names if (name, other, microbatch) in where)


def _microbatches(schedule: Schedule, row: int) -> range:
    return range(int(schedule.microbatch[row]), int(schedule.microbatch[row] + schedule.span[row]))


def _assert_cycle(schedule: Schedule, graph: dict[int, set[int]], cycle: tuple[str, ...]) -> None:
    names = {f"rank {schedule.rank_at(row)}: {schedule.action(row)}": row for row in range(len(schedule))}
    rows = [names[name] for name in cycle]
    nodes = [max(n for n in graph if n <= row) for row in rows]
    for node, following in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        assert _reaches(graph, node, following), cycle


def _reaches(graph: dict[int, set[int]], node: int, goal: int) -> bool:
    seen, stack = set(), [node]
    while stack:
        for needed in graph[stack.pop()]:
            if needed == goal:
                return True
            if needed not in seen:
                seen.add(needed)
                stack.append(needed)
    return node == goal
