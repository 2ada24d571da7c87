"""Trimming keeps the chosen ranks and microbatches, and says so."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import ConfigError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Routes, Slice, Timeline
from pptrace.timeline.trim import Selection, parse_only, trim

MICROBATCHES = 6


@pytest.fixture
def timeline() -> Timeline:
    """Return three ranks with a forward per microbatch, one over two microbatches, and an optimizer."""
    slices = []
    for rank in range(3):
        actions = [Action(kind=Kind.F, stage=rank, microbatch=microbatch) for microbatch in range(4)]
        actions.append(Action(kind=Kind.F, stage=rank, microbatch=4, span=2))
        actions.append(Action(kind=Kind.OPTIMIZER, stage=rank))
        for at, action in enumerate(actions):
            slices.append(Slice(rank=rank, stream=Stream.COMPUTE, action=action, start_ns=at, end_ns=at + 1))
    counters = tuple(
        Counter(rank=rank, name="memory", unit="bytes", at_ns=np.array([0]), value=np.array([1]))
        for rank in range(3)
    )
    made = Timeline.from_slices(slices, Placement.looped(3, MICROBATCHES))
    return replace(made, cause=np.arange(len(made)) - 1, counters=counters, provenance={"version": "1"})


def test_nothing_asked_for_is_the_same_timeline(timeline: Timeline) -> None:
    assert trim(timeline, None, None) is timeline


def test_ranks_keep_their_numbers_lanes_and_counters(timeline: Timeline) -> None:
    trimmed_step = trim(timeline, [2, 0], None)
    assert trimmed_step.lane_rank.tolist() == [0, 2]
    assert trimmed_step.lane_ptr.tolist() == [0, 6, 12]
    assert trimmed_step.placement == timeline.placement
    assert [counter.rank for counter in trimmed_step.counters] == [0, 2]


def test_a_slice_stays_if_any_of_its_microbatches_does_or_it_has_none(timeline: Timeline) -> None:
    trimmed_step = trim(timeline, [1], [1, 5])
    assert [str(trimmed_step[row].action) for row in range(len(trimmed_step))] == ["1F1", "1F4+2", "1OPTIMIZER"]


def test_what_works_on_no_microbatch_stays_with_the_work_around_it(timeline: Timeline) -> None:
    early = replace(timeline, microbatch=np.where(timeline.microbatch == 2, -1, timeline.microbatch))

    def kept(microbatches: list[int]) -> list[int]:
        trimmed_step = trim(early, [0], microbatches)
        return trimmed_step.start_ns.tolist()

    assert kept([1, 3]) == [1, 2, 3]
    assert kept([1]) == [1]
    assert kept([0, 3]) == [0, 2, 3]
    assert kept([3, 5]) == [3, 4, 5]


def test_counters_begin_and_end_with_the_microbatches_that_stay(timeline: Timeline) -> None:
    def steps(microbatches: list[int], at: list[int]) -> list[tuple[int, int]]:
        counter = Counter(rank=0, name="a", unit="b", at_ns=np.array(at), value=np.arange(len(at)) + 7)
        found = trim(replace(timeline, counters=(counter,)), None, microbatches).counters
        return [step for c in found for step in zip(c.at_ns.tolist(), c.value.tolist(), strict=True)]

    assert steps([1, 2], [0, 2, 3, 4]) == [(1, 7), (2, 8), (3, 9)]
    assert steps([1, 2], [1, 2]) == [(1, 7), (2, 8)]
    assert steps([1], [3, 4]) == []
    assert steps([0], [0, 9]) == [(0, 7)]
    assert steps([5], [0, 9]) == [(4, 7), (9, 8)]
    assert steps([], [0, 9]) == []


@pytest.fixture
def routed(timeline: Timeline) -> Timeline:
    """Return the timeline with two links for each of rank 0's rows, one for rank 1's, and a counter for each."""
    lengths = np.repeat([2, 1, 0], 6)
    routes = Routes(
        name=("a", "b", "c", "idle"),
        rate_kbps=np.ones(4, dtype=np.int64),
        ptr=np.concatenate([[0], np.cumsum(lengths)]),
        link=np.concatenate([np.tile([0, 1], 6), np.full(6, 2)]),
    )
    shared = tuple(
        Counter(rank=-1, name=name, unit="%", at_ns=np.array([0]), value=np.array([1]))
        for name in ("a", "b", "c", "idle", "jobs")
    )
    return replace(timeline, routes=routes, counters=(*shared, *timeline.counters))


def test_routes_go_with_their_rows(routed: Timeline) -> None:
    found = trim(routed, None, [1, 2]).routes
    assert found is not None
    assert found.name == ("a", "b", "c", "idle")
    assert np.diff(found.ptr).tolist() == [2, 2, 1, 1, 0, 0]
    assert found.link.tolist() == [0, 1, 0, 1, 2, 2]


def test_a_link_that_nobody_left_uses_loses_its_counter_and_the_cluster_s_others_stay(routed: Timeline) -> None:
    def names(ranks: list[int] | None, microbatches: list[int] | None) -> list[str]:
        return [counter.name for counter in trim(routed, ranks, microbatches).counters if counter.rank < 0]

    assert names([0], None) == ["a", "b", "jobs"]
    assert names([1, 2], None) == ["c", "jobs"]
    assert names([2], None) == ["jobs"]
    assert names(None, [1]) == names([0, 1, 2], None) == ["a", "b", "c", "idle", "jobs"]
    unrouted = replace(routed, routes=None)
    assert [c.name for c in trim(unrouted, [2], None).counters] == ["a", "b", "c", "idle", "jobs", "memory"]


def test_causes_follow_their_rows_or_become_unknown(timeline: Timeline) -> None:
    trimmed_step = trim(timeline, [0, 2], [0, 1, 5])
    assert [str(trimmed_step[row].action) for row in range(4)] == ["0F0", "0F1", "0F4+2", "0OPTIMIZER"]
    assert trimmed_step.cause.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6]


def test_a_lane_left_empty_goes(timeline: Timeline) -> None:
    computing = timeline.kind != Kind.OPTIMIZER
    no_optimizer = Timeline.from_slices([timeline[row] for row in np.flatnonzero(computing)], timeline.placement)
    assert trim(no_optimizer, None, []).lanes == 0


def test_the_provenance_says_what_is_left(timeline: Timeline) -> None:
    once = trim(timeline, [0, 2], None)
    twice = trim(once, None, [0, 1, 2, 5])
    assert once.provenance == {"version": "1", "trimmed": {"ranks": "0,2"}}
    assert twice.provenance["trimmed"] == {"ranks": "0,2", "microbatches": "0:3,5"}
    assert parse_only([f"microbatches={twice.provenance['trimmed']['microbatches']}"]).microbatches == (0, 1, 2, 5)


def test_everything_asked_for_keeps_every_column(timeline: Timeline) -> None:
    assert trim(timeline, [0, 1, 2], range(MICROBATCHES)).difference(timeline) == ""
    assert trim(timeline, [0, 1, 2], None).counters == timeline.counters


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ([], Selection()),
        (["ranks=0,7"], Selection(ranks=(0, 7))),
        (["microbatches=0:3"], Selection(microbatches=(0, 1, 2))),
        (["ranks=3,1:3,1", "microbatches=:2"], Selection(ranks=(1, 2, 3), microbatches=(0, 1))),
    ],
)
def test_selections_are_numbers_and_half_open_ranges(text: list[str], only: Selection) -> None:
    assert parse_only(text) == only


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["ranks"], "only: 'ranks' is not a selection such as ranks=0,7"),
        (["rank=1"], "did you mean 'ranks'"),
        (["ranks="], "only.ranks: '' is neither a number nor a range"),
        (["ranks=a"], "only.ranks: 'a' is neither"),
        (["ranks=-1"], "only.ranks: '-1' is neither"),
        (["ranks=0,"], "only.ranks: '' is neither"),
        (["microbatches=3:3"], "only.microbatches: '3:3' is neither"),
        (["microbatches=4:"], "only.microbatches: '4:' is neither"),
        (["microbatches=0:8:2"], "only.microbatches: '0:8:2' is neither"),
        (["microbatches=0:99999999999999"], "is neither"),
        (["ranks=1", "ranks=2"], "only.ranks: given twice"),
    ],
)
def test_a_selection_that_is_none_is_refused_in_one_line(text: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_only(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "message"),
    [
        ([3], None, "only.ranks: 3 is not there; known: 0 to 2"),
        (None, [6], "only.microbatches: 6 is not there; known: 0 to 5"),
    ],
)
def test_what_is_not_there_cannot_be_kept(
    timeline: Timeline, ranks: list[int] | None, microbatches: list[int] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trim(timeline, ranks, microbatches)
