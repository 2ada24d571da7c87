"""Where the time of a recorded step went, and what would shorten it; with several steps, how much that varies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.analysis.explanation.what_if import RankBusy, WhatIf, busy_by_rank, what_if
from pptrace.analysis.steps.parts import parts_of
from pptrace.analysis.steps.path import chain_of
from pptrace.analysis.steps.words import aligned, ms
from pptrace.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.analysis.steps.sides import Side
    from pptrace.timeline.measurement import Measurement

__all__ = ["Explained", "explained", "explained_document", "explained_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One step."""

    step: str
    """As the profiler numbers it."""
    step_ns: int
    """Its length."""
    bubble: float
    """Idle time over ranks times length."""
    parts_ns: Mapping[str, int]
    """By part, mean over ranks; they sum to the length."""
    idle_by_cause_ns: Mapping[str, int]
    """Idle time of all ranks by cause."""
    exposed_communication_ns: int
    """Communication of all ranks that nothing hid."""
    critical_path_ns: Mapping[str, int]
    """The chain that the end waited for, by kind, and what lies between."""
    ranks: tuple[RankBusy, ...]
    """What each rank computed."""
    idle_ns: tuple[int, ...]
    """What each rank waited."""
    what_if: WhatIf | None
    """Its length without one thing after another; None where it cannot be replayed."""
    no_what_if: str
    """Why not."""


def explained(side: Side) -> Explained:
    """Explain a side's step."""
    metrics, step = side.metrics, side.performed
    without, why = None, ""
    try:
        without = what_if(step)
    except ScheduleError as error:
        why = str(error)
    return Explained(
        step=side.steps[side.chosen].label, step_ns=metrics.step_ns, bubble=float(metrics.bubble),
        parts_ns=parts_of(side), idle_by_cause_ns=metrics.idle_by_cause_ns,
        exposed_communication_ns=int(metrics.exposed_ns.sum()), critical_path_ns=dict(chain_of(step).by_kind_ns),
        ranks=busy_by_rank(step), idle_ns=tuple(metrics.idle_ns.sum(axis=1).tolist()), what_if=without,
        no_what_if=why,
    )  # fmt: skip


def explained_document(one: Explained, steps: Sequence[Explained], measurement: Measurement) -> dict[str, Any]:
    """Return everything as plain JSON values, times in nanoseconds.

    ``varies`` has the same figures: the standard deviation of each over all steps; null for one step.
    """
    return {
        **asdict(one),
        "lengths_ns": [each.step_ns for each in steps],
        "varies": _varies([asdict(each) for each in steps]) if len(steps) > 1 else None,
        "unattributed": [asdict(work) for work in measurement.unattributed],
        "notes": list(measurement.notes),
    }


def explained_lines(name: str, one: Explained, steps: Sequence[Explained], measurement: Measurement) -> list[str]:
    """Return what a terminal shows."""
    varies = _varies([asdict(each) for each in steps]) if len(steps) > 1 else None
    sections = [
        _head(name, one, steps, varies), _parts(one, varies), _ranks(one, varies), _path(one, varies),
        _without(one, varies),
    ]  # fmt: skip
    lines = [line for section in sections for line in (*section, "")]
    return [
        *lines[:-1],
        *(
            f"rank {work.rank}: {work.count} {work.what} belong to no action, {ms(work.total_ns)}"
            for work in measurement.unattributed
        ),
    ]


def _varies(values: Sequence[Any]) -> Any:
    """Return the standard deviations of documents of one form, figure by figure; what is no figure is left out."""
    values = [value for value in values if value is not None]
    first = values[0] if values else None
    if isinstance(first, dict):
        found = {key: _varies([value.get(key) for value in values]) for key in first if key != "rank"}
        return {key: one for key, one in found.items() if one is not None}
    if isinstance(first, (list, tuple)):
        return [_varies(column) for column in zip(*values, strict=False)]
    known = [value for value in values if isinstance(value, int | float)]
    if len(known) <= 1:
        return None
    spread = float(np.std(known, ddof=1))
    return round(spread) if all(isinstance(value, int) for value in known) else spread


def _at(varies: Any, *keys: str | int) -> Any:
    """Return one figure's deviation; None where there is one step, or the figure is not in all."""
    for key in keys:
        if varies is None or (isinstance(varies, dict) and key not in varies):
            return None
        varies = varies[key]
    return varies


def _head(name: str, one: Explained, steps: Sequence[Explained], varies: Any) -> list[str]:
    bubble = _at(varies, "bubble")
    shown = f"{one.bubble:.2%}" if bubble is None else f"{one.bubble:.2%} ±{bubble:.2%}"
    lines = [f"{name}, {one.step}: step {ms(one.step_ns, _at(varies, 'step_ns'))}, bubble {shown}"]
    if varies is None:
        return lines
    lengths = sorted(each.step_ns for each in steps)
    told = f"{ms(lengths[0])} to {ms(lengths[-1])}, median {ms(lengths[(len(lengths) - 1) // 2])}"
    return [*lines, f"{len(lengths)} steps: {told}; ± is one standard deviation from step to step"]


def _parts(one: Explained, varies: Any) -> list[str]:
    whole = max(sum(one.parts_ns.values()), 1)
    rows = [
        (part, ms(time, _at(varies, "parts_ns", part)), f"{time / whole:.1%}")
        for part, time in one.parts_ns.items()
        if time
    ]
    exposed, deviation = one.exposed_communication_ns, _at(varies, "exposed_communication_ns")
    mean = ms(exposed / len(one.ranks), None if deviation is None else deviation / len(one.ranks))
    share = exposed / len(one.ranks) / max(one.step_ns, 1)
    told = f"communication that nothing hid: {mean} ({share:.1%})"
    return ["parts of the step, mean over ranks", *aligned(rows), told]


def _ranks(one: Explained, varies: Any) -> list[str]:
    rows = [
        (
            f"rank {rank.rank}", ms(rank.busy_ns, _at(varies, "ranks", at, "busy_ns")),
            ms(one.idle_ns[at], _at(varies, "idle_ns", at)), f"{rank.share:+.1%} of the median's work",
        )
        for at, rank in enumerate(one.ranks)
    ]  # fmt: skip
    return ["ranks: computing, idle", *aligned(rows)]


def _path(one: Explained, varies: Any) -> list[str]:
    rows = [(kind, ms(time, _at(varies, "critical_path_ns", kind))) for kind, time in one.critical_path_ns.items()]
    return ["critical path: computations, and what lies between", *aligned(rows)]


def _without(one: Explained, varies: Any) -> list[str]:
    without = one.what_if
    if without is None:
        return [f"what would shorten the pipeline is not known, for it cannot be replayed: {one.no_what_if}"]
    rows = [(ms(without.replayed_ns, _at(varies, "what_if", "replayed_ns")), "as it was, replayed")]
    for text, name in (
        ("with free communication", "free_communication_ns"),
        ("without gaps of the host", "no_gaps_ns"),
        (f"with rank {without.slowest.rank} repaired, the slowest", "repaired_ns"),
        ("without any bubble", "no_bubble_ns"),
    ):
        length = getattr(without, name)
        change = length / max(without.replayed_ns, 1) - 1
        rows.append((ms(length, _at(varies, "what_if", name)), f"{text} ({change:+.1%})"))
    width = max(len(figure) for figure, _ in rows)
    return ["the pipeline would take", *(f"  {figure:>{width}}  {text}" for figure, text in rows)]
