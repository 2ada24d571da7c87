"""Every computation and message of a framework's step starts and ends as a model of its calls says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from framework_calls import Compute, Message
from framework_programs_torch import Action
from msgspec.structs import replace
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
from oracle_pytorch_tables import limited, lowered, with_waits, without_weights

from pptrace import simulate as simulate_step
from pptrace.network.contract import Links, Paths
from pptrace.plugin import load, prepare
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action as TableAction
from pptrace.steps.kinds import PASSES, SENDS, Kind
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
    for group in sorted({ranks, ranks + 1, microbatches})
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
    return {"F": 20, "B": 41, "I": 23, "W": 17}[call.kind] + 5 * (call.stage % 3)


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
    more = 5 * (stages % 3)
    costs = replace(costs, f_ns=20 + more, b_ns=41 + more, i_ns=23 + more, w_ns=17 + more)
    return simulate(table, costs, Uneven(), policy)


def _check(programs: list[Program], name: str, options: dict[str, Any], chunks: int = 1) -> None:
    _check_table(_table(programs, chunks), programs, name, options)


def _check_table(table: Schedule, programs: list[Program], name: str, options: dict[str, Any]) -> None:
    wanted = run(programs, _duration, _transfer)
    step = _simulated(table, name, options)
    spans = list(zip(step.start_ns.tolist(), step.end_ns.tolist(), strict=True))
    cells = list(zip(step.kind.tolist(), step.stage.tolist(), step.microbatch.tolist(), strict=True))
    computes = {
        Compute(Kind(k).name, s, u): span
        for (k, s, u), span in zip(cells, spans, strict=True)
        if Kind(k) in PASSES
    }
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


RUNTIME_OPTIONS: dict[str, dict[str, Any]] = {
    "2.13": {},
    "2.15": {"version": "2.15"},
    "one-send": {"version": "2.15", "max_outstanding_sends": 1},
    "two-sends": {"version": "2.15", "max_outstanding_sends": 2},
    "auto-lookahead": {"version": "2.15", "unshard_lookahead": "auto"},
    "lookahead": {"version": "2.15", "unshard_lookahead": (1, 1, 2, 1)},
    "deferred-waits": {"version": "2.15", "defer_reduce_grad_wait": True},
    "per-edge": {"version": "2.15", "p2p_per_edge": True},
    "all": {"version": "2.15", "max_outstanding_sends": 4, "unshard_lookahead": (2, 2, 2, 2),
            "defer_reduce_grad_wait": True, "p2p_per_edge": True},
}  # fmt: skip


WITH_EACH_OPTION = [("interleaved-1f1b", 2), ("interleaved-zb", 2), ("zb-v", 2)]
WITH_SOME = [("interleaved-1f1b", 3), ("looped-bfs", 3), ("zb-h1", 1), ("v-half", 2)]
"""Other orders of the same actions and placements, with the fewest and most options, and the narrowest limit."""


@pytest.mark.parametrize(
    ("schedule", "chunks", "how"),
    [
        *((*table, how) for table in WITH_EACH_OPTION for how in RUNTIME_OPTIONS),
        *((*table, how) for table in WITH_SOME for how in ("2.13", "one-send", "all")),
    ],
)
def test_runtime_of_torch_with_its_options(schedule: str, chunks: int, how: str) -> None:
    options = RUNTIME_OPTIONS[how]
    table = prepare(load(None, flags={"schedule": schedule, "pp": 4, "vp": chunks, "microbatches": 8}), REGISTRY)
    programs = _runtime_programs(table.schedule, options)

    _check_table(table.schedule, programs, "torch", options)


def _runtime_programs(table: Schedule, options: dict[str, Any]) -> list[Program]:
    """Return what the ranks of PyTorch's runtime call for a table, by the slow second implementation."""
    lookahead = options.get("unshard_lookahead", ())
    rows = lowered(
        table.rows(), table.microbatches, waits="version" in options,
        lookahead=(2, 3, 3, 3) if lookahead == "auto" else lookahead,
        deferred="defer_reduce_grad_wait" in options,
    )  # fmt: skip
    rows = without_weights(with_waits(rows) if "version" in options else rows)
    limited_rows = limited(rows, options["max_outstanding_sends"]) if "max_outstanding_sends" in options else rows
    assert limited_rows is not None
    rank_of = dict(enumerate(table.placement.stage_rank[0].tolist()))
    actions = [[_action(cell) for cell in row] for row in limited_rows]
    return torch_runtime(actions, rank_of, per_edge="p2p_per_edge" in options)


@pytest.mark.parametrize(("ranks", "microbatches"), [size for size in SIZES if size[1] >= size[0]])
def test_classes_of_torch_with_a_communicator_per_edge(ranks: int, microbatches: int) -> None:
    options = {"version": "2.15", "p2p_per_edge": True}

    _check(torch_1f1b(ranks, microbatches, per_edge=True), "torch", options)
    _check(torch_gpipe(ranks, microbatches, per_edge=True), "torch", options)


@pytest.mark.parametrize("options", [{"unshard_lookahead": "auto"}, {"defer_reduce_grad_wait": True}])
def test_options_of_the_runtime_run_1f1b_in_it(options: dict[str, Any]) -> None:
    table = prepare(load(None, flags={"schedule": "1f1b", "pp": 4, "microbatches": 8}), REGISTRY).schedule
    options = {"version": "2.15", **options}

    _check_table(table, _runtime_programs(table, options), "torch", options)


@pytest.mark.parametrize(
    ("options", "overlap", "starts_ns"),
    [
        ({}, "true", [60, 170, 280]),
        ({"version": "2.15"}, "true", [60, 170, 280]),
        ({"version": "2.15", "defer_reduce_grad_wait": True}, "true", [60, 100, 170]),
        ({}, "false", [60, 100, 140]),
        ({"version": "2.15"}, "false", [60, 100, 140]),
    ],
)
def test_runtime_of_torch_waits_for_reductions(
    options: dict[str, Any], overlap: str, starts_ns: list[int]
) -> None:
    step = simulate_step({
        "schedule": "interleaved-1f1b", "parallel": {"pp": 1, "vp": 3}, "batch": {"microbatches": 1},
        "costs": {"name": "table", "forward": "20 ns", "backward": "40 ns", "reduction": "70 ns"},
        "p2p": {"policy": "torch", "options": options}, "data_parallel": {"overlap": overlap == "true"},
    }).timeline  # fmt: skip

    assert step.start_ns[step.kind == Kind.B].tolist() == starts_ns


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
