"""How well the fit of one recorded run predicts other schedules of the same model, with other numbers of stages.

    python benchmarks/bench_predictions.py [--milliseconds 10 3] [--ranks 4] [--stages-per-rank 1 2] [--passes 3]

Records, over gloo on this machine, all installed schedules that PyTorch runs. Stages sleep: each of the forward,
the input and the weight gradient of a whole rank takes the given milliseconds, and a stage its share of them. With
``--fixed`` each action takes that long, whatever its share; ``--uneven 0.3`` varies the time of each slice of the
model by up to 30 %. Every run is recorded once per pass, so that the passes of a run lie minutes apart.

The fastest step of each run is fitted, and predicts the fastest step of each other run in its order. The noise of
a run is by how much the fastest step of its slowest pass is longer than that of its fastest pass. The noise of a
pair is the larger one of its two runs. Printed are, per group of pairs, the median and the worst error, the worst
error beyond the noise, and how many errors are in the stated interval. The last row is of fits that have a second
run with another number of stages per rank (``pptrace calibrate run1/ run2/``). Exits with 1 where a limit below is
exceeded.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import yaml
from bench_measured import fitted, predictions
from bench_torch_runs import fastest_step, run

from pptrace.measured.calibration import fit_stage_counts
from pptrace.plugin import PptraceError, Registry, Schedule, compute_only, load, prepare, write_table
from pptrace_torch.manifest import check_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.measured.calibration import Calibration
    from pptrace.measured.sides import Side

MEDIAN, WORST_BEYOND_NOISE, COVERAGE = 0.04, 0.10, 0.90
"""Limits of relative errors, and of the share of errors in stated intervals."""
KINDS = ("forward", "input_gradient", "weight_gradient")


class Recorded(NamedTuple):
    """A recorded run."""

    side: Side
    """Its fastest step."""
    noise: float
    """By which share the fastest step of the slowest pass is longer."""

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        placement = self.side.computations.placement
        return placement.stages // placement.ranks


class Prediction(NamedTuple):
    """The prediction of a run by the fit of another one."""

    source: Recorded
    target: Recorded
    error: float
    """The relative error."""
    stated: float
    """The stated relative interval."""

    @property
    def beyond_noise(self) -> float:
        """The part of the error that the noise of the two runs does not explain."""
        return max(abs(self.error) - max(self.source.noise, self.target.noise), 0.0)


def main() -> None:
    """Record and judge the runs of each duration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[10.0, 3.0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--stages-per-rank", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--uneven", type=float, default=0.0, help="largest relative change of a slice's times")
    parser.add_argument("--fixed", action="store_true", help="the times are those of an action of any stage")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs; runs that it has are not repeated")
    asked = parser.parse_args()
    exceeded: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for milliseconds in asked.milliseconds:
            folder = (asked.keep or Path(scratch)) / f"{milliseconds:g}ms"
            print(f"actions of {milliseconds:g} ms on {asked.ranks} ranks (load {os.getloadavg()[0]:.1f})")
            record(folder, asked, milliseconds)
            exceeded += [
                f"{milliseconds:g} ms: {text}" for text in judge(recorded_runs(folder), fixed=asked.fixed)
            ]
    print("\n".join(exceeded) or "all within their limits")
    sys.exit(bool(exceeded))


def record(folder: Path, asked: argparse.Namespace, milliseconds: float) -> None:
    """Record every schedule once per pass."""
    tables = dict(runnable_tables(asked.ranks, asked.microbatches, asked.stages_per_rank))
    for number in range(asked.passes):
        for name, table in tables.items():
            output = folder / f"pass{number}" / name
            if output.exists():
                continue
            output.parent.mkdir(parents=True, exist_ok=True)
            costs = sleeps(table, milliseconds, asked)
            write_table(table, output.with_suffix(".csv"))
            step = {
                "schedule": str(output.with_suffix(".csv")), "batch": {"microbatches": table.microbatches},
                "costs": {"name": "table", **costs},
            }  # fmt: skip
            output.with_suffix(".yaml").write_text(yaml.safe_dump(step), encoding="utf-8")
            run(str(output.with_suffix(".yaml")), "--steps", str(asked.steps), "-o", str(output))


def runnable_tables(
    ranks: int, microbatches: int, stages_per_rank: Sequence[int]
) -> Iterator[tuple[str, Schedule]]:
    """Yield the distinct tables that PyTorch runs, with their names."""
    registry, known = Registry.load(), []
    for name in registry.schedules:
        for chunks in stages_per_rank:
            flags = {"schedule": name, "pp": ranks, "microbatches": microbatches, "vp": chunks}
            with suppress(PptraceError):
                table = compute_only(prepare(load(None, flags=flags), registry).schedule)
                check_table(table)
                is_asked = table.stages == ranks * chunks and table.microbatches == microbatches
                if is_asked and table.rows() not in known:
                    known.append(table.rows())
                    yield f"{name}-{chunks}", table


