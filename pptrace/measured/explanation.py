"""Explanation of a step: its parts, its critical path, and replays without one cost each."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from pptrace.config.quantities import format_rate, format_size
from pptrace.errors import OutputError, ScheduleError
from pptrace.files import check_targets, replace_file
from pptrace.measured.dependencies import BETWEEN, follow_chain
from pptrace.measured.operations_diff import kernel_cells, without_parameters
from pptrace.measured.replay import Resimulation, nearest_policy
from pptrace.measured.sides import PART_LABELS, simulation_of
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.registry import more_of
from pptrace.report.document import PAGES, Cell, Document, Section, Table, write_page
from pptrace.report.numbers import Figure, ms, several_steps, share
from pptrace.run.trace_files import save

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pptrace.measured.computations import Computations
    from pptrace.measured.replay import Replayed
    from pptrace.measured.sides import Side
    from pptrace.plugins.offers import ExplanationPart
    from pptrace.plugins.providers import Provider
    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Block
    from pptrace.timeline.measurement import Measurement, Step, Summary


class RankLoad(Struct, frozen=True, kw_only=True):
    """The computation time of one rank."""

    rank: int
    busy_ns: Figure
    """The duration of its computations in sum."""
    share: Figure
    """The computation time relative to the median rank, minus 1."""


class Counterfactuals(Struct, frozen=True, kw_only=True):
    """Spans of the computations of a step in replays without one cost each."""

    replayed_ns: Figure
    """The replay without changes, the reference for the other spans."""
    free_communication_ns: Figure
    """Without transfer times and collectives."""
    no_host_gaps_ns: Figure
    """Without host gaps."""
    no_bubble_ns: Figure
    """Without waits: the computation time of the busiest rank."""
    repaired_ns: Figure
    """With the slowest rank as fast as the median rank."""
    slowest: RankLoad


def what_if(step: Computations, resimulate: Callable[[Computations], int] | None = None) -> Counterfactuals:
    """Replay a step without one cost after another.

    Args:
        step: the step.
        resimulate: returns the span of a step with other durations and gaps, in which blocked times adapt. By
            default blocked times stay.

    Raises:
        ScheduleError: an action precedes its inputs.
    """
    replay = Resimulation.of_order(step.order, partial=step.partial)
    slowest = max(rank_loads(step), key=lambda load: (load.busy_ns.value, -load.rank))
    slowdown = 1 + max(slowest.share.value, 0.0)
    repaired = np.where(
        step.rank == slowest.rank, (step.duration_ns / slowdown).astype(np.int64), step.duration_ns
    )
    zeros = np.zeros_like(step.transfers.duration_ns)
    free = replace(
        step, transfers=replace(step.transfers, duration_ns=zeros, blocked_ns=zeros),
        duration_ns=step.duration_ns - step.collective_ns,
    )  # fmt: skip
    span_ns = resimulate or (lambda changed: replay.span_ns(changed.times()))
    return Counterfactuals(
        replayed_ns=Figure(span_ns(step)),
        free_communication_ns=Figure(replay.span_ns(free.times())),
        no_host_gaps_ns=Figure(span_ns(replace(step, gap_ns=step.gap_ns - step.host_gap_ns))),
        no_bubble_ns=slowest.busy_ns,
        repaired_ns=Figure(span_ns(replace(step, duration_ns=repaired))), slowest=slowest,
    )  # fmt: skip


def rank_loads(step: Computations) -> tuple[RankLoad, ...]:
    """Return the computation time of each recorded rank."""
    ranks, index = np.unique(step.rank, return_inverse=True)
    busy = np.bincount(index, weights=step.duration_ns).astype(np.int64)
    middle = float(np.median(busy)) or 1.0
    return tuple(
        RankLoad(rank=rank, busy_ns=Figure(time), share=Figure(time / middle - 1))
        for rank, time in zip(ranks.tolist(), busy.tolist(), strict=True)
    )


class Explanation(Struct, frozen=True, kw_only=True):
    """The parts of one step; :func:`pptrace.report.numbers.with_deviations` adds deviations over several steps."""

    step: str
    """The profiler's number of the step."""
    step_ns: Figure
    bubble: Figure
    """Idle time over ranks times length."""
    parts_ns: Mapping[str, Figure]
    """Nanoseconds by part, mean over ranks; they sum to the length."""
    idle_by_cause_ns: Mapping[str, Figure]
    """Idle time of all ranks by cause."""
    exposed_communication_ns: Figure
    """Non-overlapped communication of all ranks."""
    groups_ns: Mapping[str, Figure]
    """Communication of all ranks by group, overlapped or not."""
    hidden_ns: Mapping[str, Figure]
    """The overlapped part of the communication of each group."""
    unrecorded_ns: Figure
    """Waits of all ranks for unrecorded computations."""
    critical_path_ns: Mapping[str, Figure]
    """Time on the critical path by kind, and between actions."""
    ranks: tuple[RankLoad, ...]
    """The computation time of each rank."""
    idle_ns: tuple[Figure, ...]
    """The idle time of each rank."""
    what_if: Counterfactuals | None
    """Spans of replays without one cost each; None where the step cannot be replayed."""
    no_what_if: str
    """The reason why the step cannot be replayed; empty where it can."""


