"""The summary of a step in at most 25 lines of the terminal's width."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import PolicyName, StreamPer, Validation
from pptrace.config.quantities import format_duration, format_size
from pptrace.config.schema import module_title
from pptrace.report.document import GAP, NO_BREAK, Column, Document, Table, command_lines, text_of
from pptrace.run.figures import figures_of
from pptrace.sanitize import shell_word
from pptrace.steps.kinds import GATHERS
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import plausibility_notes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.config.schema import Device
    from pptrace.report.document import Block
    from pptrace.run.neighbourhood import Advice, Trial
    from pptrace.run.overheads import Bottleneck
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.timeline.link_use import LinkUse

WIDTH = 80
"""Columns of the summary where there is no terminal."""

LINES = 25
"""Lines that a terminal shows at once."""

_SHOWN = 3
"""Limit of named rank pairs per link."""

_NOTED = ("Experts: ", "No network ")
"""Starts of a cost model's notes that a summary has: on uneven loads of experts, and on a missing network."""

_PATH = "critical path"
"""The longest title of a row."""

_COLUMNS = ("fill", "drain", "xfer", "cont", "HoL", "peer", "dp", "slow")


def summary_document(
    run: SimulatedStep, bottleneck: Bottleneck, advice: Advice, written: Sequence[Path] = (), *, full: bool = False
) -> Document:
    """Return the summary; the last line names the next command for the ``written`` traces.

    If it has more lines than :data:`LINES`, the table of ranks has the first, the last and those that are idle
    most and least. In a ``full`` summary, every rank has a line.
    """
    headline = f"{job_text(run)}: {schedule_text(run)}, {run.prepared.batch_text}"
    head = [headline, setting_text(run, chunks=run.prepared.chunks), *_notes(run, advice.best), _figures(run)]
    rows = [*_where_time_goes(run), *_communication(run), *_busiest(run)]
    for ranks in (ranks_table(run), ranks_table(run, selected=True)):
        end: list[Block] = ["", ranks, *_warning(run), *_last(run, bottleneck, advice.best, written)]
        document = Document(title=job_text(run), lead=[*head, "", Table(rows=tuple(rows), words=2), *end])
        if full or text_of(document, summary_width()).count("\n") < LINES:
            break
    return document


def summary_width() -> int:
    """Return the columns of the terminal, :data:`WIDTH` without one."""
    return shutil.get_terminal_size((WIDTH, LINES)).columns


def time_text(run: SimulatedStep, time_ns: float) -> str:
    """Return a time in readable units, or in the cost model's units of time.

    Means over ranks need not be whole nanoseconds.
    """
    unit = run.prepared.workload.unit_time_ns
    if unit:
        return f"{time_ns / unit:.12g} units"
    return format_duration(round(time_ns))


def job_text(run: SimulatedStep) -> str:
    """Return model and device, or the costs that replace them."""
    experiment = run.prepared.resolved.experiment
    costs = f"{experiment.costs.name} costs"
    model = (experiment.model.preset or "a custom model") if experiment.model else costs
    return f"{model} on {devices_text(experiment.device)}" if experiment.device else model


def devices_text(device: Device) -> str:
    """Return the different devices of the ranks."""
    entries = (device.ranks or {}).values()
    presets = [entry if isinstance(entry, str) else entry.get("preset") for entry in entries]
    names = dict.fromkeys([device.preset, *(name for name in presets if name)])
    text = " and ".join(name or "a custom device" for name in names)
    return f"{text}, different by rank" if device.ranks and len(names) == 1 else text


def schedule_text(run: SimulatedStep) -> str:
    """Return the schedule with its options, defaults included."""
    options = options_text(run)
    return f"{run.prepared.resolved.experiment.schedule.name}{f' ({options})' if options else ''}"


def options_text(run: SimulatedStep) -> str:
    """Return the options of the schedule, defaults included; empty without options."""
    options = run.prepared.resolved.experiment.schedule.options
    return ", ".join(f"{key} {value}" for key, value in options.items() if value is not None)


def setting_text(run: SimulatedStep, *, chunks: int = 1) -> str:
    """Return parallel sizes, stack, network and policy; ``chunks`` per rank are named above one."""
    experiment = run.prepared.resolved.experiment
    sizes = [f"pp {run.prepared.schedule.ranks}"]
    sizes += [f"vp {chunks}"] if chunks > 1 else []
    sizes += [f"{run.prepared.units} units"] if run.prepared.units > 1 else []
    sizes += [f"{k} {v}" for k in ("tp", "cp", "dp", "ep") if (v := getattr(experiment.parallel, k)) > 1]
    for name, grid in experiment.parallel.grids.items():
        dp, cp, tp = experiment.parallel.grid_sizes(grid)
        named = {"pp": grid.pp, "tp": tp, "cp": cp, "dp": dp}
        sizes.append(" ".join([module_title(name), *(f"{k} {v}" for k, v in named.items() if v > (k != "pp"))]))
    p2p = experiment.p2p
    policy = p2p.policy
    if policy == PolicyName.ORDERED.value and p2p.stream is not StreamPer.DIRECTION:
        policy += f" per {p2p.stream.value}"
    stack = f"stack {experiment.stack}, " if experiment.stack else ""
    return f"{', '.join(sizes)}; {stack}{_network(run)}, p2p {policy}"


