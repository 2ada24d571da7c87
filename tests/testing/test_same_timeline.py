"""Two timelines are compared column by column."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pptrace.sim.simulation import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_same_timeline

SCHEDULE = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]])


def test_the_same_step_is_the_same_whatever_its_provenance() -> None:
    workload = Workload.uniform(stages=2, f_ns=3, b_ns=6)
    first, second = simulate(SCHEDULE, workload), simulate(SCHEDULE, workload)

    assert_same_timeline(first, replace(second, provenance={"version": "other"}))


def test_a_difference_names_column_row_and_values() -> None:
    first = simulate(SCHEDULE, Workload.uniform(stages=2, f_ns=3, b_ns=6))
    second = replace(first, end_ns=first.end_ns + (first.stage == 1))

    with pytest.raises(AssertionError, match=r"the timelines differ: column end_ns, row \d+: 6 against 7"):
        assert_same_timeline(first, second)
