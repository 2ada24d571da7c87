"""An action outside pairs may compute beside its own communication: by hand, in one row and in many."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from unittest.mock import patch

import pytest
from segment_costs import action_spans, costs, random_kinds

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.sim import simulation as module
from pptrace.sim.engines import Contention
from pptrace.sim.lowering import lower
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import SENDS, Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

ROWS = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]]
SLOWED = Contention(compute_permille=828, communication_permille=896)


def overlapped(workload: Workload) -> Workload:
    return workload.segmented(workload.segments, overlapped=True)


def spans(workload: Workload, policy: PolicyName) -> dict[tuple[str, Stream], tuple[int, int]]:
    return action_spans(
        module.simulate(Schedule.from_rows(ROWS), workload, Flat(latency_ns=3), Policy(name=policy))
    )


@pytest.mark.parametrize(("count", "all_reduce", "took", "exposed"), [
    (1, 2, 16, 0), (1, 6, 20, 4), (2, 2, 32, 0), (2, 9, 52, 20),
])  # fmt: skip
def test_a_backward_hides_its_all_reduces_behind_its_own_weight_gradients(
    count: int, all_reduce: int, took: int, exposed: int
) -> None:
    # A layer's halves are 5 + 5 and 3 + 3, each with an all-reduce beside its second part.
    workload = overlapped(costs(2, count, all_reduce))

    assert workload.b_ns.tolist() == [took] * 2
    assert workload.b_collective_ns.tolist() == [exposed] * 2
    assert workload.f_ns.tolist() == costs(2, count, all_reduce).f_ns.tolist()


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize("seed", range(20))
def test_an_action_in_rows_of_segments_is_the_one_in_a_single_row(seed: int, policy: PolicyName) -> None:
    workload = Workload.uniform(2, boundary_bytes=1).segmented(random_kinds(Random(seed)), overlapped=True)  # noqa: S311 - nothing secret

    whole = spans(workload, policy)
    with patch.object(module, "lower", lambda *given, **named: lower(*given, **{**named, "slows": True})):
        apart = spans(workload, policy)

    assert apart == whole


def test_what_a_backward_overlaps_slows_it() -> None:
    forward = (Segment(name="start", duration_ns=10),)
    table = Schedule.from_rows([["0F0", "0B0"]])
    backward = costs(1, 1, 2).segments[Kind.B]
    workload = costs(1).segmented({Kind.F: [forward], Kind.B: backward}, overlapped=True).scaled(Fraction(1000))

    took = [measure(simulate(table, workload, contention=one), workload).step_ns for one in (None, SLOWED)]

    # Two all-reduces of 2 / 0.896, beside which computation loses 172 thousandths.
    assert took == [26_000, pytest.approx(26_000 + 2 * 2_000 / 0.896 * 0.172, abs=4)]


def test_a_workload_scaled_or_divided_stays_overlapped() -> None:
    workload = overlapped(costs(2, 1, 6))

    assert workload.divided(2).overlapped
    assert workload.divided(2).b_ns.tolist() == [9, 9]
    assert workload.segmented(workload.segments, overlapped=False).b_ns.tolist() == costs(2, 1, 6).b_ns.tolist()


def test_messages_of_an_overlapped_backward_leave_when_all_of_it_is_done() -> None:
    timeline = simulate(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]), overlapped(costs(2, 1, 2)))
    sends = [timeline[row] for row in range(len(timeline)) if SENDS.mask(timeline.kind)[row]]

    assert [(str(one.action), one.start_ns) for one in sends] == [("0SEND_F0", 12), ("1SEND_B0", 40)]