def _notes(run: SimulatedStep, advised: Trial | None) -> list[str]:
    reduction = run.prepared.resolved.experiment.data_parallel
    slow = bool(reduction.speeds or reduction.spread)
    of_workload = [
        note for note in run.prepared.workload.notes
        if (slow and note.startswith("Of ")) or note.startswith(_NOTED)
    ]  # fmt: skip
    metrics = run.metrics
    steps = [("this step", metrics.mfu, metrics.plausible_mfu)]
    if advised is not None and advised.step_ns and metrics.mfu:
        steps.append(("the advised step", metrics.mfu * metrics.step_ns / advised.step_ns, metrics.plausible_mfu))
    plausibility = plausibility_notes(steps)
    return [f"note: {note}" for note in (*run.prepared.notes, *of_workload, *plausibility)]


def _network(run: SimulatedStep) -> str:
    experiment, job = run.prepared.resolved.experiment, run.prepared.job
    if job is None or experiment.cluster is None:
        return f"network {experiment.network.name}"
    preset = experiment.cluster.preset
    name = "cluster " + preset.removesuffix(f"x{job.network.nodes}") if preset else "custom cluster"
    nodes = f"{job.network.nodes} nodes" if job.network.nodes > 1 else "1 node"
    return f"{name}, {nodes} of {job.network.gpus}"


def _peak_text(size_bytes: int, device_bytes: int | None) -> str:
    """Return a peak and the device's memory, with one unit if both have the same."""
    size = format_size(size_bytes)
    if not device_bytes:
        return size
    room = format_size(device_bytes)
    number, unit = size.split(" ")
    return f"{number if unit == room.split(' ')[1] else size} of {room}"


def main_figures(run: SimulatedStep) -> dict[str, str]:
    """Return the texts of the main figures of a step by name, without unknown ones."""
    figures = figures_of(run)
    reserve = run.prepared.workload.reserved_bytes
    repeats = run.prepared.resolved.experiment.data_parallel.validation is Validation.AFTER
    columns = (
        Column("step", ("step_ns",), partial(time_text, run)),
        Column("pace", (), lambda: time_text(run, run.metrics.pace_ns), repeats),
        Column("tokens/s", ("tokens_per_s",), "{:,.0f}".format, bool(figures["tokens_per_s"])),
        Column("MFU", ("mfu",), "{:.1%}".format, bool(figures["mfu"])),
        Column("bubble", ("idle",), "{:.2%}".format),
        Column(
            "peak", ("peak_memory_bytes", "device_memory_bytes"),
            _peak_text,
            bool(figures["peak_memory_bytes"]),
        ),
        Column("reserve", (), lambda: format_size(reserve), bool(reserve and figures["device_memory_bytes"])),
    )  # fmt: skip
    return {column.heading: column.text(*map(figures.get, column.keys)) for column in columns if column.is_shown}


def _figures(run: SimulatedStep) -> str:
    texts = (
        f"{text} {name}" if name == "tokens/s" else f"{name} {text}" for name, text in main_figures(run).items()
    )
    return "  ".join(text.replace(" ", NO_BREAK) for text in texts)


def _where_time_goes(run: SimulatedStep) -> list[tuple[str, str]]:
    metrics = run.metrics
    whole = metrics.ranks * metrics.step_ns or 1
    idle = [(name, f"{time / whole:.1%}") for name, time in metrics.idle_by_cause_ns.items()]
    causes = [f"{name}{NO_BREAK}{share}" for name, share in idle if share != "0.0%"]
    return [("idle by cause", ", ".join(causes) or "none"), (_PATH, _path(run))]


def _path(run: SimulatedStep) -> str:
    """Return the kinds on the critical path that fit one line."""
    width = summary_width() - len(_PATH) - GAP
    path, step = run.metrics.path, run.metrics.step_ns or 1
    most = ""
    if path.slowest_stage >= 0 and run.prepared.schedule.stages > 1:
        most = f"; most in stage {path.slowest_stage} ({path.by_stage_ns[path.slowest_stage] / step:.1%})"
    line = ""
    for kind, time in path.by_kind_ns.items():
        part = f"{', ' if line else ''}{kind} {time / step:.1%}"
        if time * 2000 >= step and len(line + part + most) <= width:
            line += part
    return line + most


def _communication(run: SimulatedStep) -> list[tuple[str, str]]:
    """Return hidden communication by group, and exposed gathers and reductions."""
    groups = [group for group in run.metrics.groups if group.stream.is_group]
    hidden = ", ".join(f"{group.name} {group.hidden:.1%}" for group in groups)
    return [*([("hidden", hidden)] if hidden else []), *_reduction(run)]


