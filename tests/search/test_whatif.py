"""What single changes bring is what closed forms say, and no microbatch is lost with a worker."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pptrace
from pptrace.errors import ConfigError
from pptrace.plugins.registry import Registry
from pptrace.run.run import Run
from pptrace.search.what_if import at_speeds, evened, jittered, reroute, step_without, whatif
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.placement import Placement

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline

EAGER = '''
def eager(ranks, microbatches):
    """Every forward, then every backward."""
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]
'''
COSTS = {"name": "table", "forward": "10 ms", "backward": "20 ms", "boundary": "50 MB"}


@pytest.fixture
def step(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(EAGER)

    def run(**changed: Any) -> Any:
        given_ = {"schedule": "./mine.py:eager", "pp": 4, "microbatches": 8, "costs": COSTS, "dp": 4,
                  "network": {"name": "hockney", "bandwidth": "50 GB/s"}}  # fmt: skip
        return pptrace.simulate(registry=Registry.load(), **{**given_, **changed})

    return run


def test_each_change_is_worth_what_a_closed_form_says(step: Any) -> None:
    run = step()
    rows = {row.name: row for row in whatif(run, lost=1).rows}

    ms = 10**6
    work, fill, wire = 8 * 30 * ms, 3 * 30 * ms, 6 * ms  # six messages of 1 ms on the way down and up
    assert run.metrics.step_ns == work + fill + wire
    assert next(iter(rows)).startswith("bottleneck: bubble")
    assert rows["bandwidth x2"].saved_ns == wire // 2
    assert rows["free network"].saved_ns == wire
    assert rows["half the bubble"].saved_ns == (fill + wire) // 2
    assert rows["even stages"].step_ns is None
    assert rows["no stragglers"].note == "nothing to change"
    assert rows["one more microbatch"].step_ns == round(Fraction((9 * 30 * ms + fill + wire) * 8, 9))
    lost = rows["1 worker lost, re-routed"]
    assert lost.step_ns is not None
    assert lost.step_ns >= -(-8 * 4 // 3) * 30 * ms + fill  # its peers compute a third more


@pytest.mark.needs_plugins
def test_on_a_cluster_messages_are_re_routed_between_the_gpus_of_replicas(step: Any) -> None:
    inside = {"name": "hockney", "bandwidth": "50 GB/s"}
    fabric = {"name": "infiniband-fat-tree", "bandwidth": "50 GB/s", "efficiency": 1, "switch_latency": "0 s",
              "nic_latency": "0 s", "overhead": "0 s"}  # fmt: skip
    cluster = {"nodes": 4, "gpus": 4, "nics": 4, "node": inside, "fabric": fabric}
    flat, on = (step(**item) for item in ({}, {"network": None, "cluster": cluster}))

    assert on.metrics.step_ns == flat.metrics.step_ns
    for lost in (1, 2):
        assert step_without(on, lost) >= step_without(flat, lost) > flat.metrics.step_ns


MODEL = {
    "model": "llama3-8b", "device": "h100-sxm", "stack": "ideal", "sequence": 4096, "tp": 2, "dp": 3,
    "costs": None,
}  # fmt: skip
WHOLE, GATHERED, SHARDED = ({**MODEL, "costs": {"name": "roofline", "zero": zero}} for zero in (1, 2, 3))


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"costs": {**COSTS, "lengths": [1, 2, 1, 1, 3, 1, 1, 1]}},
        {"schedule": "zb-h1", "costs": {**COSTS, "input_gradient": "9 ms", "weight_gradient": "11 ms"}},
        {"schedule": "zb-v", "p2p": "ordered", **MODEL},
        {"schedule": "interleaved-1f1b", "vp": 2, "p2p": "blocking", **MODEL},
        {"schedule": "1f1b", **WHOLE},
        {"schedule": "1f1b", **GATHERED},
        {"schedule": "zb-h1", **SHARDED, "sets": ["data_parallel.overlap=true"]},
        {"schedule": "zb-v", **SHARDED, "sets": ["data_parallel.reshard=always"]},
    ],
    ids=str,
)  # fmt: skip
def test_without_a_loss_the_step_is_the_undisturbed_one(step: Any, changed: dict[str, Any]) -> None:
    run = step(**changed)

    assert step_without(run, 0) == run.metrics.step_ns
    assert step_without(run, 1) > run.metrics.step_ns


@pytest.mark.needs_plugins
def test_stages_in_segments_are_evened_like_whole_ones(step: Any) -> None:
    """The last stage has the LM head; without it all stages take as long, but for the rounding of segments."""
    parts, whole = (step(schedule="dualpipe-v", **{**MODEL, "costs": {"segments": own}}) for own in (None, False))

    even, expected = (evened(run.prepared.workload) for run in (parts, whole))

    assert even.segments
    for name in ("f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns"):
        mean = getattr(expected, name)[0]
        assert np.abs(getattr(even, name) - mean).max() <= len(even.segments[Kind.B][-1]), name
    row = next(row for row in whatif(parts).rows if row.name == "even stages")
    assert row.step_ns is not None
    assert row.step_ns < parts.step_ns


@pytest.mark.needs_plugins
def test_what_zero_gathers_and_what_splits_backwards_is_in_the_step_without_a_worker(step: Any) -> None:
    """ZeRO 1 gathers weights behind the step, and ZeRO 3 ahead of every pass."""
    whole = step_without(step(schedule="1f1b", **WHOLE), 1)
    sharded = step_without(step(schedule="1f1b", **SHARDED, sets=["data_parallel.reshard=always"]), 1)
    plain, split = (step_without(step(schedule=name), 1) for name in ("1f1b", "zb-h1"))

    assert sharded > whole
    assert split < plain


@pytest.mark.needs_plugins
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("zero", [2, 3])
def test_a_step_without_a_worker_has_all_gathers_reductions_and_backwards(
    step: Any, monkeypatch: pytest.MonkeyPatch, schedule: str, zero: int
) -> None:
    """Two parts of a backward are ordered as two, and a gradient is reduced by each replica that is left."""
    tables = []
    run = step(schedule=schedule, **{**MODEL, "costs": {"name": "roofline", "zero": zero}})

    def recorded(table: Schedule, workload: Workload, *given_: Any, **more: Any) -> Timeline:
        tables.append((table, workload))
        return simulate(table, workload, *given_, **more)

    monkeypatch.setattr("pptrace.search.what_if.simulate", recorded)

    assert step_without(run, 1) > run.metrics.step_ns

    (whole, _), (table, workload) = tables
    kinds = (Kind.F, Kind.I, Kind.W) if schedule == "zb-h1" else (Kind.F, Kind.B)
    passes = {kind: [3 * 8 * run.prepared.schedule.stages] * 2 for kind in kinds}
    assert {kind: [int((each.kind == kind).sum()) for each in (whole, table)] for kind in kinds} == passes
    assert (workload.reduce_ns > 0).all()
    timeline = simulate(table, workload, run.prepared.network, stage_replicas=False)
    left = {(int(rank), int(stage)) for rank, stage in zip(table.rank_of_row(), table.stage, strict=True)}
    assert len(left) == 3 * run.prepared.schedule.stages - 1
    assert int((table.kind == Kind.UNSHARD).sum()) >= len(left)
    assert int((timeline.kind == Kind.REDUCE_GRAD).sum()) >= len(left)


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"p2p": "batched", "schedule": "gpipe", "dp": 2, "pp": 2},
            "p2p.policy: re-routed microbatches deadlock under batched",
        ),
        ({"schedule": {"name": "1f1b", "offload": {}}}, "schedule.offload: copies to the host are not re-routed"),
        ({"sets": ["schedule.recompute.early=true"]}, "schedule.recompute: recomputation actions"),
        ({"sets": ["data_parallel.speeds={1: 0.5}"]}, "data_parallel: replicas that differ are not re-routed"),
        ({"schedule": "dualpipe-v", **MODEL}, "overlapped pairs are not re-routed"),
        ({"network": {"name": "infiniband-fat-tree"}}, "its links are between the ranks of one pipeline: take a"),
        (
            {"schedule": "1f1b", **MODEL, "network": None, "cluster": "dgx-h100x3"},
            "replicas that share links have another step without losses",
        ),
    ],
)
def test_a_step_that_is_not_re_routed_is_refused_by_the_setting(
    step: Any, changed: dict[str, Any], line: str
) -> None:
    row = whatif(step(**changed), lost=1).rows[-1]

    assert row.step_ns is None
    assert line in row.note


@pytest.mark.needs_plugins
@pytest.mark.parametrize("policy", ["megatron", "torch", "deepspeed"])
def test_under_a_framework_workers_are_lost_with_asynchronous_messages(step: Any, policy: str) -> None:
    framework, plain = (step(schedule="1f1b", p2p=name) for name in (policy, "async"))

    result = whatif(framework, lost=1)

    row = result.rows[-1]
    assert row.step_ns == step_without(plain, 1)
    assert row.saved_ns == plain.metrics.step_ns - step_without(plain, 1) < 0
    assert row.note.endswith(f": {policy} has no order for re-routed microbatches")
    assert row.note in result.summary().splitlines()[-1]


def test_changes_that_cannot_be_say_why(step: Any) -> None:
    rows = {row.name: row for row in whatif(step(dp=1), lost=1).rows}

    assert (
        "1 worker lost: a stage is left without a replica; there is only one"
        in rows["1 worker lost, re-routed"].note
    )
    assert rows["1 worker lost, re-routed"].step_ns is None


@given(
    ranks=st.integers(1, 5), replicas=st.integers(2, 5), microbatches=st.integers(1, 6), chunks=st.integers(1, 2),
    lost=st.integers(0, 6),
)  # fmt: skip
def test_every_stage_of_every_microbatch_stays_on_a_replica_of_its_rank(
    ranks: int, replicas: int, microbatches: int, chunks: int, lost: int
) -> None:
    own = Placement.looped(ranks=ranks, microbatches=microbatches, chunks=chunks).stage_rank[0]
    try:
        placed = reroute(own, ranks, replicas, microbatches, lost)
    except ConfigError:
        assert lost > replicas - 1
        return

    assert placed.microbatches == replicas * microbatches
    assert np.array_equal(placed.stage_rank % ranks, np.broadcast_to(own, placed.stage_rank.shape))
    used = {int(rank) for rank in placed.stage_rank.reshape(-1)}
    assert len(used) <= ranks * replicas - lost
    if not lost:
        assert placed.routes == min(replicas, replicas * microbatches)


def test_speeds_and_jitter_leave_everything_else_as_it_is(step: Any) -> None:
    run = step()

    assert Run.of(at_speeds(run.prepared), run.registry).metrics.step_ns == run.metrics.step_ns
    half = Run.of(at_speeds(run.prepared, 0.5, 0.5), run.registry).metrics.step_ns
    assert half == 2 * run.metrics.step_ns
    first, again, other = (
        Run.of(jittered(run.prepared, seed, 0.05), run.registry).metrics.step_ns for seed in (1, 1, 2)
    )
    assert first == again != other
    assert abs(first / run.metrics.step_ns - 1) < 0.1
