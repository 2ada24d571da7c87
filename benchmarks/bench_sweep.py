"""A sweep of about a thousand steps of a roofline model: points per second, and what a start from nothing adds.

    python benchmarks/bench_sweep.py [--workers 2] [--executor processes] [--cold] [--costs] [--against TREE]

8 to 64 ranks, 4 to 256 microbatches, gpipe and 1f1b, with their tables and formulas, written as CSV. With
``--costs``, all points have one table, interleaved 1F1B on 8 ranks with 256 microbatches, and other costs. Each
run has a separate process. With ``--cold``, the first run compiles all kernels, because its cache is empty.
``--against`` alternates with another checkout and compares the tables.
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

STEP = Path(__file__).resolve().parent.parent / "examples" / "llama3-70b.yaml"
RUN = [sys.executable, "-c", "from pptrace.cli.main import main; main()"]
OVER = ["pp=8..64+8", "schedule=gpipe,1f1b", "microbatches=4..256+4"]
SET = ["--tp", "1", "--dp", "1", "--vp", "1"]
COSTS = ["network.latency=1..40+1us", "network.bandwidth=100..400+20Gb/s"]


def swept(
    workers: int, executor: str, results: Path, *, costs: bool, cache: str | None = None, tree: Path | None = None
) -> tuple[float, float]:
    """Return seconds of wall time, and of all processes' time, of a sweep from start to table."""
    words = [] if costs else SET
    words = [*words, *(word for axis in (COSTS if costs else OVER) for word in ("--over", axis))]
    where = ["--executor", executor, "--workers", str(workers), "--fresh", "-o", str(results)]
    paths = [tree, *sorted(tree.glob("plugins/*/src"))] if tree else []
    environment = {
        **os.environ,
        **({"PPTRACE_KERNEL_CACHE": cache} if cache else {}),
        **({"PYTHONPATH": os.pathsep.join(map(str, paths))} if tree else {}),
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # In another folder, because python imports from the current one first.
    subprocess.run([*RUN, "sweep", str(STEP), *words, *where], check=True, env=environment, cwd=results.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs: list[tuple[str, str | None, Path | None]] = [("warm", None, None)] * 3
        if options.cold:
            runs.insert(0, ("cold", str(Path(folder) / "kernels"), None))
        if options.against:
            runs = [run for each in runs for run in (each, ("against", None, options.against.resolve()))]
        tables = {}
        for name, cache, tree in runs:
            results = Path(folder) / "results.csv"
            wall, used = swept(
                options.workers, options.executor, results, costs=options.costs, cache=cache, tree=tree
            )
            tables[name] = results.read_text(encoding="utf-8")
            points = len(tables[name].splitlines()) - 1
            print(
                f"{name}: {points} points in {wall:.1f} s, {points / wall:.0f} points/s "
                f"({1000 * used / points:.1f} ms of all processes' time a point, {options.workers} workers)",
                flush=True,
            )
        if options.against:
            print("equal tables" if tables["warm"] == tables["against"] else "the tables differ")


if __name__ == "__main__":
    main()
