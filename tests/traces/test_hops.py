"""Hops are a timeline's routes, spread over as many lanes of each link as it had messages at once."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drawn_routes import drawn_routes
from hypothesis import given
from hypothesis import strategies as st
from interpreted import interpreted_kernels
from msgspec.structs import replace

import pptrace_kernel
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Routes, Slice, Timeline
from pptrace.traces.assembly import join_hops
from pptrace.traces.scene import Hops, Scene, link_title

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

RANKS = 4


@st.composite
def routed_timelines(draw: DrawFn) -> Timeline:
    """Draw messages between neighbours, each rank's one after another, over any links."""
    slices = []
    for rank in range(RANKS - 1):
        now = 0
        for microbatch in range(draw(st.integers(0, 4))):
            now += draw(st.integers(0, 3))
            end = now + draw(st.integers(0, 4))
            action = Action(kind=Kind.SEND_F, stage=rank, microbatch=microbatch)
            slices.append(Slice(rank=rank, stream=Stream.COMM, action=action, start_ns=now, end_ns=end))
            now = end
    timeline = Timeline.from_slices(slices, Placement.looped(RANKS, 4))
    return replace(timeline, routes=draw(drawn_routes(len(slices)).filter(bool)))


@given(timeline=routed_timelines())
def test_hops_spell_out_the_routes(timeline: Timeline) -> None:
    hops, routes = Hops.of(timeline), timeline.routes
    assert routes is not None

    found = join_hops(len(timeline), hops.row, hops.place, hops.link)

    assert found is not None
    assert replace(routes, ptr=found[0], link=found[1]) == routes


@given(timeline=routed_timelines())
def test_a_link_has_as_many_lanes_as_it_had_messages_at_once(timeline: Timeline) -> None:
    hops = Hops.of(timeline)
    times = list(zip(timeline.start_ns.tolist(), timeline.end_ns.tolist(), strict=True))
    on_link, lanes = defaultdict(list), defaultdict(int)
    for lane, link in enumerate(hops.lane_link.tolist()):
        on_lane = [times[row] for row in hops.row[slice(*hops.lane_ptr[lane : lane + 2])]]
        assert on_lane
        assert all(end <= start for (_, end), (start, _) in pairwise(on_lane))
        on_link[link] += on_lane
        lanes[link] += 1
    for link, messages in on_link.items():
        lasting = [message for message in messages if message[1] > message[0]]
        at_once = max((sum(a <= at < b for a, b in lasting) for at, _ in lasting), default=0)
        inside = [sum(a < at < b for a, b in lasting) + 1 for at, end in messages if at == end]
        assert lanes[link] == max(at_once, *inside, 1)


@given(timeline=routed_timelines())
def test_compiled_and_interpreted_hops_are_the_same(timeline: Timeline) -> None:
    with interpreted_kernels():
        interpreted = Hops.of(timeline)
    with pptrace_kernel.always_compiled():
        compiled = Hops.of(timeline)

    assert all(
        np.array_equal(getattr(interpreted, name), getattr(compiled, name)) for name in Hops.__struct_fields__
    )


def test_titles_name_the_message_and_the_ranks_that_it_goes_between() -> None:
    kinds = ((0, Kind.SEND_F, 1), (2, Kind.SEND_B, 1), (1, Kind.RECV_F, 0), (3, Kind.F, 2))
    slices = [
        Slice(rank=rank, stream=Stream.COMM, action=Action(kind=kind, stage=rank, microbatch=1, span=span),
              start_ns=0, end_ns=9)
        for span, (rank, kind, _) in enumerate(kinds, 1)
    ]  # fmt: skip
    timeline = Timeline.from_slices(slices, Placement.looped(RANKS, 9))
    routes = Routes(name=("a",), rate_kbps=np.array([1]), ptr=np.arange(5), link=np.zeros(4, dtype=np.int32))

    titles = Scene(timeline=replace(timeline, routes=routes)).hop_titles()

    assert sorted(titles.tolist()) == [b"F 1+4", b"RECV_F 1+3 0>1", b"SEND_B 1+2 2>1", b"SEND_F 1 0>1"]


def test_a_link_s_title_tells_its_capacity_where_it_has_one() -> None:
    routes = Routes(
        name=("a", "b"), rate_kbps=np.array([12_500_000, 0]), ptr=np.array([0]), link=np.array([], int)
    )

    assert [link_title(routes, link) for link in range(2)] == ["a (12.5 GB/s)", "b"]


def test_without_routes_there_are_no_hops() -> None:
    assert len(Hops.of(Timeline.from_slices([], Placement.looped(1, 1)))) == 0


@pytest.mark.parametrize(
    ("row", "place"), [([0, 0], [0, 2]), ([0, 0], [0, 0]), ([0, 2], [0, 0]), ([0, -1], [0, 0])]
)
def test_hops_with_a_gap_are_no_routes(row: list[int], place: list[int]) -> None:
    assert join_hops(2, np.array(row), np.array(place), np.array([0, 0])) is None
