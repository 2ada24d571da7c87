"""Errors of simulated steps: figures, text and chart."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pptrace.plugin import Document, PptraceError, Section, Table, write_picture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace_accuracy.records import Case

    _Row = dict[str, Any]
    _Group = list[tuple[Case, _Row]]
    _Pair = tuple[tuple[float, float], tuple[float, float]]  # measured and simulated seconds of two steps

_TIE = 0.02
"""Measured steps whose lengths differ by less than this share have no order."""
_NEAR_PERCENT = (2.0, 5.0, 10.0, None)
"""Upper bounds of the difference of two simulated steps; None for the last group."""
_COMPARABLE = ("source", "model", "layers", "hidden", "gpu", "n_gpus", "precision", "gbs", "seq")
"""Columns with equal values in comparable configurations, which are alternatives for the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of a group of rows, in percent of the measured value."""

    name: str
    """The group."""
    rows: int
    """Simulated rows."""
    skipped: int
    """Rows that were not simulated."""
    mean_absolute: float
    """Mean of the absolute errors."""
    mean: float
    """Mean error; negative if the simulated value is smaller."""
    least: float
    """The minimum."""
    most: float
    """The maximum."""
    default: float | None = None
    """Mean of the absolute errors with default settings; None for memory, or if no row was simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Steps that differ only in the microbatch."""

    name: str
    """Source and sizes."""
    measured: tuple[tuple[int, float], ...]
    """Microbatch and measured step in seconds."""
    best: int
    """The microbatch with the shortest measured step."""
    chosen: int
    """The microbatch with the shortest simulated step."""
    regret: float
    """The measured step of the chosen microbatch over that of the best, in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Steps with the same work per device on different numbers of devices."""

    name: str
    """Source, model and precision."""
    devices: tuple[int, int]
    """Minimum and maximum number of devices."""
    measured: float
    """The measured step on the most devices over that on the fewest, in percent."""
    simulated: float
    """The ratio of the simulated steps, in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Pairs of steps, grouped by the difference of the simulated steps."""

    most: float | None
    """Upper bound of the difference in percent of the shorter step; None for all larger differences."""
    right: int
    """Pairs in the measured order."""
    pairs: int
    """All pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a table of measured steps."""

    sources: tuple[Errors, ...]
    """By source, in the order of the file."""
    groups: tuple[Errors, ...]
    """Of all rows, and by kind of model and precision."""
    series: tuple[Series, ...]
    """Choices of a microbatch."""
    scales: tuple[Scale, ...]
    """Slowdown by scale."""
    memory: tuple[Errors, ...]
    """Errors of the fullest rank's peak memory, by source with published memory."""
    ordered: tuple[int, int]
    """Pairs in the measured order, and all pairs, of comparable configurations whose measured steps differ."""
    near: tuple[Near, ...]
    """Pairs of comparable configurations by the difference of their simulated steps."""


def compute_figures(cases: Sequence[Case], rows: Sequence[_Row]) -> Figures:
    """Return the figures of cases and their rows from :func:`~pptrace_accuracy.records.run_cases`."""
    simulated = [(case, row) for case, row in zip(cases, rows, strict=True) if row["error_pct"] is not None]
    sources = dict.fromkeys(str(row["source"]) for row in rows)
    kinds = sorted({(str(row["kind"]), str(row["precision"])) for _, row in simulated})
    groups = [("all", rows), ("dense", [row for row in rows if row["kind"] == "dense"])]
    groups += [("mixture of experts", [row for row in rows if row["kind"] == "moe"])]
    groups += [
        (f"{kind}, {precision}", [row for row in rows if (row["kind"], row["precision"]) == (kind, precision)])
        for kind, precision in kinds
    ]
    pairs = _comparable_pairs(simulated)
    return Figures(
        sources=tuple(_errors(name, [row for row in rows if row["source"] == name]) for name in sources),
        groups=tuple(_errors(name, group) for name, group in groups if group),
        series=_series(simulated),
        scales=_scales(simulated),
        memory=_memory(rows, sources),
        ordered=_count_ordered_pairs(pairs),
        near=_near(pairs),
    )


def _memory(rows: Sequence[_Row], sources: Iterable[str]) -> tuple[Errors, ...]:
    printed = [row for row in rows if row["memory_error_pct"] is not None]
    by_source = [(name, [row for row in printed if row["source"] == name]) for name in sources]
    return tuple(_errors(name, group, "memory_error_pct") for name, group in by_source if group)


