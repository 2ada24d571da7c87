"""Nine recorded pipelines: every action found, waits cut off, clocks in line, messages on both ends."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace.timeline.metrics import measure
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

FIXTURES = Path(__file__).parent / "fixtures"
RUNS = {
    # makespan in ms, medians of F, B, I, W in ms, bubble of a rank in percent (least and most)
    "gpipe": (718.4, {"F": 20.83, "B": 40.94}, (29, 32)),
    "1f1b": (698.3, {"F": 20.44, "B": 40.78}, (29, 31)),
    "1f1b_csv": (696.3, {"F": 20.54, "B": 40.72}, (29, 31)),
    "zb_h1_csv": (570.3, {"F": 20.48, "I": 20.55, "W": 20.52}, (12.5, 14.5)),
    "interleaved1f1b": (621.8, {"F": 10.40, "B": 20.66}, (19, 21)),
    "looped_bfs": (662.7, {"F": 10.29, "B": 20.61}, (23.5, 25.5)),
    "interleaved_zb": (569.2, {"F": 10.33, "I": 10.41, "W": 10.38}, (9.5, 13)),
    "zbv": (572.1, {"F": 10.34, "I": 10.43, "W": 10.40}, (11, 13)),
    # With the first stage's whole backwards, which PyTorch calls 0W, the median of W was 10.62.
    "dualpipev": (606.5, {"I": 10.50, "W": 10.43}, (15, 17.5)),
}


def recorded(name: str) -> Measurement:
    paths = sorted((FIXTURES / f"sleep-{name}").glob("rank*.json.gz"))
    return measure_kineto(paths, ImportRequest())


def lengths(timeline: Timeline, kind: str) -> np.ndarray:
    rows = timeline.kind == Kind[kind]
    return (timeline.end_ns - timeline.start_ns)[rows] / 1e6


@pytest.mark.parametrize("name", RUNS)
def test_makespan_medians_and_bubbles_are_those_that_were_measured_apart(name: str) -> None:
    makespan, medians, (least, most) = RUNS[name]
    measured = recorded(name)
    (step,) = measured.steps
    timeline = step.timeline
    computes = timeline.kind <= Kind.W

    span = timeline.end_ns[computes].max() - timeline.start_ns[computes].min()
    workload = Workload.uniform(timeline.placement.stages, f_ns=0, b_ns=0)
    metrics = measure(timeline, workload)

    assert span / 1e6 == pytest.approx(makespan, abs=0.5)
    for kind, median in medians.items():
        assert np.median(lengths(timeline, kind)) == pytest.approx(median, rel=0.01), kind
    shares = metrics.idle_ns.sum(axis=1) / metrics.step_ns * 100
    assert all(least <= share <= most for share in shares), shares
    assert measured.unattributed == ()


@pytest.mark.parametrize("name", RUNS)
def test_every_action_of_the_schedule_is_there_in_its_order(name: str) -> None:
    table = (FIXTURES / f"sleep-{name}" / "compute_only.csv").read_text(encoding="utf-8").splitlines()
    timeline = recorded(name).steps[0].timeline
    folded = "stage 0" in " ".join(recorded(name).notes)

    for rank, row in enumerate(table):
        wanted = [
            cell for cell in row.replace("(", "").replace(")OVERLAP_F_B", "").replace(";", ",").split(",") if cell
        ]
        if folded:
            wanted = [cell.replace("0W", "0B", 1) if cell.startswith("0W") else cell for cell in wanted]
            wanted = [cell for cell in wanted if not cell.startswith("0I")]
        lane = int(np.flatnonzero((timeline.lane_rank == rank) & (timeline.lane_stream == Stream.COMPUTE))[0])
        rows = range(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
        assert [str(timeline[row].action) for row in rows] == wanted, rank


@pytest.mark.parametrize("name", RUNS)
def test_every_message_arrives_behind_its_producer_and_before_its_consumer(name: str) -> None:
    timeline = recorded(name).steps[0].timeline
    by_action = {(str(item.action), item.rank): item for item in (timeline[row] for row in range(len(timeline)))}
    sends = [item for item in by_action.values() if item.action.kind in {Kind.SEND_F, Kind.SEND_B}]

    assert sends
    for send in sends:
        forward = send.action.kind is Kind.SEND_F
        other = send.action.stage + (1 if forward else -1)
        receive = by_action[f"{other}{'RECV_F' if forward else 'RECV_B'}{send.action.microbatch}", send.peer]
        assert receive.end_ns == send.end_ns
        assert send.size_bytes == 8192
        assert send.enter_ns <= send.start_ns <= send.end_ns


def test_the_first_stages_empty_input_gradients_are_folded_and_said() -> None:
    measured = recorded("zb_h1_csv")

    assert any("stage 0" in note for note in measured.notes)
    timeline = measured.steps[0].timeline
    assert not ((timeline.stage == 0) & (timeline.kind == Kind.I)).any()
    assert int(((timeline.stage == 0) & (timeline.kind == Kind.B)).sum()) == 8


def test_clocks_of_hosts_are_bounded_by_messages_both_ways(tmp_path: Path) -> None:
    for rank in range(4):
        trace = json.loads(gzip.decompress((FIXTURES / "sleep-1f1b" / f"rank{rank}.json.gz").read_bytes()))
        trace["host_name"] = f"host{rank}"
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace), encoding="utf-8")
    clocks = measure_kineto(sorted(tmp_path.iterdir()), ImportRequest()).clocks

    assert [clock.rank for clock in clocks] == [0, 1, 2, 3]
    assert all(0 < clock.bound_ns < 2_000_000 for clock in clocks[1:])
    # One machine, one clock: true offsets are zero, and so lie within the stated bounds.
    assert all(abs(clock.offset_ns) <= clock.bound_ns for clock in clocks)


def test_ranks_of_one_host_have_its_clock() -> None:
    assert {(clock.offset_ns, clock.bound_ns, clock.pairs) for clock in recorded("1f1b").clocks} == {(0, 0, 0)}
