"""Holistic Trace Analysis, made for measured traces, reads ours and counts what we count."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Routes, Slice, Timeline
from pptrace.traces.kineto import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("hta")

RANKS, MICROBATCHES = 3, 6


def _staircase() -> Timeline:
    """Return forwards and backwards of three ranks on a microsecond grid, some transfers hidden, some not."""
    slices = []
    for rank in range(RANKS):
        now = 1000 * (13 * rank + 2)
        for microbatch in range(MICROBATCHES):
            for kind, took, carry in ((Kind.F, 10, Kind.SEND_F), (Kind.B, 21, Kind.SEND_B)):
                end = now + 1000 * took
                slices.append(_slice(rank, Stream.COMPUTE, kind, microbatch, now, end))
                peer = rank + (1 if kind == Kind.F else -1)
                if 0 <= peer < RANKS:
                    slices.append(_slice(rank, Stream.SEND, carry, microbatch, end, end + 7000, peer))
                now = end + 1000 * ((microbatch + rank) % 3) * 4
    return Timeline.from_slices(slices, Placement.looped(RANKS, MICROBATCHES))


def _slice(rank: int, stream: Stream, kind: Kind, microbatch: int, start: int, end: int, peer: int = -1) -> Slice:
    action = Action(kind=kind, stage=rank, microbatch=microbatch)
    return Slice(rank=rank, stream=stream, action=action, start_ns=start, end_ns=end, peer=peer, size_bytes=8)


def _microseconds(timeline: Timeline, rank: int, *, compute: bool) -> set[int]:
    """Return each microsecond in which a rank computes, or communicates."""
    rows = [item for item in (timeline[row] for row in range(len(timeline))) if item.rank == rank]
    return {
        at
        for item in rows
        if (item.stream == Stream.COMPUTE) == compute
        for at in range(item.start_ns // 1000, item.end_ns // 1000)
    }


def _with_links(timeline: Timeline) -> Timeline:
    """Send every message over two links, and count the use of one."""
    sends = np.isin(timeline.kind, (Kind.SEND_F, Kind.SEND_B))
    routes = Routes(
        name=("out", "in"),
        rate_kbps=np.array([1000, 1000]),
        ptr=np.concatenate([[0], np.cumsum(2 * sends)]),
        link=np.tile([0, 1], int(sends.sum())),
    )
    use = Counter(rank=-1, name="out", unit="%", at_ns=np.array([1000]), value=np.array([50]))
    return replace(timeline, routes=routes, counters=(use,))


@pytest.fixture(scope="module", params=["plain", "over links"])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    return _staircase() if request.param == "plain" else _with_links(_staircase())


@pytest.fixture(scope="module")
def analysis(timeline: Timeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("hta")
    for rank in range(RANKS):
        write(timeline, folder / f"rank{rank}.json", {"rank": rank})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from pandas and plotly, within HTA
        from hta.trace_analysis import TraceAnalysis

        yield TraceAnalysis(trace_dir=str(folder))


def _frame(analysis: Any, name: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(analysis, name)(visualize=False, **options)


def test_every_rank_is_found(analysis: Any) -> None:
    assert sorted(analysis.t.get_all_traces()) == list(range(RANKS))


def test_the_temporal_breakdown_is_exact(analysis: Any, timeline: Timeline) -> None:
    frame = _frame(analysis, "get_temporal_breakdown").set_index("rank")
    for rank in range(RANKS):
        compute = _microseconds(timeline, rank, compute=True)
        busy = compute | _microseconds(timeline, rank, compute=False)
        span = max(busy) + 1 - min(busy)
        row = frame.loc[rank]
        assert row["idle_time(us)"] == span - len(busy)
        assert row["compute_time(us)"] == len(compute)
        assert row["non_compute_time(us)"] == len(busy - compute)
        assert row["kernel_time(us)"] == span


def test_the_overlap_of_communication_and_compute_is_exact(analysis: Any, timeline: Timeline) -> None:
    frame = _frame(analysis, "get_comm_comp_overlap").set_index("rank")
    for rank in range(RANKS):
        compute = _microseconds(timeline, rank, compute=True)
        carrying = _microseconds(timeline, rank, compute=False)
        wanted = 100 * len(carrying & compute) / len(carrying)
        assert frame.loc[rank, "comp_comm_overlap_pctg"] == pytest.approx(wanted, abs=0.005)


def test_idle_time_is_distinguished_by_launch(analysis: Any) -> None:
    frame, _ = _frame(analysis, "get_idle_time_breakdown", ranks=list(range(RANKS)))
    assert set(frame["rank"]) == set(range(RANKS))
