"""Figures of measured against simulated steps: errors by source, choices of a microbatch, scale, and order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace.study.accuracy.rows import Case

    _Pair = tuple[tuple[float, float], tuple[float, float]]  # measured and simulated seconds of two steps

__all__ = ["Errors", "Figures", "Near", "Scale", "Series", "figures_of"]

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
    """Return the figures of rows that :func:`~pptrace.study.accuracy.run.run_cases` made of cases."""
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
