"""The straggler part of an explanation: sections, values, and the heat map of workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import Cell, ExplanationPart, ScheduleError, Section, Table, write_picture
from pptrace_stragglers.simulation import Job, build_job
from pptrace_stragglers.what_if import find_stragglers, ideal_timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace.plugin import Measurement, Step
    from pptrace_stragglers.what_if import Removed, Stragglers

_CAUSES = {
    "none": "nothing: operations of each type take nearly the same time",
    "workers": "few workers are slow",
    "last-stage": "the last stage is longer than the others",
    "lengths": "sequences differ in length: forwards and backwards of microbatches vary together",
    "mixed": "several causes: none of those below makes up half of the loss",
}
_DARKEST = 1.5
"""The slowdown of the darkest color, as in the paper's figure 14."""
_MOST_ROWS = 16
"""Maximum number of replicas in the table."""


def explain_job(measurement: Measurement, step: Step) -> ExplanationPart | None:
    """Return the costs of stragglers, for ``pptrace explain``; None for a measurement of one replica."""
    job = measurement.job
    if not isinstance(job, Job):
        if len(measurement.replicas) <= 1:
            return None
        try:
            job = build_job(measurement.replicas)
        except ScheduleError as error:
            return ExplanationPart(notes=(f"replicas are not compared: {error}",))
    stragglers = find_stragglers(job)
    return ExplanationPart(
        sections=_sections(stragglers),
        values={name: getattr(stragglers, name) for name in stragglers.__slots__}
        | {"heat": stragglers.heat.tolist()},
        write_picture=partial(_write_heat_map, stragglers=stragglers),
        timeline=partial(ideal_timeline, job, step.timeline.placement),
    )


def _sections(stragglers: Stragglers) -> tuple[Section, ...]:
    slowdowns = tuple((name, f"{effect.slowdown:.3f}") for name, effect in stragglers.by_type.items())
    types = Table(head=("", "slowdown"), rows=slowdowns)
    return (
        Section(title="the job, all replicas", blocks=tuple(_summary(stragglers))),
        Section(title="causes of the loss", blocks=(_causes(stragglers),)),
        Section(title="slowdown by type of operation, each alone", blocks=(types,)),
        Section(title="the slowest workers", blocks=(_workers(stragglers),)),
        Section(
            title="slowdown by replica and rank",
            about="A worker's is the lesser of its replica's and its rank's, each alone slow in an ideal job.",
            blocks=_heat_table(stragglers),
        ),
    )


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:,.3f} ms"


def _summary(stragglers: Stragglers) -> Iterator[str]:
    replicas, ranks = stragglers.heat.shape
    yield (
        f"{replicas} replicas of {ranks} ranks, {len(stragglers.steps)} steps of {_ms(stragglers.step_ns)} "
        "in the mean"
    )
    yield (
        f"slowdown {stragglers.slowdown:.3f}: {_ms(stragglers.replayed_ns)} without host gaps, "
        f"{_ms(stragglers.ideal_ns)} if operations of each type took the same time"
    )
    if len(stragglers.steps) > 1:
        least, most = int(np.argmin(stragglers.by_step)), int(np.argmax(stragglers.by_step))
        yield (
            f"from {stragglers.by_step[least]:.3f} ({stragglers.steps[least]}) "
            f"to {stragglers.by_step[most]:.3f} ({stragglers.steps[most]})"
        )
    yield f"because of: {_CAUSES[stragglers.cause]}"


def _causes(stragglers: Stragglers) -> Table:
    count, correlation = len(stragglers.slowest), stragglers.correlation
    correlated = "" if np.isnan(correlation) else f", correlation {correlation:.2f}"
    causes: tuple[tuple[str, Removed], ...] = (
        (
            f"the slowest {count} workers (M_W)" if count > 1 else "the slowest worker (M_W)",
            stragglers.slowest_workers,
        ),
        ("the last stage (M_S)", stragglers.last_stage),
        (f"microbatches of different work{correlated}", stragglers.lengths),
    )
    has_cause = stragglers.cause != "none"
    return Table(
        head=("repaired", "a step takes", "share of the loss"),
        rows=tuple(
            (name, _ms(removed.without_ns), f"{removed.removed:.1%}" if has_cause else "")
            for name, removed in causes
        ),
    )