def _errors(name: str, rows: Sequence[_Row], column: str = "error_pct") -> Errors:
    errors = [float(row[column]) for row in rows if row[column] is not None]
    defaults = [abs(float(row["default_error_pct"])) for row in rows if row["default_error_pct"] is not None]
    count = max(len(errors), 1)
    return Errors(
        name=name, rows=len(errors), skipped=sum(bool(row["skipped"]) for row in rows),
        mean_absolute=sum(map(abs, errors)) / count, mean=sum(errors) / count,
        least=min(errors, default=0.0), most=max(errors, default=0.0),
        default=sum(defaults) / len(defaults) if defaults and column == "error_pct" else None,
    )  # fmt: skip


def _groups_by_settings(simulated: Iterable[tuple[Case, _Row]], *varied: str) -> list[_Group]:
    """Return groups of rows of a source whose configurations differ only in the varied keys."""
    groups: dict[str, _Group] = defaultdict(list)
    for case, row in simulated:
        settings = {key: dict(value) if isinstance(value, dict) else value for key, value in case.settings.items()}
        for path in varied:
            section, _, key = path.partition(".")
            if isinstance(settings.get(section), dict):
                settings[section].pop(key, None)
        identity = json.dumps([case.row["source"], case.row.get("series", ""), settings], sort_keys=True)
        groups[identity].append((case, row))
    return list(groups.values())


def _measured_s(case: Case, row: Mapping[str, Any]) -> float:
    return float(case.measured_s or row["measured_s"])


def _series(simulated: Iterable[tuple[Case, _Row]]) -> tuple[Series, ...]:
    series = []
    for group in _groups_by_settings(simulated, "batch.micro"):
        measured: dict[int, float] = {}
        predicted: dict[int, float] = {}
        for case, row in group:
            micro = int(case.settings["batch"]["micro"])
            step_s = _measured_s(case, row)
            measured[micro] = min(step_s, measured.get(micro, step_s))
            predicted[micro] = float(row["simulated_s"])
        if len(measured) > 1:
            best, chosen = min(measured, key=measured.__getitem__), min(predicted, key=predicted.__getitem__)
            first = group[0][0].row
            sizes = " ".join(f"{axis}{first[axis]}" for axis in ("tp", "pp") if first.get(axis))
            series.append(
                Series(
                    name=f"{first['source']}: {first['model']}, {sizes}", measured=tuple(sorted(measured.items())),
                    best=best, chosen=chosen, regret=100 * (measured[chosen] / measured[best] - 1),
                )
            )  # fmt: skip
    return tuple(series)


def _scales(simulated: Iterable[tuple[Case, _Row]]) -> tuple[Scale, ...]:
    groups: dict[tuple[int, float], _Group] = defaultdict(list)
    for number, group in enumerate(_groups_by_settings(simulated, "parallel.dp", "batch.global")):
        for case, row in group:
            per_replica = case.settings["batch"]["global"] / case.settings["parallel"]["dp"]
            groups[number, per_replica].append((case, row))
    scales = []
    for group in groups.values():
        by_devices = sorted(group, key=lambda member: _devices(member[0]))
        fewest, most = by_devices[0], by_devices[-1]
        devices = _devices(fewest[0]), _devices(most[0])
        if devices[0] < devices[1]:
            first = fewest[0].row
            scales.append(
                Scale(
                    name=f"{first['source']}: {first['model']}, {first['precision']}", devices=devices,
                    measured=100 * (_measured_s(*most) / _measured_s(*fewest) - 1),
                    simulated=100 * (float(most[1]["simulated_s"]) / float(fewest[1]["simulated_s"]) - 1),
                )
            )  # fmt: skip
    return tuple(scales)


def _devices(case: Case) -> int:
    return int(float(case.row["n_gpus"]))


