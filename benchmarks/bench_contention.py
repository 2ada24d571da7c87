"""Messages that share links: the event kernel alone and whole simulations, in transfers per second.

    python benchmarks/bench_contention.py

The kernel's traffic is on 512 hosts, 8 leaves of 64, 16 spines (4:1), 64 MiB a message, a spine per message by
hash: each host to the same slot of the next leaf, with and without jitter, and random permutations. Cold
includes compiling; warm is the best of three runs after it in the same process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.api import simulate as simulate_experiment
from pptrace.config.choices import Sharing
from pptrace.plugins.construction import build_network
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import NetworkRequest, ScheduleRequest
from pptrace.sim.engines import FINER, Contention, run_jobs, shared_links
from pptrace.sim.kernels.sweep import Graph, Jobs
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.sim.kernels.events import SharedLinks

HOSTS, LEAF, SPINES, SIZE, EACH = 512, 64, 16, 64 * 2**20, 128
RATE = 50_000_000


def fat_tree(hosts: int, leaf: int, spines: int) -> Any:
    provided = Registry.load().networks["infiniband-fat-tree"]
    model: Any = provided.offer.options and provided.offer.options()
    options = model.model_validate_json(
        f'{{"generation": "ndr", "routing": "ecmp-message", "hosts_per_leaf": {leaf}, "spines": {spines}, '
        f'"oversubscription": {leaf // spines}, "radix": 1024}}'
    ).model_dump()
    return build_network(provided, NetworkRequest(endpoints=hosts, options=options))


def traffic(target: np.ndarray, jitter_ns: int) -> tuple[Graph, int, Jobs, SharedLinks]:
    """Return tasks in which each host waits and sends, EACH times; ``target`` has shape (hosts, EACH)."""
    network = fat_tree(HOSTS, LEAF, SPINES)
    source = np.repeat(np.arange(HOSTS), EACH)
    pairs, pair = np.unique(source * HOSTS + target.ravel(), return_inverse=True)
    paths = network.paths((pairs // HOSTS).astype(np.int32), (pairs % HOSTS).astype(np.int32))
    shared = shared_links(paths, network.links, Sharing.MAX_MIN)
    count = source.size
    path = (
        pair * paths.per_pair + (np.arange(count) + 1) * 48271 % 2147483647 * 69621 % 2147483647 % paths.per_pair
    )
    duration = np.zeros(2 * count, dtype=np.int64)
    duration[0::2] = np.random.default_rng(1).integers(0, max(jitter_ns, 1), count)
    following = np.arange(1, 2 * count + 1, dtype=np.int32)
    following[2 * EACH - 1 :: 2 * EACH] = -1
    none, nothing = np.zeros(count, dtype=np.int64), np.full(2 * count, -1, dtype=np.int32)
    graph = Graph(
        duration=duration, lag=duration * 0, following=following, following_peer=nothing, sender_row=nothing,
        edge_ptr=np.zeros(2 * count + 1, dtype=np.int32), edge=nothing[:0], rows=2 * count,
    )  # fmt: skip
    of_task = nothing.copy()
    of_task[1::2] = np.arange(count)
    jobs = Jobs(
        of_task=of_task, task=np.arange(1, 2 * count, 2, dtype=np.int32), volume=none + SIZE * 1_000_000 * FINER,
        full_rate=none + RATE * FINER, overhead_ns=none, path=path.astype(np.int32), kind=none.astype(np.int8),
        rank=source.astype(np.int32), peer=target.ravel().astype(np.int32),
    )  # fmt: skip
    return graph, HOSTS, jobs, shared


def kernel_times(name: str) -> list[float]:
    """Return the processor times of four runs of a case; the first compiles."""
    random = np.random.default_rng(2)
    if name.startswith("ring"):
        target = np.repeat((np.arange(HOSTS) + LEAF) % HOSTS, EACH).reshape(HOSTS, EACH)
    else:
        target = np.stack([random.permutation(HOSTS) for _ in range(EACH)], axis=1)
        same = target == np.arange(HOSTS)[:, None]
        target[same] = (target[same] + 1) % HOSTS
    graph, ranks, jobs, shared = traffic(target, 0 if name.endswith("synchronised") else 1_000_000)
    times = []
    for _ in range(4):
        start = time.process_time()
        indexed = jobs._replace(of_task=jobs.of_task.copy())  # simulations index jobs right before they run
        run_jobs(graph, ranks, indexed, shared, Contention())
        times.append(time.process_time() - start)
    return times


def pipeline() -> None:
    schedule = Registry.load().schedules["1f1b"].offer.build(ScheduleRequest(ranks=128, microbatches=2048))
    workload = Workload.uniform(128, f_ns=1_000_000, b_ns=2_000_000, boundary_bytes=SIZE)
    network = fat_tree(128, 16, 4)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        metrics = measure(simulate(schedule, workload, network), workload)
        _ = metrics.path, metrics.groups  # computed at the first use
        times.append(time.perf_counter() - start)
    report("1F1B 128 x 2048, whole simulation", 2 * 127 * 2048, times)


def llama() -> None:
    times, transfers = [], 0
    for _ in range(4):
        start = time.perf_counter()
        run = simulate_experiment(
            schedule="1f1b", model="llama3-405b", cluster="dgx-h100x64", pp=16, tp=8, dp=4, microbatches=256,
            sequence=8192, sets=["cluster.fabric.oversubscription=4", "parallel.sequence_parallel=true"],
        )  # fmt: skip
        times.append(time.perf_counter() - start)
        transfers = int((run.traffic.path >= 0).sum()) if run.traffic is not None else 0
    report("Llama-3 405B, pp 16, 64 nodes, 256 microbatches", transfers, times)


def report(name: str, transfers: int, times: list[float]) -> None:
    cold, warm = times[0], min(times[1:])
    rate = f"{transfers / warm / 1e6:.3f} M/s"
    print(f"{name:>48}: {transfers} transfers, warm {warm:.3f} s = {rate}, cold {cold:.2f} s")


def apart(function: Any, *args: Any) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(function, args)


CASES = ("ring, jittered", "ring, synchronised", "permutations, jittered", "permutations, synchronised")


def kernel(name: str) -> None:
    """Print the rate of a case."""
    report(name, HOSTS * EACH, kernel_times(name))


def main() -> None:
    """Print the rates."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in CASES:
        apart(kernel, name)
    apart(pipeline)
    apart(llama)


if __name__ == "__main__":
    main()
