"""The page of a step: figures, drawing, time and memory of each rank, overheads and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantities import format_rate, format_size
from pptrace.report import svg
from pptrace.report.document import Document, Line, Picture, Section, Table
from pptrace.report.step_drawing import PART_COLORS, chart_of, chart_svg
from pptrace.run.advice import advice_table
from pptrace.run.overheads import overheads
from pptrace.run.summary import (
    job_text,
    link_text,
    main_figures,
    ranks_table,
    schedule_text,
    setting_text,
    time_text,
)
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.link_use import busiest_links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Bottleneck
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.timeline.timeline import Timeline

_MOST_LINKS = 12
_MEMORY = {
    "weights": ("weights_bytes", "#6f9fd8"), "gradients": ("gradients_bytes", "#8b7fc7"),
    "optimizer": ("optimizer_bytes", "#b48ac0"), "buffers": ("buffer_bytes", "#b9c0c8"),
    "reserved": ("reserved_bytes", "#98a1ab"), "activations": ("peak_activation_bytes", "#e3a34f"),
}  # fmt: skip
"""Column and color of each part of a rank's memory at its peak."""
_BARELY = 0.0005
"""The smallest share that is not shown as 0.0 %."""


def page_document(run: SimulatedStep, timeline: Timeline, bottleneck: Bottleneck, advice: Advice) -> Document:
    """Return the page of a step; ``timeline`` is drawn, the whole step or a part of it."""
    figures = {**main_figures(run), "bottleneck": str(bottleneck)}
    return Document(
        title=f"{job_text(run)}: {schedule_text(run)}",
        lead=(
            Line(f"{run.prepared.batch_text}, {setting_text(run)}", tone="soft"),
            Table(rows=tuple(figures.items()), words=2, cards=True),
        ),
        sections=(
            _timeline(timeline), _time(run), _memory(run), _links(run), *_advice(run, advice),
            Section("notes", tuple(run.metrics.notes)), _configuration(run),
        ),
    )  # fmt: skip


def _timeline(timeline: Timeline) -> Section:
    chart = chart_of(timeline)
    broken = "The steady part is shortened: the axis has the omitted times. " if len(chart.windows) > 1 else ""
    sampled = "Each lane is sampled, because there are too many actions for a bar each."
    about = f"A lane per rank. {broken}{sampled if chart.sampled else 'Each bar has a tooltip.'}"
    return Section("timeline", (Picture(lambda: svg.element("div", chart_svg(chart), class_="chart")),), about)


def _time(run: SimulatedStep) -> Section:
    """Return each rank's time by busy time and idle cause."""
    metrics = run.metrics
    step, bars = max(metrics.step_ns, 1), []
    for rank in range(metrics.ranks):
        collective_ns = int(metrics.collective_ns[rank])
        times_ns = {
            "compute": int(metrics.busy_ns[rank]) - collective_ns, "TP, CP and EP collectives": collective_ns,
            **{cause.word: int(metrics.idle_ns[rank, cause]) for cause in IdleCause},
        }  # fmt: skip
        parts = [
            (name, time_ns, f"{name}: {time_text(run, time_ns)}, {time_ns / step:.1%}")
            for name, time_ns in times_ns.items()
        ]
        bars.append(svg.Bar(f"rank {rank}", parts, f"{int(metrics.busy_ns[rank]) / step:.1%} busy"))
    picture = svg.stacked_bars("time of each rank", bars, PART_COLORS, step)
    return Section("time of each rank", (picture._replace(instead=ranks_table(run)),))


def _memory(run: SimulatedStep) -> Section:
    """Return each rank's memory at its peak; empty for costs without memory."""
    memory = run.metrics.memory
    bars = []
    for rank in range(run.metrics.ranks if memory.peak_bytes.any() else 0):
        sizes = {name: int(getattr(memory, column)[rank]) for name, (column, _) in _MEMORY.items()}
        parts = [(name, size, f"{name}: {format_size(size)}") for name, size in sizes.items()]
        device = f" of {format_size(int(memory.device_bytes[rank]))}" if memory.devices_differ else ""
        bars.append(svg.Bar(f"rank {rank}", parts, format_size(int(memory.peak_bytes[rank])) + device))
    limit = 0 if memory.devices_differ else memory.capacity_bytes
    most = max(int(memory.peak_bytes.max(initial=0)), int(memory.device_bytes.max(initial=0)), limit)
    colors = {name: color for name, (_, color) in _MEMORY.items()}
    picture = svg.stacked_bars("peak memory of each rank", bars, colors, most, limit)
    about = f"The line is the memory of a device, {format_size(limit)}." if limit else ""
    return Section("peak memory of each rank", (picture,) if bars else (), about)


def _links(run: SimulatedStep) -> Section:
    """Return the busiest links."""
    used = [] if run.traffic is None else busiest_links(run.timeline, run.traffic, run.metrics.step_ns)
    rows = tuple(
        (
            link_text(use), format_rate(use.rate_kbps * 1000), f"{use.utilisation:.1%}",
            format_size(use.size_bytes), time_text(run, use.delay_ns) if use.delay_ns else "-",
        )
        for use in used[:_MOST_LINKS]
    )  # fmt: skip
    head = ("link", "capacity", "in use", "moved", "delay of messages")
    return Section("links", (Table(rows=rows, head=head),) if rows else ())


def _advice(run: SimulatedStep, advice: Advice) -> Iterator[Section]:
    shares = tuple((name, f"{part:.1%}") for name, part in overheads(run) if part >= _BARELY)
    yield Section(
        "overheads", (Table(rows=shares),) if shares else ("none: all ranks compute all the time",),
        "Share of each overhead in the step. The shares of policy and network are savings in simulations without "
        "them.",
    )  # fmt: skip
    yield Section(
        "advice", (advice_table(run, advice),),
        "Simulated configurations with the same number of GPUs and the same batch, the best of "
        f"{advice.estimated} candidates.",
    )  # fmt: skip


def _configuration(run: SimulatedStep) -> Section:
    explained = run.prepared.resolved.explain()
    defaults = frozenset(index for index, (_, _, origin) in enumerate(explained) if origin == "default")
    rows = tuple((key, str(value), origin) for key, value, origin in explained)
    return Section(
        "configuration",
        (Table(rows=rows, head=("key", "value", "from"), words=3, unchanged=defaults, fold="defaults"),),
    )
