"""Max-min fair rates at every instant against a plain progressive filling in fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from oracle_flows import Flow, fair_rates

from pptrace.config.choices import Sharing
from pptrace.sim.engines import FINER, Contention, run_jobs
from pptrace.sim.kernels.events import Log, SharedLinks
from pptrace.sim.kernels.sweep import Graph, Jobs

if TYPE_CHECKING:
    from pptrace.sim.engines import Ran


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Messages that arrive at given times, each on links of its own choice."""

    capacity: list[int]
    flows: list[Flow]
    arrives_ns: list[int]
    size_bytes: list[int]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    links, count = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    capacity = draw(st.lists(st.integers(5_000_000, 500_000_000), min_size=links, max_size=links))
    weights = st.dictionaries(st.integers(0, links - 1), st.integers(1, 3), min_size=1, max_size=4)
    few_times = draw(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=4))
    flows, arrives, sizes = [], [], []
    for _ in range(count):
        weight = draw(weights)
        alone = min(capacity[link] // times for link, times in weight.items())
        flows.append(Flow(weight=weight, cap=draw(st.sampled_from([alone, max(alone // 3, 1)]))))
        arrives.append(draw(st.sampled_from(few_times) | st.integers(0, 3_000_000)))
        sizes.append(draw(st.integers(1, 200_000_000)))
    return Traffic(capacity=capacity, flows=flows, arrives_ns=arrives, size_bytes=sizes)


def run_traffic(traffic: Traffic, sharing: Sharing) -> tuple[Ran, Log]:
    """Run each message as a task behind one that waits until it arrives."""
    count = len(traffic.flows)
    tasks = 2 * count
    duration = np.zeros(tasks, dtype=np.int64)
    duration[0::2] = traffic.arrives_ns
    following = np.arange(1, tasks + 1, dtype=np.int32)
    following[1::2] = -1
    none = np.full(tasks, -1, dtype=np.int32)
    graph = Graph(
        duration=duration, lag=duration * 0, following=following, following_peer=none,
        edge_ptr=np.zeros(tasks + 1, dtype=np.int32), edge=none[:0], sender_row=none, rows=tasks,
    )  # fmt: skip
    links = [sorted(flow.weight) for flow in traffic.flows]
    shared = SharedLinks(
        number=np.arange(len(traffic.capacity), dtype=np.int32),
        rate_kbps=np.array(traffic.capacity, dtype=np.int64),
        ptr=np.cumsum([0, *map(len, links)]).astype(np.int32),
        link=np.array([link for own in links for link in own], dtype=np.int32),
        weight=np.array(
            [flow.weight[link] for flow in traffic.flows for link in sorted(flow.weight)], dtype=np.int32
        ),
    )
    of_task = np.full(tasks, -1, dtype=np.int32)
    of_task[1::2] = np.arange(count)
    jobs = Jobs(
        of_task=of_task,
        task=np.arange(1, tasks, 2, dtype=np.int32),
        volume=np.array(traffic.size_bytes, dtype=np.int64) * 1_000_000 * FINER,
        full_rate=np.array([flow.cap for flow in traffic.flows], dtype=np.int64) * FINER,
        overhead_ns=np.zeros(count, dtype=np.int64),
        path=np.arange(count, dtype=np.int32),
        kind=np.zeros(count, dtype=np.int8),
        rank=np.zeros(count, dtype=np.int32),
        peer=np.zeros(count, dtype=np.int32),
    )
    return run_jobs(graph, 1, jobs, shared, Contention(links=sharing))


def rate_table(ran: Ran, log: Log) -> list[tuple[int, dict[int, tuple[Fraction, int]]]]:
    """Return, for each instant at which anything changes, the rate and the limit of each running flow."""
    changes: dict[int, dict[int, tuple[Fraction, int]]] = {}
    columns = (log.task, log.time, log.rate, log.limit)
    for task, at, rate, limit in zip(*(column.tolist() for column in columns), strict=True):
        changes.setdefault(at, {})[task // 2] = (Fraction(rate, FINER), limit)
    times = sorted({*changes, *ran.end_ns[1::2].tolist()})
    running: dict[int, tuple[Fraction, int]] = {}
    table = []
    for time in times:
        running = {flow: now for flow, now in running.items() if ran.end_ns[2 * flow + 1] > time}
        running |= {flow: now for flow, now in changes.get(time, {}).items() if ran.end_ns[2 * flow + 1] > time}
        table.append((time, dict(running)))
    return table


@given(traffics())
def test_at_every_instant_rates_are_those_of_a_progressive_filling(traffic: Traffic) -> None:
    ran, rates = run_traffic(traffic, Sharing.MAX_MIN)

    for _, running in rate_table(ran, rates):
        flows = [traffic.flows[flow] for flow in running]
        for (rate, _), expected in zip(running.values(), fair_rates(flows, traffic.capacity), strict=True):
            assert abs(rate - expected) <= expected / 1_000_000


@given(traffics())
def test_no_link_is_above_its_capacity_and_all_bytes_arrive(traffic: Traffic) -> None:
    ran, rates = run_traffic(traffic, Sharing.MAX_MIN)

    table = rate_table(ran, rates)
    moved = [Fraction(0)] * len(traffic.flows)
    for (time, running), (until, _) in zip(table, [*table[1:], (0, {})], strict=True):
        for link, whole in enumerate(traffic.capacity):
            assert (
                sum(rate * traffic.flows[flow].weight.get(link, 0) for flow, (rate, _) in running.items()) <= whole
            )
        for flow, (rate, _) in running.items():
            moved[flow] += rate * (until - time) / 1_000_000
    for flow, size in enumerate(traffic.size_bytes):
        last = rates.rate[rates.task == 2 * flow + 1]
        if ran.end_ns[2 * flow + 1] > traffic.arrives_ns[flow]:
            assert 0 <= moved[flow] - size <= Fraction(int(last[-1]), 1_000_000 * FINER)


@given(traffics())
def test_every_flow_is_at_its_cap_or_has_a_full_link_on_which_none_is_faster(traffic: Traffic) -> None:
    ran, rates = run_traffic(traffic, Sharing.MAX_MIN)

    rounding = Fraction(1, FINER)
    for _, running in rate_table(ran, rates):
        on: dict[int, list[int]] = {}
        for flow in running:
            for link in traffic.flows[flow].weight:
                on.setdefault(link, []).append(flow)
        for flow, (rate, _) in running.items():
            at_cap = rate == traffic.flows[flow].cap
            assert at_cap or any(
                full(traffic, running, link, on[link])
                and all(running[other][0] <= rate + 2 * rounding for other in on[link])
                for link in traffic.flows[flow].weight
            )


def full(traffic: Traffic, running: dict[int, tuple[Fraction, int]], link: int, users: list[int]) -> bool:
    """Whether a link cannot give each of its flows two steps of rounding more."""
    taken = sum(running[flow][0] * traffic.flows[flow].weight[link] for flow in users)
    wanted = sum(traffic.flows[flow].weight[link] for flow in users)
    return traffic.capacity[link] - taken <= Fraction(2 * wanted, FINER)