def explain(side: Side, registry: Registry | None = None) -> Explanation:
    """Explain the compared step of a side; ``registry`` has the message policies for blocked messages."""
    metrics, step = side.analysis.metrics, side.computations
    groups = [group for group in metrics.groups if group.stream.is_group]
    loads, idle_ns = rank_loads(step), metrics.idle_ns.sum(axis=1).tolist()
    without, why = None, ""
    try:
        without = what_if(step, None if registry is None else resimulator(side, registry))
    except ScheduleError as error:
        why = str(error)
    return Explanation(
        step=side.steps[side.chosen].label, step_ns=Figure(metrics.step_ns), bubble=Figure(float(metrics.bubble)),
        parts_ns=_figures(side.analysis.parts_ns), idle_by_cause_ns=_figures(metrics.idle_by_cause_ns),
        exposed_communication_ns=Figure(int(metrics.exposed_ns.sum())),
        groups_ns=_figures({group.name: int(group.total_ns.sum()) for group in groups}),
        hidden_ns=_figures({group.name: int(group.hidden_ns.sum()) for group in groups}),
        unrecorded_ns=Figure(int((step.gap_ns - step.host_gap_ns).sum())),
        critical_path_ns=_figures(follow_chain(step).by_kind_ns), ranks=loads,
        idle_ns=tuple(Figure(idle_ns[side.pipeline_ranks.index(load.rank)]) for load in loads),
        what_if=without, no_what_if=why,
    )  # fmt: skip


def _figures(times: Mapping[str, int]) -> Mapping[str, Figure]:
    return {name: Figure(time) for name, time in times.items()}


_LARGEST_ERROR = 0.01
"""The relative error of starts up to which a policy explains blocked messages."""


def resimulator(side: Side, registry: Registry) -> Callable[[Computations], int] | None:
    """Return a function from a changed step to its span, in which blocked times of messages adapt.

    A simulated step is re-simulated with its policy, network and contention, if necessary from the configuration
    in its trace. Another step runs under the nearest policy. None where no policy explains its blocked messages.
    """
    step, simulation = side.computations, simulation_of(side, registry)
    if simulation is not None:
        return lambda changed: simulation.span_ns(changed.times())
    if step.partial or side.run is not None:
        return None
    p2p = None if side.measurement is None else side.measurement.p2p
    nearest = nearest_policy(step, registry, measured=side.measured, any_order=side.measured, p2p=p2p)
    if step.transfers.blocked_ns.any() and nearest.error_ns > _LARGEST_ERROR * step.span_ns:
        return None
    replay = Resimulation.of_order(step.order, nearest.policy)
    return lambda changed: replay.span_ns(changed.times(with_blocked=False))


MARK_ACTIONS_HINT = (
    "to find the actions of a pipeline, annotate them (pptrace annotate prints a module that does), or describe "
    "the existing annotations in a file (--rules FILE)"
)
"""The advice for traces without actions."""
_UNRECORDED_WAITS = "waits for unrecorded computations are not shortened: {} on all ranks"
"""The note on replays of recordings without all ranks."""


