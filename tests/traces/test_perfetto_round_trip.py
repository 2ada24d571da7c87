"""A Perfetto trace that we wrote gives back the timeline that it was written from."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drawn_parts import drawn_parts
from drawn_routes import cluster_counters, drawn_routes
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.errors import ConfigError, OutputError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import PER_STAGE, Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Slice, Timeline
from pptrace.traces.perfetto import read, recognises, write

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 2**62
DURATIONS = st.sampled_from([0, 0, 1, 127, 128, 2**35 - 1, 2**35, 2**50]) | st.integers(0, 10**9)
AMOUNTS = st.sampled_from([0, 0, 1, 127, 128, 2**35, LARGEST])
JSON = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers() | st.text() | st.lists(st.integers()), max_size=3
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    ranks, microbatches, chunks = draw(st.integers(1, 12)), draw(st.integers(1, 300)), draw(st.integers(1, 2))
    routes = draw(st.sampled_from([Placement.looped, Placement.v_shaped]))
    lanes = st.tuples(st.integers(0, ranks - 1), st.sampled_from(Stream), st.integers(-1, ranks - 1))
    slices: list[Slice] = []
    for rank, stream, peer in draw(st.sets(lanes, max_size=6)):
        now = draw(st.sampled_from([0, 5, 2**49, 2**60]))
        for _ in range(draw(st.integers(1, 5))):
            slices.append(
                _slice(
                    draw,
                    Slice(
                        rank=rank,
                        stream=stream,
                        peer=peer,
                        action=_action(draw, ranks * chunks, microbatches),
                        start_ns=now,
                        end_ns=now + draw(DURATIONS),
                    ),
                )
            )
            now = slices[-1].end_ns + draw(st.integers(0, 3))
    timeline = Timeline.from_slices(slices, routes(ranks, microbatches, chunks))
    rows = st.integers(-1, len(slices) - 1)
    return replace(
        timeline,
        **_with_empty_lane(timeline, ranks),
        cause=np.array([draw(rows) for _ in slices], dtype=np.int32),
        counters=(
            *draw(cluster_counters()),
            *(draw(counters(rank)) for rank in range(draw(st.integers(0, ranks)))),
        ),
        routes=draw(drawn_routes(len(slices))),
        parts=draw(drawn_parts(len(slices))),
        provenance=draw(JSON),
    )


@st.composite
def counters(draw: st.DrawFn, rank: int) -> Counter:
    points = draw(st.dictionaries(st.integers(0, 2**60), st.integers(-(2**40), 2**62), max_size=4))
    if draw(st.booleans()):
        points = {at: abs(value) for at, value in points.items()}
    times = np.array(sorted(points), dtype=np.int64)
    values = np.array([points[at] for at in sorted(points)], dtype=np.int64)
    return Counter(rank=rank, name="memory", unit="bytes", at_ns=times, value=values)


def _action(draw: st.DrawFn, stages: int, microbatches: int) -> Action:
    kind = draw(st.sampled_from(Kind))
    microbatch = -1 if kind in PER_STAGE else draw(st.integers(0, microbatches - 1))
    span = 1 if microbatch < 0 else draw(st.integers(1, min(3, microbatches - microbatch)))
    return Action(kind=kind, stage=draw(st.integers(0, stages - 1)), microbatch=microbatch, span=span)


def _slice(draw: st.DrawFn, plain: Slice) -> Slice:
    return replace(
        plain,
        enter_ns=draw(st.sampled_from([plain.start_ns, 0, plain.start_ns // 2])),
        lag_ns=draw(AMOUNTS),
        uncontended_ns=draw(st.sampled_from([-1, 0, 7])),
        collective_ns=draw(AMOUNTS),
        size_bytes=draw(AMOUNTS),
        pair=draw(st.sampled_from([-1, -1, 0, 1000])),
    )


def _with_empty_lane(timeline: Timeline, ranks: int) -> dict[str, Any]:
    return {
        "lane_rank": np.append(timeline.lane_rank, np.int32(ranks - 1)),
        "lane_stream": np.append(timeline.lane_stream, np.int8(Stream.DATA_PARALLEL)),
        "lane_peer": np.append(timeline.lane_peer, np.int32(ranks)),
        "lane_ptr": np.append(timeline.lane_ptr, np.int32(len(timeline))),
    }


@given(timeline=timelines(), color=st.sampled_from(["kind", "microbatch"]))
def test_what_was_written_is_read_again(timeline: Timeline, color: str, tmp_path: Path) -> None:
    path = tmp_path / "step.pftrace"
    write(timeline, path, {"color": color, "title": "a step"})
    again = read([path])
    assert not timeline.difference(again)
    assert timeline.provenance == again.provenance
    assert recognises(path, path.read_bytes()[:4096])


def test_a_compressed_trace_is_read_as_it_is(tmp_path: Path) -> None:
    timeline = one_slice()
    plain, packed = tmp_path / "step.pftrace", tmp_path / "step.pftrace.gz"
    write(timeline, plain, {})
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert not timeline.difference(read([packed]))


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pftrace", tmp_path / "b.pftrace"
    write(one_slice(), first, {})
    write(one_slice(), second, {})
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("column", ["start_ns", "enter_ns", "lag_ns", "size_bytes"])
def test_a_negative_number_is_refused_with_its_row(column: str, tmp_path: Path) -> None:
    timeline = replace(one_slice(), **{column: np.array([-5])})
    with pytest.raises(OutputError, match=f"{column} of row 0 is -5"):
        write(timeline, tmp_path / "step.pftrace", {})


def test_a_counter_before_the_step_is_refused_with_its_name(tmp_path: Path) -> None:
    early = Counter(rank=0, name="memory", unit="bytes", at_ns=np.array([-1]), value=np.array([3]))
    with pytest.raises(OutputError, match="'memory' of rank 0"):
        write(replace(one_slice(), counters=(early,)), tmp_path / "step.pftrace", {})


@given(timeline=timelines())
def test_files_written_rank_by_rank_are_read_as_one(timeline: Timeline, tmp_path: Path) -> None:
    ranks = sorted(set(timeline.lane_rank.tolist()))
    counters = tuple(counter for counter in timeline.counters if counter.rank in {-1, *ranks})
    timeline = replace(timeline, counters=counters)
    paths = [tmp_path / f"rank{rank}.pftrace" for rank in ranks]
    for rank, path in zip(ranks, paths, strict=True):
        write(timeline, path, {"rank": rank})
    assert not timeline.difference(read(paths[::-1]))


def test_a_file_of_one_rank_alone_forgets_causes_on_others(tmp_path: Path) -> None:
    actions = [Action(kind=Kind.F, stage=rank, microbatch=0) for rank in (0, 1, 1)]
    slices = [
        Slice(rank=action.stage, stream=Stream.COMPUTE, action=action, start_ns=at, end_ns=at + 1)
        for at, action in enumerate(actions)
    ]
    timeline = replace(Timeline.from_slices(slices, Placement.looped(2, 1)), cause=np.array([-1, 0, 1]))
    write(timeline, tmp_path / "rank1.pftrace", {"rank": 1})
    alone = read([tmp_path / "rank1.pftrace"])
    assert alone.cause.tolist() == [-1, 0]
    assert alone.lane_rank.tolist() == [1]


@pytest.mark.parametrize(
    ("key", "value", "why"), [("color", "stage", "is none of kind, microbatch"), ("rank", 7, "no rank 7")]
)
def test_an_option_without_such_a_value_is_refused(key: str, value: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .*{why}"):
        write(one_slice(), tmp_path / "step.pftrace", {key: value})


def one_slice() -> Timeline:
    action = Action(kind=Kind.F, stage=0, microbatch=0)
    return Timeline.from_slices(
        [Slice(rank=0, stream=Stream.COMPUTE, action=action, start_ns=0, end_ns=10)], Placement.looped(1, 1)
    )
