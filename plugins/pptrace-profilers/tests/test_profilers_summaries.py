"""What a GPU did in a run without actions: parts that sum to the time from its first operation to its last."""

from __future__ import annotations

import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_gpu_trace import SmallGpuTrace

from pptrace.measured.explanation import operations_document
from pptrace.measured.sides import measured_side
from pptrace.report.document import plain, text_of
from pptrace.timeline.measurement import ImportRequest, Measurement, Occupied
from pptrace_profilers.gpu_spans import covered_ns
from pptrace_profilers.plugin import measure_kineto

REDUCE = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_computing_exposed_communication_and_idle_time_are_reported(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.kernel("gemm", 0, 10, 30)
    trace.kernel("gemm", 1, 20, 40, stream=8)  # two streams compute: once
    trace.kernel(REDUCE, 2, 35, 60, stream=9)  # 20 us of it behind the computation
    trace.kernel("adam", 3, 80, 90)
    result = measure_kineto([trace.write(tmp_path)], ImportRequest())

    assert result.occupied == (Occupied(rank=0, computing_ns=40_000, exposed_ns=20_000, idle_ns=20_000),)
    assert plain(operations_document(result, "run"))["occupied"][0]["idle_ns"] == 20_000
    (line,) = [line for line in text_of(operations_document(result, "run")).splitlines() if "50.0%" in line]
    assert line.split() == ["rank", "0", "0.080", "ms", "0.040", "ms", "50.0%", *("0.020", "ms", "25.0%") * 2]


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
)
def test_the_parts_are_those_of_counting_every_microsecond(spans: list[tuple[int, int, bool]]) -> None:
    trace = SmallGpuTrace()
    for at, (start, length, reduces) in enumerate(spans):
        trace.kernel(REDUCE if reduces else "gemm", None, start, start + length, stream=at)
    with tempfile.TemporaryDirectory() as folder:
        result = measure_kineto([trace.write(Path(folder))], ImportRequest())

    first, last = min(start for start, _, _ in spans), max(start + length for start, length, _ in spans)
    computing = exposed = 0
    for now in range(first, last):
        running = {reduces for start, length, reduces in spans if start <= now < start + length}
        computing += False in running
        exposed += running == {True}
    (one,) = result.occupied
    assert (one.computing_ns, one.exposed_ns) == (1000 * computing, 1000 * exposed)
    assert one.computing_ns + one.exposed_ns + one.idle_ns == 1000 * (last - first)


def test_gaps_under_ten_microseconds_are_no_late_launches(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F0", 0, 100)
    trace.annotate("PP:0B0", 100, 200)
    for launch, start, end in ((1, 10, 20), (2, 26, 30), (3, 50, 60), (4, 69, 70), (101, 210, 220)):
        trace.kernel("gemm", launch, start, end)
    (step,) = measure_kineto([trace.write(tmp_path)], ImportRequest()).steps
    parts_ns = measured_side(Measurement(steps=(step,)), "run").analysis.parts_ns

    assert (parts_ns["launch"], parts_ns["kernel gaps"], parts_ns["compute"]) == (20_000, 15_000, 35_000)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(1, 15)), min_size=1, max_size=12).map(
        sorted
    )
)
def test_short_gaps_are_those_of_counting_every_microsecond(intervals: list[tuple[int, int, int]]) -> None:
    group, start, length = (np.array(column, dtype=np.int64) for column in zip(*intervals, strict=True))
    counted = [0, 0, 0]
    for of in range(3):
        busy = {at for g, begin, took in intervals if g == of for at in range(begin, begin + took)}
        idle = [at for at in range(min(busy, default=0), max(busy, default=0)) if at not in busy]
        for _, run in groupby(enumerate(idle), key=lambda pair: pair[1] - pair[0]):
            gap = len(list(run))
            counted[of] += gap * (gap < 10)

    _, short_ns = covered_ns(group, start * 1000, (start + length) * 1000, 3)
    assert short_ns.tolist() == [1000 * gap for gap in counted]
