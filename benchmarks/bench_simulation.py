"""Whole simulations and the sweep kernel alone, beside PyTorch's unit-step simulator where torch is installed.

    python benchmarks/bench_simulation.py [--ranks 128] [--microbatches 2048] [--policy async]

An action is counted as PyTorch counts it: computes, SENDs and RECVs. Warm is the best of three runs
after a first one in the same process; memory is (peak RSS - RSS after import) / actions. Each step runs in a
worker process and so on one core; ``performance.py`` also measures two.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import multiprocessing
import resource
import time
from typing import Any

import llvmlite.binding  # noqa: F401 - imported first, so that its own memory is not counted

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.engines import run_graph
from pptrace.sim.lowering import lower
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

NETWORK = Flat(rate_kbps=50_000_000, latency_ns=5_000)


def rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def whole(name: str, ranks: int, microbatches: int, chunks: int, policy: Policy) -> dict[str, Any]:
    offer = Registry.load().schedules[name].offer
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks)
    stages = ranks * chunks
    workload = Workload.uniform(
        stages, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=2**25, activation_bytes=2**30,
        reduce_ns=5_000_000, optimizer_ns=1_000_000,
    )  # fmt: skip
    before, times, actions = rss(), [], 0
    for _ in range(4):
        start = time.perf_counter()
        schedule = offer.build(request)
        timeline = simulate(schedule, workload, NETWORK, policy)
        metrics = measure(timeline, workload)
        _ = metrics.path, metrics.groups  # computed at the first use
        times.append(time.perf_counter() - start)
        hops = timeline.size_bytes > 0
        actions = len(schedule) + 2 * int(hops.sum())
        del timeline, hops  # the next run's peak is its own
    memory = (rss() - before) / actions
    graph = lower(schedule, workload, NETWORK, policy)
    sweeps = []
    for _ in range(5):
        start = time.perf_counter()
        done = run_graph(graph).done
        sweeps.append(time.perf_counter() - start)
    return {
        "actions": actions, "cold_s": times[0], "warm_s": min(times[1:]), "bytes": memory,
        "sweep": done / min(sweeps), "tasks": done,
    }  # fmt: skip


def torch_unit_steps(ranks: int, microbatches: int) -> dict[str, Any]:
    """Time PyTorch's own road for 1F1B: order, sends and receives, unit-step dry run."""
    from torch.distributed.pipelining import schedules as t

    start = time.perf_counter()
    rows: dict[int, list[Any]] = {}
    for rank in range(ranks):
        warm = min(ranks - 1 - rank, microbatches)
        row = [t._Action(rank, t.F, microbatch) for microbatch in range(warm)]  # noqa: SLF001 - it has no public form
        for microbatch in range(microbatches - warm):
            row += [t._Action(rank, t.F, microbatch + warm), t._Action(rank, t.FULL_BACKWARD, microbatch)]  # noqa: SLF001 - as above
        rows[rank] = row + [t._Action(rank, t.FULL_BACKWARD, u) for u in range(microbatches - warm, microbatches)]  # noqa: SLF001 - as above
    placed = t._add_send_recv(rows, lambda stage: stage, ranks)  # noqa: SLF001 - as above
    actions = sum(len(row) for row in placed.values())
    with contextlib.redirect_stdout(io.StringIO()):
        t._simulate_comms_compute(placed, lambda stage: stage, ranks)  # noqa: SLF001 - as above
    took = time.perf_counter() - start
    return {"actions": actions, "warm_s": took}


def apart(function: Any, *args: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--microbatches", type=int, default=2048)
    parser.add_argument("--policy", choices=[name.value for name in PolicyName], default="async")
    given = parser.parse_args()
    policy = Policy(name=PolicyName(given.policy))
    print(f"{given.ranks} ranks x {given.microbatches} microbatches, p2p {given.policy}")
    for name, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)):
        r = apart(whole, name, given.ranks, given.microbatches, chunks, policy)
        print(
            f"{name:>18}: {r['actions']} actions, warm {r['warm_s']:.3f} s = "
            f"{r['actions'] / r['warm_s'] / 1e6:.2f} M/s, "
            f"cold {r['cold_s']:.2f} s, {r['bytes']:.0f} bytes/action, "
            f"sweep {r['sweep'] / 1e6:.1f} M tasks/s ({r['tasks']} tasks)"
        )
    if importlib.util.find_spec("torch") is not None:
        r = apart(torch_unit_steps, given.ranks, given.microbatches)
        print(
            f"{'PyTorch 1F1B':>18}: {r['actions']} actions, {r['warm_s']:.3f} s = "
            f"{r['actions'] / r['warm_s'] / 1e6:.2f} M/s (order, placing, unit-step dry run)"
        )


if __name__ == "__main__":
    main()
