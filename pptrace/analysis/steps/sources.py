"""What a user names becomes a side of a diff: a configuration, a table, a trace, traces of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.analysis.steps.sides import measured_side, simulated_side
from pptrace.config.resolve import load
from pptrace.errors import TraceError
from pptrace.experiment.measured import read_measurement
from pptrace.experiment.run import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.steps.sides import Side
    from pptrace.hooks.registry import Registry
    from pptrace.timeline.measurement import ImportRequest

__all__ = ["idle_options", "notes_of", "notes_on", "planned_side", "side_of", "steps_of"]

_CONFIGURATIONS, _TABLES = frozenset({".yaml", ".yml"}), frozenset({".csv", ".txt"})
_NAMED = 5
"""Sorts of unattributed work that are named one by one."""


def planned_side(source: str | Path, registry: Registry) -> Side | None:
    """Return the side that a configuration or a table is, simulated; None for what is neither.

    Raises:
        PptraceError: it cannot be read, or simulated.
    """
    path, text = Path(source), str(source)
    if path.suffix.lower() in _CONFIGURATIONS:
        return simulated_side(simulate(load(path), registry), text)
    if path.suffix.lower() in _TABLES:
        return simulated_side(simulate(load(None, (), {"schedule": text}), registry), text)
    return None


def side_of(source: str | Path, step: str, registry: Registry, request: ImportRequest) -> Side:
    """Return the side that a path stands for.

    Args:
        source: a configuration (.yaml), a table (.csv, .txt), a trace, or a folder of traces of one run.
        step: which recorded step: its number, ``median`` or ``all``.
        registry: the plugins.
        request: how measured traces are read.

    Raises:
        PptraceError: it cannot be read, or holds no step.
    """
    planned = planned_side(source, registry)
    if planned is not None:
        return planned
    if not Path(source).exists():
        raise TraceError("there is no such file or folder", file=source)
    measurement, measured = read_measurement([Path(source)], registry, request)
    return measured_side(measurement, str(source), step, measured=measured)


def steps_of(step: str) -> tuple[str, str]:
    """Return what ``--step`` says of the first side and of the second: ``1,3``, or one word for both."""
    first, comma, second = (word.strip() for word in step.partition(","))
    return first or "median", (second or "median") if comma else first or "median"


def notes_on(sides: Sequence[Side], step: str, request: ImportRequest) -> list[str]:
    """Return what is not known of the sides, and what asks for something that the sides cannot answer."""
    lines = list(dict.fromkeys(note for side in sides for note in notes_of(side)))
    recorded = [side for side in sides if side.measured]
    if recorded:
        planned = [side for side in sides if side.run is not None and Path(side.name).suffix.lower() in _TABLES]
        return [*lines, *(_UNIT_COSTS.format(table=one.name, run=recorded[0].name) for one in planned)]
    idle = idle_options(step, request)
    return [*lines, f"{idle}: neither side is a measurement"] if idle else lines


def idle_options(step: str, request: ImportRequest) -> str:
    """Return that what is asked of recordings does nothing; empty where nothing is."""
    asked = {"--step": step not in {"", "median"}, "--layout": request.layout, "--replica": request.replica}
    asked["--rules"] = request.rules is not None
    idle = [name for name, given in asked.items() if given]
    return f"{', '.join(idle)} {'does' if len(idle) == 1 else 'do'} nothing" if idle else ""


_UNIT_COSTS = (
    "{table} has unit costs (a forward is 1 ms, messages take no time): its order can be compared with {run}, its "
    "times cannot. For those, pptrace calibrate {run} -o costs.yaml, add the line `schedule: {table}` to "
    "costs.yaml, and name costs.yaml here"
)
"""What is said of a table beside a measurement."""


def notes_of(side: Side) -> list[str]:
    """Return what is not known of a side: its notes, clocks, and what belongs to no action."""
    measurement = side.measurement
    if measurement is None:
        return []
    lines = [*measurement.notes, *(f"{side.name}: {step}" for step in side.incomplete)]
    clocks = [clock for clock in measurement.clocks if clock.pairs]
    if clocks:
        offsets = ", ".join(f"{clock.offset_ns / 1e6:+.3f} (±{clock.bound_ns / 1e6:.3f})" for clock in clocks)
        ranks = ", ".join(str(clock.rank) for clock in clocks)
        lines.append(f"{side.name}: clocks of ranks {ranks} set by {offsets} ms")
    lines += [
        f"{side.name}: rank {one.rank}: {one.count} {one.what} belong to no action ({one.total_ns / 1e6:.3f} ms)"
        for one in measurement.unattributed[:_NAMED]
    ]
    more = len(measurement.unattributed) - _NAMED
    return [*lines, f"{side.name}: {more} further sorts belong to no action"] if more > 0 else lines
