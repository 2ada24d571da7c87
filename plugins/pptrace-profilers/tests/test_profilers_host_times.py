"""Times of the host inside the actions of recorded runs, against the events of the files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement
from pptrace.steps.kinds import Kind

FIXTURES = Path(__file__).parent / "fixtures"


def outside_operators_us(file: Path) -> dict[tuple[int, str, int], tuple[float, float]]:
    """Return the time of each annotated action before its first and after its last operator, by action."""
    with gzip.open(file) as stream:
        events: list[dict[str, Any]] = [
            event for event in json.load(stream)["traceEvents"] if event.get("ph") == "X"
        ]
    times = {}
    for event in events:
        match = re.fullmatch(r"PP:(\d+)([FBIW])(\d+)", event["name"])
        if match is None or event["cat"] != "user_annotation":
            continue
        begin, end = event["ts"], event["ts"] + event["dur"]
        inside = [
            other
            for other in events
            if other["cat"] == "cpu_op" and other["tid"] == event["tid"] and begin <= other["ts"] < end
        ]
        if not inside:  # an empty input gradient
            continue
        first, last = (
            min(other["ts"] for other in inside),
            max(other["ts"] + other["dur"] for other in inside),
        )
        times[int(match[1]), match[2], int(match[3])] = (first - begin, end - last)
    return times


@pytest.mark.parametrize("name", ["sleep-zbv", "sleep-1f1b_csv"])
def test_time_outside_operators_is_that_of_the_file(name: str) -> None:
    measurement, _ = read_measurement([FIXTURES / name], Registry.load())
    (step,) = measurement.steps
    timeline, compared = step.timeline, 0
    passes = np.isin(timeline.kind, [Kind.F, Kind.B, Kind.I, Kind.W])
    for rank in range(4):
        expected = outside_operators_us(FIXTURES / name / f"rank{rank}.json.gz")
        for row in np.flatnonzero((timeline.rank_of_row() == rank) & passes).tolist():
            kind = Kind(int(timeline.kind[row])).name
            kind = "W" if kind == "B" and name == "sleep-zbv" and timeline.stage[row] == 0 else kind
            before_us, after_us = expected[int(timeline.stage[row]), kind, int(timeline.microbatch[row])]
            waited_us = (timeline.start_ns[row] - timeline.enter_ns[row]) / 1e3

            assert step.host_ns[row] / 1e3 == pytest.approx(max(before_us - waited_us, 0) + after_us, abs=1)
            compared += 1
    assert compared == int(passes.sum())


def test_messages_have_no_host_time() -> None:
    measurement, _ = read_measurement([FIXTURES / "sleep-zbv"], Registry.load())
    (step,) = measurement.steps

    moves = np.isin(step.timeline.kind, [Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B])
    assert moves.any()
    assert (step.host_ns[moves] == -1).all()
