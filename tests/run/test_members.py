"""What a run tells of the members of overlapped pairs."""

from __future__ import annotations

from msgspec.structs import replace

from pptrace.run.figures import member_rows
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload

FORWARD = (
    Segment(name="attention", duration_ns=3),
    Segment(name="all-reduce", duration_ns=6, stream=Stream.TENSOR_PARALLEL),
    Segment(name="mlp", duration_ns=5),
)


def test_each_member_has_its_own_times_and_what_was_hidden_of_it() -> None:
    workload = Workload.uniform(1).segmented(
        {Kind.F: [FORWARD], Kind.B: [(Segment(name="input", duration_ns=4),)]}
    )
    table = replace(
        Schedule.from_rows([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]), interleave={(Kind.F, Kind.B): (0, 1)}
    )

    rows = {row["action"]: row for row in member_rows(simulate(table, workload))}

    # 0F1: attention 14 to 17, all-reduce 17 to 23 beside 0B0's 17 to 21, mlp 23 to 28.
    assert rows["0F1"] == {
        "action": "0F1", "pair": 0, "rank": 0, "start_ns": 14, "end_ns": 28, "busy_ns": 8, "hidden_ns": 4,
        "exposed_ns": 2,
    }  # fmt: skip
    assert (rows["0B0"]["start_ns"], rows["0B0"]["end_ns"]) == (17, 21)
    assert rows["0F0"]["exposed_ns"] == 6
