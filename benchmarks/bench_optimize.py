"""What pptrace optimize finds beside every schedule of other plugins under the same limit, on 60 configurations.

    python benchmarks/bench_optimize.py [--seconds 1] [--only 8x32] [--processor]

Ranks, microbatches and chunks per rank; stages alike or from 0.7 to 1.3 times as long; with and without messages
that take time; memory for twice as many activations as ranks, as many, and a third. Times are the simulator's.
Printed are the step over the shortest one made by hand that fits, and over the bound. Searches take --seconds
times the ranks, with --processor of the processor's time, for a busy machine; the most memory of the process is at
the end.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from pptrace.plugins.registry import Registry
from pptrace_optpipe.model import Effort
from pptrace_optpipe.search import Optimised, optimise
from pptrace_optpipe.setting import setting_of
from pptrace_optpipe.start_schedules import Rival, rivals

SIZES = [(4, 8, 1), (8, 32, 1), (8, 32, 2), (16, 64, 1), (32, 128, 1)]
GIB = 2**30
MEMORY = {"plenty": 2, "1f1b": 1, "third": 1 / 3}
FORWARD_NS, COPY_NS, ACTIVATION = 10_000_000, 10_000_000, 2 * GIB


def configuration(ranks: int, microbatches: int, chunks: int, *, alike: bool, messages: bool) -> dict[str, Any]:
    """Return a step: I, W and copies take as long as F, and an activation leaves half for W."""
    stages = ranks * chunks
    scale = [1 if alike else 0.7 + 0.6 * stage / (stages - 1) for stage in range(stages)]
    times = [f"{round(FORWARD_NS * one / chunks)} ns" for one in scale]
    return {
        "parallel": {"pp": ranks, "vp": chunks}, "batch": {"microbatches": microbatches},
        "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"} if messages else "ideal",
        "costs": {
            "name": "table", "forward": times, "input_gradient": times, "weight_gradient": times,
            "offload": f"{COPY_NS // chunks} ns", "reload": f"{COPY_NS // chunks} ns", "boundary": "32 MiB",
            "activation": f"{ACTIVATION // chunks} B", "weight_activation": f"{ACTIVATION // chunks // 2} B",
            "weights": f"{GIB // chunks} B",
        },
    }  # fmt: skip


def searched(step: dict[str, Any], memory: int, effort: Effort) -> tuple[Optimised, list[Rival], float]:
    """Return what is found within a limit, other plugins' schedules, and the seconds that the search took."""
    registry = Registry.load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.yaml"
        file.write_text(yaml.safe_dump(step), encoding="utf-8")
        setting, _ = setting_of(file, (), registry)
        made = list(rivals(file, (), registry, setting, memory))
        begun = effort.clock()
        found = optimise(setting.search_input(memory), effort, None, rivals=made)
        return found, made, effort.clock() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--processor", action="store_true")
    asked = parser.parse_args()
    clock = time.process_time if asked.processor else time.monotonic
    print(f"{'sizes':<9} stages  messages  memory    step, ms  {'best by hand':<20} over it  over bound     s")
    for size, alike, messages, memory in product(SIZES, (True, False), (False, True), MEMORY):
        ranks, microbatches, chunks = size
        name = f"{ranks}x{microbatches}"
        if asked.only not in {"", name, f"{name}x{chunks}"}:
            continue
        step = configuration(*size, alike=alike, messages=messages)
        limit = GIB + int(ACTIVATION * max(MEMORY[memory] * ranks, 1.5))
        found, made, took = searched(step, limit, Effort(seconds=asked.seconds * ranks, clock=clock))
        fit = [one for one in made if one.fits]
        best = min(fit, key=lambda one: one.simulated.step_ns, default=None)
        by_hand = "none fits" if best is None else best.name
        over = "-" if best is None else f"{found.simulated.step_ns / best.simulated.step_ns:.3f}"
        bound = f"{found.simulated.step_ns / found.bound_ns:.3f}" if found.bound_ns else "-"
        words = (f"{name}x{chunks}", "alike" if alike else "unlike", "yes" if messages else "no", memory)
        print("{:<9} {:<6}  {:<8}  {:<6}".format(*words), end="  ")
        print(
            f"{found.simulated.step_ns / 1e6:10.1f}  {by_hand:<20} {over:>7}  {bound:>10}  {took:4.0f}", flush=True
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stderr.write(f"at most {peak / 2**20:.2f} GiB\n")


if __name__ == "__main__":
    main()