def _reduction(run: SimulatedStep) -> list[tuple[str, str]]:
    metrics = run.metrics
    if not metrics.reduction_ns.any():
        return []
    timeline = run.timeline
    rows = np.flatnonzero(np.isin(timeline.kind, [*GATHERS]))
    gather_ns = np.zeros(timeline.ranks, dtype=np.int64)
    np.add.at(gather_ns, timeline.rank_of_row()[rows], (timeline.end_ns - timeline.start_ns)[rows])
    gathers = f"gathers {time_text(run, int(gather_ns.max()))}, " if gather_ns.any() else ""
    reduction = time_text(run, int(metrics.reduction_ns.max()))
    exposed = time_text(run, int(metrics.idle_ns[:, IdleCause.REDUCTION].max()))
    return [("data parallel", f"{gathers}reduction {reduction}, of which exposed {exposed}")]


def _busiest(run: SimulatedStep) -> list[tuple[str, str]]:
    """Return the busiest link, and the link with the largest delay."""
    if run.traffic is None:
        return []
    from pptrace.timeline.link_use import busiest_links

    used = busiest_links(run.timeline, run.traffic, run.metrics.step_ns)
    if not used:
        return []
    rows = [("busiest link", f"{link_text(used[0])}, {used[0].utilisation:.1%} full{_hops(used[0])}")]
    worst = max(used, key=lambda use: use.delay_ns)
    if worst.delay_ns:
        text = f"{link_text(worst)} delayed messages by {time_text(run, worst.delay_ns)} in total"
        rows.append(("contention", text))
    return rows


def link_text(use: LinkUse) -> str:
    """Return the name of a link, and the number of equal links."""
    return f"{use.names[0]} and {len(use.names) - 1} equal" if len(use.names) > 1 else use.names[0]


def _hops(use: LinkUse) -> str:
    shown = ", ".join(f"{source}>{target}" for source, target in use.hops[:_SHOWN])
    return f" (ranks {shown}{', …' if len(use.hops) > _SHOWN else ''})"


def ranks_table(run: SimulatedStep, *, selected: bool = False) -> Table:
    """Return a row per rank, or rows of the first, the last, and those that are idle most and least."""
    metrics, step = run.metrics, run.metrics.step_ns or 1
    shown = list(range(metrics.ranks))
    if selected:
        idle_ns = metrics.idle_ns.sum(axis=1)
        shown = sorted({0, metrics.ranks - 1, int(idle_ns.argmax()), int(idle_ns.argmin())})
    present = [cause for cause in IdleCause if metrics.idle_ns[:, cause].any()]
    has_memory = bool(metrics.memory.peak_bytes.any())
    head = ("rank", "busy", "idle", *(_COLUMNS[cause] for cause in present), "exposed", *["peak"] * has_memory)
    rows: list[tuple[str, ...]] = []
    for rank in shown:
        idle = metrics.idle_ns[rank]
        causes = [f"{idle[cause] / step:.1%}" if idle[cause] else "-" for cause in present]
        busy, exposed = (f"{times_ns[rank] / step:.1%}" for times_ns in (metrics.busy_ns, metrics.exposed_ns))
        peak = [format_size(int(metrics.memory.peak_bytes[rank]))] * has_memory
        rows.append((str(rank), busy, f"{idle.sum() / step:.1%}", *causes, exposed, *peak))
    if len(shown) < metrics.ranks:
        rows.append(("", f"(first, last, idlest and busiest of {metrics.ranks} ranks; --full has all)"))
    return Table(head=head, rows=tuple(rows), words=0)


def _warning(run: SimulatedStep) -> list[str]:
    over = run.metrics.memory.over_capacity
    if over is None:
        return []
    rank, time_ns, size = over
    return [f"warning: rank {rank} is {format_size(size)} over its memory at {time_text(run, time_ns)}"]


def _last(run: SimulatedStep, bottleneck: Bottleneck, best: Trial | None, written: Sequence[Path]) -> list[str]:
    traces = [path for path in written if path.name.lower().removesuffix(".gz").endswith((".pftrace", ".json"))]
    text = f"bottleneck: {bottleneck}"
    following = (
        f"next: pptrace open {shell_word(str(traces[0]))}"
        if traces
        else "next: add -o step.pftrace to write a trace"
    )
    if best is not None:
        arguments = command_lines(best.change.words, summary_width() - GAP - len(" \\"))
        return [text, _advice(run, best), *(f"  {line}" for line in arguments), following]
    joined = f"{text}; {following}"
    return [joined] if len(joined) <= summary_width() else [text, following]


def _advice(run: SimulatedStep, tried: Trial) -> str:
    """Return step and memory of a simulated candidate, next to the run's own step."""
    step = time_text(run, tried.step_ns or 0)
    peak = f", peak {format_size(tried.peak_bytes)}" if tried.peak_bytes else ""
    if run.metrics.memory.over_capacity:
        return f"fits in memory: {step}{peak}, simulated with"
    return f"faster: {step} in place of {time_text(run, run.metrics.step_ns)}{peak}, simulated with"
