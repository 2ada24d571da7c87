"""Counters for display follow from the slices, by conservation and by a count of our own."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.counters import in_flight, send_rates
from pptrace.timeline.timeline import Slice, Timeline

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Counter


def _slice(
    kind: Kind,
    microbatch: int,
    start: int,
    end: int,
    *,
    rank: int = 0,
    span: int = 1,
    size_bytes: int = 0,
    peer: int = -1,
) -> Slice:
    action = Action(kind=kind, stage=rank, microbatch=microbatch, span=span)
    stream = Stream.SEND if peer >= 0 else Stream.COMPUTE
    return Slice(
        rank=rank, stream=stream, peer=peer, action=action, start_ns=start, end_ns=end, size_bytes=size_bytes
    )


def _timeline(*slices: Slice) -> Timeline:
    return Timeline.from_slices(slices, Placement.looped(4, 8))


def _steps(counter: Counter) -> list[tuple[int, int]]:
    return list(zip(counter.at_ns.tolist(), counter.value.tolist(), strict=True))


def test_a_microbatch_is_in_flight_from_its_forward_s_start_to_its_backward_s_end() -> None:
    counts = in_flight(
        _timeline(
            _slice(Kind.F, 0, 0, 10),
            _slice(Kind.F, 1, 10, 20),
            _slice(Kind.B, 0, 20, 40),
            _slice(Kind.B, 1, 50, 60),
        )
    )
    assert [(c.rank, c.name, c.unit) for c in counts] == [(0, "in flight", "microbatches")]
    assert _steps(counts[0]) == [(0, 1), (10, 2), (40, 1), (60, 0)]


@pytest.mark.parametrize(
    ("passes", "until"), [((Kind.B,), 40), ((Kind.I,), 40), ((Kind.I, Kind.W), 60), ((Kind.B, Kind.W), 60)]
)
def test_a_split_backward_ends_with_its_weight_gradient(passes: tuple[Kind, ...], until: int) -> None:
    backwards = [_slice(kind, 0, 20 * at, 20 * at + 20) for at, kind in enumerate(passes, 1)]
    (counts,) = in_flight(_timeline(_slice(Kind.F, 0, 0, 10), *backwards))
    assert _steps(counts) == [(0, 1), (until, 0)]


def test_a_span_counts_all_its_microbatches() -> None:
    (counts,) = in_flight(
        _timeline(_slice(Kind.F, 2, 0, 10, span=3), _slice(Kind.B, 2, 10, 20), _slice(Kind.B, 3, 20, 30, span=2))
    )
    assert _steps(counts) == [(0, 3), (20, 2), (30, 0)]


def test_a_forward_that_starts_as_a_backward_ends_makes_no_step() -> None:
    (counts,) = in_flight(_timeline(_slice(Kind.F, 0, 0, 5), _slice(Kind.B, 0, 5, 10), _slice(Kind.F, 1, 10, 15)))
    assert _steps(counts) == [(0, 1)]


def test_a_backward_without_a_forward_counts_nothing() -> None:
    assert in_flight(_timeline(_slice(Kind.B, 0, 0, 5))) == ()
    assert send_rates(_timeline()) == ()


def test_link_use_is_bytes_over_time_of_the_messages_under_way() -> None:
    result = send_rates(
        _timeline(
            _slice(Kind.SEND_F, 0, 0, 100, size_bytes=50, peer=1),
            _slice(Kind.SEND_B, 1, 50, 150, size_bytes=1, peer=2),
            _slice(Kind.SEND_B, 0, 0, 1000, size_bytes=2**40, peer=0, rank=3),
        )
    )
    assert [(c.rank, c.name, c.unit) for c in result] == [(0, "send rate", "bytes/s"), (3, "send rate", "bytes/s")]
    assert _steps(result[0]) == [(0, 500_000_000), (50, 510_000_000), (100, 10_000_000), (150, 0)]
    assert _steps(result[1]) == [(0, 2**40 * 10**6), (1000, 0)]


def test_a_message_without_time_or_bytes_uses_no_link() -> None:
    sends = _slice(Kind.SEND_F, 0, 5, 5, size_bytes=9, peer=1), _slice(Kind.SEND_F, 1, 5, 9, peer=1)
    assert send_rates(_timeline(*sends)) == ()


MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 10**12), st.integers(1, 2**31)), max_size=8
)


@given(drawn=MESSAGES)
def test_link_use_is_never_off_by_more_than_rounding(drawn: list[tuple[int, int, int, int]]) -> None:
    now: dict[int, int] = defaultdict(int)
    slices = []
    for microbatch, (rank, gap, took, size) in enumerate(drawn):
        start = now[rank] + gap
        now[rank] = start + took
        slices.append(_slice(Kind.SEND_F, microbatch, start, now[rank], rank=rank, size_bytes=size, peer=0))
    for counter in send_rates(_timeline(*slices)):
        assert (np.diff(counter.at_ns) > 0).all()
        assert counter.value[-1] == 0
        own = [s for s in slices if s.rank == counter.rank]
        for at, value in _steps(counter):
            under_way = [s for s in own if s.start_ns <= at < s.end_ns]
            assert value == sum(s.size_bytes * 10**9 // (s.end_ns - s.start_ns) for s in under_way)
