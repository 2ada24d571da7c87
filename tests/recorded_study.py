"""The recorded tables of examples/paper-2605.24006, by the values of their axes, and what they say together."""

from __future__ import annotations

import csv
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parents[1] / "examples" / "paper-2605.24006"
LEVELS = ("slow", "mid", "fast")
COUNTS = (8, 16, 32, 64, 128, 256)
CONCATENATED = "chimera:scale=concatenation"
SLOW_FAST = {"network": "slow", "compute": "fast"}
BASELINE = {"network": "mid", "compute": "mid"}
SLOW_MID = {"network": "slow", "compute": "mid"}
FAST_SLOW = {"network": "fast", "compute": "slow"}
POLICIES = ("async", "sender-blocking")
PLAIN = ("gpipe", "1f1b", "chimera")
CAPPED, EVEN = "constructions.py:capped", "constructions.py:even"
LAST = COUNTS[-1]
SYSTEMS = [{"network": network, "compute": compute} for network in LEVELS for compute in LEVELS]
TABLE_I = {
    ("fast", "fast"): {"chimera": (35.67, 24.56), "hanayo": (25.47, 21.20)},
    ("fast", "mid"): {"chimera": (34.26, 59.08), "hanayo": (23.76, 50.95)},
    ("fast", "slow"): {"chimera": (33.44, 434.54), "hanayo": (22.79, 374.63)},
    ("slow", "fast"): {"chimera": (41.73, 27.11), "hanayo": (48.12, 30.45)},
    ("slow", "mid"): {"chimera": (36.98, 61.64), "hanayo": (35.47, 60.20)},
    ("slow", "slow"): {"chimera": (33.83, 437.09), "hanayo": (24.65, 383.87)},
}
"""The paper's idle share in percent and step in seconds, by network and compute."""


class Recorded:
    """A table of results."""

    def __init__(self, name: str) -> None:
        with (FOLDER / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.rows = {frozenset((axis, row[axis]) for axis in row["over"].split(", ")): row for row in rows}

    def at(self, figure: str = "step_ns", /, **axes: object) -> float:
        """Return a figure of the run with these values of all axes."""
        return float(self.rows[frozenset((axis, str(value)) for axis, value in axes.items())][figure])

    def behind(self, schedule: str, first: str, **axes: object) -> float:
        """Return by how many percent a schedule's step is longer than another's."""
        return 100 * (self.at(schedule=schedule, **axes) / self.at(schedule=first, **axes) - 1)


@cache
def recorded(name: str) -> Recorded:
    """Return a table by its file's name."""
    return Recorded(name)


def listed(values: Iterable[float], places: int = 1) -> str:
    """Return figures as ``8.0, 6.6 and 2.6``; signs left out, no minus before zero."""
    texts = [f"{abs(value):.{places}f}" for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


def seconds(values: Iterable[float]) -> str:
    """Return the least and the largest of times in nanoseconds."""
    values = list(values)
    return f"{min(values) / 1e9:.1f} to {max(values) / 1e9:.1f} s"


def bubbles(kind: str, schedule: str, counts: Iterable[int], ranks: int = 8) -> list[float]:
    """Return bubbles of formulas or of tables in percent."""
    table = recorded("figures-3-5")
    return [100 * table.at(f"{kind}_bubble", pp=ranks, schedule=schedule, microbatches=count) for count in counts]


def activations(schedule: str, count: int, ranks: int = 8, figure: str = "peak_activations") -> float:
    """Return the peak of a worker, in stages' activations of a microbatch."""
    return recorded("figures-3-5").at(figure, pp=ranks, schedule=schedule, microbatches=count)


def gib(schedule: str, count: int, ranks: int = 8) -> float:
    """Return the same in GiB."""
    return activations(schedule, count, ranks, "peak_activation_bytes") / 2**30


def behind(
    schedule: str, first: str, system: dict[str, str], *counts: int, name: str = "figure-4-async"
) -> list[float]:
    """Return by how many percent a schedule's steps are longer than another's."""
    return [recorded(name).behind(schedule, first, microbatches=count, **system) for count in counts]


def steps(
    schedules: Iterable[str], system: dict[str, str], *counts: int, name: str = "figure-4-async"
) -> list[float]:
    """Return steps in nanoseconds, over all microbatches unless given."""
    table = recorded(name)
    return [
        table.at(schedule=schedule, microbatches=n, **system) for schedule in schedules for n in counts or COUNTS
    ]


def apart(policy: str, *systems: dict[str, str]) -> float:
    """Return by how many percent 1F1B and GPipe are apart at most."""
    return max(
        abs(each)
        for system in systems
        for each in behind("1f1b", "gpipe", system, *COUNTS, name=f"figure-4-{policy}")
    )


def uneven(ranks: int, count: int, policy: str = "async", network: str = "mid", compute: str = "mid") -> float:
    """Return by how many percent steps with stages of 1 : 2 are longer than with even ones."""
    table, run = recorded(f"figure-6-{policy}"), {"network": network, "microbatches": count}
    longer, even = (table.at(stages=f"{sort}-{ranks}-{compute}", **run) for sort in ("uneven", "even"))
    return 100 * (longer / even - 1)


def uneven_peak(ranks: int, count: int) -> float:
    """Return the same of peak activations, on the baseline."""
    table, run = recorded("figure-6-async"), {"network": "mid", "microbatches": count}
    more, even = (
        table.at("peak_activation_bytes", stages=f"{sort}-{ranks}-mid", **run) for sort in ("uneven", "even")
    )
    return 100 * (more / even - 1)


def replayed(schedule: str, sort: str, ranks: int, *counts: int) -> list[float]:
    """Return by how many percent these stages in this table are slower than even ones in theirs."""
    table = recorded("figure-6-tables")
    even = [table.at(stages=f"even-{ranks}-mid", schedule="chimera", microbatches=count) for count in counts]
    other = [table.at(stages=f"{sort}-{ranks}-mid", schedule=schedule, microbatches=count) for count in counts]
    return [100 * (mine / base - 1) for mine, base in zip(other, even, strict=True)]


def off_table_i(policy: str) -> tuple[float, float]:
    """Return the largest distances from Table I: of idle shares in points, of steps in percent."""
    table = recorded(f"table-1-{policy}")
    idle, step = 0.0, 0.0
    for (network, compute), cells in TABLE_I.items():
        for schedule, (share, length) in cells.items():
            run = {"network": network, "compute": compute, "schedule": schedule}
            idle = max(idle, abs(100 * table.at("idle", **run) - share))
            step = max(step, 100 * abs(table.at(**run) / 1e9 / length - 1))
    return idle, step


def within(value: float, part: int) -> str:
    """Return the next whole part of one above a value."""
    return f"{ceil(value * part) / part:g}"
