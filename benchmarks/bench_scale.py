"""What a step costs as it grows, and how that grows: processor time and memory, over ranks, microbatches and more.

    python benchmarks/bench_scale.py            # one step of 12 million actions, warm, with its metrics
    python benchmarks/bench_scale.py --fit      # exponents, each over five sizes

The step: 128 ranks, 8,192 microbatches, interleaved, two chunks each; an action is a computation or a message's
end, as PyTorch counts. It is built, simulated and measured. Warm is the least of three runs after a first one in
the same process; memory is the most that the process ever held. ``--fit`` doubles one size at a time and prints
least times with the slope of their logarithms; each kind of size has its own process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.network.contract import Flat
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORK = Flat(rate_kbps=50_000_000, latency_ns=5_000)
RANKS, MICROBATCHES = 128, 8192
ROUNDS = 3


def step(ranks: int, microbatches: int, chunks: int = 2) -> tuple[dict[str, float], int]:
    """Return the processor seconds of building, simulating and measuring a step, and how many actions it has."""
    marks = [time.process_time()]
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks)
    schedule: Any = Registry.load().schedules["interleaved-1f1b" if chunks > 1 else "1f1b"].offer.build(request)
    marks.append(time.process_time())
    costs = Workload.uniform(
        schedule.stages, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=2**25, activation_bytes=2**30,
        reduce_ns=5_000_000, optimizer_ns=1_000_000,
    )  # fmt: skip
    timeline = simulate(schedule, costs, NETWORK)
    marks.append(time.process_time())
    metrics = measure(timeline, costs)
    _ = metrics.path, metrics.groups  # computed at the first use
    marks.append(time.process_time())
    names = ("built", "simulated", "measured")
    return dict(zip(names, np.diff(marks).tolist(), strict=True)), len(schedule) + 4 * microbatches * (
        schedule.stages - 1
    )


def whole(ranks: int, microbatches: int) -> None:
    """Print what the large step takes."""
    step(16, 64)
    imported = _most_bytes()
    runs = []
    for turn in range(ROUNDS + 1):
        start = time.perf_counter()
        parts, actions = step(ranks, microbatches)
        runs.append((sum(parts.values()), time.perf_counter() - start, parts))
        if not turn:
            print(f"{actions:,} actions (load {os.getloadavg()[0]:.1f})")
    processor, wall, parts = min(runs[1:], key=lambda run: run[0])
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    print(f"first {runs[0][0]:.2f} s of processor; warm {processor:.2f} s ({spent}), {wall:.2f} s of wall")
    held = _most_bytes()
    print(f"most memory {held / 2**30:.2f} GiB, {(held - imported) / actions:.0f} bytes per action")


def _ranks(size: int) -> Callable[[], object]:
    return lambda: step(size, 1024)


def _microbatches(size: int) -> Callable[[], object]:
    return lambda: step(64, size)


def _replicas(size: int) -> Callable[[], object]:
    return lambda: _run(size, 1)


def _points(size: int) -> Callable[[], object]:
    return lambda: _run(8, size)


def _run(replicas: int, points: int) -> None:
    """Simulate configurations as a sweep does, each of a pipeline that stands for all of its replicas."""
    from pptrace import simulate as configured

    for point in range(points):
        configured({
            "schedule": {"name": "1f1b"}, "parallel": {"pp": 8, "dp": replicas},
            "batch": {"microbatches": 32 + point % 8},
        })  # fmt: skip


SORTS: dict[str, tuple[Callable[[int], Callable[[], object]], list[int]]] = {
    "ranks": (_ranks, [16, 32, 64, 128, 256]),
    "microbatches": (_microbatches, [512, 1024, 2048, 4096, 8192]),
    "replicas": (_replicas, [1, 8, 64, 512, 4096]),
    "points": (_points, [4, 8, 16, 32, 64]),
}


def grown(sort: str) -> tuple[list[float], list[int]]:
    """Return the least processor seconds at each size of a sort, and the most bytes held by then."""
    times, held = [], []
    make, sizes = SORTS[sort]
    for size in sizes:
        run = make(size)
        run()
        least = float("inf")
        for _ in range(ROUNDS):
            start = time.process_time()
            run()
            least = min(least, time.process_time() - start)
        times.append(least)
        held.append(_most_bytes())
    return times, held


def compiled(sort: str) -> tuple[list[float], list[int]]:
    """Return the same with kernels compiled at every size, so that one road is measured."""
    with always_compiled():
        return grown(sort)


def fit(sorts: list[str]) -> None:
    """Print times and memory over sizes, and the exponents of both."""
    for sort in sorts:
        sizes = SORTS[sort][1]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            times, held = pool.apply(compiled, (sort,))
        slopes = [np.polyfit(np.log(sizes), np.log(values), 1)[0] for values in (times, held)]
        load = os.getloadavg()[0]
        print(f"{sort}: seconds ~ {sort}^{slopes[0]:.2f}, bytes ~ {sort}^{slopes[1]:.2f} (load {load:.1f})")
        for size, seconds, most in zip(sizes, times, held, strict=True):
            print(f"{size:>8}: {seconds:8.3f} s of processor, {most / 2**20:7.0f} MiB", flush=True)


def _most_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    parser.add_argument("--fit", nargs="*", choices=list(SORTS))
    given = parser.parse_args()
    if given.fit is None:
        whole(given.ranks, given.microbatches)
    else:
        fit(given.fit or list(SORTS))


if __name__ == "__main__":
    main()
