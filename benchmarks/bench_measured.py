"""How much of recorded steps replays give back, and how well a fit on one run predicts all others.

    python benchmarks/bench_measured.py FOLDER

FOLDER holds a folder of traces per run. Prints two tables in Markdown: replays, and for every pair of runs by how
many percent the second's step, simulated with the first's fit in the second's order, is off; ``-`` for a run with
other microbatches; slices of sequences count as parts of them. The stated interval is the widest of a row.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from pptrace.config.resolution import load
from pptrace.errors import ConfigError, ConstraintError
from pptrace.measured.calibration import calibrate, check_calibration
from pptrace.measured.calibration_document import calibrated_yaml
from pptrace.measured.computations import extract_computations
from pptrace.measured.replay import nearest_policy, replay
from pptrace.measured.sides import measured_side
from pptrace.plugins.registry import Registry
from pptrace.run.run import simulate
from pptrace.run.trace_files import read_measurement
from pptrace.steps.kinds import Kind
from pptrace.steps.text_forms import table_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.measured.calibration import Calibration, CalibrationCheck
    from pptrace.measured.replay import Replayed
    from pptrace.measured.sides import Side


class Predictions(NamedTuple):
    """The steps of all runs, predicted by a fit of one."""

    source: str
    """The run of the fit."""
    lengths_ns: dict[str, int]
    """Predicted span of computations by run; without runs that the fit cannot give."""
    stated: dict[str, float]
    """The stated relative interval by run."""


def main(folder: Path) -> None:
    """Print both tables."""
    registry = Registry.load()
    runs = {path.name.removeprefix("sleep-"): path for path in sorted(folder.iterdir()) if path.is_dir()}
    sides = {name: side_of(path, registry) for name, path in runs.items()}
    print("| run | step | replay |\n|---|---|---|")
    for name, side in sides.items():
        found = replayed(side, registry)
        print(f"| `{name}` | {found.step.span_ns / 1e6:.1f} ms | {found.explained - 1:+.1%} |")
    print_predictions(sides, registry)


def side_of(run: Path, registry: Registry) -> Side:
    """Return the measured steps of a run."""
    measurement, _ = read_measurement([run], registry)
    return measured_side(measurement, run.name)


def replayed(side: Side, registry: Registry) -> Replayed:
    """Return the median step of a run with its replay."""
    policy = nearest_policy(side.computations, registry, measured=True).policy
    return replay(side.timeline, lambda _: policy)


def fitted(side: Side) -> Calibration:
    """Return the fit of a run."""
    skips = side.measurement is not None and side.measurement.empty_input_gradient
    return calibrate(side.step_computations, slices=side.slices, empty_input_gradient=skips)


def predictions(
    sides: dict[str, Side], registry: Registry, fits: dict[str, Calibration] | None = None
) -> Iterator[Predictions]:
    """Yield, for a fit of each run, the predicted steps of all runs in their measured orders.

    ``fits`` are the fits of the runs; by default each run is fitted alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, side in sides.items():
            (scratch / f"{name}.csv").write_text(table_text(side.computations.order), encoding="utf-8")
        for source, side in sides.items():
            fit = fitted(side) if fits is None else fits[source]
            p2p = None if side.measurement is None else side.measurement.p2p
            check = check_calibration(fit, side.step_computations, registry, p2p=p2p)
            costs = scratch / f"{source}.yaml"
            costs.write_text(calibrated_yaml(fit, source, (), check), encoding="utf-8")
            lengths = {
                name: predicted_ns(costs, scratch / f"{name}.csv", target.slices, registry)
                for name, target in sides.items()
            }
            known = {target: length for target, length in lengths.items() if length is not None}
            stated = {target: interval_for(check, sides[target]) for target in known}
            yield Predictions(source, known, stated)


def print_predictions(sides: dict[str, Side], registry: Registry) -> None:
    """Print the table of predictions, and how many lie in the interval that each fit states."""
    names = list(sides)
    print("\n| fitted on |", " | ".join(f"`{name}`" for name in names), "| stated |")
    print("|---" * (len(names) + 2), end="|\n")
    others, inside, kept, pairs = [], 0, 0, 0
    for source, lengths, stated in predictions(sides, registry):
        off = {target: length / sides[target].computations.span_ns - 1 for target, length in lengths.items()}
        others += [abs(one) for target, one in off.items() if target != source]
        inside += sum(abs(one) <= stated[target] for target, one in off.items() if target != source)
        kept += orders_kept(sides, lengths, max(stated.values(), default=0.0))
        pairs += len(lengths) * (len(lengths) - 1) // 2
        cells = [f"{100 * off[name]:+.1f}" if name in off else "-" for name in names]
        print(f"| `{source}` |", " | ".join(cells), f"| ±{max(stated.values(), default=0.0):.1%} |")
    if not others:
        print("\nno run predicts another one")
        return
    print(
        f"\nothers than its own: median {median(others):.1%}, worst {max(others):.1%}, {inside} of {len(others)} ",
        end="",
    )
    print(f"in the stated interval; {kept} of {pairs} pairs of schedules in their order, or a stated tie")


def predicted_ns(costs: Path, table: Path, slices: int, registry: Registry) -> int | None:
    """Return the span of a table with a fit; None for other microbatches, or stages that the fit cannot give."""
    sets = [f"schedule.options.slices={slices}"] if slices > 1 else []
    try:
        step = simulate(load(costs, sets, {"schedule": str(table)}), registry).timeline
    except (ConfigError, ConstraintError) as error:
        sys.stderr.write(f"{table.stem} with the fit of {costs.stem}: {error}\n")
        return None
    return extract_computations(step).span_ns


def interval_for(check: CalibrationCheck, side: Side) -> float:
    """Return the interval that a fit states for the order of a run."""
    is_split = bool((side.computations.kind == Kind.I).any())
    return (check.split_interval if is_split else None) or check.interval or 0.0


def orders_kept(sides: dict[str, Side], lengths: dict[str, int], interval: float) -> int:
    """Return how many pairs of schedules are predicted in their measured order, or as a tie."""
    names, kept = list(lengths), 0
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            said = lengths[first] / lengths[second] - 1
            was = sides[first].computations.span_ns - sides[second].computations.span_ns
            kept += abs(said) <= interval or (said > 0) == (was > 0)
    return kept


if __name__ == "__main__":
    main(Path(sys.argv[1]))
