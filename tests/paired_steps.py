"""Steps with overlapped pairs whose actions consist of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["ROWS", "paired_step"]

MS = 1_000_000
ROWS = [
    ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"],
    ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"],
]
REDUCE = Segment(name="all-reduce", duration_ns=2 * MS, stream=Stream.TENSOR_PARALLEL)
FORWARD = (
    Segment(name="attention", duration_ns=3 * MS), REDUCE, Segment(name="mlp", duration_ns=5 * MS), REDUCE,
)  # fmt: skip
BACKWARD = (
    Segment(name="mlp-input", duration_ns=5 * MS), REDUCE,
    Segment(name="mlp-weight", duration_ns=5 * MS, needs=(0,)),
    Segment(name="attention-input", duration_ns=3 * MS, needs=(1,)), replace(REDUCE, needs=(3,)),
    Segment(name="attention-weight", duration_ns=3 * MS, needs=(3,)),
)  # fmt: skip


def paired_step(longer: tuple[Kind, int, int] | None = None) -> Timeline:
    """Simulate two ranks with overlapped pairs; 3 ms are added to one action of a kind, stage and microbatch."""
    whole = Workload.uniform(2, boundary_bytes=1000)
    costs = whole.segmented({Kind.F: [FORWARD] * 2, Kind.B: [BACKWARD] * 2})
    if longer is not None:
        kind, stage, microbatch = longer
        segments = {Kind.F: [FORWARD] * 2, Kind.B: [BACKWARD] * 2}
        first, *rest = segments[kind][stage]
        segments[kind][stage] = (replace(first, duration_ns=first.duration_ns + 3 * MS), *rest)
        other = [int(each == microbatch) for each in range(3)]
        costs = replace(costs, classes=(whole.segmented(segments),), microbatch_class=other)
    table = replace(Schedule.from_rows(ROWS), interleave={(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)})
    return simulate(table, costs, Flat(latency_ns=1000, rate_kbps=10**6))
