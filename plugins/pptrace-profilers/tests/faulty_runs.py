"""Recorded runs of a simulated pipeline with faults, as files of PyTorch's profiler on hosts with gloo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from pptrace.measured.computations import extract_computations
from pptrace.measured.replay import Resimulation
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.measured.computations import Computations
    from pptrace.steps.schedule import Schedule

__all__ = ["MS", "healthy_step", "slow_actions", "slow_link", "write_run"]

MS = 1_000_000
US = 1_000
_SENT = {Kind.SEND_F: (Kind.F, 1, (Kind.F,)), Kind.SEND_B: (Kind.B, -1, (Kind.B, Kind.I))}
"""By kind of a send: the kind that computed it, the distance to the next stage, and the kinds that need it."""


def healthy_step(schedule: Schedule, seed: int = 1) -> Computations:
    """Return a step with jitter: forwards of 20 ms and backwards of 40 ms per rank, messages of about 0.3 ms."""
    chance = np.random.default_rng(seed)
    costs = Workload.uniform(schedule.stages, f_ns=20 * MS, b_ns=40 * MS, boundary_bytes=8192)
    step = extract_computations(simulate(schedule, costs, Flat(rate_kbps=100_000, latency_ns=200 * US), Policy()))
    durations, transfers = (
        (times * (1 + spread * chance.random(times.size))).astype(np.int64)
        for times, spread in ((step.duration_ns, 0.02), (step.transfers.duration_ns, 0.3))
    )
    gaps = (100 * US * chance.random(len(step))).astype(np.int64)
    return replace(
        step, duration_ns=durations, gap_ns=np.where(np.diff(step.rank, prepend=-1) == 0, gaps, 0),
        transfers=replace(step.transfers, duration_ns=transfers),
    )  # fmt: skip


def slow_actions(step: Computations, factor: float, **cells: int) -> Computations:
    """Return a step in which actions take longer: those with these values of columns, such as ``rank=1``."""
    chosen = np.ones(len(step), dtype=np.bool_)
    for name, value in cells.items():
        chosen &= getattr(step, name) == value
    return replace(
        step, duration_ns=np.where(chosen, (step.duration_ns * factor).astype(np.int64), step.duration_ns)
    )


def slow_link(step: Computations, by_ns: int, *links: tuple[int, int]) -> Computations:
    """Return a step in which messages from one rank to another arrive later; of all links by default."""
    sent = step.transfers
    chosen = np.zeros(len(sent), dtype=np.bool_)
    for source, target in links:
        chosen |= (sent.source == source) & (sent.target == target)
    return replace(step, transfers=replace(sent, duration_ns=sent.duration_ns + by_ns * (chosen | (not links))))


def write_run(
    folder: Path, step: Computations, hosts: Sequence[str] = (), offsets_ns: Sequence[int] = (), number: int = 0
) -> Path:
    """Write a file per rank, or add a step to these files, and return the folder.

    Args:
        folder: the folder.
        step: durations, gaps before actions, and times of messages from their departure to their arrival.
        hosts: the name of each rank's host; one host by default.
        offsets_ns: how much each rank's clock is ahead.
        number: the number of the step, which is added to the files of earlier steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ranks = step.placement.ranks
    # PyTorch runs the members of an overlapped pair one after another, each after its own message.
    in_turn = replace(step.order, pair=np.full_like(step.order.pair, -1))
    timeline = Resimulation.of_order(in_turn).run(step.times())
    ran = extract_computations(timeline)
    ends = {str(ran.action(row)): int(ran.end_ns[row]) for row in range(len(ran))}
    starts = {
        str(step.action(row)): ends[str(step.action(row))] - int(step.duration_ns[row]) for row in range(len(step))
    }
    free = {
        str(ran.action(row)): int(ran.end_ns[row - 1]) if row and ran.rank[row - 1] == ran.rank[row] else 0
        for row in range(len(ran))
    }
    events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]

    def add(rank: int, name: str, start_ns: int, end_ns: int, peer: int = -1) -> None:
        ahead_ns = 1000 * MS * (number + 1) + (offsets_ns[rank] if offsets_ns else 0)
        inputs = {"Concrete Inputs": ["", "", str(peer), "0"]} if peer >= 0 else {}
        events[rank].append({
            "ph": "X", "cat": "cpu_op" if peer >= 0 else "user_annotation", "name": name, "pid": rank, "tid": rank,
            "ts": (start_ns + ahead_ns) / US, "dur": (end_ns - start_ns) / US, "args": inputs,
        })  # fmt: skip

    for row in range(len(ran)):
        name = str(ran.action(row))
        if step.pair[row] < 0:
            add(int(ran.rank[row]), f"PP:{name}", starts[name], ends[name])
        elif row and step.pair[row] == step.pair[row - 1]:
            # PyTorch writes one range for both actions of an overlapped pair, with the wait for its first message.
            first = str(ran.action(row - 1))
            add(int(ran.rank[row]), f"PP:({first};{name})OVERLAP_F_B", free[first] + 4 * US, ends[name])
    sent = step.transfers
    for row in range(len(sent)):
        computed, onward, needing = _SENT[Kind(int(sent.kind[row]))]
        stage, microbatch = int(sent.stage[row]), int(sent.microbatch[row])
        source, target = int(sent.source[row]), int(sent.target[row])
        producers = [f"{stage}{kind.name}{microbatch}" for kind in (computed, Kind.I)]
        consumers = [f"{stage + onward}{kind.name}{microbatch}" for kind in needing]
        departure_ns = next(ends[name] for name in producers if name in ends)
        consumer = next(name for name in consumers if name in ends)
        arrival_ns = departure_ns + int(sent.duration_ns[row])
        # Where no time is between two actions, the receive of the second is posted before the send of the first.
        posted_ns = min(free[consumer] + 5 * US, starts[consumer] - 3 * US)
        # A message that is there already is received by a call of the host.
        received_ns = max(arrival_ns, min(posted_ns + 4 * US, starts[consumer]))
        add(source, "c10d::send", departure_ns, departure_ns + 2 * US, target)
        add(source, "gloo:send", departure_ns + US, arrival_ns)
        add(target, "c10d::recv_", posted_ns, posted_ns + 2 * US, source)
        add(target, "gloo:recv", posted_ns + US, received_ns)
    for rank, of_rank in enumerate(events):
        add(rank, f"ProfilerStep#{number}", -MS, max(ends.values()) + MS)
        file = folder / f"rank{rank}.json"
        earlier = json.loads(file.read_text(encoding="utf-8"))["traceEvents"] if number else []
        trace = {
            "schemaVersion": 1, "deviceProperties": [], "host_name": hosts[rank] if hosts else "one",
            "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": ranks},
            "baseTimeNanoseconds": 1_790_857_026_000_000_000,
            "traceEvents": [*earlier, *sorted(of_rank, key=lambda event: event["ts"])],
        }  # fmt: skip
        file.write_text(json.dumps(trace), encoding="utf-8")
    return folder
