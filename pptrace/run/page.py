"""The HTML page of a step: figures, drawing, time and memory of each rank, overheads and advice.

The page is one file without scripts. Bars have tooltips.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pptrace.config.quantities import format_rate, format_size
from pptrace.report.document import render
from pptrace.report.step_drawing import CAUSE_COLORS, chart_of, chart_svg
from pptrace.run.advice import advice_rows
from pptrace.run.overheads import overheads
from pptrace.run.summary import job_text, link_text, main_figures, schedule_text, setting_text, time_text
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.link_use import busiest_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Bottleneck
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.timeline.timeline import Timeline

_MOST_LINKS = 12
_BUSY, _COLLECTIVES = ("computation", "#9cc3f0"), ("TP, CP and EP collectives", "#6f8a94")
"""Parts of a rank's busy time: name, color."""
_MEMORY = (
    ("weights", "weights_bytes", "#6f9fd8"), ("gradients", "gradients_bytes", "#8b7fc7"),
    ("optimizer", "optimizer_bytes", "#b48ac0"), ("buffers", "buffer_bytes", "#b9c0c8"),
    ("reserved", "reserved_bytes", "#98a1ab"), ("activations", "peak_activation_bytes", "#e3a34f"),
)  # fmt: skip
"""Parts of a rank's memory at its peak: name, column, color."""


class _Share(NamedTuple):
    """A part of a bar."""

    name: str
    percent: float
    text: str
    color: str


class _Bar(NamedTuple):
    """A rank's bar."""

    rank: int
    shares: list[_Share]
    total: str


def run_page(run: SimulatedStep, timeline: Timeline, bottleneck: Bottleneck, advice: Advice) -> str:
    """Return the page of a step; ``timeline`` is drawn, the step's own or a part of it."""
    from markupsafe import Markup

    chart, spent, memory = chart_of(timeline), list(_time(run)), list(_memory(run))
    causes = [(cause.word, CAUSE_COLORS[cause]) for cause in IdleCause]
    return render(
        Path(__file__).parent / "page.html",
        title=f"{job_text(run)}: {schedule_text(run)}",
        setting=f"{run.prepared.batch_text}, {setting_text(run)}",
        figures={**main_figures(run), "bottleneck": str(bottleneck)}.items(),
        chart=Markup(chart_svg(chart)),  # noqa: S704 - made of escaped elements
        sampled=chart.sampled,
        broken=len(chart.windows) > 1,
        spent=spent,
        spent_keys=_shown(spent, [_BUSY, _COLLECTIVES, *causes]),
        memory=memory,
        memory_keys=_shown(memory, [(name, color) for name, _, color in _MEMORY]),
        capacity=_capacity(run),
        links=list(_links(run)),
        overheads=[(name, f"{part:.1%}") for name, part in overheads(run) if part >= _BARELY],
        advice=advice_rows(run, advice),
        estimated=advice.estimated,
        notes=list(run.metrics.notes),
        configuration=[(key, str(value), origin) for key, value, origin in run.prepared.resolved.explain()],
    )


_BARELY = 0.0005
"""A share that is shown as 0.0 %."""


def _shown(bars: Iterable[_Bar], keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    names = {share.name for bar in bars for share in bar.shares}
    return [(name, color) for name, color in keys if name in names]


def _time(run: SimulatedStep) -> Iterator[_Bar]:
    """Yield each rank's time by busy time and idle cause."""
    metrics = run.metrics
    step = max(metrics.step_ns, 1)
    for rank in range(metrics.ranks):
        collective_ns = int(metrics.collective_ns[rank])
        parts = [(_BUSY, int(metrics.busy_ns[rank]) - collective_ns), (_COLLECTIVES, collective_ns)]
        parts += [((c.word, CAUSE_COLORS[c]), int(metrics.idle_ns[rank, c])) for c in IdleCause]
        shares = [
            _Share(name, 100 * time_ns / step, f"{name}: {time_text(run, time_ns)}, {time_ns / step:.1%}", color)
            for (name, color), time_ns in parts
            if time_ns
        ]
        yield _Bar(rank, shares, f"{int(metrics.busy_ns[rank]) / step:.1%} busy")


def _memory(run: SimulatedStep) -> Iterator[_Bar]:
    """Yield each rank's memory at its peak; nothing for costs without memory."""
    memory = run.metrics.memory
    most = max(int(memory.peak_bytes.max(initial=0)), int(memory.device_bytes.max(initial=0)), 1)
    for rank in range(run.metrics.ranks if memory.peak_bytes.any() else 0):
        held = [(name, int(getattr(memory, column)[rank]), color) for name, column, color in _MEMORY]
        shares = [
            _Share(name, 100 * size / most, f"{name}: {format_size(size)}", color)
            for name, size, color in held
            if size
        ]
        of = f" of {format_size(int(memory.device_bytes[rank]))}" if memory.devices_differ else ""
        yield _Bar(rank, shares, format_size(int(memory.peak_bytes[rank])) + of)


def _capacity(run: SimulatedStep) -> tuple[float, str] | None:
    """Return the device's memory in percent of the bars, and its size; None if unknown or different by rank."""
    memory = run.metrics.memory
    if not memory.capacity_bytes or memory.devices_differ:
        return None
    most = max(int(memory.peak_bytes.max(initial=0)), memory.capacity_bytes, 1)
    return 100 * memory.capacity_bytes / most, format_size(memory.capacity_bytes)


def _links(run: SimulatedStep) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the busiest links: name, capacity, use, bytes, delay."""
    used = [] if run.traffic is None else busiest_links(run.timeline, run.traffic, run.metrics.step_ns)
    for use in used[:_MOST_LINKS]:
        delay = time_text(run, use.delay_ns) if use.delay_ns else "-"
        rate = format_rate(use.rate_kbps * 1000)
        yield link_text(use), rate, f"{use.utilisation:.1%}", format_size(use.size_bytes), delay