def explanation_document(
    name: str,
    explanation: Explanation,
    lengths_ns: Sequence[int],
    measurement: Measurement | None = None,
    partial: str = "",
) -> Document:
    """Return the document of an explanation, whose figures have deviations where there are several steps.

    ``lengths_ns`` are the lengths of all steps; ``measurement`` is None for a simulation; ``partial`` says what
    the recording lacks.
    """
    unattributed = measurement.unattributed if measurement is not None else ()
    lead = [f"{name}, {explanation.step}: step {ms(explanation.step_ns)}, bubble {share(explanation.bubble, 2)}"]
    lead += [f"partial data: {partial}"] if partial else []
    if len(lengths_ns) > 1:
        lead.append(f"{several_steps(lengths_ns)}; ± is one standard deviation from step to step")
    ranks = tuple(
        (f"rank {load.rank}", ms(load.busy_ns), ms(idle_ns), f"{load.share.value:+.1%}")
        for load, idle_ns in zip(explanation.ranks, explanation.idle_ns, strict=True)
    )
    path = tuple(
        (kind, ms(time)) for kind, time in explanation.critical_path_ns.items() if time.value or kind == BETWEEN
    )
    unattributed_lines = tuple(
        f"rank {work.rank}: {work.count} {work.what} belong to no action, {ms(work.total_ns)}"
        for work in unattributed
    )
    return Document(
        title=f"{name}, {explanation.step}", lead=lead, partial=partial,
        sections=(
            Section(title="parts of the step, mean over ranks", blocks=_parts(explanation)),
            Section(
                title="ranks", blocks=(Table(head=("", "computing", "idle", "from the median"), rows=ranks),)
            ),
            Section(title="critical path: time by kind and between actions", blocks=(Table(rows=path),)),
            Section(
                title="length of the pipeline in replays, from its first computation to its last",
                blocks=_without(explanation),
            ),
            Section(title="events that belong to no action", blocks=unattributed_lines),
        ),
        values={
            **asdict(explanation),
            "lengths_ns": lengths_ns, "unattributed": unattributed, "partial": partial or None,
            "notes": measurement.notes if measurement is not None else (),
        },
    )  # fmt: skip


def _parts(explanation: Explanation) -> tuple[Block, ...]:
    total_ns = max(sum(time.value for time in explanation.parts_ns.values()), 1)
    rows = tuple(
        (PART_LABELS.get(part, part), ms(time), f"{time.value / total_ns:.1%}")
        for part, time in explanation.parts_ns.items()
        if time.value
    )
    exposed, ranks = explanation.exposed_communication_ns, len(explanation.ranks)
    mean = Figure(exposed.value / ranks, None if exposed.deviation is None else exposed.deviation / ranks)
    hidden = f"exposed communication: {ms(mean)} ({mean.value / max(explanation.step_ns.value, 1):.1%})"
    groups = (
        f"{name}: {ms(time)} on all ranks, {ms(explanation.hidden_ns[name])} of it hidden by computation "
        f"({explanation.hidden_ns[name].value / max(time.value, 1):.1%})"
        for name, time in explanation.groups_ns.items()
    )
    return Table(rows=rows), hidden, *groups


def _without(explanation: Explanation) -> tuple[Block, ...]:
    without = explanation.what_if
    if without is None:
        return (f"unknown, because the step cannot be replayed: {explanation.no_what_if}",)
    rows = [("as measured", ms(without.replayed_ns), "")]
    for text, length in (
        ("without communication time", without.free_communication_ns),
        ("without host gaps", without.no_host_gaps_ns),
        (f"without the slowness of rank {without.slowest.rank}", without.repaired_ns),
        ("without any bubble", without.no_bubble_ns),
    ):
        rows.append((text, ms(length), f"{length.value / max(without.replayed_ns.value, 1) - 1:+.1%}"))
    kept = _UNRECORDED_WAITS.format(ms(explanation.unrecorded_ns))
    return Table(rows=tuple(rows)), *((kept,) if explanation.unrecorded_ns.value else ())


