"""Errors against published steps: figures, tables and charts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pptrace.errors import PptraceError
from pptrace.report.charts import CYCLE, MUTED, write_picture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.search.accuracy.records import Case

    _Pair = tuple[tuple[float, float], tuple[float, float]]  # measured and simulated seconds of two steps

__all__ = [
    "Errors",
    "Figures",
    "Near",
    "Scale",
    "Series",
    "accuracy_text",
    "figures_dict",
    "figures_of",
    "save_scatter",
]

_APART = 0.02
"""Measured steps nearer than this are in no order."""
_NEAR = (2.0, 5.0, 10.0, None)
"""By how many percent simulated steps are apart, at most."""
_SAME = ("source", "model", "layers", "hidden", "gpu", "n_gpus", "precision", "gbs", "seq")
"""Columns that configurations of one question have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of a group of rows, in percent of the measured step."""

    name: str
    """What the rows have in common."""
    rows: int
    """How many were simulated."""
    skipped: int
    """How many were not."""
    mean_absolute: float
    """Mean of the errors' sizes."""
    mean: float
    """Mean error; negative where the simulated step is the shorter one."""
    least: float
    """The least error."""
    most: float
    """The greatest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Steps that differ in the microbatch alone."""

    name: str
    """Source and sizes."""
    measured: tuple[tuple[int, float], ...]
    """Microbatch and measured step in seconds."""
    best: int
    """The measured best microbatch."""
    chosen: int
    """The simulated best one."""
    regret: float
    """What the chosen one measures over the best, in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Steps of the same work per device on more and more devices."""

    name: str
    """Source, model and precision."""
    devices: tuple[int, int]
    """The fewest and the most."""
    measured: float
    """How much longer the measured step is on the most, in percent."""
    simulated: float
    """The same of the simulated step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Pairs whose simulated steps are about as far apart."""

    most: float | None
    """By how much the longer one is longer at most, in percent; None for all that are farther apart."""
    right: int
    """Those in the measured order."""
    pairs: int
    """All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the rows amount to."""

    sources: tuple[Errors, ...]
    """By source, in the file's order."""
    groups: tuple[Errors, ...]
    """Over all rows, and over those of a kind and precision."""
    series: tuple[Series, ...]
    """Choices of a microbatch."""
    scales: tuple[Scale, ...]
    """Slowdown by scale."""
    memory: tuple[Errors, ...]
    """Errors of the fullest rank's peak against the printed one, by source; those that print none are left out."""
    ordered: tuple[int, int]
    """Of pairs of one source, model, batch and devices whose measured steps are apart: those in the measured
    order, and all."""
    near: tuple[Near, ...]
    """The same of all pairs, by how far apart their simulated steps are."""


