"""Copies and forwards computed again, asked for in a configuration: costs, refusals, published figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import pptrace
from pptrace.errors import ConfigError
from pptrace.steps.kinds import Kind, Stream

pytestmark = pytest.mark.needs_plugins

TABLE = {
    "name": "table", "forward": "2 ms", "backward": "4 ms", "activation": "60 B",
    "offload": "1 ms", "reload": "1 ms",
}  # fmt: skip
KWAI = {
    0.3: 72_762_730_496, 0.4: 66_951_784_960, 0.5: 61_136_119_808, 0.6: 55_733_856_256,
    0.7: 50_331_592_704, 0.8: 45_824_813_056, 0.9: 39_527_328_256, 1.0: 34_491_172_352,
}  # fmt: skip


def run(name: str = "1f1b", *, pp: int = 8, microbatches: int = 32, **modifiers: Any) -> pptrace.Run:
    costs, sections = modifiers.pop("costs", {}), modifiers.pop("sections", {})
    schedule = {"name": name, **modifiers}
    return pptrace.simulate(
        {"schedule": schedule, "parallel": {"pp": pp, **sections}, "batch": {"microbatches": microbatches},
         "costs": {**TABLE, **costs}}
    )  # fmt: skip


def held(one: pptrace.Run) -> list[int]:
    return [int(size) // 60 for size in one.metrics.memory.peak_activation_bytes]


@pytest.mark.parametrize(("ahead", "peak"), [(999, 8), (2, 4), (1, 3), (None, 2)])
def test_all_of_rank_0_on_the_host(ahead: int | None, peak: int) -> None:
    copied = run(offload={"stages": [0], "ahead": ahead})

    assert held(copied) == [peak, 7, 6, 5, 4, 3, 2, 1]
    assert copied.metrics.step_ns == 39 * 6_000_000


@pytest.mark.parametrize("gap", [0, 1, 3, 9, 15, 30])
def test_what_is_needed_again_soon_stays(gap: int) -> None:
    timeline, waits = run().timeline, np.zeros((8, 32), dtype=np.int64)
    for row in range(len(timeline)):
        one = timeline[row]
        if one.action.kind in {Kind.F, Kind.B}:
            cell = one.action.stage, one.action.microbatch
            waits[cell] += one.start_ns if one.action.kind is Kind.B else -one.end_ns

    table = run(offload={"gap": gap}).prepared.schedule

    copied = np.zeros(waits.shape, dtype=bool)
    out = table.kind == Kind.OFFLOAD
    copied[table.stage[out], table.microbatch[out]] = True
    # Both copies take 2 ms.
    assert (copied == ((waits > gap * 2_000_000) | (gap == 0))).all()


def test_copies_back_are_as_late_as_leaves_them_time() -> None:
    copied, plain = run(offload={}), run()

    assert copied.metrics.step_ns == plain.metrics.step_ns
    timeline = copied.timeline
    slices = [timeline[row] for row in range(len(timeline))]
    for item in slices:
        if item.action.kind is Kind.RELOAD:
            ends = [
                other.end_ns
                for other in slices
                if other.rank == item.rank and other.stream is Stream.COMPUTE and other.end_ns > item.start_ns
            ]
            # Behind the next computation, it would be too late for its backward, or for the copy behind it.
            back = next(
                other.start_ns
                for other in slices
                if other.action.kind is Kind.B
                and (other.action.stage, other.action.microbatch) == (item.action.stage, item.action.microbatch)
            )
            assert item.end_ns <= back
            assert min(ends) + 1_000_000 > back or min(ends) >= back


def test_copies_without_a_time_in_the_costs_are_noted() -> None:
    costs = {"name": "table", "forward": "2 ms", "backward": "4 ms", "activation": "1 GiB", "reload": "1 ms"}
    notes = pptrace.simulate(
        schedule={"name": "1f1b", "offload": {}}, pp=4, microbatches=8, costs=costs
    ).prepared.notes

    assert notes == ("the costs have no time for copies: give device.host_bandwidth, or costs.offload",)


def test_a_part_of_each_activation_takes_a_part_of_the_time() -> None:
    workload = run(offload={"ratio": 0.3}).prepared.workload

    assert workload.offload_ns.tolist() == workload.reload_ns.tolist() == [300_000] * 8
    assert workload.copied_bytes.tolist() == [18] * 8


@pytest.mark.parametrize("policy", ["async", "sender-blocking", "blocking", "ordered", "batched"])
def test_every_policy_runs_copies_of_a_pair_of_ranks(policy: str) -> None:
    item = pptrace.simulate(
        {"schedule": {"name": "1f1b", "offload": {"gap": 0, "stream": "pair", "behind": 2}}, "parallel": {"pp": 4},
         "batch": {"microbatches": 8}, "costs": {**TABLE, "boundary": "1 MB"}, "p2p": policy,
         "network": {"name": "hockney", "bandwidth": "1 GB/s"}}
    )  # fmt: skip

    assert item.metrics.busy_ns.tolist() == [48_000_000] * 4


@pytest.mark.parametrize("name", ["gpipe", "eager-1f1b", "seq-1f1b", "chimera", "zb-h1"])
def test_any_schedule_takes_both(name: str) -> None:
    plain = run(name, pp=4, microbatches=8)
    copied = run(name, pp=4, microbatches=8, offload={"gap": 0, "ahead": 1})
    again = run(name, pp=4, microbatches=8, recompute={"early": True})

    assert copied.metrics.busy_ns.tolist() == plain.metrics.busy_ns.tolist()
    # Each rank computes as many forwards again as it computed, 8 of a whole stage or its parts.
    forwards = 2 * 8 * 1_000_000
    assert (again.metrics.busy_ns - plain.metrics.busy_ns).tolist() == [forwards] * 4
    assert (again.metrics.memory.peak_activation_bytes <= plain.metrics.memory.peak_activation_bytes).all()


def test_chunks_are_those_of_each_rank() -> None:
    table = run("interleaved-1f1b", pp=4, microbatches=8, sections={"vp": 2}, offload={"chunks": [0], "gap": 0})

    copied = table.prepared.schedule
    assert set(copied.stage[copied.kind == Kind.OFFLOAD].tolist()) == {0, 1, 2, 3}


def test_a_forward_computed_again_takes_what_the_costs_say() -> None:
    assert run(recompute={}).metrics.step_ns == 39 * 8_000_000
    assert run(recompute={}, costs={"recompute": "3 ms"}).metrics.step_ns == 39 * 9_000_000
    assert run(recompute={"early": True}).metrics.step_ns == (32 * 8 + 7 * 6) * 1_000_000
    units = pptrace.simulate(
        schedule={"name": "1f1b", "recompute": {}}, parallel={"pp": 4}, batch={"microbatches": 8}
    )
    assert units.metrics.step_ns == 11 * 4_000_000


@pytest.mark.parametrize(
    "policy", ["async", "sender-blocking", "ordered", "batched", "megatron", "torch", "deepspeed"]
)
def test_forwards_are_computed_again_alike_however_messages_are_issued(policy: str) -> None:
    if policy in {"megatron", "torch", "deepspeed"}:
        pytest.importorskip("pptrace_frameworks")
    late, early = (
        pptrace.simulate(
            schedule={"name": "1f1b", "recompute": {"early": item}}, parallel={"pp": 4}, batch={"microbatches": 8},
            p2p=policy, costs={"name": "unit", "unit": "1 ms"},
        )
        for item in (False, True)
    )  # fmt: skip

    assert late.metrics.step_ns == 11 * 4_000_000
    assert early.metrics.step_ns == (8 * 4 + 3 * 3) * 1_000_000


def test_another_schedule_on_the_command_line_keeps_both() -> None:
    step = {"schedule": {"name": "1f1b", "offload": {"gap": 0}, "interleave": {"F+B": [0, 1]}}}

    other = pptrace.simulate(step, schedule="gpipe", pp=2, microbatches=2)

    choice = other.prepared.resolved.experiment.schedule
    assert (choice.name, choice.interleave) == ("gpipe", None)
    assert (other.prepared.schedule.kind == Kind.OFFLOAD).sum() == 4


@pytest.mark.parametrize(
    ("modifiers", "line"),
    [
        ({"offload": {"stages": [1, 8]}}, "schedule.offload.stages[1]: there are 8 stages, 0 to 7, and no 8"),
        ({"recompute": {"chunks": [1]}}, "schedule.recompute.chunks[0]: there is 1 chunk, 0, and no 1"),
        ({"offload": {"ratio": 2}}, "schedule.offload.ratio: must be at most 1, not 2"),
        (
            {"offload": {"stream": "both"}},
            "schedule.offload.stream: unknown value 'both' (known: direction, pair, rank)",
        ),
        (
            {"offload": {}, "recompute": {"stages": [3]}},
            "schedule.offload.stages: stage 3 is computed again: leave it out here, or of schedule.recompute",
        ),
        ({"offload": {"fast": True}}, "schedule.offload.fast: "),
    ],
)
def test_what_cannot_be_is_one_line(modifiers: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(**modifiers)

    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("schedule", "model", "line"),
    [
        ({"name": "1f1b", "recompute": {}}, {"recompute": "full"}, "remove the key, or model.recompute"),
        (
            {"name": "stp", "options": {"offload_steady": 1}, "offload": {}}, {},
            "schedule.offload: stp already has copies: remove the key",
        ),
    ],
)  # fmt: skip
def test_what_is_done_already_is_not_done_twice(schedule: Any, model: Any, line: str) -> None:
    if schedule["name"] == "stp":
        pytest.importorskip("pptrace_stp")
    with pytest.raises(ConfigError, match=line):
        pptrace.simulate(
            schedule=schedule, model={"preset": "llama3-8b", **model}, parallel={"pp": 2}, device="h100-sxm",
            batch={"microbatches": 8, "sequence": 4096},
        )  # fmt: skip


@pytest.mark.parametrize("hidden", [4096, 8192, 10240])
@pytest.mark.parametrize("sequence", [4096, 8192, 16384, 32768])
def test_copies_and_computation_are_in_the_proportion_that_pipeoffload_gives(hidden: int, sequence: int) -> None:
    item = pptrace.simulate(
        schedule={"name": "1f1b", "offload": {"ratio": 0.625}}, stack="ideal",
        model={"layers": 32, "hidden": hidden, "heads": hidden // 128, "ffn": 4 * hidden, "gated": False,
               "vocabulary": 8, "causal": False},
        parallel={"pp": 8}, batch={"microbatches": 8, "sequence": sequence},
        device={"peak_bf16": "220 TFLOP/s", "compute_efficiency": 1, "attention_efficiency": 1, "memory": "80 GiB",
                "memory_bandwidth": "100000 TB/s", "memory_latency": "0 s", "launch_latency": "0 s",
                "scale_up_bandwidth": "300 GB/s", "host_bandwidth": "15 GB/s"},
    )  # fmt: skip

    costs = item.prepared.workload
    k = (costs.offload_ns[3] + costs.reload_ns[3]) / (costs.f_ns[3] + costs.b_ns[3])

    stated = Fraction(10, 3) / (6 * hidden + sequence) * Fraction(220_000, 15)
    assert k == pytest.approx(float(stated), rel=2e-3)


def test_memory_falls_with_the_copied_share_as_kwai_measured_it() -> None:
    # Llama 65B, pp 8 x vp 5: USENIX ATC 2024, artifact, figure 7 without recomputation. Buffers are not modelled.
    ratios, peaks = [0.3, 0.5, 0.8, 1.0], []
    for ratio in ratios:
        item = pptrace.simulate(
            schedule={"name": "interleaved-1f1b", "offload": {"ratio": ratio, "ahead": 1, "behind": 1, "gap": 0}},
            model={
                "layers": 80,
                "hidden": 8192,
                "heads": 64,
                "ffn": 22016,
                "vocabulary": 32004,
                "fused_activation": False,
            },
            parallel={"pp": 8, "tp": 2, "cp": 2, "dp": 8, "vp": 5, "sequence_parallel": True},
            batch={"global": 256, "sequence": 8192},
            device={"preset": "h800-sxm", "host_bandwidth": "50 GB/s"},
            costs={"name": "roofline", "zero": 1, "reserved": "0 B"},
        )
        peaks.append(int(item.metrics.memory.peak_bytes.max()))

    measured = np.array([KWAI[ratio] for ratio in ratios])
    assert (0.94 * measured < peaks).all()
    assert (peaks < measured).all()
    slope, theirs = (np.diff(values)[-1] / np.diff(ratios)[-1] for values in (peaks, measured))
    assert slope == pytest.approx(theirs, rel=0.05)
    whole, their_whole = peaks[0] - peaks[-1], measured[0] - measured[-1]
    assert whole == pytest.approx(their_whole, rel=0.02)