def _comparable_pairs(simulated: Iterable[tuple[Case, _Row]]) -> list[_Pair]:
    """Return measured and simulated steps of every two comparable configurations."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for case, row in simulated:
        key = tuple(case.row.get(name, "") for name in (*_COMPARABLE, "series"))
        groups[key].append((_measured_s(case, row), float(row["simulated_s"])))
    return [pair for group in groups.values() for pair in combinations(group, 2)]


def _count_ordered_pairs(pairs: Iterable[_Pair]) -> tuple[int, int]:
    different = [pair for pair in pairs if abs(pair[0][0] - pair[1][0]) > _TIE * min(pair[0][0], pair[1][0])]
    return sum(map(_is_right, different)), len(different)


def _near(pairs: Iterable[_Pair]) -> tuple[Near, ...]:
    groups: dict[float | None, list[_Pair]] = {bound: [] for bound in _NEAR_PERCENT}
    for pair in pairs:
        simulated = pair[0][1], pair[1][1]
        difference = 100 * (max(simulated) / min(simulated) - 1)
        groups[next(bound for bound in _NEAR_PERCENT if bound is None or difference <= bound)].append(pair)
    return tuple(
        Near(most=bound, right=sum(map(_is_right, group)), pairs=len(group))
        for bound, group in groups.items() if group
    )  # fmt: skip


def _is_right(pair: _Pair) -> bool:
    (first_measured, first_simulated), (second_measured, second_simulated) = pair
    return (first_measured < second_measured) == (first_simulated < second_simulated)


def accuracy_document(figures: Figures, rows: Sequence[_Row]) -> Document:
    """Return tables of errors, choices and slowdowns, and the reasons of skipped rows."""
    right, pairs = figures.ordered
    reasons = Counter((str(row["source"]), str(row["skipped"])) for row in rows if row["skipped"])
    tables = {
        "error in % of the measured step; negative: simulated is shorter":
            _error_table((*figures.sources, *figures.groups)),
        "peak memory, error in % of the printed one": _error_table(figures.memory),
        "best microbatch": Table(
            head=("series", "measured s by microbatch", "best", "chosen", "costs"),
            rows=tuple(
                (series.name, ", ".join(f"{micro}: {step_s:.1f}" for micro, step_s in series.measured),
                 str(series.best), str(series.chosen), f"{series.regret:+.1f}%")
                for series in figures.series
            ),
        ),
        "slowdown by scale": Table(
            head=("series", "devices", "measured", "simulated"),
            rows=tuple(
                (scale.name, f"{scale.devices[0]} to {scale.devices[1]}", f"{scale.measured:+.1f}%",
                 f"{scale.simulated:+.1f}%")
                for scale in figures.scales
            ),
        ),
        f"{right} of {pairs} pairs that differ by more than 2 % are in the measured order": Table(
            head=("simulated steps differ by", "pairs", "in the measured order"),
            rows=tuple(
                ("more" if near.most is None else f"up to {near.most:g}%", str(near.pairs), str(near.right))
                for near in figures.near if pairs
            ),
        ),
        f"skipped, {reasons.total()} rows": Table(
            rows=tuple((str(count), f"{source}: {reason}") for (source, reason), count in reasons.items()),
            words=0, left=(1,),
        ),
    }  # fmt: skip
    sections = (Section(title=title, blocks=(table,)) for title, table in tables.items() if table.rows)
    return Document(title="accuracy", lead=(), sections=tuple(sections))


def _error_table(errors: Iterable[Errors]) -> Table:
    head = ("source", "rows", "skipped", "mean absolute", "mean", "least", "most", "default settings")
    errors = tuple(errors)
    columns = len(head) - all(group.default is None for group in errors)
    return Table(head=head[:columns], rows=tuple(_cells(group)[:columns] for group in errors))


def _cells(errors: Errors) -> tuple[str, ...]:
    if not errors.rows:
        return errors.name, "0", str(errors.skipped), "-", "-", "-", "-", "-"
    default = "-" if errors.default is None else f"{errors.default:.1f}"
    signed = [f"{error:+.1f}" for error in (errors.mean, errors.least, errors.most)]
    return errors.name, str(errors.rows), str(errors.skipped), f"{errors.mean_absolute:.1f}", *signed, default


_SIZE = (7.0, 6.0)
_MARKERS = "osD^vP*X"
_LINES = "#8c959f"


def save_scatter(rows: Sequence[_Row], path: Path) -> None:
    """Write a scatter of measured and simulated steps, with lines of 5 % error.

    Raises:
        OutputError: the suffix is not that of a picture, or the file cannot be written.
        PptraceError: no row was simulated.
    """
    simulated = [row for row in rows if row["error_pct"] is not None]
    if not simulated:
        raise PptraceError(f"{path}: no row was simulated, so there is nothing to draw")
    write_picture(path, _SIZE, lambda figure: _draw(figure, simulated))


def _draw(figure: Any, rows: Sequence[_Row]) -> None:
    axes = figure.add_subplot()
    steps_s = [float(row[name]) for row in rows for name in ("measured_s", "simulated_s")]
    limits = [min(steps_s) * 0.8, max(steps_s) * 1.25]
    axes.plot(limits, limits, color=_LINES, linewidth=1)
    for factor in (0.95, 1.05):
        axes.plot(limits, [factor * limit for limit in limits], color=_LINES, linewidth=0.6, linestyle="--")
    for number, source in enumerate(dict.fromkeys(str(row["source"]) for row in rows)):
        group = [row for row in rows if row["source"] == source]
        axes.plot(
            [float(row["measured_s"]) for row in group], [float(row["simulated_s"]) for row in group],
            linestyle="none", marker=_MARKERS[number // 8 % len(_MARKERS)], markersize=5, color=f"C{number % 8}",
            alpha=0.8, label=source,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel="measured step (s)",
        ylabel="simulated step (s)",
    )  # fmt: skip
    axes.legend(fontsize=7, loc="upper left")
