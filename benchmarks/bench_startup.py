"""Whole processes: ``pptrace --help`` and the quick start, beside ``import torch`` where torch is installed.

python benchmarks/bench_startup.py [--runs 7]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUICK_START = Path(__file__).parent.parent / "examples" / "llama3-70b.yaml"
RUN = [sys.executable, "-c", "from pptrace.cli.main import main; main()"]


def median(command: list[str], runs: int) -> tuple[float, float, float]:
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times[1:]), statistics.median(times[1:]), max(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder) / "step.pftrace")
        commands = {
            "pptrace --help": [*RUN, "--help"],
            "quick start": [*RUN, "simulate", str(QUICK_START)],
            "quick start with its trace": [*RUN, "simulate", str(QUICK_START), "-o", trace],
        }
        if importlib.util.find_spec("torch") is not None:
            commands["import torch"] = [sys.executable, "-c", "import torch"]
        for name, command in commands.items():
            low, middle, high = median(command, runs)
            print(f"{name:>28}: {middle:.3f} s (min {low:.3f}, max {high:.3f}, {runs} runs after one)")


if __name__ == "__main__":
    main()
