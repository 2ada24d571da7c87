"""All fixed forms beside 1F1B, and the zero-bubble family beside PyTorch's constructors where torch is installed.

    python benchmarks/bench_zero_bubble.py [--ranks 64] [--microbatches 1024] [--rounds 3]

Fixed forms are built and simulated, in turn with 1F1B; printed are least processor times over the rounds, actions
per second, and their ratio to 1F1B's. No table that a plugin has kept is used again. PyTorch's constructors, which
also place messages, are timed once (minutes). Generation is for 16 ranks, 64 microbatches, unequal times and a
memory limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule

FAMILY = {"zb-h1": 1, "zb-h2": 1, "zb-v": 2, "v-half": 2, "v-min": 2, "interleaved-zb": 2}
FIXED = {
    **FAMILY, "gpipe": 1, "eager-1f1b": 1, "seq-1f1b": 1, "interleaved-1f1b": 2, "looped-bfs": 2, "chimera": 1,
    "hanayo": 1, "dualpipe": 1, "dualpipe-v": 2, "combined-1f1b": 2, "stp": 2,
}  # fmt: skip
TORCH = {"zb-h1": "InterleavedZeroBubble", "interleaved-zb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble"}


def forget() -> None:
    """Clear what plugins keep of tables made before."""
    for module in [module for name, module in sys.modules.items() if name.startswith("pptrace_")]:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def timed(name: str, chunks: int, ranks: int, microbatches: int) -> tuple[float, float, int]:
    """Return the seconds of building and of simulating, and how many actions there are."""
    offer = Registry.load().schedules[name].offer
    options = {"order": "fixed"} if name in FAMILY else {}
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=options)
    forget()
    start = time.process_time()
    table: Schedule = offer.build(request)
    built = time.process_time() - start
    times = {"f_ns": 1_000_000, "i_ns": 1_000_000, "w_ns": 1_000_000, "b_ns": 2_000_000}
    workload = Workload.uniform(table.stages, **times)
    start = time.process_time()
    simulate(table, workload)
    return built, time.process_time() - start, len(table)


def constructed(name: str, chunks: int, ranks: int, microbatches: int) -> float:
    """Return the seconds that PyTorch's constructor takes."""
    from torch.distributed.pipelining import schedules

    stage = SimpleNamespace(group_rank=0, group_size=ranks, submod=None, num_stages=ranks * chunks)
    start = time.process_time()
    schedules.get_schedule_class(TORCH[name])([stage] * chunks, microbatches)
    return time.process_time() - start


def generated(name: str, chunks: int, ranks: int = 16, microbatches: int = 64) -> float:
    """Return the seconds of making a table for times and memory."""
    stages = ranks * chunks
    f, i, w = ((time // chunks,) * stages for time in (11_347_000, 11_248_000, 8_132_000))
    request = ScheduleRequest(
        ranks=ranks, microbatches=microbatches, chunks=chunks, f_ns=f, i_ns=i, w_ns=w, b_ns=i, transfer_ns=377_000,
        activation_bytes=(2**30,) * stages, weight_activation_bytes=(2**29,) * stages, device_bytes=2**36,
        stage_bytes=(2**33 // chunks,) * stages,
    )  # fmt: skip
    offer = Registry.load().schedules[name].offer
    forget()
    start = time.perf_counter()
    offer.build(request)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    size = (given.ranks, given.microbatches)
    for name, chunks in {"1f1b": 1, **FIXED}.items():
        timed(name, chunks, *size)
    for name, chunks in FIXED.items():
        pairs = [(timed("1f1b", 1, *size), timed(name, chunks, *size)) for _ in range(given.rounds)]
        first, own = (min(runs, key=lambda run: run[0] + run[1]) for runs in zip(*pairs, strict=True))
        rates = [run[2] / (run[0] + run[1]) for run in (first, own)]
        line = (
            f"{name:>15}: built {own[0] * 1e3:6.1f} ms, simulated {own[1] * 1e3:6.1f} ms, {own[2]} actions, "
            f"{rates[1] / 1e6:.2f} M/s = {rates[1] / rates[0]:.2f} of 1f1b's"
        )
        if name in TORCH and importlib.util.find_spec("torch") is not None:
            torch = constructed(name, chunks, *size)
            line += f"; PyTorch {torch:.1f} s = {torch / own[0]:.0f} times"
        print(f"{line} (load {os.getloadavg()[0]:.1f})", flush=True)
    for name, chunks in FAMILY.items():
        print(
            f"{name:>15}: generated for 16 ranks, 64 microbatches in {generated(name, chunks):.2f} s", flush=True
        )


if __name__ == "__main__":
    main()
