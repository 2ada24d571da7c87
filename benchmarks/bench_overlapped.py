"""Schedules with overlapped pairs, made and simulated, beside 1F1B; and DualPipeV beside PyTorch's constructor.

    python benchmarks/bench_overlapped.py [--ranks 64] [--microbatches 1024]

Printed are the best of six runs after the first, in millions of actions per second, and how long PyTorch's
constructor takes, once.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from types import SimpleNamespace

from pptrace.network.contract import Flat
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload

NAMES = {"1f1b": 1, "interleaved-1f1b": 2, "dualpipe": 1, "dualpipe-v": 2, "combined-1f1b": 2}
"""Schedules, and chunks per rank."""
NETWORK = Flat(rate_kbps=50_000_000, latency_ns=5_000)


def rates(name: str, ranks: int, microbatches: int) -> tuple[float, float, float]:
    """Return the seconds that making a table takes, then actions per second of making it, and of both."""
    offer = Registry.load().schedules[name].offer
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=NAMES[name])
    workload = Workload.uniform(ranks * NAMES[name], f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=2**25)
    made, both, actions = [], [], 0
    for _ in range(7):
        start = time.process_time()
        table = offer.build(request)
        made.append(time.process_time() - start)
        simulate(table, workload, NETWORK)
        both.append(time.process_time() - start)
        actions = len(table)
    return min(made[1:]), actions / min(made[1:]), actions / min(both[1:])


def constructed(ranks: int, microbatches: int) -> float:
    """Return the seconds that PyTorch's constructor of DualPipeV takes; it also places messages."""
    from torch.distributed.pipelining import schedules

    stages = [SimpleNamespace(group_rank=0, group_size=ranks, submod=None, num_stages=2 * ranks) for _ in range(2)]
    start = time.process_time()
    schedules.ScheduleDualPipeV(stages, microbatches)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1024)
    given = parser.parse_args()
    ours = {name: rates(name, given.ranks, given.microbatches) for name in NAMES}
    for name, (_, made, both) in ours.items():
        of_plain = both / ours["1f1b"][2]
        figures = f"made {made / 1e6:6.1f} M/s, with simulation {both / 1e6:5.2f} M/s"
        print(f"{name:>18}: {figures} = {of_plain:.2f} of 1F1B's")
    if importlib.util.find_spec("torch") is not None:
        took = constructed(given.ranks, given.microbatches)
        print(f"PyTorch's DualPipeV: {took:.2f} s, ours {took / ours['dualpipe-v'][0]:.0f} times faster")


if __name__ == "__main__":
    main()
