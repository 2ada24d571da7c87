"""Activations of chunk 0 are copied out behind their forwards and back one block ahead, and memory falls."""

from __future__ import annotations

import pytest

from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import Metrics, measure
from pptrace_stp.plugin import pptrace_schedules

(OFFER,) = pptrace_schedules()

FORWARD = 100


def table(p: int, m: int, warm_up: float = 0, steady: float = 0) -> Schedule:
    options = {"offload_warm_up": warm_up, "offload_steady": steady}
    made = OFFER.build(ScheduleRequest(ranks=p, microbatches=m, options=options))
    assert isinstance(made, Schedule)
    return made


def run(schedule: Schedule, copy_ns: int) -> Metrics:
    workload = Workload.uniform(
        schedule.stages, f_ns=FORWARD, b_ns=2 * FORWARD, activation_bytes=100, weight_activation_bytes=40,
        offload_ns=[copy_ns], reload_ns=[copy_ns],
    )  # fmt: skip
    return measure(simulate(schedule, workload), workload)


@pytest.mark.parametrize(("warm_up", "steady"), [(1, 1), (0.5, 1), (0.25, 0.25), (0.1, 0)])
def test_copies_are_of_chunk_0_in_the_shares_that_are_asked_for(warm_up: float, steady: float) -> None:
    p, m = 4, 60
    made = table(p, m, warm_up, steady)
    validate(made)

    for rank in range(p):
        ahead = 3 * p - 1 - rank
        out = [item for item in made[rank] if item.kind is Kind.OFFLOAD]
        assert {item.stage for item in out} <= {rank}
        assert len([item for item in out if item.microbatch < ahead]) == int(ahead * warm_up + 1e-9)
        assert len([item for item in out if item.microbatch >= ahead]) == int((m - ahead) * steady + 1e-9)
        assert [item.microbatch for item in made[rank] if item.kind is Kind.RELOAD] == [
            item.microbatch for item in out
        ]


def test_a_copy_follows_its_forward_and_returns_one_block_ahead() -> None:
    row = table(3, 20, 1, 1)[1]
    blocks = [action for action in row if action.kind not in {Kind.OFFLOAD, Kind.RELOAD}]

    def block_of(kinds: set[Kind], microbatch: int) -> int:
        return next(
            place for place, block in enumerate(blocks) for action in block.sub_actions or (block,)
            if action.kind in kinds and action.stage == 1 and action.microbatch == microbatch
        )  # fmt: skip

    for place, copy in enumerate(row):
        before = len([other for other in row[:place] if other.kind not in {Kind.OFFLOAD, Kind.RELOAD}])
        if copy.kind is Kind.OFFLOAD:
            assert block_of({Kind.F}, copy.microbatch) == before - 1
        elif copy.kind is Kind.RELOAD:
            assert block_of({Kind.B, Kind.I}, copy.microbatch) == before + 1


def test_copies_run_beside_computation_and_cost_nothing_where_they_fit() -> None:
    plain, copied = run(table(4, 40), 0), run(table(4, 40, 1, 1), FORWARD)

    assert copied.step_ns == plain.step_ns
    timeline = simulate(table(4, 40, 1, 1), Workload.uniform(8, f_ns=1, b_ns=2, offload_ns=[1], reload_ns=[1]))
    assert {Stream.COPY_OUT, Stream.COPY_IN} <= {Stream(item) for item in timeline.lane_stream.tolist()}


@pytest.mark.parametrize(("warm_up", "steady"), [(0.25, 0.5), (0.5, 1), (1, 1)])
def test_the_more_is_copied_the_less_is_held_on_every_rank(warm_up: float, steady: float) -> None:
    plain = run(table(4, 40), 0).memory.peak_activation_bytes
    copied = run(table(4, 40, warm_up, steady), FORWARD // 2).memory.peak_activation_bytes

    assert (copied < plain).all()
    # Of 3p chunks, 3p - 1 - r are chunk 0's before the first backward of it.
    assert plain.max() - copied.max() <= warm_up * 100 * 11 + 100


def test_copies_that_take_longer_than_computation_hold_it_up() -> None:
    assert run(table(4, 40, 1, 1), 8 * FORWARD).step_ns > 1.1 * run(table(4, 40), 0).step_ns
