"""A plan of Llama 3 70B on 1,024 GPUs: configurations per second, and what simulating each of them takes instead.

    python benchmarks/bench_plan.py [--gpus 1024] [--workers 2] [--sample 40]

The plan runs whole, in this process and its workers, with everything that varies unless named. Then a sample of
what it considered and could run is simulated one after another, which is what a plain sweep of them all would do.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

from pptrace.plugins.registry import Registry
from pptrace.search.candidates import Outcome, run_candidate
from pptrace.search.plan import plan

STEP = Path(__file__).parent.parent / "examples" / "llama3-70b.yaml"
FLAGS = {"p2p": "async", "global": "2048"}


def used_s() -> float:
    """Return the processor time of this process and its finished workers."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sample", type=int, default=40)
    options = parser.parse_args()
    registry = Registry.load()
    first: list[tuple[float, float]] = []
    start, before = time.perf_counter(), used_s()

    def watch(text: str) -> None:
        if "best so far" in text and not first:
            first.append((time.perf_counter() - start, used_s() - before))

    found = plan(
        STEP, gpus=options.gpus, workers=options.workers, robust=False, progress=watch,
        **FLAGS,  # type: ignore[arg-type] # texts, as on the command line
    )  # fmt: skip
    wall, used = time.perf_counter() - start, used_s() - before
    counts = found.counts()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    speed = counts["considered"] / wall
    simulated = counts[Outcome.SIMULATED]
    print(f"{counts['considered']:,} considered, {simulated:,} simulated, {wall:.1f} s, {speed:,.0f}/s")
    print(f"processor time {used:.1f} s, memory {peak:.2f} GiB, a first answer after {first[0][0]:.1f} s")
    able = [one for one in found.candidates if one.outcome in {Outcome.BOUNDED, Outcome.SIMULATED}]
    sample = able[:: max(len(able) // options.sample, 1)]
    start = time.perf_counter()
    for one in sample:
        run_candidate((one.varied, None), document=found.problem.document, registry=registry)
    each = (time.perf_counter() - start) / len(sample)
    whole = each * len(able)
    print(f"a plain sweep of the {len(able):,} that can run: {1 / each:,.0f}/s, {whole:,.0f} s in one process")


if __name__ == "__main__":
    main()