def _workers(stragglers: Stragglers) -> Table:
    return Table(
        head=("", "global rank", "slowdown"),
        rows=tuple(
            (f"{worker.replica}, rank {worker.rank}", str(worker.worker), f"{worker.slowdown:.3f}")
            for worker in stragglers.slowest
        ),
    )


def _heat_table(stragglers: Stragglers) -> tuple[Table | str, ...]:
    """Return a table of the slowest replicas, and the number of replicas that it leaves out."""
    names, heat = list(stragglers.by_replica), stragglers.heat
    slowest = np.argsort(-heat.max(axis=1), kind="stable")[:_MOST_ROWS].tolist()
    listed = sorted(slowest) if len(names) <= _MOST_ROWS else slowest
    rows = tuple((names[index], *_cells(names[index], heat[index].tolist())) for index in listed)
    table = Table(head=("", *(f"rank {rank}" for rank in range(heat.shape[1]))), rows=rows, splits=True)
    omitted = len(names) - len(listed)
    return (table, f"{omitted} further replicas are less slow") if omitted else (table,)


def _cells(replica: str, slowdowns: list[float]) -> Iterator[Cell]:
    for rank, slowdown in enumerate(slowdowns):
        shade = min(max((slowdown - 1) / (_DARKEST - 1), 0.0), 1.0)
        title = f"{replica}, rank {rank}: slowdown {slowdown:.3f}"
        yield Cell(text=f"{slowdown:.2f}", title=title, shade=shade)


_SHORT_CAUSES = {
    "none": "no loss", "workers": "slow workers", "last-stage": "long last stage", "lengths": "sequence lengths",
    "mixed": "mixed causes",
}  # fmt: skip
_SCALE_WIDTH = 0.4
"""Width of the color scale and its distance from the map, in replicas."""
_MOST_NUMBERS = 400
"""Cells of a map with a number in each."""
_MOST_LABELS = 64


def _write_heat_map(path: Path, stragglers: Stragglers) -> None:
    """Draw the slowdown of each worker, ranks by replicas.

    Raises:
        OutputError: another suffix than .png, .svg or .pdf, or a file that cannot be written.
    """
    replicas, ranks = stragglers.heat.shape
    size = min(max(replicas * 0.34 + 1.6, 5.0), 60.0), min(max(ranks * 0.34 + 1.2, 1.8), 60.0)
    write_picture(path, size, lambda figure: _draw(figure, stragglers))


def _draw(figure: Any, stragglers: Stragglers) -> None:
    slowdowns, replicas = stragglers.heat.T, stragglers.heat.shape[0]
    axes = figure.add_subplot()
    image = axes.imshow(slowdowns, cmap="Reds", vmin=1, vmax=_DARKEST, aspect="equal", interpolation="nearest")
    names = [name.removeprefix("dp=") for name in stragglers.by_replica]
    spacing = max(1, -(-replicas // _MOST_LABELS))
    axes.set_xticks(range(0, replicas, spacing), names[::spacing], fontsize=7)
    axes.set_yticks(range(slowdowns.shape[0]))
    axes.set(xlabel="replica", ylabel="rank")
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    title = f"slowdown {stragglers.slowdown:.2f}, {_SHORT_CAUSES[stragglers.cause]}"
    axes.set_title(title, loc="left", fontsize=10)
    middle = (1 + _DARKEST) / 2
    if slowdowns.size <= _MOST_NUMBERS:
        for (rank, replica), slowdown in np.ndenumerate(slowdowns):
            text_color = "white" if slowdown > middle + 0.1 else "black"
            axes.text(replica, rank, f"{slowdown:.2f}", ha="center", va="center", fontsize=6, color=text_color)
    scale_axes = axes.inset_axes((1 + _SCALE_WIDTH / replicas, 0, _SCALE_WIDTH / replicas, 1))
    scale = figure.colorbar(image, cax=scale_axes, ticks=[1, middle, _DARKEST])
    scale.ax.tick_params(labelsize=7, length=2)
    scale.outline.set_visible(False)
