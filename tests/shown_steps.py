"""Steps that browser tests look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import in_flight, send_rates
from pptrace.timeline.critical_path import why
from pptrace.timeline.timeline import Counter, Routes

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["MICROBATCHES", "RANKS", "STEPS", "step"]

RANKS, MICROBATCHES = 12, 16
NODE = 3
"""Ranks of a node."""
WIRES = Flat(rate_kbps=50_000_000, latency_ns=5_000, overhead_ns=1_000)
STEPS = {
    "async": (PolicyName.ASYNC, WIRES),
    "links": (PolicyName.ASYNC, WIRES),
    "ideal": (PolicyName.ASYNC, Flat()),
    "blocking": (PolicyName.BLOCKING, Flat(rate_kbps=50_000_000)),
    "why": (PolicyName.ORDERED, WIRES),
}


def one_f_one_b() -> Schedule:
    rows = []
    for rank in range(RANKS):
        early = min(MICROBATCHES, RANKS - rank - 1)
        row = [f"{rank}F{microbatch}" for microbatch in range(early)]
        for microbatch in range(MICROBATCHES - early):
            row += [f"{rank}F{early + microbatch}", f"{rank}B{microbatch}"]
        rows.append(row + [f"{rank}B{microbatch}" for microbatch in range(MICROBATCHES - early, MICROBATCHES)])
    return Schedule.from_rows(rows)


def step(name: str) -> Timeline:
    policy, network = STEPS[name]
    costs = Workload.uniform(
        RANKS, f_ns=1_000_000, b_ns=2_000_001, boundary_bytes=1 << 24, reduce_ns=700_000, optimizer_ns=50_000
    )
    timeline = simulate(one_f_one_b(), costs, network, Policy(name=policy))
    counters = sorted((*in_flight(timeline), *send_rates(timeline)), key=lambda counter: counter.rank)
    timeline = replace(timeline, counters=tuple(counters), provenance={"version": "0", "schedule": "1f1b"})
    if name == "why":
        return replace(timeline, why=why(timeline))
    return over_links(timeline) if name == "links" else timeline


def over_links(timeline: Timeline) -> Timeline:
    """Put three ranks on a node, whose switch has one wire to the spine, and count messages on each link."""
    names = [f"gpu{rank}>switch{rank // 3}" for rank in range(RANKS)]
    names += [f"switch{rank // 3}>gpu{rank}" for rank in range(RANKS)]
    names += [f"switch{node}>spine" for node in range(RANKS // 3)]
    names += [f"spine>switch{node}" for node in range(RANKS // 3)]
    rank, kind = timeline.rank_of_row().tolist(), timeline.kind.tolist()
    ends = [
        (here, here + (1 if kind[row] == Kind.SEND_F else -1)) if kind[row] in {Kind.SEND_F, Kind.SEND_B} else None
        for row, here in enumerate(rank)
    ]
    result = [[] if pair is None else [names.index(name) for name in route(*pair)] for pair in ends]
    routes = Routes(
        name=tuple(names),
        rate_kbps=np.repeat([450_000_000, 50_000_000], [2 * RANKS, 2 * (RANKS // 3)]),
        ptr=np.concatenate([[0], np.cumsum([len(item) for item in result])]),
        link=np.array([link for item in result for link in item]),
    )
    row = np.repeat(np.arange(len(timeline)), np.diff(routes.ptr))
    counters = [messages_on(timeline, row[routes.link == link], name) for link, name in enumerate(names)]
    return replace(timeline, routes=routes, counters=(*filter(None, counters), *timeline.counters))


def route(source: int, target: int) -> list[str]:
    here, there = source // 3, target // 3
    between = [] if here == there else [f"switch{here}>spine", f"spine>switch{there}"]
    return [f"gpu{source}>switch{here}", *between, f"switch{there}>gpu{target}"]


def messages_on(timeline: Timeline, rows: np.ndarray, name: str) -> Counter | None:
    at, place = np.unique(np.concatenate([timeline.start_ns[rows], timeline.end_ns[rows]]), return_inverse=True)
    change = np.zeros(at.size, dtype=np.int64)
    np.add.at(change, place, np.repeat([1, -1], rows.size))
    return Counter(rank=-1, name=name, unit="messages", at_ns=at, value=np.cumsum(change)) if at.size else None
