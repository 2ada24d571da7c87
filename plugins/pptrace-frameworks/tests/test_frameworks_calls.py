"""Every computation and message of a framework's step starts and ends as a model of its calls says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from framework_calls import Compute, Message
from framework_programs_torch import Action
from oracle_frameworks import (
    deepspeed_1f1b,
    megatron_1f1b,
    megatron_interleaved,
    run,
    torch_1f1b,
    torch_gpipe,
    torch_interleaved_1f1b,
    torch_runtime,
)
from oracle_pytorch_tables import limited, lowered, with_waits

from pptrace import simulate as simulate_step
from pptrace.network.contract import Links, Paths
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action as TableAction
from pptrace.steps.kinds import SENDS, Kind
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from framework_calls import Program

    from pptrace.timeline.timeline import Timeline

REGISTRY = Registry.load()
SIZES = [(ranks, microbatches) for ranks in (1, 2, 3, 4, 6) for microbatches in (1, 2, 3, 5, 8, 12)]
LOOPED = [
    (ranks, microbatches, chunks, group)
    for ranks in (2, 3, 4)
    for chunks in (2, 3)
    for microbatches in (ranks, 2 * ranks, 3 * ranks)
    for group in (ranks, ranks + 1, microbatches)
    if group <= microbatches and not 0 < microbatches % group < ranks
]
OVERLAPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "batched": ({"overlap_p2p_comm": False}, {}),
    "unbatched": ({"overlap_p2p_comm": False, "batch_p2p_comm": False}, {"batch_p2p_comm": False}),
    "overlapped": ({}, {"overlap_p2p_comm": True, "waits_before_freeing": False}),
    "overlapped, outputs freed": ({"deallocate_pipeline_outputs": True}, {"overlap_p2p_comm": True}),
    "flush": (
        {"overlap_p2p_comm_warmup_flush": True},
        {"overlap_p2p_comm": True, "overlap_warmup_flush": True, "waits_before_freeing": False},
    ),
    "flush, outputs freed": (
        {"overlap_p2p_comm_warmup_flush": True, "deallocate_pipeline_outputs": True},
        {"overlap_p2p_comm": True, "overlap_warmup_flush": True},
    ),
}
"""Our options, and the model's."""

PAIR = 2
"""Ranks on which Megatron refuses to run several chunks without overlap."""


class Uneven:
    """A network in which every pair of ranks, and each direction, takes a time of its own."""

    links = Links(rate_kbps=np.zeros(0, dtype=np.int64))

    def paths(self, src: Any, dst: Any) -> Paths:
        none = np.zeros(src.size, dtype=np.int64)
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        took = np.array([_transfer(*pair) for pair in pairs], dtype=np.int64)
        return Paths(
            overhead_ns=took, latency_ns=none, rate_kbps=none,
            link_ptr=np.zeros(src.size + 1, dtype=np.int32), link=np.zeros(0, dtype=np.int32),
        )  # fmt: skip


def _transfer(source: int, target: int, _kind: str = "") -> int:
    return 3 + (7 * source + 3 * target) % 11


def _duration(call: Compute) -> int:
    return {"F": 20, "B": 41}[call.kind] + 5 * (call.stage % 3)


def _table(programs: list[Program], chunks: int) -> Schedule:
    orders = [[call for call in program if isinstance(call, Compute)] for program in programs]
    microbatches = len(orders[0]) // (2 * chunks)
    flat = [call for order in orders for call in order]
    return Schedule.from_columns(
        Placement.looped(len(orders), microbatches, chunks),
        np.cumsum([0, *map(len, orders)]),
        np.array([Kind[call.kind] for call in flat], dtype=np.int8),
        np.array([call.stage for call in flat], dtype=np.int32),
        np.array([call.microbatch for call in flat], dtype=np.int32),
    )


def _simulated(table: Schedule, name: str, options: dict[str, Any]) -> Timeline:
    offer = REGISTRY.message_policies[name]
    policy = build_policy(offer, table, checked_options(offer, options, "p2p.options"))
    stages = np.arange(table.stages)
    costs = Workload.uniform(table.stages, f_ns=1, b_ns=1, boundary_bytes=0, edges=table.stages - 1)
    costs = replace(costs, f_ns=20 + 5 * (stages % 3), b_ns=41 + 5 * (stages % 3))
    return simulate(table, costs, Uneven(), policy)


