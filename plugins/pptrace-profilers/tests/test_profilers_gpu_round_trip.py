"""A simulated step, written as Kineto writes a GPU's, reads back as a foreign trace with all that it holds."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from foreign_traces import written_per_rank
from hypothesis import assume, given
from msgspec.structs import replace
from simulated_steps import simulated_steps

from pptrace import simulate
from pptrace.steps.kinds import COMMUNICATION
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace.timeline.messages import messages
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from simulated_steps import SimulatedStep

    from pptrace.timeline.timeline import Timeline

SCHEDULES = [
    {"schedule": "gpipe", "pp": 3, "microbatches": 4},
    {"schedule": "1f1b", "pp": 4, "microbatches": 8},
    {"schedule": "interleaved-1f1b", "pp": 4, "microbatches": 8, "vp": 2},
    {"schedule": "looped-bfs", "pp": 2, "microbatches": 4, "vp": 2},
    {"schedule": "chimera", "pp": 4, "microbatches": 8},
    {"schedule": "hanayo", "pp": 4, "microbatches": 8},
]
TABLES = ["zb_h1_csv", "interleaved_zb", "zbv", "dualpipev"]
FIXTURES = Path(__file__).parent / "fixtures"
POLICIES = ["async", "sender-blocking", "blocking", "ordered", "batched"]


def actions(timeline: Timeline) -> list[tuple[int, ...]]:
    """Return who did what from when to when, messages aside, from the first action on."""
    rank = timeline.rank_of_row()
    rows = np.flatnonzero(~np.isin(timeline.kind, [int(kind) for kind in COMMUNICATION]))
    zero = timeline.start_ns.min()
    columns = (
        rank, timeline.kind, timeline.stage, timeline.microbatch, timeline.span, timeline.start_ns - zero,
        timeline.end_ns - zero,
    )  # fmt: skip
    return sorted(zip(*(column[rows].tolist() for column in columns), strict=True))


def moved(timeline: Timeline) -> Counter[tuple[Any, ...]]:
    """Return each message: what it carries from whom to whom, its bytes, and when it was there."""
    zero = timeline.start_ns.min()
    found: Counter[tuple[Any, ...]] = Counter()
    rank = timeline.rank_of_row()
    pairs = messages(timeline)
    for send, recv, consumer in zip(
        pairs.send.tolist(), pairs.recv.tolist(), pairs.consumer.tolist(), strict=True
    ):
        last = recv if recv >= 0 else send
        target = int(rank[recv if recv >= 0 else consumer])
        one = timeline[send]
        found[one.action.kind, one.action.stage, one.action.microbatch, one.action.span, one.rank, target,
              one.size_bytes, int(timeline.end_ns[last] - zero)] += 1  # fmt: skip
    return found


@pytest.mark.parametrize("age", ["whole", "fraction", "base"])
@pytest.mark.parametrize("string_pids", [False, True])
def test_every_age_of_the_profiler_reads_back(age: str, *, string_pids: bool) -> None:
    run = simulate(schedule=str(FIXTURES / "sleep-zbv" / "compute_only.csv"))
    microseconds = replace(
        run.timeline,
        **{
            name: getattr(run.timeline, name) // 1000 * 1000
            for name in ("enter_ns", "start_ns", "end_ns", "lag_ns", "uncontended_ns")
        },
    )
    measured = read_back(microseconds, age=age, string_pids=string_pids)

    assert actions(measured.steps[0].timeline) == actions(microseconds)
    assert moved(measured.steps[0].timeline) == moved(microseconds)


def read_back(timeline: Timeline, **how: Any) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        return measure_kineto(written_per_rank(timeline, Path(folder), **how), ImportRequest())


@pytest.mark.needs_plugins
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("given_", SCHEDULES, ids=lambda one: one["schedule"])
def test_a_schedule_s_step_reads_back(given_: dict[str, Any], policy: str) -> None:
    network = {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"}
    p2p = {"policy": policy, **({"receive": "asap"} if policy in {"blocking", "ordered", "batched"} else {})}
    run = simulate(**given_, network=network, p2p=p2p)
    measured = read_back(run.timeline)

    (step,) = measured.steps
    assert actions(step.timeline) == actions(run.timeline)
    assert moved(step.timeline) == moved(run.timeline)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_with_split_backwards_reads_back(table: str) -> None:
    run = simulate(schedule=str(FIXTURES / f"sleep-{table}" / "compute_only.csv"))
    measured = read_back(run.timeline)

    (step,) = measured.steps
    assert actions(step.timeline) == actions(run.timeline)
    assert moved(step.timeline) == moved(run.timeline)


@given(drawn=simulated_steps())
def test_any_step_reads_back(drawn: SimulatedStep) -> None:
    measured = read_back(drawn.timeline)

    assume(not any("stage 0" in note for note in measured.notes))
    # Clocks are set to the middle of what messages allow, which in steps of some nanoseconds is not always zero.
    assume(not any(clock.offset_ns for clock in measured.clocks))
    (step,) = measured.steps
    assert actions(step.timeline) == actions(drawn.timeline)
    assert moved(step.timeline) == moved(drawn.timeline)
    assert not step.gap_ns.any()
