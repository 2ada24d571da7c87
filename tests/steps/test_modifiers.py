"""Copies to the host and forwards computed again, put into any table: laws, closed forms, places in the row."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import policies, valid_schedules

from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.action_insertion import waits_for_copies, with_copies, with_recompute
from pptrace.steps.kinds import COMPUTE, GRADIENTS, Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import memory_counters
from pptrace.timeline.metrics import Metrics, measure

if TYPE_CHECKING:
    from pptrace.steps.message_calls import Policy


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    rows = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, microbatches)
        row = [f"{rank}F{item}" for item in range(ahead)]
        for index in range(microbatches - ahead):
            row += [f"{rank}F{index + ahead}", f"{rank}B{index}"]
        rows.append(row + [f"{rank}B{entry}" for entry in range(microbatches - ahead, microbatches)])
    return Schedule.from_rows(rows)


def costs(schedule: Schedule, **values: object) -> Workload:
    edges = schedule.placement.edges.shape[0]
    given_values = {"f_ns": 1, "b_ns": 2, "activation_bytes": 60, "recompute_ns": [1], **values}
    return Workload.uniform(schedule.stages, edges=edges, **given_values)


def run(schedule: Schedule, policy: Policy | None = None, **values: object) -> Metrics:
    workload = costs(schedule, **values)
    return measure(simulate(schedule, workload, policy=policy), workload)


def every(schedule: Schedule) -> np.ndarray:
    return np.ones((schedule.stages, schedule.microbatches), dtype=bool)


def without(schedule: Schedule, *kinds: Kind) -> list[list[str]]:
    return schedule.selected(np.flatnonzero(~np.isin(schedule.kind, kinds))).rows()


@st.composite
def choices(draw: st.DrawFn) -> tuple[Schedule, np.ndarray]:
    """Draw a table and some of its activations."""
    schedule = draw(valid_schedules())
    cells = schedule.stages * schedule.microbatches
    chosen = np.array(draw(st.lists(st.booleans(), min_size=cells, max_size=cells)))
    chosen = chosen.reshape(schedule.stages, schedule.microbatches)
    placement = schedule.placement
    return schedule, chosen & (placement.stage_rank.T[:, placement.microbatch_route] >= 0)


@given(choices(), st.integers(0, 4), st.integers(0, 9), st.integers(1, 2), policies())
def test_a_table_with_copies_keeps_all_that_it_had(
    drawn: tuple[Schedule, np.ndarray], ahead: int, copy_ns: int, streams: int, policy: Policy
) -> None:
    schedule, chosen = drawn

    copied = with_copies(schedule, chosen, ahead)

    validate(copied)
    assert without(copied, Kind.OFFLOAD, Kind.RELOAD) == schedule.rows()
    out, back = (
        Counter(
            (int(copied.stage[row]), index)
            for row in np.flatnonzero(copied.kind == kind)
            for index in range(copied.microbatch[row], copied.microbatch[row] + copied.span[row])
        )
        for kind in (Kind.OFFLOAD, Kind.RELOAD)
    )
    assert out == back
    assert set(out.values()) <= {1}
    assert out.keys() >= set(zip(*(axis.tolist() for axis in np.nonzero(chosen)), strict=True))
    values = {
        "offload_ns": [copy_ns],
        "reload_ns": [copy_ns],
        "one_copy_stream": streams == 1,
        "weight_activation_bytes": 20,
    }
    try:
        plain = run(schedule, policy, **values)
    except DeadlockError:
        return
    try:
        with_them = run(copied, policy, **values)
    except DeadlockError:
        assert policy.has_receives
        return
    assert with_them.busy_ns.tolist() == plain.busy_ns.tolist()
    if not policy.has_receives:  # else receives are put where ranks get to, which copies change
        assert with_them.step_ns >= plain.step_ns
        assert (with_them.memory.peak_activation_bytes <= plain.memory.peak_activation_bytes).all() or copy_ns
    assert_memory_returns(copied, policy, **values)


@given(choices(), st.sampled_from(["early", "late"]), policies())
def test_a_table_that_computes_forwards_again_keeps_all_that_it_had(
    drawn: tuple[Schedule, np.ndarray], when: str, policy: Policy
) -> None:
    schedule, chosen = drawn

    again = with_recompute(schedule, chosen, early=when == "early")

    validate(again)
    assert without(again, Kind.RECOMPUTE) == schedule.rows()
    rows = np.flatnonzero(again.kind == Kind.RECOMPUTE)
    span = int(again.span[rows].sum())
    assert span >= chosen.sum()
    values = {"checkpoint_bytes": [6], "weight_activation_bytes": 20}
    try:
        plain = run(schedule, policy, **values)
    except DeadlockError:
        return
    try:
        with_it = run(again, policy, **values)
    except DeadlockError:
        assert policy.has_receives  # receives are put where ranks get to, which further forwards change
        return
    assert int(with_it.busy_ns.sum() - plain.busy_ns.sum()) == span
    if not policy.has_receives:
        assert (with_it.memory.peak_activation_bytes <= plain.memory.peak_activation_bytes).all()
    assert_memory_returns(again, policy, **values)


def assert_memory_returns(schedule: Schedule, policy: Policy, **values: object) -> None:
    workload = costs(schedule, **values)
    for curve in memory_counters(simulate(schedule, workload, policy=policy), workload):
        assert curve.value[-1] == curve.value.min() == 0


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_a_copy_back_stands_so_many_computations_ahead_and_behind_its_copy_out(ahead: int) -> None:
    row = with_copies(one_f_one_b(4, 12), every(one_f_one_b(4, 12)), ahead)[0]
    computed = [action for action in row if action.kind in COMPUTE]

    for place, action in enumerate(row):
        if action.kind is not Kind.RELOAD:
            continue
        before = sum(other.kind in COMPUTE for other in row[:place])
        backward, forward = (
            next(
                at
                for at, item in enumerate(computed)
                if item.kind in kinds and item.microbatch == action.microbatch
            )
            for kinds in (GRADIENTS, {Kind.F})
        )
        assert before == max(backward - ahead, forward + 1)


def test_a_pair_is_one_block() -> None:
    table = Schedule.from_rows([["0F0", "(0F1;0B0)OVERLAP_F_B", "0F2", "0B1", "0B2"]])

    assert with_copies(table, every(table), 1).rows() == [
        ["0F0", "0OFFLOAD0", "0RELOAD0", "(0F1;0B0)OVERLAP_F_B", "0OFFLOAD1", "0RELOAD1", "0F2", "0OFFLOAD2",
         "0RELOAD2", "0B1", "0B2"]
    ]  # fmt: skip


def test_what_one_action_works_on_is_copied_together() -> None:
    table = Schedule.from_rows([["0F0+2", "0B0", "0B1"]])
    chosen = np.array([[False, True]])

    assert with_copies(table, chosen, 0).rows() == [["0F0+2", "0OFFLOAD0+2", "0RELOAD0", "0B0", "0RELOAD1", "0B1"]]


@pytest.mark.parametrize(
    ("ahead", "copy_ns", "peak"),
    [(1000, 0, 8), (1000, 1, 8), (0, 0, 1), (1, 0, 2), (2, 0, 3), (1, 1, 3), (2, 1, 4), (1, 2, 3), (2, 2, 4)],
)
def test_what_1f1b_holds_on_rank_0_when_all_of_it_is_copied(ahead: int, copy_ns: int, peak: int) -> None:
    # A forward takes 2. Copied back at once, all 8 are there; with one computation ahead, what comes back, what is
    # computed and, while copies take time, what goes out.
    table = one_f_one_b(8, 32)
    first = every(table) & (np.arange(8) == 0)[:, None]
    values = {"f_ns": 2, "b_ns": 4, "offload_ns": [copy_ns], "reload_ns": [copy_ns]}

    copied = run(with_copies(table, first, ahead), **values)

    assert copied.memory.peak_activation_bytes[0] == 60 * peak
    assert copied.memory.peak_activation_bytes[1:].tolist() == [60 * held for held in range(7, 0, -1)]
    assert copied.step_ns == 6 * 39


@pytest.mark.parametrize("part", [0, 15, 60])
def test_a_copied_part_leaves_the_rest(part: int) -> None:
    table = one_f_one_b(4, 8)

    copied = run(with_copies(table, every(table), 0), offload_bytes=[part])

    assert copied.memory.peak_activation_bytes[0] == 60 + 3 * (60 - part)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (4, 8), (4, 2), (8, 32)])
@pytest.mark.parametrize(("f", "b", "r"), [(1, 2, 1), (3, 5, 2), (2, 2, 4)])
def test_the_step_and_the_peak_of_1f1b_with_forwards_computed_again(
    ranks: int, microbatches: int, f: int, b: int, r: int
) -> None:
    table = one_f_one_b(ranks, microbatches)
    values = {"f_ns": f, "b_ns": b, "recompute_ns": [r], "checkpoint_bytes": [6]}

    late, early = (run(with_recompute(table, every(table), early=outcome), **values) for outcome in (False, True))

    assert late.step_ns == (microbatches + ranks - 1) * (f + r + b)
    assert early.step_ns == microbatches * (f + r + b) + (ranks - 1) * (f + b)
    for item in (late, early):
        assert item.busy_ns.tolist() == [microbatches * (f + r + b)] * ranks
        # What waits has its input alone; one at a time is whole.
        held = [6 * min(microbatches, ranks - rank) + 54 for rank in range(ranks)]
        assert item.memory.peak_activation_bytes.tolist() == held


def test_some_stages_alone_are_computed_again() -> None:
    table = one_f_one_b(4, 8)
    chosen = every(table) & (np.arange(4) < 2)[:, None]

    busy = run(with_recompute(table, chosen)).busy_ns

    assert busy.tolist() == [32, 32, 24, 24]


def test_copies_on_one_stream_follow_one_another() -> None:
    table = one_f_one_b(2, 6)
    copied = with_copies(table, every(table), 1)
    workload = costs(copied, offload_ns=[2], reload_ns=[2], one_copy_stream=True)

    timeline = simulate(copied, workload)

    slices = [timeline[row] for row in range(len(timeline))]
    for rank in range(2):
        times = sorted(
            (item.start_ns, item.end_ns)
            for item in slices
            if item.rank == rank and item.action.kind in {Kind.OFFLOAD, Kind.RELOAD}
        )
        assert len(times) == 12
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_copies_in_turn_do_not_overlap_across_ranks() -> None:
    table = one_f_one_b(2, 4)
    copied = with_copies(table, every(table), 1)
    out = np.flatnonzero(copied.kind == Kind.OFFLOAD)
    turn = np.stack([copied.kind[out], copied.stage[out], copied.microbatch[out]], axis=1)
    turn = turn[np.lexsort((turn[:, 1], turn[:, 2]))].astype(np.int32)
    waits = np.hstack([turn[:-1], turn[1:]])

    timeline = simulate(replace(copied, waits=(waits,)), costs(copied, offload_ns=[3], reload_ns=[0]))

    slices = [timeline[row] for row in range(len(timeline))]
    copies = [item for item in slices if item.action.kind is Kind.OFFLOAD]
    copies.sort(key=lambda one: (one.action.microbatch, one.action.stage))
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(copies))


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_a_rank_that_waits_for_its_copies_holds_no_more_than_it_may(behind: int) -> None:
    # Copies take four forwards each: without waiting, one of eight is done when the first comes back.
    table = Schedule.from_rows([[*(f"0F{index}" for index in range(8)), *(f"0B{index}" for index in range(8))]])
    copied = with_copies(table, every(table), 0)
    values = {"offload_ns": [4], "reload_ns": [0]}

    eager = run(copied, **values)
    bound = run(replace(copied, waits=(waits_for_copies(copied, behind),)), **values)

    assert eager.memory.peak_activation_bytes.tolist() == [60 * 8]
    # What is going out, what is computed meanwhile, and what the first backward needs.
    assert bound.memory.peak_activation_bytes.tolist() == [60 * (behind + 2)]
    assert bound.step_ns >= eager.step_ns
