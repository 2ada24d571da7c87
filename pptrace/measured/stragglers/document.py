"""What a job's stragglers cost, as sections of an explanation, and as a heat map."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.report.document import Cell, Line, Section, Table
from pptrace.report.numbers import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pptrace.measured.stragglers.what_if import Removed, Stragglers
    from pptrace.report.document import Document

__all__ = ["with_stragglers", "write_heat"]

_CAUSES = {
    "none": "nothing: its operations are as good as alike",
    "workers": "few workers are slow",
    "last-stage": "the last stage is longer than the others",
    "lengths": "sequences differ in length: forwards and backwards of microbatches vary together",
    "mixed": "no one thing: nothing below makes up half of it",
}
_WIDEST = 1.5
"""A slowdown that is the heat map's darkest, as in the paper's figure 14."""
_MOST_ROWS = 16
"""Replicas that text lists one by one."""
_MOST_NUMBERS = 400
"""Cells up to which a picture has their numbers in them."""


def with_stragglers(document: Document, found: Stragglers) -> Document:
    """Return an explained step's document with what all replicas lose behind what comes first."""
    ours = (
        Section(title="the job, all replicas", blocks=tuple(map(_line, _summary(found)))),
        Section(title="what the loss goes back to", blocks=(_causes(found),)),
        Section(title="slowdown by type of operation, each alone", blocks=(_types(found),)),
        Section(title="the slowest workers", blocks=(_workers(found),)),
        Section(
            title="slowdown by replica and rank",
            about="A worker's is the lesser of its replica's and its rank's, each alone slow in an ideal job.",
            blocks=_heat(found),
        ),
    )
    values: Any = document.values
    return replace(document, sections=(*ours, *document.sections), values={**values, "stragglers": _values(found)})


def _values(found: Stragglers) -> dict[str, Any]:
    names = found.__slots__
    return {name: getattr(found, name) for name in names} | {"heat": found.heat.tolist()}


def _line(text: str) -> Line:
    return Line(text=text)


def _summary(found: Stragglers) -> Iterable[str]:
    replicas, ranks = found.heat.shape
    yield f"{replicas} replicas of {ranks} ranks, {len(found.steps)} steps of {ms(found.step_ns)} in the mean"
    yield (
        f"slowdown {found.slowdown:.3f}: {ms(found.replayed_ns)} without the host's own gaps, "
        f"{ms(found.ideal_ns)} if operations of one type were alike"
    )
    if len(found.steps) > 1:
        least, most = int(np.argmin(found.by_step)), int(np.argmax(found.by_step))
        yield (
            f"from {found.by_step[least]:.3f} ({found.steps[least]}) "
            f"to {found.by_step[most]:.3f} ({found.steps[most]})"
        )
    yield f"because of: {_CAUSES[found.cause]}"


def _causes(found: Stragglers) -> Table:
    count = len(found.slowest)
    together = "" if np.isnan(found.correlation) else f", correlation {found.correlation:.2f}"
    rows = (
        (f"the slowest {count} workers (M_W)" if count > 1 else "the slowest worker (M_W)", found.slowest_workers),
        ("the last stage (M_S)", found.last_stage),
        (f"microbatches of unlike work{together}", found.lengths),
    )
    return Table(
        head=("repaired", "a step takes", "of the loss goes"),
        rows=tuple((name, ms(one.without_ns), _share(one, found)) for name, one in rows),
    )


def _share(one: Removed, found: Stragglers) -> str:
    return f"{one.removed:.1%}" if found.cause != "none" else ""


def _types(found: Stragglers) -> Table:
    return Table(
        head=("", "slowdown"), rows=tuple((name, f"{one.slowdown:.3f}") for name, one in found.by_type.items())
    )


def _workers(found: Stragglers) -> Table:
    return Table(
        head=("", "global rank", "slowdown"),
        rows=tuple(
            (f"{one.replica}, rank {one.rank}", str(one.worker), f"{one.slowdown:.3f}") for one in found.slowest
        ),
    )


def _heat(found: Stragglers) -> tuple[Table | Line, ...]:
    """Return the slowest replicas' rows, shaded on a page; what is left out is counted."""
    names = list(found.by_replica)
    order = np.argsort(-found.heat.max(axis=1), kind="stable")[:_MOST_ROWS]
    shown = sorted(order.tolist()) if len(names) <= _MOST_ROWS else order.tolist()
    rows = tuple(
        (names[at], *(_shaded(names[at], rank, value) for rank, value in enumerate(found.heat[at].tolist())))
        for at in shown
    )
    head = ("", *(f"rank {rank}" for rank in range(found.heat.shape[1])))
    table = Table(head=head, rows=rows, splits=True)
    left = len(names) - len(shown)
    return (table, Line(text=f"{left} further replicas are less slow")) if left else (table,)


def _shaded(replica: str, rank: int, slowdown: float) -> Cell:
    shade = min(max((slowdown - 1) / (_WIDEST - 1), 0.0), 1.0)
    return Cell(text=f"{slowdown:.2f}", title=f"{replica}, rank {rank}: slowdown {slowdown:.3f}", shade=shade)


_KEY_GAP = 0.4
"""How many replicas wide the scale of colours is, and how far from the map."""


def write_heat(path: Path, found: Stragglers) -> None:
    """Draw ranks by replicas, each worker as red as it is slow.

    Raises:
        OutputError: another suffix than .png, .svg or .pdf, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    from pptrace.report.charts import write_picture

    replicas, ranks = found.heat.shape
    size = min(max(replicas * 0.34 + 1.6, 5.0), 60.0), min(max(ranks * 0.34 + 1.2, 1.8), 60.0)
    write_picture(path, size, _drawing(found))


def _drawing(found: Stragglers) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        values, replicas = found.heat.T, found.heat.shape[0]
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="Reds", vmin=1, vmax=_WIDEST, aspect="equal", interpolation="nearest")
        names = [name.removeprefix("dp=") for name in found.by_replica]
        every = max(1, -(-len(names) // 64))
        axes.set_xticks(range(0, len(names), every), names[::every], fontsize=7)
        axes.set_yticks(range(values.shape[0]))
        axes.set(xlabel="replica", ylabel="rank")
        axes.spines[:].set_visible(False)
        axes.set_title(f"slowdown {found.slowdown:.2f}, {_SHORT[found.cause]}", loc="left", fontsize=10)
        if values.size <= _MOST_NUMBERS:
            for (rank, replica), value in np.ndenumerate(values):
                ink = "white" if value > (1 + _WIDEST) / 2 + 0.1 else "black"
                axes.text(replica, rank, f"{value:.2f}", ha="center", va="center", fontsize=6, color=ink)
        beside = axes.inset_axes((1 + _KEY_GAP / replicas, 0, _KEY_GAP / replicas, 1))
        scale = figure.colorbar(image, cax=beside, ticks=[1, (1 + _WIDEST) / 2, _WIDEST])
        scale.ax.tick_params(labelsize=7, length=2)
        scale.outline.set_visible(False)

    return draw


_SHORT = {
    "none": "no loss", "workers": "slow workers", "last-stage": "long last stage", "lengths": "sequence lengths",
    "mixed": "mixed causes",
}  # fmt: skip
