"""Every schedule that PyTorch runs, and a table of one's own: order, gradients, replay and predictions.

    python benchmarks/bench_torch_runs.py [--only 1f1b,zb-h1] [--ranks 4] [--steps 5] [--scale 1] [--keep FOLDER]

Runs over gloo on 4 ranks and on 2, with stages that sleep: forward, input and weight gradient take 8 to 10 ms, and
half of that where a rank has two stages. Printed are

- the order: whether PyTorch ran the actions in the order of the table;
- gradients: the largest difference from autograd's, of linear layers in place of sleeps;
- the fastest of the recorded steps, which other programs disturbed least, and the error of its replay;
- of this step's predictions, by fits of all other runs with as many microbatches, the one that is furthest off.

Exits with 1 where one of the limits below is exceeded. Times need a machine that does nothing else; beside other
programs `--scale 4` makes all sleeps four times as long, so that delays matter less.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml
from bench_measured import predictions, replayed
from msgspec.structs import replace

from pptrace.measured.computations import extent
from pptrace.measured.sides import measured_side
from pptrace.plugin import Registry, Schedule, write_table
from pptrace.run.trace_files import read_measurement
from pptrace_torch.command import command
from pptrace_torch.manifest import Manifest

sys.path.append(str(Path(__file__).parents[1] / "plugins/pptrace-torch/tests"))
from pipelines import gradient_errors
from runnable import merged_gradients, runnable_tables

if TYPE_CHECKING:
    from pptrace.measured.sides import Side

MICROBATCHES = 12
GRADIENT, REPLAY, PREDICTION = 5e-6, 0.02, 0.10
"""Limits of relative errors."""


def main() -> None:
    """Print the table of each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of schedules")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 2])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiple of the times of stages")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    asked = parser.parse_args()
    exceeded: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in asked.ranks:
            tables = {**runnable_tables(ranks, MICROBATCHES), "mine": own_table(ranks)}
            not_run = ", ".join(sorted(set(Registry.load().schedules) - set(tables)))
            print(f"{ranks} ranks (load {os.getloadavg()[0]:.1f}); not run: {not_run}")
            chosen = {name: tables[name] for name in asked.only.split(",") if name} or tables
            folder = (asked.keep or Path(scratch)) / str(ranks)
            exceeded += print_runs(chosen, ranks, asked.steps, asked.scale, folder)
    print("\n".join(exceeded) or "all within their limits")
    sys.exit(bool(exceeded))


def own_table(ranks: int) -> Schedule:
    """Return a table of no installed schedule: 1F1B with every other backward split."""
    rows: list[list[str]] = []
    for row in runnable_tables(ranks, MICROBATCHES)["1f1b"].rows():
        rows.append([])
        for cell in row:
            stage, kind, microbatch = cell.partition("B")
            is_split = kind and int(microbatch) % 2
            rows[-1] += [f"{stage}I{microbatch}", f"{stage}W{microbatch}"] if is_split else [cell]
    return Schedule.from_rows(rows)


def print_runs(tables: dict[str, Schedule], ranks: int, steps: int, scale: float, folder: Path) -> list[str]:
    """Run tables, print a row for each, and return what exceeds its limit."""
    registry = Registry.load()
    folder.mkdir(parents=True)
    for name, table in tables.items():
        run_table(table, ranks, steps, scale, folder / name)
    sides = {name: fastest_step(folder / name, registry) for name in tables}
    gradients = gradient_errors(ranks, tables)
    furthest = furthest_predictions(sides, registry)
    exceeded = []
    print(f"{'schedule':<17} stages  order  gradients   step, ms  replay  furthest prediction")
    for name, side in sides.items():
        rows = Manifest.read(folder / name).table
        is_kept = merged_gradients(side.computations.order.rows()) == merged_gradients(rows)
        found = replayed(side, registry)
        error, source = furthest.get(name, (0.0, "no other run"))
        print(
            f"{name:<17} {tables[name].stages:6}  {'kept' if is_kept else 'OTHER':<5}  {gradients[name]:9.1e}"
            f"  {found.step.span_ns / 1e6:9.1f}  {found.explained - 1:+6.1%}  {error:+6.1%} by {source}"
        )
        limits = {
            "order": is_kept, "gradients": gradients[name] <= GRADIENT,
            "replay": abs(found.explained - 1) <= REPLAY, "prediction": abs(error) <= PREDICTION,
        }  # fmt: skip
        exceeded += [f"{name} on {ranks} ranks: {what}" for what, is_within in limits.items() if not is_within]
    return exceeded


def run_table(table: Schedule, ranks: int, steps: int, scale: float, output: Path) -> None:
    """Run a table with the stages of a model that has two slices per rank."""
    random = Random(ranks)  # noqa: S311 - no secret
    kinds = ("forward", "input_gradient", "weight_gradient")
    times = {kind: [round(scale * random.randint(4_000, 5_000)) for _ in range(ranks)] for kind in kinds}
    costs: dict[str, Any] = {
        kind: [f"{us} us" for us in column for _ in range(2)] for kind, column in times.items()
    }
    write_table(table, output.with_suffix(".csv"))
    step = {
        "schedule": str(output.with_suffix(".csv")), "batch": {"microbatches": table.microbatches},
        "costs": {"name": "table", "slices": 2 * ranks, **costs},
    }  # fmt: skip
    output.with_suffix(".yaml").write_text(yaml.safe_dump(step), encoding="utf-8")
    run(str(output.with_suffix(".yaml")), "--steps", str(steps), "-o", str(output))


def run(*arguments: str) -> None:
    """Run ``pptrace torch run`` in this process, which has imported PyTorch, without its progress."""
    with redirect_stderr(io.StringIO()):
        command.main(["run", *arguments], standalone_mode=False)


def fastest_step(output: Path, registry: Registry) -> Side:
    """Return the fastest step of a run."""
    measurement, _ = read_measurement([output], registry)
    step = min(measurement.steps, key=lambda step: extent(step.timeline).span_ns)
    return measured_side(replace(measurement, steps=(step,)), output.name)


def furthest_predictions(sides: dict[str, Side], registry: Registry) -> dict[str, tuple[float, str]]:
    """Return by run the largest error of a prediction by another run's fit, with that run."""
    errors: dict[str, list[tuple[float, str]]] = {}
    by_microbatches: dict[int, dict[str, Side]] = {}
    for name, side in sides.items():
        by_microbatches.setdefault(side.computations.placement.microbatches, {})[name] = side
    for alike in by_microbatches.values():
        for source, lengths_ns, _ in predictions(alike, registry):
            for target, length_ns in lengths_ns.items():
                if target != source:
                    error = length_ns / alike[target].computations.span_ns - 1
                    errors.setdefault(target, []).append((error, source))
    every = [abs(error) for column in errors.values() for error, _ in column]
    if every:
        print(
            f"{len(every)} predictions by fits of other runs: median {median(every):.1%}, worst {max(every):.1%}"
        )
    return {target: max(column, key=lambda one: abs(one[0])) for target, column in errors.items()}


if __name__ == "__main__":
    main()
