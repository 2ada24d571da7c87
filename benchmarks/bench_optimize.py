"""What pptrace optimize finds beside every schedule of other plugins under the same limit, on 60 configurations.

    python benchmarks/bench_optimize.py [--seconds 1] [--only 8x32] [--processor]
    python benchmarks/bench_optimize.py --random 20 [--seconds 60] [--only 3,4] [--copies] [--processor]
        [--workers 2]

Ranks, microbatches and chunks per rank; stages alike or from 0.7 to 1.3 times as long; with and without messages
that take time; memory for twice as many activations as ranks, as many, and a third. Times are the simulator's.
Printed are the step over the shortest one made by hand that fits, and over the bound. Searches take --seconds
times the ranks, with --processor of the processor's time, for a busy machine; the most memory of the process is at
the end.

With --random, so many random problems of 4 to 16 ranks and 8 to 64 microbatches, each with memory for the
activations of 1F1B, for half and for a third of them. Stages differ by up to 30 %, and every second problem has
copies to the host; with --copies, all have. Printed is the gap between step and bound after --seconds for each.
The last line has the number of gaps of at most 10 %, the mean and the largest gap.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import yaml

from pptrace.plugin import ExecutorRequest
from pptrace.plugins.registry import Registry
from pptrace_optpipe.model import Effort
from pptrace_optpipe.search import Optimised, optimise
from pptrace_optpipe.setting import setting_of
from pptrace_optpipe.start_schedules import Rival, rivals

SIZES = [(4, 8, 1), (8, 32, 1), (8, 32, 2), (16, 64, 1), (32, 128, 1)]
GIB = 2**30
MEMORY = {"plenty": 2, "1f1b": 1, "third": 1 / 3}
_LARGEST_GAP = 0.1
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


def random_configuration(seed: int, *, has_copies: bool) -> dict[str, Any]:
    """Return a step of random size and costs, with one stage per rank and, if wanted, copies to the host."""
    random = Random(seed)  # noqa: S311 - costs of a benchmark, not a secret
    ranks, microbatches = random.randint(4, 16), random.randint(8, 64)
    spread = random.choice((0, 0.1, 0.3))
    scale = [random.uniform(1 - spread, 1 + spread) for _ in range(ranks)]

    def times(share: float) -> list[str]:
        return [f"{round(FORWARD_NS * share * one)} ns" for one in scale]

    def sizes(share: float) -> list[str]:
        return [f"{round(ACTIVATION * share * one)} B" for one in scale]

    backward = {
        "input_gradient": times(random.uniform(0.8, 1.2)),
        "weight_gradient": times(random.uniform(0.6, 1.1)),
    }
    copy_share = random.uniform(0.3, 1.5)
    copies = {"offload": times(copy_share), "reload": times(copy_share)} if has_copies else {}
    return {
        "parallel": {"pp": ranks}, "batch": {"microbatches": microbatches},
        "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"},
        "costs": {
            "name": "table", "forward": times(1), **backward, **copies,
            "boundary": f"{random.choice((0, 10, 50))} MB",
            "activation": sizes(1), "weight_activation": sizes(random.uniform(0.3, 0.6)), "weights": f"{GIB} B",
        },
    }  # fmt: skip


def print_random_gaps(count: int, seeds: str, effort: Effort, *, copies: bool) -> None:
    """Search random problems under three limits, and print the gap of each; odd seeds have copies, or all."""
    print("seed  sizes  copies  memory    step, ms  bound, ms    gap     s")
    gaps = []
    for seed in [int(text) for text in seeds.split(",")] if seeds else range(count):
        has_copies = copies or seed % 2 == 1
        step = random_configuration(seed, has_copies=has_copies)
        ranks, microbatches = step["parallel"]["pp"], step["batch"]["microbatches"]
        for share in (1, 2, 3):
            limit = GIB + int(ACTIVATION * max(ranks / share, 1.5))
            found, _, took = searched(step, limit, effort)
            gaps.append(found.gap if found.bound_ns else 1.0)
            words = (seed, f"{ranks}x{microbatches}", "yes" if has_copies else "no", f"p/{share}")
            print("{:>4}  {:<5}  {:<6}  {:<6}".format(*words), end="  ")
            figures = (found.simulated.step_ns / 1e6, found.bound_ns / 1e6, gaps[-1], took)
            print("{:10.1f} {:10.1f}  {:6.2%}  {:4.0f}".format(*figures), flush=True)
    few = f"{sum(gap <= _LARGEST_GAP for gap in gaps)} of {len(gaps)} gaps are at most {_LARGEST_GAP:.0%}"
    print(f"{few}; mean {sum(gaps) / len(gaps):.2%}, largest {max(gaps):.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", default="")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--copies", action="store_true")
    asked = parser.parse_args()
    clock = time.process_time if asked.processor else time.monotonic
    if asked.random:
        executors, request = Registry.load().executors["processes"].offer, ExecutorRequest(workers=asked.workers)
        effort = Effort(
            seconds=asked.seconds or 60, clock=clock, workers=asked.workers,
            start_executor=partial(executors.build, request) if asked.workers > 1 else None,
        )  # fmt: skip
        print_random_gaps(asked.random, asked.only, effort, copies=asked.copies)
        return
    print(f"{'sizes':<9} stages  messages  memory    step, ms  {'best by hand':<20} over it  over bound     s")
    for size, alike, messages, memory in product(SIZES, (True, False), (False, True), MEMORY):
        ranks, microbatches, chunks = size
        name = f"{ranks}x{microbatches}"
        if asked.only not in {"", name, f"{name}x{chunks}"}:
            continue
        step = configuration(*size, alike=alike, messages=messages)
        limit = GIB + int(ACTIVATION * max(MEMORY[memory] * ranks, 1.5))
        found, made, took = searched(step, limit, Effort(seconds=(asked.seconds or 1) * ranks, clock=clock))
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
