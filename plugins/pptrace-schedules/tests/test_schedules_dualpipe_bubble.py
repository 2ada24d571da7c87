"""DualPipe's bubble, as its authors state it, is what the simulator counts with pairs in segments."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure
from pptrace_schedules.dualpipe import DUALPIPE_V
from pptrace_schedules.dualpipe import OFFER as DUALPIPE


class Costs(NamedTuple):
    """Times of segments; with a combine as long as the weight part, both messages leave at the pair's end."""

    attention: int
    dispatch: int
    experts: int
    exchange: int
    """Communication before the backward's first computation."""
    weight: int
    """The backward's part for weights, and the forward's combine."""

    @property
    def forward(self) -> int:
        return self.attention + self.dispatch + self.experts + self.weight

    @property
    def pair(self) -> int:
        """Attention, input, experts, weight: all communication is hidden."""
        return self.attention + self.input + self.experts + self.weight

    @property
    def input(self) -> int:
        """So long that the backward for the input takes what the forward does."""
        return self.forward - self.exchange

    def workload(self, stages: int) -> Workload:
        away = Stream.EXPERT_PARALLEL
        forward = (
            Segment(name="attention", duration_ns=self.attention),
            Segment(name="dispatch", duration_ns=self.dispatch, stream=away),
            Segment(name="experts", duration_ns=self.experts),
            Segment(name="combine", duration_ns=self.weight, stream=away),
        )
        backward = (
            Segment(name="exchange", duration_ns=self.exchange, stream=away),
            Segment(name="input", duration_ns=self.input),
            Segment(name="weight", duration_ns=self.weight),
        )
        by_kind = {Kind.F: forward, Kind.B: backward, Kind.I: backward[:2], Kind.W: backward[2:]}
        plain = Workload.uniform(stages, edges=stages - 1)
        return plain.segmented({kind: [segments] * stages for kind, segments in by_kind.items()})


@pytest.mark.parametrize("costs", [Costs(10, 6, 10, 6, 6), Costs(10, 6, 10, 10, 8), Costs(12, 4, 20, 9, 10)])
@pytest.mark.parametrize(
    ("offer", "ranks", "microbatches"),
    [
        (DUALPIPE, 2, 4), (DUALPIPE, 4, 8), (DUALPIPE, 8, 20), (DUALPIPE, 8, 64), (DUALPIPE, 14, 30),
        (DUALPIPE_V, 1, 3), (DUALPIPE_V, 2, 9), (DUALPIPE_V, 3, 7), (DUALPIPE_V, 4, 10), (DUALPIPE_V, 8, 20),
    ],
)  # fmt: skip
def test_the_middle_ranks_idle_as_the_authors_state(
    costs: Costs, offer: Any, ranks: int, microbatches: int
) -> None:
    table = offer.build(ScheduleRequest(ranks=ranks, microbatches=microbatches))
    table = replace(table, interleave={(Kind.F, Kind.B): (0, 1, 0, 1)})
    half, each = (ranks, microbatches) if offer is DUALPIPE_V else (ranks // 2, microbatches // 2)
    workload = costs.workload(table.stages)
    step_ns = measure(simulate(table, workload), workload).step_ns

    backward = costs.forward + costs.weight  # the halves of a backward; that for the input is as a forward
    pairs = 2 * (each - half) - 1
    apart = 2 * half + 1
    busy = pairs * costs.pair + apart * (costs.forward + backward)
    assert step_ns - busy == (half - 1) * (costs.pair + backward - 3 * costs.weight)
