"""GPUs' profiles without annotations, with several stages on each rank: what is inferred is what was simulated."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gpu_run import GpuRun
from hypothesis import given, settings
from hypothesis import strategies as st

import pptrace
from pptrace.config.choices import PolicyName, StreamPer
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.sim.task_graph import ActionTimes
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy, with_messages
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.plugin import measure_kineto, measure_nsys

if TYPE_CHECKING:
    from collections.abc import Callable

    from small_gpu_trace import SmallGpuTrace

    from pptrace.timeline.measurement import Measurement
    from pptrace.timeline.timeline import Timeline

pytestmark = pytest.mark.needs_plugins

US = 1_000
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
NETWORK = Flat(rate_kbps=20_000_000, overhead_ns=3_000)
THREADS, AUTOGRAD, CHECKPOINT = ("threads",), ("autograd",), ("autograd", "checkpoint")
REFUSED = "is below 0.9, as only", "no placement of stages fits the messages"
INTERLEAVED = [("interleaved-1f1b", ranks, chunks) for ranks, chunks in ((2, 2), (3, 2), (4, 2), (2, 3), (3, 3))]
SPLIT = [("interleaved-zb", 3, 2), ("zb-v", 2, 1), ("zb-v", 3, 1), ("zb-v", 4, 1)]


def ran(name: str, ranks: int, chunks: int, *, jitter: float = 0.2, seed: int = 0, groups: int = 2) -> GpuRun:
    """Simulate with actions that are longer or shorter by up to a share."""
    sizes = {"vp": chunks} if chunks > 1 else {}
    schedule = pptrace.simulate(schedule=name, pp=ranks, microbatches=groups * ranks, **sizes).prepared.schedule
    placement = schedule.placement
    usual = np.zeros(len(Kind))
    usual[[Kind.F, Kind.B, Kind.I, Kind.W]] = 1000, 2000, 1000, 900
    length = np.repeat(usual, placement.stages * placement.microbatches)
    length *= 1 + jitter * np.random.default_rng(seed).uniform(-1, 1, length.size)
    times = ActionTimes(
        place=np.arange(length.size), duration_ns=(length * US).astype(np.int64),
        gap_ns=np.zeros(length.size, dtype=np.int64), transfer_ns=np.full(length.size, -1),
    )  # fmt: skip
    costs = Workload.uniform(placement.stages, edges=len(placement.edges), f_ns=0, b_ns=0, boundary_bytes=400_000)
    policy = Policy(name=PolicyName.ORDERED, stream=StreamPer.DIRECTION)
    timeline = simulate(schedule, costs, NETWORK, policy, times=times)
    return GpuRun(timeline=timeline, order=with_messages(schedule), ahead=True, said="posts")


def measured(run: GpuRun) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        return measure_kineto(run.write(Path(folder)), ImportRequest())


def computed(timeline: Timeline) -> list[tuple[int, str, int, int]]:
    """Return who computed what from when to when."""
    slices = (timeline[row] for row in range(len(timeline)))
    kept = [item for item in slices if item.stream is Stream.COMPUTE]
    return sorted((item.rank, str(item.action), item.start_ns, item.end_ns) for item in kept)


def note_of(found: Measurement) -> str:
    (note,) = [note for note in found.notes if "inferred" in note]
    return note


def check(run: GpuRun, unmarked: tuple[str, ...]) -> None:
    """Check that without annotations a run reads as it does with them."""
    found, truth = measured(replace(run, unmarked=unmarked)), measured(run)

    assert "the routes of messages, " in note_of(found)
    assert "confidence 1.00;" in note_of(found)
    assert [step.label for step in found.steps] == [step.label for step in truth.steps]
    for item, other in zip(found.steps, truth.steps, strict=True):
        assert computed(item.timeline) == computed(other.timeline)
        assert item.timeline.placement == other.timeline.placement


@settings(settings.get_profile("few"))
@given(
    case=st.sampled_from(INTERLEAVED), unmarked=st.sampled_from([THREADS, AUTOGRAD, CHECKPOINT]),
    jitter=st.floats(0, 0.6), seed=st.integers(0, 2**20), said=st.sampled_from(["posts", "arguments"]),
    late=st.booleans(),
)  # fmt: skip
def test_interleaved_runs_of_gpus_are_inferred(
    case: tuple[str, int, int], unmarked: tuple[str, ...], jitter: float, seed: int, said: str, *, late: bool
) -> None:
    check(replace(ran(*case, jitter=jitter, seed=seed), late=late, said=said), unmarked)


@settings(settings.get_profile("few"))
@given(
    case=st.sampled_from([*SPLIT, ("looped-bfs", 3, 2)]), unmarked=st.sampled_from([AUTOGRAD, CHECKPOINT]),
    jitter=st.floats(0, 0.6), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_split_and_v_shaped_runs_of_gpus_are_inferred_where_autograd_was_recorded(
    case: tuple[str, int, int], unmarked: tuple[str, ...], jitter: float, seed: int
) -> None:
    check(ran(*case, jitter=jitter, seed=seed), unmarked)


def test_each_of_several_steps_is_inferred() -> None:
    check(replace(ran("interleaved-1f1b", 2, 2), steps=3), THREADS)


@pytest.mark.parametrize("case", [*SPLIT[:2], ("looped-bfs", 3, 2)])
def test_what_threads_alone_do_not_tell_is_refused_with_the_reason(case: tuple[str, int, int]) -> None:
    """Weight gradients run on autograd's thread too, and nothing says which of many forwards goes back first."""
    result = measured(replace(ran(*case), unmarked=THREADS))

    assert result.steps == ()
    assert any(reason in note_of(result) for reason in REFUSED)
    assert "pptrace annotate" in note_of(result)
    assert "record them too (PyTorch: ProfilerActivity.CPU)" in note_of(result)


