"""Bias of simulated steps, fitted to measured runs of a plan.

Each part of a step has a factor. The factors minimise the relative differences of measured and expected steps, in
units of the noise of a measurement, and the distances of the factors from 1, in units of a simulation's error:
ridge regression towards 1. One run moves the parts in proportion to their time; several runs tell them apart.
"""

from __future__ import annotations

import csv
import math
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from pptrace.config.overrides import Assignment, assignments
from pptrace.config.places import key_text
from pptrace.errors import ConfigError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace.run.figures import Row

PARTS = {
    "mean_compute_ns": "compute",
    "mean_collectives_ns": "collectives",
    "mean_waiting_ns": "waiting",
    "mean_messages_ns": "messages",
    "mean_reduction_ns": "reduction",
}
"""Columns that sum to the step, with their names."""
COMMAND, MEASURED = "command", "measured_s"
"""Columns of measured runs."""
_ERROR = 0.2
"""Standard deviation of a factor before any measurement; half of the published steps are within a third of it."""
_NOISE = 0.01
"""Standard deviation of a measured step."""
_DIGITS = 6
_SECOND_NS = 1e9
_LARGEST_NS = 2**62


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """A measured step of a configuration."""

    line: int
    """Its line in the file."""
    settings: tuple[Assignment, ...]
    """The settings of its command."""
    measured_ns: int
    """Its step."""

    @property
    def values(self) -> dict[str, Any]:
        """Its settings by key."""
        return _by_key(self.settings)


def read_runs(path: Path, planned: Mapping[str, Any]) -> list[MeasuredRun]:
    """Return the rows with a measured step of a table such as that of ``pptrace plan -o points.csv``.

    Args:
        path: CSV with the columns ``command``, of ``pptrace simulate``, and ``measured_s``, the step in seconds.
        planned: settings of the plan, which commands may repeat.

    Raises:
        ConfigError: a file that cannot be read, a missing column, no measured step, a cell with another value, or
            a command with another value of a setting of the plan.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := {COMMAND, MEASURED} - {*(reader.fieldnames or ())}:
                raise ConfigError(f"has no column {min(missing)}: add it to a table of -o points.csv", file=path)
            measured = [(reader.line_num, row) for row in reader if (row[MEASURED] or "").strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", file=path) from None
    if not measured:
        raise ConfigError(f"has no measured step: write seconds under {MEASURED}", file=path)
    return [_run(path, line, row, planned) for line, row in measured]


def _run(path: Path, line: int, row: Mapping[str, str], planned: Mapping[str, Any]) -> MeasuredRun:
    try:
        measured_ns = float(row[MEASURED]) * _SECOND_NS
    except ValueError:
        measured_ns = math.nan
    if not 1 <= measured_ns <= _LARGEST_NS:
        message = f"{row[MEASURED]!r:.40} is not a step in seconds, such as 8.15"
        raise ConfigError(message, key=MEASURED, file=path, line=line)
    try:
        assigned = tuple(_settings(row[COMMAND] or ""))
    except (PptraceError, ValueError) as error:
        raise ConfigError(f"{row[COMMAND]!r:.60}: {error}", key=COMMAND, file=path, line=line) from None
    settings = []
    for setting in assigned:
        key = key_text(setting.path)
        if key not in planned:
            settings.append(setting)
        elif setting.value != planned[key]:
            message = (
                f"{key} is {setting.value!r:.40}, and {planned[key]!r:.40} in the plan: plan with the same value"
            )
            raise ConfigError(message, key=COMMAND, file=path, line=line)
    return MeasuredRun(line=line, settings=tuple(settings), measured_ns=round(measured_ns))


def _settings(command: str) -> Iterator[Assignment]:
    """Yield the settings of a command's options."""
    words = iter(shlex.split(command))
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals:
                value = next(words, "")
            yield from assignments([value], {}) if name == "set" else assignments([], {name: value})


def _by_key(settings: Iterable[Assignment]) -> dict[str, Any]:
    return {key_text(assigned.path): assigned.value for assigned in settings}


class Bias(Struct, frozen=True, kw_only=True):
    """Factors of the parts of a step, and measured steps in place of expected ones."""

    factors: Mapping[str, float] = field(default_factory=dict)
    """By name of the part; absent ones are 1."""
    runs: tuple[MeasuredRun, ...] = ()
    """The runs of the fit."""
    differences: tuple[float, ...] = ()
    """Expected step of each run by the factors, over its measured step, minus 1."""

    def expected_ns(self, row: Row, arguments: str) -> int:
        """Return the measured step of a configuration, or the step that the factors give for its figures.

        The configuration has the given arguments of ``pptrace simulate``.
        """
        if not self.runs:
            return int(row["step_ns"] or 0)
        values = _by_key(_settings(arguments))
        measured_ns = [run.measured_ns for run in self.runs if run.values == values]
        return measured_ns[-1] if measured_ns else self.step_ns(row)

    def step_ns(self, row: Row) -> int:
        """Return the step that the factors give."""
        step = int(row["step_ns"] or 0)
        return step + round(
            sum((self.factors.get(name, 1.0) - 1) * float(row[column] or 0) for column, name in PARTS.items())
        )

    def bound_ns(self, step_ns: int) -> int:
        """Return a lower bound of the expected step for a lower bound of the simulated one."""
        if not self.runs:
            return step_ns
        least = min((1.0, *self.factors.values()))
        # Measured steps are in place of the steps that the factors give, and can be shorter.
        return math.floor(step_ns * least / (1 + max((0.0, *self.differences))))


def fit_bias(runs: Sequence[MeasuredRun], rows: Sequence[Row]) -> Bias:
    """Return the factors that explain measured runs, from the figures of their simulations."""
    measured = np.array([run.measured_ns for run in runs], dtype=np.float64)
    parts = np.array([[float(row[column] or 0) for column in PARTS] for row in rows]) / measured[:, None]
    missing = 1 - np.array([int(row["step_ns"] or 0) for row in rows]) / measured
    normal = parts.T @ parts / _NOISE**2 + np.eye(len(PARTS)) / _ERROR**2
    shifts = np.linalg.solve(normal, parts.T @ missing / _NOISE**2)
    factors = {name: round(1 + float(shift), _DIGITS) for name, shift in zip(PARTS.values(), shifts, strict=True)}
    bias = Bias(factors=factors)
    differences = tuple(bias.step_ns(row) / run.measured_ns - 1 for run, row in zip(runs, rows, strict=True))
    return Bias(factors=factors, runs=tuple(runs), differences=differences)
