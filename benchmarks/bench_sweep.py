"""A sweep of about a thousand steps of a roofline model: points per second, and what a start from nothing adds.

    python benchmarks/bench_sweep.py [--workers 2] [--executor processes] [--cold]

8 to 64 ranks, 4 to 256 microbatches, gpipe and 1f1b, with their tables and formulas, written as CSV. Each run is
a process of its own; ``--cold`` begins with a run that finds no compiled code on the disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP = Path(__file__).parent.parent / "examples" / "llama3-70b.yaml"
RUN = [sys.executable, "-c", "from pptrace.cli.main import main; main()"]
OVER = ["pp=8..64+8", "schedule=gpipe,1f1b", "microbatches=4..256+4"]
SET = ["--tp", "1", "--dp", "1", "--vp", "1"]


def swept(workers: int, executor: str, results: Path, cache: str | None = None) -> tuple[float, float]:
    """Return seconds of wall time, and of all processes' time, of a sweep from start to table."""
    words = [word for axis in OVER for word in ("--over", axis)]
    where = ["--executor", executor, "--workers", str(workers), "--fresh", "-o", str(results)]
    environment = {**os.environ, **({"PPTRACE_KERNEL_CACHE": cache} if cache else {})}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*RUN, "sweep", str(STEP), *SET, *words, *where], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.csv"
        runs = [("cold", str(Path(folder) / "kernels"))] * options.cold + [("warm", None)] * 3
        for name, cache in runs:
            wall, used = swept(options.workers, options.executor, results, cache)
            points = len(results.read_text(encoding="utf-8").splitlines()) - 1
            print(
                f"{name}: {points} points in {wall:.1f} s, {points / wall:.0f} points/s "
                f"({1000 * used / points:.1f} ms of all processes' time a point, {options.workers} workers)"
            )


if __name__ == "__main__":
    main()
