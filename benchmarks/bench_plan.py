"""Plans of the largest published jobs: times to answers, and configurations per second of processor time.

    python benchmarks/bench_plan.py [--jobs 70b,405b] [--time 600s] [--workers 2]

Each plan has the default space. The output has the time to the first answer, to a step within 2 % of the best, and
to the end, in seconds and in processor seconds of this process and its workers. It also has the excess of the best
step after 120 processor seconds over the last one. With one worker, this process computes bounds, and the worker
simulates. Python collects garbage as seldom as in the command.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pptrace.cli  # noqa: F401 - sets how often Python collects garbage
from pptrace.config.quantities import DURATION
from pptrace.search.candidates import Outcome
from pptrace.search.plan import plan

JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "405b": (16384, {"model": "llama3-405b", "sequence": 8192, "global": 2048}),
    "deepseek-v3": (2048, {"model": "deepseek-v3", "sequence": 4096, "global": 15360}),
    "deepseek-v3-1024": (1024, {"model": "deepseek-v3", "sequence": 4096, "global": 8192}),
    "qwen3-235b": (1024, {"model": "qwen3-235b-a22b", "sequence": 4096, "global": 2048}),
    "kimi-k2": (6144, {"model": "kimi-k2", "sequence": 4096, "global": 12288}),
    "70b": (1024, {"model": "llama3-70b", "sequence": 8192, "global": 2048}),
}
"""GPUs and flags of each job; all on H100."""
NEAR = 1.02
USED_S = 120
"""Processor seconds after which the best step is compared with the last one: a minute of two cores."""
BEST = re.compile(r"best so far [^:]*: ([0-9.]+ \w+)")


def used_s(pid: int) -> float:
    """Return the processor time of a process and its children in seconds (``/proc``)."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except OSError:  # it has ended, and counts for its parent
        return 0.0
    return sum(map(int, stat[11:15])) / ticks + sum(used_s(int(child)) for child in children)


@dataclass
class Watch:
    """Times at which a search finds better steps."""

    start_s: float = field(default_factory=time.perf_counter)
    start_used_s: float = field(default_factory=lambda: used_s(os.getpid()))
    found: list[tuple[float, float, int]] = field(default_factory=list)
    """Seconds, processor seconds and the step of the best so far in ns."""

    def now(self) -> tuple[float, float]:
        """Return seconds and processor seconds since the start."""
        return time.perf_counter() - self.start_s, used_s(os.getpid()) - self.start_used_s

    def progress(self, text: str) -> None:
        """Note the best step of a progress text."""
        if best := BEST.search(text):
            self.found.append((*self.now(), DURATION.parse(best[1])))


def report(name: str, limit: str | None, workers: int) -> None:
    """Plan a job and print a row."""
    gpus, flags = JOBS[name]
    watch, start = Watch(), time.process_time()
    result = plan(
        gpus=gpus, device="h100-sxm", time=limit, robust=False, workers=workers, progress=watch.progress, **flags
    )  # fmt: skip
    end_s, end_used_s = watch.now()
    counts, ended = result.counts(), result.to_dict()["search"]
    near = next(point for point in watch.found if point[2] <= NEAR * watch.found[-1][2])
    early = [step_ns for _, used, step_ns in watch.found if used <= USED_S]
    excess = f"{early[-1] / watch.found[-1][2] - 1:.1%}" if early else "no answer"
    excluded = counts["considered"] - counts[Outcome.SIMULATED] - ended["unproved"]
    bounding_s = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name}: first {watch.found[0][0]:.0f} s ({watch.found[0][1]:.0f} s used), within 2 % {near[0]:.0f} s "
        f"({near[1]:.0f}), excess after {USED_S} s used {excess}, "
        f"{ended['ended']} after {end_s:.0f} s ({end_used_s:.0f})\n"
        f"    {counts['considered']:,} considered, {excluded:,} excluded ({excluded / end_used_s:,.0f}/s used, "
        f"{excluded / bounding_s:,.0f}/s used by this process), "
        f"{counts[Outcome.SIMULATED]:,} simulated, {ended['unproved']:,} unproved, "
        f"{ended['without_bound']:,} groups without bound, gain {ended['gain']}\n"
        f"    {result.best.name}: {DURATION.rounded(int(result.best.row['step_ns'] or 0))}; {peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--time", default=None, metavar="TIME")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.workers} workers", flush=True)
    for name in options.jobs.split(","):
        report(name, options.time, options.workers)


if __name__ == "__main__":
    main()