def test_waves_are_refused_and_autograd_s_operations_are_not_asked_for_where_they_are_there() -> None:
    result = measured(replace(ran("hanayo", 2, 2), unmarked=AUTOGRAD))

    assert result.steps == ()
    assert "neither interleaved (a microbatch cycles through all ranks) nor V-shaped" in note_of(result)
    assert "exchange none, as in wave schedules; mark actions and record again" in note_of(result)
    assert "pptrace annotate" in note_of(result)
    assert "ProfilerActivity.CPU" not in note_of(result)


def without_a_message(trace: SmallGpuTrace) -> None:
    sent = [number for number, event in enumerate(trace.events) if event["name"].startswith("nccl:send")]
    del trace.events[sent[2]]


def with_a_foreign_run(trace: SmallGpuTrace) -> None:
    """Let a rank go forward and backward once more, with nothing to send, before the step."""
    first = min(event["ts"] for event in trace.events)
    for thread, name, at in ((100, "aten::linear", first - 90), (101, BACKWARD, first - 40)):
        trace.annotate(name, at, at + 20, thread=thread, category="cpu_op")
        trace.events[-1]["args"] |= {"Sequence number": 5_000_000, "Fwd thread id": thread - 100}
        for place in range(3):
            trace.kernel("gemm", at + place, at + 2 * place, at + 2 * place + 1, thread=thread)


def with_messages_too_late(trace: SmallGpuTrace) -> None:
    """Let every message come when the step is over, so that nothing can have waited for it."""
    for event in trace.events:
        if event["name"].startswith("nccl") and event["cat"] == "kernel":
            event["dur"] += 1e6


@pytest.mark.parametrize("spoil", [without_a_message, with_a_foreign_run, with_messages_too_late])
@pytest.mark.parametrize(("case", "unmarked"), [(INTERLEAVED[2], THREADS), (SPLIT[2], AUTOGRAD)])
def test_spoilt_runs_of_gpus_are_refused(
    case: tuple[str, int, int], unmarked: tuple[str, ...], spoil: Callable[[SmallGpuTrace], None], tmp_path: Path
) -> None:
    run = replace(ran(*case), unmarked=unmarked)
    traces = [run.trace(rank) for rank in range(run.timeline.ranks)]
    spoil(traces[1])

    result = measure_kineto([trace.write(tmp_path) for trace in traces], ImportRequest())

    assert result.steps == ()
    assert any(reason in note_of(result) for reason in REFUSED)


def test_nsight_systems_profiles_are_inferred_as_well(tmp_path: Path) -> None:
    run = ran("interleaved-1f1b", 3, 2)
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as database:
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        for rank in range(3):
            as_nsight_writes(database, replace(run, unmarked=THREADS).trace(rank))
        database.commit()

    found, truth = measure_nsys([path], ImportRequest()), measured(run)

    assert "the threads of launches and the routes of messages, 6 stages, confidence 1.00;" in note_of(found)
    assert computed(found.steps[0].timeline) == computed(truth.steps[0].timeline)


TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, demangledName INTEGER, shortName INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, correlationId INTEGER, globalTid INTEGER, nameId INTEGER"
    ),
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER",
}


def as_nsight_writes(database: sqlite3.Connection, trace: SmallGpuTrace) -> None:
    """Write one rank's kernels, launches and NVTX ranges."""
    process = (1 << 56) | ((900 + trace.rank) << 24)
    for event in trace.events:
        start, length = round(event["ts"] * US), round(event["dur"] * US)
        times, correlation = (start, start + length), event["args"].get("correlation")
        if event["cat"] == "kernel":
            (number,) = database.execute("SELECT COUNT(*) FROM StringIds").fetchone()
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, event["name"]))
            row = (*times, trace.rank, event["args"]["stream"], correlation, process, number, number)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        elif event["cat"] == "cuda_runtime":
            row = (*times, correlation, process | event["tid"], 0)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
        elif event["cat"] == "user_annotation":
            row = (*times, 59, event["name"], None, process | event["tid"])
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