def _check(programs: list[Program], name: str, options: dict[str, Any], chunks: int = 1) -> None:
    wanted = run(programs, _duration, _transfer)
    step = _simulated(_table(programs, chunks), name, options)
    spans = list(zip(step.start_ns.tolist(), step.end_ns.tolist(), strict=True))
    cells = list(zip(step.kind.tolist(), step.stage.tolist(), step.microbatch.tolist(), strict=True))
    computes = {Compute(Kind(k).name, s, u): span for (k, s, u), span in zip(cells, spans, strict=True) if k < 2}
    assert computes == wanted.computes
    messages = {
        Message(Kind(k).name[-1], s, u): span
        for (k, s, u), span in zip(cells, spans, strict=True)
        if Kind(k) in SENDS
    }
    assert messages == wanted.messages


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("options", [{}, {"batch_p2p_comm": False}], ids=["batched", "unbatched"])
def test_1f1b_of_megatron(ranks: int, microbatches: int, options: dict[str, Any]) -> None:
    _check(megatron_1f1b(ranks, microbatches, **options), "megatron", options)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "chunks", "group", "how"),
    [
        (*size, how)
        for size in LOOPED
        for how, (_, switches) in OVERLAPS.items()
        if size[0] > PAIR or "overlap_p2p_comm" in switches
    ],
)
def test_interleaved_of_megatron(ranks: int, microbatches: int, chunks: int, group: int, how: str) -> None:
    options, switches = OVERLAPS[how]
    programs = megatron_interleaved(ranks, microbatches, chunks, group_size=group, **switches)
    _check(programs, "megatron", options, chunks)


@pytest.mark.parametrize(("ranks", "microbatches"), [size for size in SIZES if size[1] >= size[0]])
def test_schedule_1f1b_of_torch(ranks: int, microbatches: int) -> None:
    _check(torch_1f1b(ranks, microbatches), "torch", {})


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_schedule_gpipe_of_torch(ranks: int, microbatches: int) -> None:
    _check(torch_gpipe(ranks, microbatches), "torch", {})


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (3, 6, 2)])
def test_runtime_of_torch(ranks: int, microbatches: int, chunks: int) -> None:
    _check(torch_interleaved_1f1b(ranks, microbatches, chunks), "torch", {}, chunks)


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (3, 6, 2)])
@pytest.mark.parametrize("most", [None, 1, 2, 4])
def test_runtime_of_torch_with_waits(ranks: int, microbatches: int, chunks: int, most: int | None) -> None:
    computes = _table(torch_interleaved_1f1b(ranks, microbatches, chunks), chunks).rows()
    rows = with_waits(lowered(computes, microbatches, waits=True))
    limited_rows = rows if most is None else limited(rows, most)
    assert limited_rows is not None
    actions = [[_action(cell) for cell in row] for row in limited_rows]
    programs = torch_runtime(actions, {stage: stage % ranks for stage in range(ranks * chunks)})

    _check(programs, "torch", {"version": "2.15", "max_outstanding_sends": most}, chunks)


@pytest.mark.parametrize(
    ("version", "overlap", "step_ns"),
    [("2.13", "true", 150), ("2.15", "true", 180), ("2.13", "false", 180), ("2.15", "false", 180)],
)
def test_runtime_of_torch_waits_for_reductions(version: str, overlap: str, step_ns: int) -> None:
    costs = {"name": "table", "forward": "20 ns", "backward": "40 ns", "reduction": "30 ns"}
    step = {
        "schedule": "interleaved-1f1b", "parallel": {"pp": 1, "vp": 2}, "batch": {"microbatches": 1},
        "costs": costs, "p2p": {"policy": "torch", "options": {"version": version}},
        "data_parallel": {"overlap": overlap == "true"},
    }  # fmt: skip

    assert simulate_step(step).metrics.step_ns == step_ns


def _action(cell: str) -> Action:
    action = TableAction.parse(cell)
    return Action(action.kind.name, action.stage, action.microbatch)


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_1f1b_of_deepspeed(ranks: int, microbatches: int) -> None:
    _check(deepspeed_1f1b(ranks, microbatches), "deepspeed", {})


def test_a_pair_of_one_rank_takes_what_it_takes_without_messages() -> None:
    segments = [
        {"name": "mlp", "time": "3 ms"},
        {"name": "all-reduce", "time": "2 ms", "stream": "tensor-parallel"},
    ]
    costs = {"name": "table", "segments": {"F": segments, "B": segments}}

    one, plain = (
        simulate_step(schedule="combined-1f1b", pp=1, microbatches=3, costs=costs, p2p=p2p).metrics.step_ns
        for p2p in ("megatron", "async")
    )

    assert one == plain