def sleeps(table: Schedule, milliseconds: float, asked: argparse.Namespace) -> dict[str, object]:
    """Return the times of stages as costs of slices; the same slices for every number of stages."""
    most = max(asked.stages_per_rank)
    slices = table.stages if asked.fixed else table.ranks * most
    slice_us = milliseconds * 1e3 * (1 if asked.fixed else 1 / most)
    random = Random(table.ranks)  # noqa: S311 - no secret
    factors = {kind: [1 + asked.uneven * random.uniform(-1, 1) for _ in range(slices)] for kind in KINDS}
    times = {kind: [f"{round(slice_us * factor)} us" for factor in column] for kind, column in factors.items()}
    return {"slices": slices, **times}


def recorded_runs(folder: Path) -> dict[str, Recorded]:
    """Return the fastest step of each run over all passes, and its noise."""
    registry = Registry.load()
    sides: dict[str, list[Side]] = {}
    for path in sorted(folder.glob("pass*/*/")):
        sides.setdefault(path.name, []).append(fastest_step(path, registry))
    runs = {}
    for name, passes in sides.items():
        lengths_ns = [side.computations.span_ns for side in passes]
        fastest = passes[lengths_ns.index(min(lengths_ns))]
        runs[name] = Recorded(fastest, max(lengths_ns) / min(lengths_ns) - 1)
    return runs


def judge(runs: dict[str, Recorded], *, fixed: bool) -> list[str]:
    """Print the figures of all groups of pairs, and return the exceeded limits.

    ``fixed`` judges the fits with a second run.
    """
    registry = Registry.load()
    noises = sorted(run.noise for run in runs.values())
    print(f"{len(runs)} runs, noise {median(noises):.1%} in the median, at most {noises[-1]:.1%}")
    print("| pairs | number | median error | worst | worst beyond noise | inside the interval | interval |")
    print("|---|---|---|---|---|---|---|")
    alone = list(predicted(runs, registry))
    groups = {
        "one stage per rank": [one for one in alone if one.source.chunks == one.target.chunks == 1],
        "as many stages": [one for one in alone if one.source.chunks == one.target.chunks > 1],
        "to more stages": [one for one in alone if one.source.chunks < one.target.chunks],
        "to fewer stages": [one for one in alone if one.source.chunks > one.target.chunks],
        "all": alone,
        "all, fitted with a second run": list(predicted(runs, registry, with_second=True)),
    }
    for name, group in groups.items():
        if group:
            print_group(name, group)
    judged = groups["all, fitted with a second run" if fixed else "all"]
    errors = [abs(one.error) for one in judged]
    inside = sum(abs(one.error) <= one.stated for one in judged) / len(judged)
    beyond = max(one.beyond_noise for one in judged)
    limits = {
        f"median error {median(errors):.1%}": median(errors) <= MEDIAN,
        f"worst error beyond noise {beyond:.1%}": beyond <= WORST_BEYOND_NOISE,
        f"{inside:.0%} inside the interval": inside >= COVERAGE,
    }
    return [text for text, is_within in limits.items() if not is_within]


def predicted(runs: dict[str, Recorded], registry: Registry, *, with_second: bool = False) -> Iterator[Prediction]:
    """Yield the predictions of all runs by fits of the other ones."""
    fits = {name: fitted(run.side) for name, run in runs.items()}

    def with_other_stages(name: str) -> Calibration:
        fit = fits[name]
        other = next((one for one in fits.values() if one.stages != fit.stages), None)
        return fit if other is None else fit_stage_counts(fit, [other])

    chosen = {name: with_other_stages(name) for name in fits} if with_second else fits
    sides = {name: run.side for name, run in runs.items()}
    for source, lengths_ns, stated in predictions(sides, registry, chosen):
        for target, length_ns in lengths_ns.items():
            if target != source:
                error = length_ns / sides[target].computations.span_ns - 1
                yield Prediction(runs[source], runs[target], error, stated[target])


def print_group(name: str, group: Sequence[Prediction]) -> None:
    """Print the row of a group of pairs."""
    errors = [abs(one.error) for one in group]
    inside = sum(abs(one.error) <= one.stated for one in group)
    print(
        f"| {name} | {len(group)} | {median(errors):.1%} | {max(errors):.1%} "
        f"| {max(one.beyond_noise for one in group):.1%} | {inside} ({inside / len(group):.0%}) "
        f"| ±{median(one.stated for one in group):.1%} |"
    )


if __name__ == "__main__":
    main()
