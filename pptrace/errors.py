"""Every error that a user can cause, each one line that says what, where and what to do.

::

    PptraceError
    ├── ConfigError        a configuration key or value (file, line, column, key)
    ├── TableError         a cell of a schedule table (file, row, column, or rank, position; cell)
    ├── ScheduleError      a schedule that cannot be used (rank, action)
    │   ├── ConstraintError    sizes that a schedule cannot take (key, nearest sizes that work)
    │   ├── CostError          costs that cannot be counted
    │   └── DeadlockError      actions that wait for each other (the cycle)
    ├── PluginError        a plugin that fails, clashes or returns nonsense (plugin, distribution)
    ├── TraceError         a trace file that cannot be read (file)
    └── OutputError        a file that cannot be written (file)
"""

from __future__ import annotations

from math import gcd, isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class PptraceError(Exception):
    """The root: ``main()`` prints its one line and exits with :attr:`exit_code`."""

    exit_code = 2


class ConfigError(PptraceError):
    """A configuration that cannot be used.

    >>> print(ConfigError("pp must be at least 1", key="parallel.pp", file="step.yaml", line=3))
    step.yaml:3: parallel.pp: pp must be at least 1
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        file: str | Path = "",
        line: int = 0,
        column: int = 0,
    ) -> None:
        self.message, self.key, self.file = message, key, str(file)
        self.line, self.column = line, column
        super().__init__(_located(message, self.file, line, column, key))


class TableError(PptraceError):
    """A cell of a schedule table that cannot be read: row and column of a file, or rank and position of rows.

    Rows and columns of files count from 1, ranks and the positions of their actions from 0.

    >>> print(TableError("no such action kind", file="t.csv", row=2, column=5, cell="1X0"))
    t.csv: row 2, column 5, cell '1X0': no such action kind
    >>> print(TableError("no such action kind", rank=1, position=4, cell="1X0"))
    rank 1, action 4, cell '1X0': no such action kind
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | Path = "",
        row: int = 0,
        column: int = 0,
        rank: int = -1,
        position: int = -1,
        cell: str = "",
    ) -> None:
        self.message, self.file = message, str(file)
        self.row, self.column, self.cell = row, column, cell
        self.rank, self.position = rank, position
        place = [f"rank {rank}, action {position}"] if rank >= 0 else []
        place += [f"row {row}"] if row else []
        place += [f"column {column}"] if column else []
        place += [f"cell {cell!r}"] if cell else []
        super().__init__(": ".join(part for part in (self.file, ", ".join(place), message) if part))


class ScheduleError(PptraceError):
    """A schedule that cannot be used: the first offending ``rank`` and ``action``, where known."""

    def __init__(
        self, message: str, *, rank: int = -1, position: int = -1, action: str = "", missing: str = ""
    ) -> None:
        self.message, self.rank, self.position = message, rank, position
        self.action, self.missing = action, missing
        super().__init__(message)


class ConstraintError(ScheduleError):
    """Sizes that a schedule cannot take, with the nearest that it can.

    ``needs_memory`` is whether the schedule takes them with more memory.

    >>> print(ConstraintError("10 is not a multiple of ranks (4)", key="batch.microbatches", nearest="8 or 12"))
    batch.microbatches: 10 is not a multiple of ranks (4); nearest that work: 8 or 12
    """

    def __init__(
        self,
        message: str,
        *,
        nearest: str = "",
        key: str = "",
        file: str | Path = "",
        line: int = 0,
        column: int = 0,
        needs_memory: bool = False,
    ) -> None:
        self.reason, self.nearest, self.key, self.needs_memory = message, nearest, key, needs_memory
        self.file, self.line, self.column = str(file), line, column
        text = f"{message}; nearest that work: {nearest}" if nearest else message
        super().__init__(_located(text, self.file, line, column, key))


class CostError(ScheduleError):
    """Costs that cannot be counted: below zero, or too large for a step's sums."""


class DeadlockError(ScheduleError):
    """Actions that wait for each other; ``cycle`` holds each as ``rank r: action``."""

    def __init__(self, message: str, *, cycle: Sequence[str], policy: str = "") -> None:
        self.cycle, self.policy = tuple(cycle), policy
        super().__init__(message)


class PluginError(PptraceError):
    """A plugin that fails, returns an invalid value, or offers a name that another plugin offers."""

    def __init__(self, message: str, *, plugin: str = "", distribution: str = "") -> None:
        self.plugin, self.distribution = plugin, distribution
        super().__init__(message)


class _FileError(PptraceError):
    def __init__(self, message: str, *, file: str | Path = "") -> None:
        self.file = str(file)
        super().__init__(f"{self.file}: {message}" if self.file else message)


class TraceError(_FileError):
    """A trace file that cannot be read."""


class OutputError(_FileError):
    """A file that cannot be written; an existing file at its path is unchanged."""


_MOST_NAMES, _CLOSEST_NAMES = 40, 5
"""The most known names that a message lists, and the number of names if more are known."""


def nearest(name: str, known: Iterable[str] | Mapping[str, object]) -> str:
    """Return `` (did you mean 'x'? known: a, b, x)`` for an unknown name; of many known names, the closest.

    >>> nearest("1f2b", ["gpipe", "1f1b"])
    " (did you mean '1f1b'? known: 1f1b, gpipe)"
    >>> nearest("key7", [f"key{number}" for number in range(70, 120)])
    " (did you mean 'key79'? closest of 50: key79, key78, key77, key76, key75)"
    """
    import difflib

    names = sorted(known)
    close = [candidate for candidate in names if candidate.casefold() == name.casefold()]
    close = close or [candidate for candidate in names if name and candidate.startswith(f"{name}-")]
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not names:
        return " (none is known)"
    guess = f"did you mean '{close[0]}'? " if close else ""
    if len(names) <= _MOST_NAMES:
        return f" ({guess}known: {', '.join(names)})"
    closest = difflib.get_close_matches(name, names, n=_CLOSEST_NAMES, cutoff=0)
    closest = [*close, *(candidate for candidate in closest if candidate not in close)][:_CLOSEST_NAMES]
    return f" ({guess}closest of {len(names)}: {', '.join(closest)})"


def divisors_near(size: int, *numbers: int) -> str:
    """Return the common divisors of ``numbers`` on either side of ``size``.

    >>> divisors_near(6, 64, 8)
    '4 or 8'
    """
    divisor = gcd(*numbers)
    small = [each for each in range(1, isqrt(divisor) + 1) if divisor % each == 0]
    common = sorted({*small, *(divisor // each for each in small)})
    below = [each for each in common if each <= size][-1:]
    above = [each for each in common if each > size][:1]
    return " or ".join(map(str, below + above))


def _located(message: str, file: str, line: int, column: int, key: str) -> str:
    place = file
    if line:
        place += f":{line}" if file else f"line {line}"
        place += f":{column}" if column else ""
    is_named = place == f"--{key}" or place.startswith(f"--set {key}=")
    named = "" if is_named else key
    return ": ".join(part for part in (place, named, message) if part)
