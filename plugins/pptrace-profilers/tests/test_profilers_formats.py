"""One pipeline, written as several profilers do: all of them give the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import TraceError
from pptrace.steps.kinds import COMMUNICATION, Kind
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers import plugin as importers
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.measurement import Measurement

MS = 1_000_000


def measured(sort: str, pipeline: Any, folder: Path) -> Measurement:
    request = ImportRequest(rules=pipeline.rules(folder) if sort == "chrome" else None)
    match sort:
        case "chrome":
            return importers.measure_chrome([pipeline.chrome(folder)], request)
        case "nsys":
            return importers.measure_nsys([pipeline.nsys(folder / "run.sqlite")], request)
        case "pftrace" | "stages":
            return importers.measure_pftrace(pipeline.pftrace(folder, stages=sort == "stages"), request)
        case _:
            return measure_kineto(pipeline.kineto(folder), request)


@pytest.mark.parametrize("sort", ["chrome", "nsys", "pftrace", "stages", "kineto"])
def test_every_format_says_the_same_of_one_pipeline(sort: str, pipeline: Any, tmp_path: Path) -> None:
    result = measured(sort, pipeline, tmp_path)

    (step,) = result.steps
    rows = [step.timeline[row] for row in range(len(step.timeline))]
    computed = {
        (item.rank, str(item.action), item.start_ns, item.end_ns) for item in rows if item.action.kind <= Kind.W
    }
    carried = {(str(item.action), item.peer, item.end_ns) for item in rows if item.action.kind in COMMUNICATION}
    assert computed == {tuple(item) for item in pipeline.acts}
    assert carried == {(text, peer, sent.end) for rank in (0, 1) for text, peer, sent in pipeline.ends(rank)}
    assert result.unattributed == ()
    assert all(clock.offset_ns <= clock.bound_ns for clock in result.clocks)


def test_sizes_of_messages_come_from_the_arguments_that_rules_name(pipeline: Any, tmp_path: Path) -> None:
    timeline = measured("chrome", pipeline, tmp_path).steps[0].timeline

    sends = (timeline.kind == Kind.SEND_F) | (timeline.kind == Kind.SEND_B)
    assert timeline.size_bytes[sends].tolist() == [4096] * 4


def test_without_its_rules_a_chrome_file_gives_summaries_and_says_so(pipeline: Any, tmp_path: Path) -> None:
    result = importers.measure_chrome([pipeline.chrome(tmp_path)], ImportRequest())

    assert result.steps == ()
    assert {summary.what for summary in result.summaries} == {"p2p", *(f"QQ:{act.text}" for act in pipeline.acts)}
    assert "no action of a pipeline was found" in result.notes[-1]


def test_two_processes_in_one_file_need_to_say_which_rank_each_is(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.chrome(tmp_path, prefix="PP:")

    with pytest.raises(TraceError, match="add rank: to the rules to read the rank of each process"):
        importers.measure_chrome([path], ImportRequest())


def test_a_rank_rule_is_enough_where_names_are_known(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.chrome(tmp_path, prefix="PP:")
    rules = tmp_path / "rules.yaml"
    rules.write_text("rank: {from: pid, pattern: '5(?P<rank>.)'}\n", encoding="utf-8")

    result = importers.measure_chrome([path], ImportRequest(rules=rules))

    assert [len(step.timeline) for step in result.steps] == [8]


def test_rules_stand_before_the_built_in_ones_for_pytorch_too(pipeline: Any, tmp_path: Path) -> None:
    database = pipeline.nsys(tmp_path / "run.sqlite", name="QQ:")
    rules = tmp_path / "rules.yaml"
    rules.write_text("actions: [{name: 'QQ:(?P<action>.+)'}]\n", encoding="utf-8")

    with_rules = importers.measure_nsys([database], ImportRequest(rules=rules))
    without = importers.measure_nsys([database], ImportRequest())

    assert [len(step.timeline) for step in with_rules.steps] == [16]
    assert without.steps == ()
    kernels = {summary.what: summary.count for summary in without.summaries if summary.rank == 0}
    assert kernels == {"gemm": 4, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": 4}