def operations_document(measurement: Measurement, name: str, top: int = 10) -> Document:
    """Return the document of a trace without actions, with at most ``top`` names per table."""
    operations, ranks = measurement.summaries, _sums_by_rank(measurement.summaries)
    clocks = (
        f"clock of rank {clock.rank}: shifted by {clock.offset_ns / 1e6:+.3f} (±{clock.bound_ns / 1e6:.3f}) ms"
        for clock in measurement.clocks
        if clock.pairs
    )
    return Document(
        title=name, lead=(f"{name}: no action of a pipeline was found; its operations, total times",),
        sections=(
            Section(title="by rank", blocks=(_by_rank(ranks),)),
            Section(title="each GPU from its first operation to its last", blocks=_gpu_times(measurement)),
            *(
                Section(title=f"{work}, all ranks", blocks=_by_name(_of_work(operations, work), top))
                for work in _WORK
            ),
            Section(title="how to continue", blocks=(*clocks, MARK_ACTIONS_HINT)),
        ),
        values={
            "step": None,
            "ranks": ranks,
            "occupied": measurement.occupied,
            "summaries": operations,
            "clocks": measurement.clocks,
            "unattributed": measurement.unattributed,
            "notes": [*measurement.notes, MARK_ACTIONS_HINT],
        },
    )  # fmt: skip


def _sum_of(operations: Iterable[Summary]) -> dict[str, int]:
    listed = list(operations)
    names = ("count", "total_ns", "size_bytes", "untimed")
    return {name: sum(getattr(row, name) for row in listed) for name in names}


def _sums_by_rank(operations: Sequence[Summary]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            **{work: _sum_of(row for row in _of_work(operations, work) if row.rank == rank) for work in _WORK},
        }
        for rank in sorted({row.rank for row in operations})
    ]


