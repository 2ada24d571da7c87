"""What each way to issue messages costs the simulator: 1F1B and interleaved 1F1B, beside ``async`` in one run.

    python benchmarks/bench_policies.py [--ranks 128] [--microbatches 2048] [--rounds 5]

Policies take turns in one process, round by round, after a first round that compiles. Printed are the least
processor times of whole simulations (schedule given, policy built, timeline made), actions per second of that, and
the ratio to ``async``. An action is a computation or a message's end.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from pptrace.network.contract import Flat
from pptrace.plugins.construction import build_policy, checked_options
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload

NETWORK = Flat(rate_kbps=50_000_000, latency_ns=5_000)
BOUNDARY = 64 * 2**20
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "async": ("async", {}),
    "ordered": ("ordered", {}),
    "batched": ("batched", {}),
    "megatron": ("megatron", {}),
    "megatron, no overlap": ("megatron", {"overlap_p2p_comm": False}),
    "torch": ("torch", {}),
    "deepspeed": ("deepspeed", {}),
}
CANNOT = {
    "1f1b": {"megatron, no overlap"},  # megatron's default there
    "interleaved-1f1b": {"batched", "deepspeed"},  # deadlocks; runs 1F1B alone
}


def compare(registry: Registry, name: str, chunks: int, given: argparse.Namespace) -> None:
    """Print the figures of one schedule under every policy that runs it."""
    request = ScheduleRequest(ranks=given.ranks, microbatches=given.microbatches, chunks=chunks)
    schedule: Any = registry.schedules[name].offer.build(request)
    costs = Workload.uniform(schedule.stages, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=BOUNDARY)
    names = [policy for policy in POLICIES if policy not in CANNOT[name]]
    least = dict.fromkeys(names, float("inf"))
    for turn in range(given.rounds + 1):
        for policy in names:
            offer, options = POLICIES[policy]
            provided = registry.message_policies[offer]
            begin = time.process_time()
            checked = checked_options(provided, options, "p2p.options")
            simulate(schedule, costs, NETWORK, build_policy(provided, schedule, checked))
            if turn:
                least[policy] = min(least[policy], time.process_time() - begin)
    messages = 2 * given.microbatches * (schedule.stages - 1)
    actions = len(schedule) + 2 * messages
    load = os.getloadavg()[0]
    print(f"{name}, {given.ranks} x {given.microbatches}, {chunks} chunks: {actions:,} actions (load {load:.1f})")
    for policy, seconds in least.items():
        rate, ratio = actions / seconds / 1e6, seconds / least["async"]
        print(f"{policy:>22}: {seconds:.3f} s of processor, {rate:5.2f} M/s, {ratio:.2f} times async", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--microbatches", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    registry = Registry.load()
    for name, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)):
        compare(registry, name, chunks, given)


if __name__ == "__main__":
    main()
