"""Which ranks are one pipeline, which of several is meant, and which steps and actions are left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from gpu_run import GpuRun
from small_gpu_trace import SmallGpuTrace

from pptrace.config.choices import PolicyName
from pptrace.errors import ConfigError, TraceError
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

ROWS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
MESH = {
    "default_pg": [[0, 1, 2, 3, 4, 5, 6, 7]], "mesh_pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "mesh_dp": [[0, 2], [1, 3], [4, 6], [5, 7]], "mesh_tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
}  # fmt: skip
MEGATRON = {
    "PIPELINE_MODEL_PARALLEL_GROUP": MESH["mesh_pp"], "DATA_PARALLEL_GROUP": MESH["mesh_dp"],
    "TENSOR_MODEL_PARALLEL_GROUP": MESH["mesh_tp"], "TENSOR_AND_DATA_PARALLEL_GROUP": [[0, 1, 2, 3], [4, 5, 6, 7]],
}  # fmt: skip
SLOW = (1.0, 1.5, 1.2, 0.9)
"""How much longer each of the four pipelines takes."""


def stepped(slow: float = 1.0) -> Timeline:
    costs = Workload.uniform(2, f_ns=int(1e6 * slow), b_ns=int(2e6 * slow), boundary_bytes=200_000)
    return simulate(Schedule.from_rows(ROWS), costs, Flat(rate_kbps=1_000_000), Policy(name=PolicyName.ORDERED))


def job(folder: Path, groups: dict[str, list[list[int]]], *, others: bool) -> list[Path]:
    """Write pp=2, dp=2, tp=2: eight ranks, each with its own groups, or with those of all ranks, in its file."""
    paths = []
    for replica, slow in enumerate(SLOW):
        own = folder / f"replica{replica}"
        own.mkdir()
        for stage, path in enumerate(GpuRun(timeline=stepped(slow), said="arguments", ahead=True).write(own)):
            trace, rank = json.loads(path.read_text()), 4 * stage + replica
            config = [
                {"pg_name": str(number), "pg_desc": name, "ranks": str(ranks)}
                for number, (name, all_ranks) in enumerate(groups.items())
                for ranks in all_ranks
                if others or rank in ranks
            ]
            trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 8, "pg_config": config}
            for event in trace["traceEvents"]:
                for way in ("Dst Rank", "Src Rank"):
                    if way in event["args"]:
                        event["args"][way] = 4 * event["args"][way] + replica
            paths.append(folder / f"rank{rank}.json")
            paths[-1].write_text(json.dumps(trace))
    return paths


def length_ns(measured: Measurement) -> int:
    (step,) = measured.steps
    assert step.timeline.ranks == 2
    assert measured.unattributed == ()
    return int(step.timeline.end_ns.max())


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("groups", [MESH, MEGATRON])
@pytest.mark.parametrize(
    ("replica", "which"),
    [("", 0), ("dp=0,tp=1", 1), ("tp=1", 1), ("dp=1,tp=0", 2), ("dp=1,tp=1", 3), ("slowest", 1), ("median", 0)],
)
def test_the_trace_s_own_groups_say_which_ranks_are_a_pipeline_and_where(
    replica: str, which: int, groups: dict[str, list[list[int]]], *, others: bool, tmp_path: Path
) -> None:
    paths = job(tmp_path, groups, others=others)

    measured = measure_kineto(paths, ImportRequest(replica=replica))

    assert length_ns(measured) == int(stepped(SLOW[which]).end_ns.max())
    place = f"dp={which // 2},tp={which % 2}"
    assert f"replica {place} of 4: global ranks {which}, {which + 4}" in measured.notes


@pytest.mark.parametrize(("replica", "which"), [("", 0), ("dp=1", 2), ("slowest", 1), ("median", 0)])
def test_a_layout_says_it_where_the_trace_does_not(replica: str, which: int, tmp_path: Path) -> None:
    paths = job(tmp_path, {}, others=False)

    measured = measure_kineto(paths, ImportRequest(layout="pp=2,dp=2,tp=2", replica=replica))

    assert length_ns(measured) == int(stepped(SLOW[which]).end_ns.max())


def test_replicas_that_nothing_tells_apart_are_refused_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"ranks 0 and 1 both run 0F0, .* --layout pp=2,dp=2"):
        measure_kineto(job(tmp_path, {}, others=False), ImportRequest())


def test_a_replica_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    paths = job(tmp_path, MESH, others=False)

    with pytest.raises(ConfigError, match="dp=0,tp=0; dp=0,tp=1; dp=1,tp=0; dp=1,tp=1; slowest; median"):
        measure_kineto(paths, ImportRequest(replica="dp=2"))


def test_a_pipeline_that_lacks_a_rank_s_file_gives_way_to_one_that_is_whole(tmp_path: Path) -> None:
    paths = job(tmp_path, MESH, others=False)

    measured = measure_kineto([path for path in paths if path.name != "rank4.json"], ImportRequest())

    assert length_ns(measured) == int(stepped(SLOW[1]).end_ns.max())


def test_a_rank_twice_is_refused_by_name(tmp_path: Path) -> None:
    first, second = GpuRun(timeline=stepped()).write(tmp_path)
    again = tmp_path / "again.json"
    again.write_bytes(first.read_bytes())

    with pytest.raises(TraceError, match=r"again.json: is of rank 0, as rank0.json is: leave one out"):
        measure_kineto([first, second, again], ImportRequest())


def test_a_missing_rank_is_reported(tmp_path: Path) -> None:
    rows = [[f"{stage}F0", f"{stage}B0"] for stage in range(3)]
    costs = Workload.uniform(3, f_ns=1_000_000, b_ns=2_000_000)
    step = simulate(Schedule.from_rows(rows), costs, Flat(), Policy(name=PolicyName.ORDERED))
    first, _, last = GpuRun(timeline=step).write(tmp_path)

    measured = measure_kineto([first, last], ImportRequest())

    assert "no file of rank 1: only the recorded ranks are read" in measured.notes
    assert measured.steps[0].timeline.ranks == 2


def renumbered(path: Path, by: int) -> None:
    def change(event: dict[str, Any]) -> None:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'][13:]) + by}"

    rewritten(path, change)


def unmarked(path: Path, until_us: float) -> None:
    def change(event: dict[str, Any]) -> None:
        if event["name"].startswith("PP:") and event["ts"] < until_us:
            event["name"] = "other"

    rewritten(path, change)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        change(event)
    path.write_text(json.dumps(trace))


@pytest.mark.parametrize("ahead", [False, True])
def test_each_of_several_steps_is_the_step(tmp_path: Path, *, ahead: bool) -> None:
    paths = GpuRun(timeline=stepped(), steps=3, ahead=ahead).write(tmp_path)

    measured = measure_kineto(paths, ImportRequest())

    assert [step.label for step in measured.steps] == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert {int(step.timeline.end_ns.max()) for step in measured.steps} == {int(stepped().end_ns.max())}
    assert {len(step.timeline) for step in measured.steps} == {len(stepped())}
    assert measured.notes == measured.unattributed == ()


@pytest.mark.parametrize("said", ["action", "posts", "arguments"])
@pytest.mark.parametrize("ahead", [False, True])
def test_each_of_several_steps_is_the_step_without_marks(said: str, tmp_path: Path, *, ahead: bool) -> None:
    paths = GpuRun(timeline=stepped(), steps=3, ahead=ahead, said=said).write(tmp_path)
    for path in paths:
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [
            traceEvent for traceEvent in trace["traceEvents"] if "ProfilerStep" not in traceEvent["name"]
        ]
        path.write_text(json.dumps(trace))

    measured = measure_kineto(paths, ImportRequest())

    assert {int(step.timeline.end_ns.max()) for step in measured.steps} == {int(stepped().end_ns.max())}
    assert [len(step.timeline) for step in measured.steps] == [len(stepped())] * 3
    assert measured.unattributed == ()


def test_a_mark_around_two_runs_of_a_schedule_is_two_steps(tmp_path: Path) -> None:
    paths = GpuRun(timeline=stepped(), steps=2, said="arguments").write(tmp_path)
    for path in paths:
        trace = json.loads(path.read_text())
        first, last = (
            traceEvent for traceEvent in trace["traceEvents"] if traceEvent["name"].startswith("ProfilerStep")
        )
        first["dur"] = last["ts"] + last["dur"] - first["ts"]
        trace["traceEvents"].remove(last)
        path.write_text(json.dumps(trace))

    measured = measure_kineto(paths, ImportRequest())

    assert [step.label for step in measured.steps] == ["ProfilerStep#3, 1 of 2", "ProfilerStep#3, 2 of 2"]
    assert {int(step.timeline.end_ns.max()) for step in measured.steps} == {int(stepped().end_ns.max())}
    assert measured.notes == ("ProfilerStep#3 holds actions 2 times: split into 2 steps",)
    assert measured.unattributed == ()


def test_a_warm_up_step_without_actions_is_left_out_and_named(tmp_path: Path) -> None:
    paths = GpuRun(timeline=stepped(), steps=2, said="arguments").write(tmp_path)
    for path in paths:
        unmarked(path, 25_000)

    measured = measure_kineto(paths, ImportRequest())

    assert [step.label for step in measured.steps] == ["ProfilerStep#4"]
    assert "ProfilerStep#3 holds no action: skipped" in measured.notes
    assert {operation.what for operation in measured.unattributed} >= {"gemm", "gelu"}


def test_steps_that_not_every_rank_marked_are_left_out_and_named(tmp_path: Path) -> None:
    paths = GpuRun(timeline=stepped(), steps=3).write(tmp_path)
    renumbered(paths[1], 1)

    measured = measure_kineto(paths, ImportRequest())

    assert [step.label for step in measured.steps] == ["ProfilerStep#4", "ProfilerStep#5"]
    assert measured.notes == ("ProfilerStep#3, ProfilerStep#6 are not marked on every rank: skipped",)


def test_steps_without_a_common_mark_are_counted(tmp_path: Path) -> None:
    paths = GpuRun(timeline=stepped(), steps=2).write(tmp_path)
    renumbered(paths[1], 10)

    measured = measure_kineto(paths, ImportRequest())

    assert [len(step.timeline) for step in measured.steps] == [len(stepped())] * 2
    assert measured.notes == (
        "no step is marked on every rank: the k-th run of each action is assigned to the k-th step",
    )


def test_an_action_outside_of_all_steps_is_named(tmp_path: Path) -> None:
    trace = SmallGpuTrace()
    trace.annotate("PP:0F9", 0, 5)
    trace.kernel("gemm", 1, 2, 4)
    trace.annotate("ProfilerStep#7", 10, 100)
    trace.annotate("PP:0F0", 20, 30)
    trace.kernel("gemm", 21, 22, 40)

    measured = measure_kineto([trace.write(tmp_path)], ImportRequest())

    assert measured.notes == ("rank0.json: 1 action is outside of all steps, 0F9 first: skipped",)
    assert len(measured.steps[0].timeline) == 1


def test_an_input_gradient_without_a_kernel_is_folded_however_long_the_host_took(tmp_path: Path) -> None:
    traces = [SmallGpuTrace(rank=rank, world=2, groups={"mesh_pp": [0, 1]}) for rank in (0, 1)]
    for stage, trace in enumerate(traces):
        for number, kind in enumerate("FIW"):
            trace.annotate(f"PP:{stage}{kind}0", 100 * number, 100 * number + 90)
            if (stage, kind) != (0, "I"):
                trace.kernel("gemm", 100 * number + 1, 100 * number + 2, 100 * number + 92)

    measured = measure_kineto([trace.write(tmp_path) for trace in traces], ImportRequest())

    timeline = measured.steps[0].timeline
    assert [str(timeline[row].action) for row in range(len(timeline))] == ["0F0", "0B0", "1F0", "1I0", "1W0"]


@pytest.mark.parametrize("layout", ["", "pp=2,dp=2,tp=2"])
def test_every_replica_is_read_where_they_are_compared(layout: str, tmp_path: Path) -> None:
    paths = job(tmp_path, {} if layout else MESH, others=False)

    measured = measure_kineto(paths, ImportRequest(layout=layout, every_replica=True))

    assert [item.ranks for item in measured.replicas] == [(0, 4), (1, 5), (2, 6), (3, 7)]