def figures_of(cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> Figures:
    """Return the figures of rows that :func:`~pptrace.search.accuracy.runner.run_cases` made of cases."""
    done = [(case, row) for case, row in zip(cases, rows, strict=True) if row["error_pct"] is not None]
    sources = dict.fromkeys(str(row["source"]) for row in rows)
    kinds = sorted({(str(row["kind"]), str(row["precision"])) for _, row in done})
    groups = [("all", rows), ("dense", [row for row in rows if row["kind"] == "dense"])]
    groups += [("mixture of experts", [row for row in rows if row["kind"] == "moe"])]
    groups += [
        (f"{kind}, {precision}", [row for row in rows if (row["kind"], row["precision"]) == (kind, precision)])
        for kind, precision in kinds
    ]
    pairs = _pairs(done)
    return Figures(
        sources=tuple(_errors(name, [row for row in rows if row["source"] == name]) for name in sources),
        groups=tuple(_errors(name, group) for name, group in groups if group),
        series=_series(done),
        scales=_scales(done),
        memory=_memory(rows, sources),
        ordered=_ordered(pairs),
        near=_near(pairs),
    )


def _memory(rows: Sequence[dict[str, Any]], sources: Iterable[str]) -> tuple[Errors, ...]:
    printed = [row for row in rows if row["memory_error_pct"] is not None]
    by_source = [(name, [row for row in printed if row["source"] == name]) for name in sources]
    return tuple(_errors(name, own, "memory_error_pct") for name, own in by_source if own)


def _errors(name: str, rows: Sequence[dict[str, Any]], column: str = "error_pct") -> Errors:
    errors = [float(row[column]) for row in rows if row[column] is not None]
    count = max(len(errors), 1)
    return Errors(
        name=name, rows=len(errors), skipped=sum(bool(row["skipped"]) for row in rows),
        mean_absolute=sum(map(abs, errors)) / count, mean=sum(errors) / count,
        least=min(errors, default=0.0), most=max(errors, default=0.0),
    )  # fmt: skip


def _grouped(done: Iterable[tuple[Case, dict[str, Any]]], *varied: str) -> list[list[tuple[Case, dict[str, Any]]]]:
    """Return rows of one source whose configurations differ in these keys alone."""
    groups: dict[str, list[tuple[Case, dict[str, Any]]]] = defaultdict(list)
    for case, row in done:
        same = _without(case.settings, varied)
        key = json.dumps([case.row["source"], case.row.get("series", ""), same], sort_keys=True)
        groups[key].append((case, row))
    return list(groups.values())


def _without(settings: Mapping[str, Any], varied: Iterable[str]) -> dict[str, Any]:
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    for path in varied:
        section, _, key = path.partition(".")
        if isinstance(kept.get(section), dict):
            kept[section].pop(key, None)
    return kept


def _took(case: Case, row: Mapping[str, Any]) -> float:
    """Return the measured step, in seconds."""
    return float(case.measured_s or row["measured_s"])


def _series(done: Iterable[tuple[Case, dict[str, Any]]]) -> tuple[Series, ...]:
    found = []
    for group in _grouped(done, "batch.micro"):
        measured: dict[int, float] = {}
        simulated: dict[int, float] = {}
        for case, row in group:
            micro = int(case.settings["batch"]["micro"])
            took = _took(case, row)
            measured[micro] = min(took, measured.get(micro, took))
            simulated[micro] = float(row["simulated_s"])
        if len(measured) > 1:
            best, chosen = min(measured, key=measured.__getitem__), min(simulated, key=simulated.__getitem__)
            first = group[0][0].row
            sizes = " ".join(f"{axis}{first[axis]}" for axis in ("tp", "pp") if first.get(axis))
            name = f"{first['source']}: {first['model']}, {sizes}"
            found.append(
                Series(
                    name=name, measured=tuple(sorted(measured.items())), best=best, chosen=chosen,
                    regret=100 * (measured[chosen] / measured[best] - 1),
                )
            )  # fmt: skip
    return tuple(found)


def _scales(done: Iterable[tuple[Case, dict[str, Any]]]) -> tuple[Scale, ...]:
    groups: dict[str, list[tuple[Case, dict[str, Any]]]] = defaultdict(list)
    for group in _grouped(done, "parallel.dp", "batch.global"):
        for case, row in group:
            per_replica = case.settings["batch"]["global"] / case.settings["parallel"]["dp"]
            groups[f"{id(group)} {per_replica}"].append((case, row))
    found = []
    for group in groups.values():
        ordered = sorted(group, key=lambda one: int(float(one[0].row["n_gpus"])))
        first, last = ordered[0], ordered[-1]
        devices = int(float(first[0].row["n_gpus"])), int(float(last[0].row["n_gpus"]))
        if devices[0] < devices[1]:
            own = first[0].row
            found.append(
                Scale(
                    name=f"{own['source']}: {own['model']}, {own['precision']}", devices=devices,
                    measured=100 * (_took(*last) / _took(*first) - 1),
                    simulated=100 * (float(last[1]["simulated_s"]) / float(first[1]["simulated_s"]) - 1),
                )
            )  # fmt: skip
    return tuple(found)


def _pairs(done: Iterable[tuple[Case, dict[str, Any]]]) -> list[_Pair]:
    """Return measured and simulated steps of every two configurations of one model, batch and devices."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for case, row in done:
        same = tuple(case.row.get(name, "") for name in _SAME)
        groups[*same, case.row.get("series", "")].append((_took(case, row), float(row["simulated_s"])))
    return [pair for group in groups.values() for pair in combinations(group, 2)]


def _ordered(pairs: Iterable[_Pair]) -> tuple[int, int]:
    apart = [pair for pair in pairs if abs(pair[0][0] - pair[1][0]) > _APART * min(pair[0][0], pair[1][0])]
    return sum(map(_is_right, apart)), len(apart)


def _near(pairs: Iterable[_Pair]) -> tuple[Near, ...]:
    found: dict[float | None, list[_Pair]] = {most: [] for most in _NEAR}
    for pair in pairs:
        simulated = pair[0][1], pair[1][1]
        lead = 100 * (max(simulated) / min(simulated) - 1)
        found[next(most for most in _NEAR if most is None or lead <= most)].append(pair)
    return tuple(
        Near(most=most, right=sum(map(_is_right, own)), pairs=len(own)) for most, own in found.items() if own
    )


def _is_right(pair: _Pair) -> bool:
    (first, one), (second, other) = pair
    return (first < second) == (one < other)


def accuracy_text(figures: Figures, rows: Sequence[dict[str, Any]]) -> str:
    """Return tables of errors, choices and slowdowns, and why rows are missing."""
    lines = ["error in % of the measured step; negative: simulated is shorter", ""]
    lines += _table(
        ["source", "rows", "skipped", "mean absolute", "mean", "least", "most"],
        [*map(_cells, figures.sources), *map(_cells, figures.groups)],
    )
    if figures.memory:
        lines += ["", "peak memory, error in % of the printed one", ""]
        head = ["source", "rows", "skipped", "mean absolute", "mean", "least", "most"]
        lines += _table(head, map(_cells, figures.memory))
    if figures.series:
        lines += ["", "best microbatch", ""]
        lines += _table(
            ["series", "measured s by microbatch", "best", "chosen", "costs"],
            [
                [one.name, ", ".join(f"{micro}: {step:.1f}" for micro, step in one.measured), str(one.best),
                 str(one.chosen), f"{one.regret:+.1f}%"]
                for one in figures.series
            ],
        )  # fmt: skip
    if figures.scales:
        lines += ["", "slowdown by scale", ""]
        lines += _table(
            ["series", "devices", "measured", "simulated"],
            [
                [
                    one.name,
                    f"{one.devices[0]} to {one.devices[1]}",
                    f"{one.measured:+.1f}%",
                    f"{one.simulated:+.1f}%",
                ]
                for one in figures.scales
            ],
        )
    right, pairs = figures.ordered
    if pairs:
        lines += ["", f"{right} of {pairs} pairs that lie more than 2 % apart come in the measured order", ""]
        lines += _table(
            ["simulated steps apart by", "pairs", "in the measured order"],
            [["more" if one.most is None else f"up to {one.most:g}%", str(one.pairs), str(one.right)]
             for one in figures.near],
        )  # fmt: skip
    lines += _skipped(rows)
    return "\n".join(lines)


def figures_dict(figures: Figures) -> dict[str, Any]:
    """Return the figures as plain JSON values."""
    from dataclasses import asdict

    return asdict(figures)


def _cells(one: Errors) -> list[str]:
    if not one.rows:
        return [one.name, "0", str(one.skipped), "-", "-", "-", "-"]
    shown = [f"{one.mean_absolute:.1f}", f"{one.mean:+.1f}", f"{one.least:+.1f}", f"{one.most:+.1f}"]
    return [one.name, str(one.rows), str(one.skipped), *shown]


def _skipped(rows: Sequence[dict[str, Any]]) -> list[str]:
    reasons = Counter((str(row["source"]), str(row["skipped"])) for row in rows if row["skipped"])
    if not reasons:
        return []
    lines = ["", f"skipped, {sum(reasons.values())} rows", ""]
    return [*lines, *(f"{count:4} {source}: {reason}" for (source, reason), count in reasons.items())]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]


_SIZE = (7.0, 6.0)
_MARKERS = "osD^vP*X"


def save_scatter(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture with a point per simulated row, and lines of 5 % error.

    Raises:
        OutputError: another suffix than a picture's, or a file that cannot be written.
        PptraceError: no row was simulated, or matplotlib is not installed.
    """
    done = [row for row in rows if row["error_pct"] is not None]
    if not done:
        raise PptraceError(f"{path}: no row was simulated, so there is nothing to draw")
    write_picture(path, _SIZE, lambda figure: _draw(figure, done))


def _draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    axes = figure.add_subplot()
    steps = [float(row[name]) for row in rows for name in ("measured_s", "simulated_s")]
    ends = [min(steps) * 0.8, max(steps) * 1.25]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    for factor in (0.95, 1.05):
        axes.plot(ends, [factor * end for end in ends], color=MUTED, linewidth=0.6, linestyle="--")
    for place, source in enumerate(dict.fromkeys(str(row["source"]) for row in rows)):
        own = [row for row in rows if row["source"] == source]
        axes.plot(
            [float(row["measured_s"]) for row in own], [float(row["simulated_s"]) for row in own],
            linestyle="none", marker=_MARKERS[(place // len(CYCLE)) % len(_MARKERS)], markersize=5,
            color=CYCLE[place % len(CYCLE)], alpha=0.8, label=source,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured step (s)", ylabel="simulated step (s)"
    )
    axes.legend(frameon=False, fontsize=7, loc="upper left")
