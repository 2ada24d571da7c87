from __future__ import annotations

from itertools import pairwise

from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.critical_path import critical_path, on_path
from pptrace.timeline.timeline import Slice, Timeline

ROWS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def test_the_path_runs_from_the_first_action_to_the_last_and_sums_to_the_step() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=3)
    timeline = simulate(Schedule.from_rows(ROWS), workload, Flat(rate_kbps=1_000_000, latency_ns=2))

    path = critical_path(timeline)

    # 0F0, hop 3+2, 1F0 1B0 1F1 1B1, hop 3+2, 0B1.
    assert path.by_kind_ns == {"B": 60, "F": 30, "wire": 4, "SEND_B": 3, "SEND_F": 3}
    assert sum(path.by_kind_ns.values()) == int(timeline.end_ns.max())
    assert path.by_stage_ns == {0: 30, 1: 60}
    assert path.slowest_stage == 1


def test_every_slice_on_the_path_starts_when_its_cause_lets_it() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=3)
    timeline = simulate(Schedule.from_rows(ROWS), workload, Flat(rate_kbps=1_000_000, latency_ns=2))

    rows = critical_path(timeline).rows

    for before, after in pairwise(rows.tolist()):
        assert timeline.cause[after] == before
        free = timeline.end_ns[before] + (timeline.lag_ns[before] if timeline.kind[after] <= 1 else 0)
        assert timeline.start_ns[after] == free


def test_time_behind_a_slice_is_wire_as_long_as_its_lag_and_a_wait_beyond() -> None:
    # Rank 0 sends from 10 to 15, the data are there at 17, and rank 1 only begins at 40.
    slices = [
        _slice(0, Stream.COMPUTE, Kind.F, 0, (0, 10)),
        _slice(0, Stream.SEND, Kind.SEND_F, 0, (10, 15), cause=0, lag_ns=2),
        _slice(1, Stream.COMPUTE, Kind.F, 1, (40, 50), cause=1),
    ]
    timeline = Timeline.from_slices(slices, Placement.looped(ranks=2, microbatches=1))

    path, parts = critical_path(timeline), on_path(timeline)

    assert path.by_kind_ns == {"wait": 23, "F": 20, "SEND_F": 5, "wire": 2}
    assert list(zip(parts.row.tolist(), parts.part.tolist(), parts.end_ns.tolist(), strict=True)) == [
        (0, 0, 10), (1, 0, 15), (1, 1, 17), (1, 2, 40), (2, 0, 50),
    ]  # fmt: skip


def _slice(rank: int, stream: Stream, kind: Kind, stage: int, when: tuple[int, int], **columns: int) -> Slice:
    action = Action(kind=kind, stage=stage, microbatch=0)
    return Slice(rank=rank, stream=stream, action=action, start_ns=when[0], end_ns=when[1], **columns)
