"""The nodes of Chakra traces: conservation laws, dependencies, and the longest path."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from et_files import COLL, COMP, MEM_LOAD, MEM_STORE, RECV, SEND, Node, read, replay
from hypothesis import given
from simulated_steps import SimulatedStep, simulated_steps

import pptrace
from pptrace.plugin import Registry, Stream, kinds
from pptrace.run.trace_files import read_measurement, save
from pptrace.timeline.timeline import window
from pptrace_chakra.plugin import pptrace_exporters

if TYPE_CHECKING:
    from pptrace.plugin import Timeline

ALL_REDUCE, BROADCAST = 0, 5
EXAMPLES = Path(__file__).parents[3] / "examples"
EXPORTERS = {offer.name: offer for offer in pptrace_exporters()}


def nodes_of(timeline: Timeline, folder: Path) -> dict[int, list[Node]]:
    """Write a timeline and return the nodes of each rank."""
    paths = save(timeline, [f"{folder}/step.et"], EXPORTERS, {"color": "kind"})
    ranks = sorted(set(timeline.lane_rank.tolist()))
    assert [path.name for path in paths] == [f"step.{rank}.et" for rank in ranks]
    files = {rank: read(path) for rank, path in zip(ranks, paths, strict=True)}
    assert {version for version, _ in files.values()} <= {"1.0.0"}
    return {rank: nodes for rank, (_, nodes) in files.items()}


def step(schedule: Any = "1f1b", *, pp: int = 4, **sections: Any) -> Timeline:
    """Return a step of whole microseconds, whose messages share nothing."""
    configuration = {
        "schedule": schedule, "parallel": {"pp": pp}, "batch": {"microbatches": 8},
        "costs": {"name": "unit", "unit": "1 ms", "boundary": "1 MB"},
        "network": {"name": "hockney", "bandwidth": "10 GB/s"},
    }  # fmt: skip
    return pptrace.simulate(configuration | sections).timeline


@given(simulated=simulated_steps())
def test_the_laws_hold_for_any_step(simulated: SimulatedStep, tmp_path_factory: pytest.TempPathFactory) -> None:
    timeline = simulated.timeline
    ranks = nodes_of(timeline, tmp_path_factory.mktemp("laws"))
    check_messages(timeline, ranks)
    check_dependencies(ranks)
    check_durations(timeline, ranks)


def check_messages(timeline: Timeline, ranks: dict[int, list[Node]]) -> None:
    """Each send has one receive of the same tag and size on its target, and all messages are there."""
    assert not any(item.attr["is_cpu_op"] for nodes in ranks.values() for item in nodes)
    sent = [(rank, item) for rank, nodes in ranks.items() for item in nodes if item.type == SEND]
    received = [(rank, item) for rank, nodes in ranks.items() for item in nodes if item.type == RECV]
    assert Counter(item.message for _, item in sent) == Counter(item.message for _, item in received)
    assert all(item.attr["comm_src"] == rank for rank, item in sent)
    assert all(item.attr["comm_dst"] == rank for rank, item in received)
    assert len({item.attr["comm_tag"] for _, item in sent}) == len(sent)
    expected = timeline.size_bytes[kinds.SENDS.mask(timeline.kind)].sum()
    assert sum(item.attr["comm_size"] for _, item in sent) == expected


def check_dependencies(ranks: dict[int, list[Node]]) -> None:
    """Ids ascend, dependencies point to earlier nodes, and the graph with messages has no cycle."""
    graph: dict[tuple[int, int], set[tuple[int, int]]] = {}
    sends = {
        item.message: (rank, item.number) for rank, nodes in ranks.items() for item in nodes if item.type == SEND
    }
    for rank, nodes in ranks.items():
        numbers = [item.number for item in nodes]
        assert numbers == sorted(set(numbers))
        for item in nodes:
            assert set(item.ctrl_deps) <= set(item.data_deps) <= set(numbers)
            assert all(before < item.number for before in item.data_deps)
            graph[rank, item.number] = {(rank, before) for before in item.data_deps}
            if item.type == RECV:
                graph[rank, item.number].add(sends[item.message])
    assert len([*TopologicalSorter(graph).static_order()]) == len(graph)


def check_durations(timeline: Timeline, ranks: dict[int, list[Node]]) -> None:
    """Durations of each stream sum to those of the timeline, to half a microsecond, for any first part of it."""
    for rank, nodes in ranks.items():
        lanes, _ = timeline.rank_slices(rank)
        for stream, lane in enumerate(range(lanes.start, lanes.stop)):
            rows = slice(int(timeline.lane_ptr[lane]), int(timeline.lane_ptr[lane + 1]))
            total_ns = np.cumsum(timeline.end_ns[rows] - timeline.start_ns[rows])
            total_us = np.cumsum([item.duration_us for item in nodes if item.attr.get("stream") == stream])
            assert total_us.size == total_ns.size
            assert (np.abs(total_us * 1000 - total_ns) <= 500).all()


@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe-v", "chimera"]
)
def test_the_longest_path_is_the_step(schedule: str, tmp_path: Path) -> None:
    vp = {"vp": 2} if schedule == "interleaved-1f1b" else {}
    timeline = step(schedule, parallel={"pp": 4, **vp})
    ends = replay(nodes_of(timeline, tmp_path))
    start_ns, end_ns = window(timeline)
    assert max(ends.values()) * 1000 == end_ns - start_ns


def test_a_node_needs_its_message_its_forward_and_the_previous_node_of_its_stream(tmp_path: Path) -> None:
    ranks = nodes_of(step(), tmp_path)
    named = {rank: {item.name: item for item in nodes} for rank, nodes in ranks.items()}
    backward, at = named[2]["2B0"], {item.number: item.name for item in ranks[2]}
    assert [at[before] for before in backward.ctrl_deps] == ["2F1"]
    before = {at[number] for number in backward.data_deps}
    assert {"2F0", "2F1"} < before
    assert len(before) == 3
    (received,) = before - {"2F0", "2F1"}
    assert "B" in received
    assert named[2][received].type == RECV
    assert named[2]["2SEND_F0"].data_deps == [named[2]["2F0"].number]
    assert named[2]["2F0"].duration_us == 1000
    assert named[2]["2B0"].duration_us == 2000
    assert named[2]["2SEND_F0"].duration_us == 100
    assert named[2]["2SEND_F0"].attr["comm_size"] == 1_000_000


def test_a_collective_with_ranks_of_other_pipelines_is_replayed_by_its_duration(tmp_path: Path) -> None:
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms", "update": "1 ms"}
    costs |= dict.fromkeys(("reduction", "sync", "gather"), "1 ms")
    ranks = nodes_of(step("chimera", pp=2, costs=costs, network={"name": "ideal"}), tmp_path)
    for nodes in ranks.values():
        for name, true_type in (("UNSHARD", "ALL_GATHER"), ("REDUCE_GRAD", "ALL_REDUCE")):
            collectives = [item for item in nodes if item.name.endswith(name)]
            assert len(collectives) == 2  # each rank has both stages
            assert {(item.type, item.duration_us) for item in collectives} == {(COLL, 1000)}
            assert {item.attr["comm_type"] for item in collectives} == {BROADCAST}
            assert {item.attr["pptrace.collective"] for item in collectives} == {true_type}


def test_the_synchronisation_of_all_ranks_is_a_collective(tmp_path: Path) -> None:
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms", "update": "1 ms", "sync": "1 ms"}
    for rank, nodes in nodes_of(step(pp=2, costs=costs), tmp_path).items():
        (collective,) = (item for item in nodes if item.type == COLL)
        assert collective.name == f"{rank}SYNC"
        assert (collective.attr["comm_type"], collective.attr["comm_size"]) == (ALL_REDUCE, 4)
        last = max(item.number for item in nodes if item.name.startswith(f"{rank}B"))
        assert last in collective.data_deps


def test_a_collective_inside_an_action_has_the_type_of_its_segment(tmp_path: Path) -> None:
    segments = [{"name": "attention", "time": "1 ms"}]
    segments += [{"name": "dispatch", "time": "1 ms", "stream": "expert-parallel"}]
    segments += [{"name": "all-reduce", "time": "1 ms", "stream": "tensor-parallel"}]
    costs = {"name": "table", "segments": {"F": segments, "B": segments}}
    for nodes in nodes_of(step("dualpipe-v", pp=2, costs=costs, network={"name": "ideal"}), tmp_path).values():
        for segment, true_type in (("dispatch", "ALL_TO_ALL"), ("all-reduce", "ALL_REDUCE")):
            inside = [item for item in nodes if item.name.endswith(segment)]
            assert {(item.type, item.attr["comm_type"]) for item in inside} == {(COLL, BROADCAST)}
            assert {item.attr["pptrace.collective"] for item in inside} == {true_type}
        assert {item.type for item in nodes if item.name.endswith("attention")} == {COMP}


def test_copies_to_the_host_are_memory_nodes(tmp_path: Path) -> None:
    timeline = step(
        schedule={"name": "1f1b", "offload": {"stages": [0]}},
        costs={"name": "table", "forward": "1 ms", "backward": "2 ms", "offload": "1 ms", "reload": "1 ms"},
    )  # fmt: skip
    assert {int(Stream.COPY_OUT), int(Stream.COPY_IN)} <= set(timeline.lane_stream.tolist())
    nodes = nodes_of(timeline, tmp_path)[0]
    for kind, expected in (("OFFLOAD", MEM_STORE), ("RELOAD", MEM_LOAD)):
        copies = [item for item in nodes if kind in item.name]
        assert copies
        assert {item.type for item in copies} == {expected}
    assert {item.type for item in nodes if item.name.startswith(("0F", "0B"))} == {COMP}


def test_the_laws_hold_for_a_recorded_run(tmp_path: Path) -> None:
    measurement, is_recorded = read_measurement([EXAMPLES / "run-1f1b"], Registry.load())
    assert is_recorded
    timeline = measurement.steps[0].timeline
    ranks = nodes_of(timeline, tmp_path)
    check_messages(timeline, ranks)
    check_dependencies(ranks)
    check_durations(timeline, ranks)
    for rank, nodes in ranks.items():
        received = {item.number for item in nodes if item.type == RECV}
        computed = [item for item in nodes if item.type == COMP]
        inputs = [item for item in computed if received & set(item.data_deps)]
        assert len(inputs) == (8 if rank in {0, 3} else 16)  # the ends of the pipeline have one neighbour
