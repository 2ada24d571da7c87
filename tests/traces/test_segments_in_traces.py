"""Segments of actions in both formats: names, streams, categories, flows, and what was hidden of each group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from decoded_trace import BEGIN, Decoded
from hypothesis import given
from hypothesis import strategies as st
from kineto_lint import lint
from msgspec.structs import replace
from strategies import networks, valid_schedules, workloads

from pptrace.api import simulate as simulate_configuration
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.messages import messages
from pptrace.timeline.trim import trim
from pptrace.traces import kineto, perfetto
from pptrace.traces.perfetto.descriptors import descriptor_set

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

ROWS = ["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]
DISPATCH = Segment(name="dispatch", duration_ns=2, stream=Stream.EXPERT_PARALLEL)
FORWARD = (
    Segment(name="attention", duration_ns=3),
    Segment(name="all-reduce", duration_ns=2, stream=Stream.TENSOR_PARALLEL),
    replace(DISPATCH, needs=(1,)), Segment(name="experts", duration_ns=5), replace(DISPATCH, name="combine"),
)  # fmt: skip
BACKWARD = (
    Segment(name="experts-input", duration_ns=5), replace(DISPATCH, result=True),
    Segment(name="experts-weight", duration_ns=9, needs=(0,)),
)  # fmt: skip
WORKLOAD = Workload.uniform(2, boundary_bytes=1).segmented({Kind.F: [FORWARD] * 2, Kind.B: [BACKWARD] * 2})
MODULES = [(perfetto, "step.pftrace"), (kineto, "step.json")]


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    table = replace(Schedule.from_rows(ROWS), interleave={(Kind.F, Kind.B): (0, 1, 1, 0)})
    return simulate(table, WORKLOAD, Flat(latency_ns=1, rate_kbps=10**6))


def kernels(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    kineto.write(timeline, folder / "step.json", {})
    events = json.loads((folder / "step.json").read_text())["traceEvents"]
    assert lint(events) == []
    return [event for event in events if event.get("cat") == "kernel"]


def slices(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    perfetto.write(timeline, folder / "step.pftrace", {})
    decoded = Decoded((folder / "step.pftrace").read_bytes())
    outcome = [decoded.fields(packet) for packet in decoded.events(BEGIN)]
    return [fields for fields in outcome if "Step.row" in fields]


def test_slices_of_segments_have_their_names_numbers_and_categories(timeline: Timeline, tmp_path: Path) -> None:
    outcome = {
        (item["Step.stage"], item["name"]): item for item in slices(timeline, tmp_path) if item["Step.stage"] == 0
    }

    attention, reduce = outcome[0, "F 1 attention"], outcome[0, "F 1 all-reduce"]
    assert (attention["category"], attention["Step.segment"]) == (["compute"], "attention")
    assert (reduce["category"], reduce["Step.segment"]) == (["collective"], "all-reduce")
    assert (attention["Step.segment_number"], reduce["Step.segment_number"]) == (0, 1)
    assert "color" not in attention  # each segment has the color of its name
    assert attention["track"] == "rank 0"
    assert reduce["track"] == "rank 0/tensor parallel"
    assert outcome[0, "F 1 dispatch"]["track"] == "rank 0/expert parallel"


def test_the_dialect_shows_collectives_as_nccls_kernels(timeline: Timeline, tmp_path: Path) -> None:
    outcome = {
        event["args"]["segment"]: (event["name"], event["args"].get("Collective name"))
        for event in kernels(timeline, tmp_path) if "segment" in event["args"]
    }  # fmt: skip

    assert outcome["all-reduce"] == ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce")
    assert outcome["dispatch"] == outcome["combine"] == ("ncclDevKernel_SendRecv", "all_to_allv")
    assert outcome["experts"][0].endswith(" experts")


def test_threads_of_groups_are_named(timeline: Timeline, tmp_path: Path) -> None:
    kineto.write(timeline, tmp_path / "step.json", {})
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}

    assert {"stream 21 tensor parallel", "stream 22 expert parallel"} <= names


def test_a_message_goes_from_the_segment_that_yields_it_to_its_consumers_first(timeline: Timeline) -> None:
    found, parts = messages(timeline), timeline.parts
    assert parts is not None
    ways = {
        str(timeline[int(send)].action): (parts.name_of(int(made)), parts.name_of(int(used)))
        for send, made, used in zip(found.send, found.producer, found.consumer, strict=True)
    }

    assert ways["0SEND_F0"] == ways["0SEND_F1"] == ("combine", "attention")
    assert ways["1SEND_B0"] == ("dispatch", "experts-input")  # leaves before the weight gradient is done


@given(data=st.data())
def test_any_simulated_step_in_segments_is_read_as_it_was_written(data: st.DataObject, tmp_path: Path) -> None:
    table = data.draw(valid_schedules(max_ranks=3, max_microbatches=4))
    step = simulate(table, data.draw(workloads(table, segments=True)), data.draw(networks()))

    for module, name in MODULES:
        module.write(step, tmp_path / name, {})
        assert module.read([tmp_path / name]).difference(step) == ""
    assert lint(json.loads((tmp_path / "step.json").read_text())["traceEvents"]) == []


@pytest.mark.parametrize(("module", "name"), MODULES)
def test_what_is_trimmed_keeps_its_segments(timeline: Timeline, module: Any, name: str, tmp_path: Path) -> None:
    kept = trim(timeline, [1], [1])
    module.write(kept, tmp_path / name, {})

    assert kept.parts is not None
    assert {kept.parts.name_of(row) for row in range(len(kept))} >= {"attention", "combine", "experts-weight"}
    assert module.read([tmp_path / name]).difference(kept) == ""


@pytest.mark.parametrize(("module", "name"), MODULES)
def test_files_rank_by_rank_keep_their_segments(
    timeline: Timeline, module: Any, name: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{rank}{name}" for rank in range(2)]
    for rank, path in enumerate(paths):
        module.write(timeline, path, {"rank": rank})

    assert module.read(paths).difference(timeline) == ""


@pytest.mark.parametrize(("module", "name"), MODULES)
def test_nothing_is_written_of_segments_where_there_are_none(module: Any, name: str, tmp_path: Path) -> None:
    whole = simulate(Schedule.from_rows(ROWS), replace(WORKLOAD, segments={}))
    module.write(whole, tmp_path / name, {})

    assert whole.parts is None
    described = descriptor_set().file[0].SerializeToString()
    assert b"segment" in described
    assert b"segment" not in (tmp_path / name).read_bytes().replace(described, b"")


@pytest.mark.parametrize("name", ["step.pftrace", "step.json", "step.json.gz"])
def test_traces_say_how_much_of_each_groups_communication_was_hidden(
    timeline: Timeline, name: str, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join(",".join(row) for row in ROWS))
    plain = simulate_configuration(schedule=str(table))
    run = replace(plain, timeline=timeline, prepared=replace(plain.prepared, workload=WORKLOAD))

    (path,) = run.save(tmp_path / name)
    again = (perfetto if name.endswith(".pftrace") else kineto).read([path])

    message = again.provenance["communication"]
    groups = {group.name: group for group in run.metrics.groups}
    assert set(message) == set(groups) == {"tensor-parallel", "expert-parallel"}
    assert message["tensor-parallel"]["total_ns"] == 4 * 2
    assert message["expert-parallel"]["hidden_ns"] == int(groups["expert-parallel"].hidden_ns.sum()) > 0
    assert message["expert-parallel"]["hidden"] == groups["expert-parallel"].hidden
    assert "communication" not in plain.traced().provenance
