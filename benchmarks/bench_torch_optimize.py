"""Tables of pptrace optimize in PyTorch, beside the runs that they come from: 20 random profiles of four stages.

    python benchmarks/bench_torch_optimize.py [--profiles 20] [--seconds 5] [--steps 5] [--scale 1] [--keep FOLDER]

Forward, input and weight gradient of a stage sleep for 3 to 12 ms each, over gloo. Profiles run as 1F1B and as
ZB-H1 in turn; `pptrace optimize run/` fits costs to the run, and its table runs with the same stages. Printed are

- the fastest step of the run, and that of its table as predicted and as measured;
- what the table saves, as measured, and in a simulation with the configured times;
- the error of the prediction;
- what optimize states: the noise of the run, and the uncertainty of the prediction.

Exits with 1 where a table has other stages than its run, or is slower than the run by more than is stated. Times
need a machine that does nothing else; `--scale` is that of bench_torch_runs.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import yaml
from bench_torch_runs import fastest_step, run

from pptrace.api import simulate
from pptrace.plugin import Registry

RANKS, MICROBATCHES = 4, 12
ORDERS = ("1f1b", "zb-h1")
SHORTEST_US, LONGEST_US = 3_000, 12_000


def main() -> None:
    """Print a row for each profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each search")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiple of the times of stages")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    asked = parser.parse_args()
    registry, exceeded, savings, errors = Registry.load(), [], [], []
    print(f"load {os.getloadavg()[0]:.1f}")
    print("profile  order    run, ms  predicted  measured   saved  simulated   error   noise  uncertainty  stages")
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(asked.profiles):
            folder = (asked.keep or Path(scratch)) / str(number)
            folder.mkdir(parents=True)
            order = ORDERS[number % len(ORDERS)]
            profile = random_profile(number, asked.scale)
            found = improve(folder, order, profile, asked.seconds, asked.steps)
            before, after = (fastest_step(folder / name, registry).spans_ns[0] for name in ("run", "better"))
            noise, stated = found["run"]["noise"], found["run"]["uncertainty"]
            savings.append(1 - after / before)
            errors.append(found["step_ns"] / after - 1)
            exact = simulated_saving(folder, order, profile)
            print(
                f"{number:7}  {order:<5}  {before / 1e6:9.1f}  {found['step_ns'] / 1e6:9.1f}  {after / 1e6:8.1f}"
                f"  {savings[-1]:+6.1%}  {exact:+9.1%}  {errors[-1]:+6.1%}  {noise:6.1%}  {stated:11.1%}"
                f"  {found['stages']:6}",
                flush=True,
            )
            if found["stages"] != RANKS or not found["is_placement_kept"]:
                exceeded.append(f"profile {number}: other stages")
            if min(savings[-1], exact) < -stated:
                exceeded.append(f"profile {number}: slower")
    print(
        f"saved: median {median(savings):.1%}, least {min(savings):.1%}; "
        f"error of predictions: median {median(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%}"
    )
    print("\n".join(exceeded) or "none has other stages, or is slower than is stated")
    sys.exit(bool(exceeded))


def random_profile(number: int, scale: float) -> dict[str, list[str]]:
    """Return the times of each stage by kind."""
    random = Random(number)  # noqa: S311 - no secret
    return {
        kind: [f"{round(scale * random.randint(SHORTEST_US, LONGEST_US))} us" for _ in range(RANKS)]
        for kind in ("forward", "input_gradient", "weight_gradient")
    }


def improve(folder: Path, order: str, profile: dict[str, list[str]], seconds: float, steps: int) -> dict[str, Any]:
    """Run an order and its optimised table, and return what optimize printed."""
    step = {
        "schedule": order, "parallel": {"pp": RANKS}, "batch": {"microbatches": MICROBATCHES},
        "costs": {"name": "table", **profile},
    }  # fmt: skip
    (folder / "step.yaml").write_text(yaml.safe_dump(step), encoding="utf-8")
    first, better = folder / "run", folder / "better.csv"
    run(str(folder / "step.yaml"), "--steps", str(steps), "-o", str(first))
    pptrace = str(Path(sys.executable).with_name("pptrace"))
    search = [pptrace, "optimize", str(first), "--time", f"{seconds}s", "-o", str(better), "--json", "--no-cache"]
    printed = subprocess.run(search, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    run(str(better), "--costs", str(first), "--steps", str(steps), "-o", str(folder / "better"))
    return json.loads(printed.stdout)


def simulated_saving(folder: Path, order: str, profile: dict[str, list[str]]) -> float:
    """Return the share of the step that a table saves at the configured times, as PyTorch runs both."""
    costs = {"name": "table", **profile, "empty_input_gradient": True}
    before_ns, after_ns = (
        simulate(
            schedule=schedule, pp=RANKS, microbatches=MICROBATCHES, costs=costs, p2p={"policy": "torch"}
        ).metrics.step_ns
        for schedule in (order, str(folder / "better.csv"))
    )
    return 1 - after_ns / before_ns


if __name__ == "__main__":
    main()
