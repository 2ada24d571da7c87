from __future__ import annotations

from itertools import pairwise

from pptrace.model.workload import Workload
from pptrace.network.flat import Flat
from pptrace.schedule.table import Schedule
from pptrace.sim.simulate import simulate
from pptrace.timeline.critical_path import critical_path

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