def _by_rank(ranks: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for sums in ranks:
        cells = [f"rank {sums['rank']}"]
        for work in _WORK:
            total = sums[work]
            cells += [_time(total), f"{total['count']:,}"]
            cells += [_size(total["size_bytes"])] if work == "communication" else []
        rows.append(tuple(cells))
    head = ("", "communication", "operations", "bytes", "computation", "operations", "copies", "operations")
    columns = len(head) if any(sums["copies"]["count"] for sums in ranks) else len(head) - 2
    return Table(head=head[:columns], rows=tuple(row[:columns] for row in rows))


def _gpu_times(measurement: Measurement) -> tuple[Block, ...]:
    copies = any(gpu.copying_ns for gpu in measurement.occupied)
    rows = []
    for gpu in measurement.occupied:
        parts = [gpu.computing_ns, gpu.exposed_ns, *([gpu.copying_ns] if copies else []), gpu.idle_ns]
        total_ns = sum(parts)
        shares = (f"{ms(part)} {part / max(total_ns, 1):6.1%}" for part in parts)
        rows.append((f"rank {gpu.rank}", ms(total_ns), *shares))
    copying = ("exposed copies",) if copies else ()
    table = Table(head=("", "in all", "computing", "exposed communication", *copying, "idle"), rows=tuple(rows))
    return (table,) if rows else ()


_WORK = ("communication", "computation", "copies")
"""Classes of operations."""


def _of_work(operations: Sequence[Summary], work: str) -> list[Summary]:
    """Return the operations of a class."""
    communicates, copies = work == "communication", work == "copies"
    return [row for row in operations if (row.communicates, row.copies) == (communicates, copies)]


def _by_name(operations: Sequence[Summary], top: int) -> tuple[Block, ...]:
    """Return a row per name, the longest first, and a row for further names; sizes and rates where known."""
    named: dict[str, list[Summary]] = {}
    for row in operations:
        named.setdefault(without_parameters(row.what), []).append(row)
    sums = {what: _sum_of(members) for what, members in named.items()}
    names = sorted(sums, key=lambda what: (-sums[what]["total_ns"], what))
    cells = kernel_cells(names)
    listed: dict[str | Cell, dict[str, int]] = {
        Cell(text=cells[what].text, title=named[what][0].what): sums[what] for what in names[:top]
    }
    if names[top:]:
        rest = _sum_of(row for what in names[top:] for row in named[what])
        listed[f"{len(names) - top} further names"] = rest
    columns = 6 if any(total["size_bytes"] for total in sums.values()) else 4
    rows = []
    for name, total in listed.items():
        count, size, time_ns = total["count"], total["size_bytes"], total["total_ns"]
        timed = count - total["untimed"]
        rate = format_rate(round(size * 1e9 / time_ns)) if size and time_ns and timed == count else ""
        each = ms(time_ns / max(timed, 1)) if timed else ""
        line = (name, f"{count:,}", _time(total), each, _size(size), rate)
        rows.append(line[:columns])
    head = ("", "count", "in total", "each", "bytes", "bytes/s")
    return (Table(head=head[:columns], rows=tuple(rows)),) if rows else ()


def _time(total: Mapping[str, int]) -> str:
    """Return the total time of operations; those of unknown duration are counted."""
    if not total["untimed"]:
        return ms(total["total_ns"])
    if total["untimed"] == total["count"]:
        return "unknown"
    return f"{ms(total['total_ns'])} and {total['untimed']:,} unknown"


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else ""


_PICTURES = (".png", ".svg", ".pdf")
_TRACES = (".pftrace", ".pftrace.gz", ".json", ".json.gz")


def check_explanation_targets(targets: Sequence[str]) -> None:
    """Check the names of output files before the traces are read.

    Raises:
        OutputError: a file has another suffix, or two are the same.
    """
    check_targets(targets, (*PAGES, *_PICTURES, *_TRACES), "an explanation")


def analyse(measurement: Measurement, step: Step, registry: Registry) -> dict[str, ExplanationPart]:
    """Return the parts that plugins add to the explanation of a step, by the name of their analysis."""
    parts = {}
    for name, provided in registry.explanations.items():
        part = provided.offer.explain(measurement, step)
        if part is not None:
            parts[name] = _guard_functions(provided.provider, part)
    return parts


def _guard_functions(provider: Provider, part: ExplanationPart) -> ExplanationPart:
    """Return a part with functions whose errors name the plugin."""
    write, make = part.write_picture, part.timeline
    return replace(
        part,
        write_picture=write and (lambda path: call_plugin(provider, write, path)),
        timeline=make and (lambda: call_plugin(provider, make)),
    )


def with_analyses(document: Document, parts: Mapping[str, ExplanationPart]) -> Document:
    """Return the document of an explained step with the sections and values of analyses."""
    sections = [section for part in parts.values() for section in part.sections]
    values: Any = document.values
    added = {name: part.values for name, part in parts.items() if part.values is not None}
    return replace(document, sections=(*sections, *document.sections), values={**values, **added})


def save_explanation(
    targets: Sequence[str], document: Document, parts: Collection[ExplanationPart], registry: Registry
) -> list[Path]:
    """Write an explanation in the formats of the suffixes; a page has the document.

    Pictures and traces are the first of ``parts``, the results of analyses.

    Raises:
        OutputError: a file cannot be written, or no analysis has its content.
    """
    write_picture = next((part.write_picture for part in parts if part.write_picture), None)
    timeline = next((part.timeline for part in parts if part.timeline), None)
    for target in targets:
        name = target.lower()
        if (suffix := Path(name).suffix) in PAGES:
            with replace_file(Path(target)) as temporary:
                write_page(temporary, suffix, document)
        elif name.endswith(_PICTURES) and write_picture is not None:
            write_picture(Path(target))
        elif name.endswith(_TRACES) and timeline is not None:
            exporters = {name: provided.offer for name, provided in registry.exporters.items()}
            save(timeline(), [target], exporters, {})
        else:
            more = more_of(type(registry).explanations, registry)
            message = f"needs a job of several replicas, and these steps have one{more}"
            raise OutputError(message, file=target)
    return [Path(target) for target in targets]


def replay_document(replays: Mapping[str, Replayed]) -> Document:
    """Return the document of replays: a line per step, and a summary over all steps."""

    def extent(replay: Replayed) -> str:
        text = f" from the first computation to the last, of a step of {ms(replay.step_ns)}"
        return text if replay.step_ns != replay.step.span_ns else ""

    shares = [replay.explained for replay in replays.values()]
    lines = [
        f"{label}: measured {ms(replay.step.span_ns)}{extent(replay)}, replayed {ms(replay.replayed_ns)}: "
        f"{replay.explained:.2%} explained"
        for label, replay in replays.items()
    ]
    waits = max(int((replay.step.gap_ns - replay.step.host_gap_ns).sum()) for replay in replays.values())
    if waits:
        lines.append(_UNRECORDED_WAITS.format(f"at most {ms(waits)}"))
    if len(shares) > 1:
        lines.append(f"{len(shares)} steps: {mean(shares):.2%} ±{stdev(shares):.2%} explained")
    return Document(
        title="replays", lead=lines,
        values=[
            {
                "step": label, "step_ns": replay.step_ns, "measured_ns": replay.step.span_ns,
                "replayed_ns": replay.replayed_ns, "explained": replay.explained,
            }
            for label, replay in replays.items()
        ],
    )  # fmt: skip
