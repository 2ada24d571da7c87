"""The zero-bubble family's fixed forms: bubbles and memory as papers print them, orders as PyTorch makes them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

import pptrace
from pptrace.config.choices import PolicyName, Receive
from pptrace.network.contract import Flat
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_valid_schedule
from pptrace.timeline.metrics import Metrics, measure
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
CHUNKS = {"1f1b": 1, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "v-half": 2, "v-min": 2, "interleaved-zb": 2}
SPLIT = [name for name in CHUNKS if name != "1f1b"]


def table(name: str, ranks: int, microbatches: int, chunks: int = 0) -> Schedule:
    chunks = chunks or CHUNKS[name]
    request = ScheduleRequest(
        ranks=ranks, microbatches=microbatches, chunks=chunks, options={"order": "fixed"} if name in SPLIT else {}
    )
    schedule = OFFERS[name].build(request)
    assert isinstance(schedule, Schedule)
    return schedule


def run(schedule: Schedule, kept: int = 1) -> Metrics:
    """Simulate a rank's share of the model as one forward, input and weight gradient of 6 each, in chunks."""
    time = 6 * schedule.ranks // schedule.stages
    costs = Workload.uniform(
        schedule.stages, f_ns=time, i_ns=time, w_ns=time, b_ns=2 * time, activation_bytes=time,
        weight_activation_bytes=kept * time // 6,
    )  # fmt: skip
    return measure(simulate(schedule, costs), costs)


def idle(name: str, ranks: int, microbatches: int) -> Fraction:
    """Return how long steps idle that follow one another without a barrier, in forwards of a whole rank."""
    return Fraction(run(table(name, ranks, microbatches)).pace_ns, 6) - 3 * microbatches


@pytest.mark.parametrize("ranks", [2, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_bubbles_beside_1f1bs_are_those_of_the_zero_bubble_readme(ranks: int, rounds: int) -> None:
    microbatches = rounds * ranks
    whole = idle("1f1b", ranks, microbatches)

    assert whole == 3 * (ranks - 1)
    assert idle("zb-h1", ranks, microbatches) == whole / 3
    assert idle("zb-h2", ranks, microbatches) == idle("zb-v", ranks, microbatches) == 0
    assert idle("v-half", ranks, microbatches) == whole / 2 - Fraction(ranks % 2, 2)
    assert 0 <= idle("v-min", ranks, microbatches) - (2 * whole / 3 - Fraction(1, 2)) <= 1
    assert idle("interleaved-zb", ranks, microbatches) == whole / 6


@pytest.mark.parametrize("ranks", [4, 6, 8, 12, 16, 24, 32])
def test_activations_beside_1f1bs_are_those_of_the_zero_bubble_readme(ranks: int) -> None:
    held = {
        name: Fraction(int(run(table(name, ranks, 3 * ranks), 6).memory.peak_activations.max()), CHUNKS[name])
        for name in CHUNKS
    }

    assert held["1f1b"] == held["zb-h1"] == held["zb-v"] == ranks
    assert held["zb-h2"] == 2 * ranks - 1
    assert held["v-half"] == ranks // 2 + 1
    assert Fraction(ranks, 3) < held["v-min"] <= Fraction(ranks, 3) + 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kept", [0, 1, 3, 6])
def test_memory_of_each_rank_is_what_the_paper_states(ranks: int, kept: int) -> None:
    for name, whole, part in (
        ("zb-h1", lambda i: ranks - i + 1, lambda i: i - 1),
        ("zb-h2", lambda i: 2 * ranks - 2 * i + 1, lambda i: 2 * i - 2),
    ):
        peak = run(table(name, ranks, 4 * ranks), kept).memory.peak_activation_bytes.tolist()

        assert peak == [6 * whole(i) + kept * part(i) for i in range(1, ranks + 1)]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 3), (3, 3), (4, 1), (4, 8), (5, 15), (8, 16)])
def test_a_table_runs_under_every_policy(name: str, policy: PolicyName, ranks: int, microbatches: int) -> None:
    schedule = table(name, ranks, microbatches)
    costs = Workload.uniform(schedule.stages, f_ns=3, i_ns=4, w_ns=2, boundary_bytes=8)
    network = Flat(rate_kbps=8_000_000, latency_ns=1)

    assert_valid_schedule(schedule)
    assert len(schedule) == 3 * microbatches * schedule.stages
    timeline = simulate(schedule, costs, network, Policy(name=policy, receive=Receive.ASAP, eager_bytes=8))
    assert measure(timeline, costs).busy_ns.tolist() == [9 * microbatches * CHUNKS[name]] * ranks


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_orders_are_pytorchs_for_many_sizes(ranks: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    def order(name: str, microbatches: int, chunks: int) -> list[list[str]]:
        stage = SimpleNamespace(group_rank=0, group_size=ranks, submod=None, num_stages=ranks * chunks)
        made = schedules.get_schedule_class(name)([stage] * chunks, microbatches).pipeline_order
        return [[str(cell) for cell in made[rank] if cell is not None] for rank in range(ranks)]

    for microbatches in range(1, 3 * ranks + 4):
        assert table("zb-v", ranks, microbatches).rows() == order("ZBVZeroBubble", microbatches, 2)
        if microbatches % max(1, microbatches // ranks) == 0:
            assert table("zb-h1", ranks, microbatches).rows() == order("InterleavedZeroBubble", microbatches, 1)
            for chunks in (2, 3, 4):
                ours = table("interleaved-zb", ranks, microbatches, chunks)
                assert ours.rows() == order("InterleavedZeroBubble", microbatches, chunks)


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min"])
def test_a_v_has_two_chunks_whether_or_not_they_are_written(name: str) -> None:
    lone = pptrace.simulate(schedule=name, pp=4, microbatches=8, network="ideal")
    written = pptrace.simulate(schedule=name, pp=4, microbatches=8, network="ideal", vp=2)

    assert lone.prepared.schedule == written.prepared.schedule
    assert lone.metrics.step_ns == written.metrics.step_ns
    assert lone.prepared.resolved.experiment.parallel.vp == 2


@pytest.mark.parametrize(
    ("name", "chunks", "message"),
    [
        ("zb-h1", 2, "zb-h1 keeps one chunk of the model on a rank, not 2 (interleaved-zb takes several)"),
        ("zb-h2", 2, "zb-h2 keeps one chunk of the model on a rank, not 2 (zb-v takes several)"),
        ("zb-v", 3, "zb-v keeps 2 chunks of the model on a rank, not 3"),
        ("v-half", 4, "v-half keeps 2 chunks of the model on a rank, not 4"),
        ("v-min", 1, "v-min keeps 2 chunks of the model on a rank, not 1"),
        (
            "interleaved-zb",
            1,
            "interleaved-zb needs at least 2 chunks of the model on a rank, not 1 (zb-h1 takes one)",
        ),
    ],
)
def test_chunks_that_do_not_fit_are_refused_in_one_line(name: str, chunks: int, message: str) -> None:
    check = OFFERS[name].check
    assert check is not None
    with pytest.raises(pptrace.PptraceError) as refused:
        check(ScheduleRequest(ranks=4, microbatches=8, chunks=chunks))

    assert message in str(refused.value)
    assert str(refused.value).count("\n") == 0
