"""The event kernel runs what the sweep runs where nothing is shared, and shares by the book where something is."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import interpreted_kernels
from small_networks import Switch, Wires
from strategies import policies, valid_schedules, workloads

import pptrace_kernel
from pptrace.config.choices import Sharing
from pptrace.errors import DeadlockError, ScheduleError
from pptrace.network.contract import Flat
from pptrace.sim import simulation as module
from pptrace.sim.engines import Contention, shared_links
from pptrace.sim.simulation import Simulated, lower_step, simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.network.contract import Network
    from pptrace.steps.message_calls import Policy
    from pptrace.timeline.timeline import Timeline

SHARINGS = (Sharing.FIFO, Sharing.MAX_MIN)


@contextmanager
def every_link_kept() -> Iterator[None]:
    with patch.object(module, "shared_links", partial(shared_links, prune=False)):
        yield


@st.composite
def steps(draw: st.DrawFn) -> tuple[Schedule, Workload, Policy]:
    own = draw(st.booleans())
    schedule = draw(valid_schedules(messages=own, copies=not own))
    return schedule, draw(workloads(schedule, min_ns=0)), draw(policies())


def outcome(schedule: Schedule, workload: Workload, network: Network, policy: Policy, **given: Any) -> Any:
    try:
        return lower_step(schedule, workload, network, policy, **given).run()
    except DeadlockError as error:
        return str(error)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert one.timeline.difference(other.timeline) == ""


@pytest.mark.parametrize("sharing", SHARINGS)
@given(step=steps(), latency=st.integers(0, 9), overhead=st.integers(0, 5))
def test_messages_that_never_meet_run_as_in_the_sweep(
    sharing: Sharing, step: tuple[Schedule, Workload, Policy], latency: int, overhead: int
) -> None:
    schedule, workload, policy = step
    figures = {"rate_kbps": 100_000_000, "latency_ns": latency, "overhead_ns": overhead}

    flat = outcome(schedule, workload, Flat(**figures), policy)
    with every_link_kept():
        wired = outcome(
            schedule, workload, Wires(endpoints=schedule.ranks, **figures), policy,
            contention=Contention(links=sharing),
        )  # fmt: skip

    assert_same(flat, wired)


@given(step=steps())
def test_ports_that_hold_everything_change_nothing(step: tuple[Schedule, Workload, Policy]) -> None:
    schedule, workload, policy = step
    rate = 50_000_000
    switch = Switch(
        endpoints=schedule.ranks, rate_kbps=rate * 100, flow_rate_kbps=rate, latency_ns=3, overhead_ns=1
    )

    flat = outcome(schedule, workload, Flat(rate_kbps=rate, latency_ns=3, overhead_ns=1), policy)
    pruned = outcome(schedule, workload, switch, policy)
    with every_link_kept():
        kept = outcome(schedule, workload, switch, policy)

    assert_same(flat, kept)
    assert_same(flat, pruned)


@pytest.mark.parametrize("sharing", SHARINGS)
@given(step=steps(), size=st.integers(1, 100_000), slow=st.booleans())
def test_links_that_are_left_out_change_nothing(
    sharing: Sharing, step: tuple[Schedule, Workload, Policy], size: int, *, slow: bool
) -> None:
    schedule, workload, policy = step
    workload = Workload.uniform(
        schedule.stages, edges=schedule.placement.edges.shape[0], f_ns=workload.f_ns, b_ns=workload.b_ns,
        boundary_bytes=size, reduce_ns=workload.reduce_ns,
    )  # fmt: skip
    switch = Switch(endpoints=schedule.ranks, rate_kbps=1_000_000_000, latency_ns=1)
    contention = Contention(links=sharing, compute_permille=828 if slow else 1000, communication_permille=1000)

    pruned = outcome(schedule, workload, switch, policy, contention=contention)
    with every_link_kept():
        kept = outcome(schedule, workload, switch, policy, contention=contention)

    assert_same(pruned, kept)


@pytest.mark.parametrize("sharing", SHARINGS)
@given(step=steps(), size=st.integers(1, 100_000), slow=st.sampled_from([1000, 828]))
def test_compiled_and_interpreted_agree_bit_for_bit_with_contention(
    sharing: Sharing, step: tuple[Schedule, Workload, Policy], size: int, slow: int
) -> None:
    schedule, drawn, policy = step
    workload = Workload.uniform(
        schedule.stages, edges=schedule.placement.edges.shape[0], f_ns=drawn.f_ns, b_ns=drawn.b_ns,
        boundary_bytes=size, reduce_ns=drawn.reduce_ns,
    )  # fmt: skip
    switch = Switch(endpoints=schedule.ranks, rate_kbps=1_000_000_000, latency_ns=1)
    contention = Contention(links=sharing, compute_permille=slow, communication_permille=slow)

    with interpreted_kernels():
        interpreted = outcome(schedule, workload, switch, policy, contention=contention)
    with pptrace_kernel.always_compiled():
        compiled = outcome(schedule, workload, switch, policy, contention=contention)

    assert_same(interpreted, compiled)
    if isinstance(interpreted, Simulated):
        for name in ("row", "at_ns", "rate_kbps", "limit"):
            assert np.array_equal(getattr(interpreted.traffic, name), getattr(compiled.traffic, name))


FORK = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0"], ["1F1", "1B1"]])
"""Rank 0 sends microbatch 0 to rank 1 and microbatch 1 to rank 2."""


def fork(sharing: Sharing, network: Network | None = None, **costs: Any) -> Simulated:
    workload = Workload.uniform(2, f_ns=[10, 1], b_ns=[1, 2], **{"boundary_bytes": 1000, **costs})
    network = network or Switch(endpoints=3, rate_kbps=10_000_000)
    return lower_step(FORK, workload, network, contention=Contention(links=sharing)).run()


def slices(timeline: Timeline, kind: Kind) -> list[tuple[int, int]]:
    rows = np.flatnonzero(timeline.kind == kind)
    return sorted(zip(timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), strict=True))


def test_two_messages_share_a_port_and_the_first_is_faster_again_alone() -> None:
    # 1000 bytes at 10 bytes/ns take 100 ns alone. From 10 to 20 alone (100 bytes), then half each.
    step = fork(Sharing.MAX_MIN)

    # 900 bytes left at 5 bytes/ns: until 200. Then 100 bytes are left of the other: until 210.
    assert slices(step.timeline, Kind.SEND_F) == [(10, 200), (20, 210)]


def test_under_fifo_the_second_message_waits_for_the_port() -> None:
    assert slices(fork(Sharing.FIFO).timeline, Kind.SEND_F) == [(10, 110), (20, 210)]


def test_without_sharing_both_go_as_if_alone() -> None:
    assert slices(fork(Sharing.NONE).timeline, Kind.SEND_F) == [(10, 110), (20, 120)]


@pytest.mark.parametrize(("sharing", "lost"), [(Sharing.MAX_MIN, 90 + 90), (Sharing.FIFO, 90), (Sharing.NONE, 0)])
def test_what_sharing_costs_is_contention(sharing: Sharing, lost: int) -> None:
    # Rank 1 computes first and is filling; a second microbatch each makes the waits count.
    timeline = fork(sharing).timeline
    rows = np.flatnonzero(timeline.kind == Kind.SEND_F)

    late = timeline.end_ns[rows] - timeline.start_ns[rows] - timeline.uncontended_ns[rows]

    assert late.sum() == lost


def test_halving_a_port_moves_idle_time_to_contention_and_everything_still_sums() -> None:
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F2", "1B0", "1B2"], ["1F1", "1B1"]]
    schedule = Schedule.from_rows(rows)
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=1000)

    def step(rate: int) -> Any:
        network = Switch(endpoints=3, rate_kbps=rate, flow_rate_kbps=5_000_000)
        return measure(simulate(schedule, workload, network), workload)

    wide, narrow = step(10_000_000), step(5_000_000)

    assert wide.idle_ns[:, IdleCause.CONTENTION].sum() == 0
    assert narrow.idle_ns[:, IdleCause.CONTENTION].sum() > 0
    assert narrow.step_ns > wide.step_ns
    assert (narrow.busy_ns + narrow.idle_ns.sum(axis=1) == narrow.step_ns).all()


@given(step=steps(), size=st.integers(1, 100_000))
def test_under_fifo_no_two_messages_are_on_one_link(step: tuple[Schedule, Workload, Policy], size: int) -> None:
    schedule, workload, _ = step
    workload = Workload.uniform(
        schedule.stages, edges=schedule.placement.edges.shape[0], f_ns=workload.f_ns, boundary_bytes=size
    )
    switch = Switch(endpoints=schedule.ranks, rate_kbps=1_000_000_000)

    done = lower_step(schedule, workload, switch, contention=Contention(links=Sharing.FIFO)).run()

    assert done.traffic is not None
    moving = done.traffic.segments(done.timeline.start_ns, done.timeline.end_ns)
    routes = done.traffic.routes()
    held: dict[int, list[tuple[int, int]]] = {}
    for row, start, end, rate in zip(moving.row, moving.start_ns, moving.end_ns, moving.rate_kbps, strict=True):
        for link in routes.link[routes.ptr[row] : routes.ptr[row + 1]].tolist() if rate else ():
            held.setdefault(link, []).append((int(start), int(end)))
    for times in held.values():
        times.sort()
        assert all(before[1] <= behind[0] for before, behind in itertools.pairwise(times))


def test_a_message_too_large_for_the_fine_counting_of_shared_links_is_refused() -> None:
    with pytest.raises(ScheduleError, match="too large for shared links"):
        fork(Sharing.MAX_MIN, boundary_bytes=2**37)


def test_every_flow_of_a_timeline_moves_its_bytes() -> None:
    step = fork(Sharing.MAX_MIN)
    assert step.traffic is not None

    moving = step.traffic.segments(step.timeline.start_ns, step.timeline.end_ns)

    moved: dict[int, Fraction] = {}
    for row, start, end, rate in zip(
        moving.row.tolist(),
        moving.start_ns.tolist(),
        moving.end_ns.tolist(),
        moving.rate_kbps.tolist(),
        strict=True,
    ):
        moved[row] = moved.get(row, Fraction(0)) + Fraction(rate * (end - start), 1_000_000)
    assert {row: int(step.timeline.size_bytes[row]) for row in moved} == {
        row: round(size) for row, size in moved.items()
    }
