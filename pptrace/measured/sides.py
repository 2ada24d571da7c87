"""Sides of a diff: source, steps and medians over steps.

Starts and ends of actions are from the step of median length, because medians of starts and ends would mix steps.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.resolution import load
from pptrace.errors import ConfigError, PptraceError, TableError, TraceError
from pptrace.measured.computations import extent, extract_computations, group_quantiles
from pptrace.measured.replay import Resimulation
from pptrace.report.numbers import Figure, ranks_text
from pptrace.run.run import Run, simulate
from pptrace.run.trace_files import advice_on, read_measurement, source_inputs
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import Measurement, Step
from pptrace.timeline.metrics import measure
from pptrace.timeline.trim import renumber_ranks, select_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations, Transfers
    from pptrace.plugins.registry import Registry
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.measurement import ImportRequest
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Timeline

_NO_ACTIONS = (
    "holds no recognised action of a pipeline; if its annotations have custom names, describe them in a file: "
    "--rules FILE; pptrace annotate prints a module that adds annotations, pptrace explain lists other contents"
)
_REPEATED_NOTES = 4


class NoActionsError(ConfigError):
    """A trace has no action of a pipeline."""

    def __init__(self, measurement: Measurement, name: str) -> None:
        super().__init__(no_actions(measurement), file=name)
        self.measurement = measurement
        """The content of the trace."""


class StepAnalysis(Struct, frozen=True, kw_only=True, dict=True):
    """A step of a side; each analysis runs once, at its first use."""

    step: Step
    side: Side

    @cached_property
    def computations(self) -> Computations:
        """Its computations and messages, with the rank numbers of the pipeline."""
        numbers = self.side.numbers
        step = extract_computations(self.step.timeline, lacks_ranks=bool(numbers), host_ns=self.step.host_ns)
        return step.renumbered(numbers, self.side.all_ranks) if numbers else step

    @cached_property
    def metrics(self) -> Metrics:
        """Its metrics."""
        return measure(self.step.timeline, self.side.workload)

    @cached_property
    def parts_ns(self) -> dict[str, int]:
        """Nanoseconds by part of the step, mean over ranks; the parts sum to the length of the step.

        ``launch`` is time inside an action in which the device waited for late launches of kernels, ``kernel
        gaps`` the sum of the gaps between kernels that are too short for that.
        """
        metrics, timeline = self.metrics, self.step.timeline
        ranks = metrics.ranks
        compute = np.isin(timeline.lane_of_row(), np.flatnonzero(timeline.lane_stream == Stream.COMPUTE))
        gaps = int(self.step.gap_ns[compute].sum())
        short = int(self.step.short_gap_ns[compute].sum()) if self.step.short_gap_ns.size else 0
        collective = int(metrics.collective_ns.sum())
        totals_ns = {
            "compute": int(metrics.busy_ns.sum()) - collective - gaps,
            "launch": gaps - short, "kernel gaps": short, "own collectives": collective,
            **metrics.idle_by_cause_ns,
        }  # fmt: skip
        sums = accumulate(totals_ns.values(), initial=0)
        return {
            name: after // ranks - before // ranks
            for name, (before, after) in zip(totals_ns, pairwise(sums), strict=True)
        }


PART_LABELS = {"own collectives": "TP, CP and EP collectives"}
"""Labels of parts of a step, other than their names."""


class Side(Struct, frozen=True, kw_only=True, dict=True):
    """One side of a diff."""

    name: str
    """The name that the user gave."""
    measured: bool
    """Whether it was recorded; false for a simulation."""
    steps: tuple[Step, ...]
    """Its steps: the simulated step, or the recorded steps with all actions."""
    chosen: int
    """The index of the compared step."""
    workload: Workload
    """Its costs, for memory; all zero where they are unknown."""
    measurement: Measurement | None = None
    """The recording; None for a simulation."""
    run: Run | None = None
    """The simulation; None for a recording or a trace."""
    incomplete: tuple[str, ...] = ()
    """A note per recorded step that lacks actions."""
    pools: bool = False
    """Whether times of actions and messages are medians over all steps."""
    numbers: tuple[int, ...] = ()
    """The number in the pipeline of each rank of its timelines where ranks are missing or left out, else empty."""
    ranks: int = 0
    """The number of ranks of the pipeline; 0 where its timelines have all of them."""
    missing_ranks: tuple[int, ...] = ()
    """The ranks of the pipeline without a recording."""

    @cached_property
    def analyses(self) -> tuple[StepAnalysis, ...]:
        """An analysis per step."""
        return tuple(StepAnalysis(step=step, side=self) for step in self.steps)

    @property
    def pipeline_ranks(self) -> tuple[int, ...]:
        """The number in the pipeline of each rank of its timelines."""
        return self.numbers or tuple(range(self.timeline.ranks))

    @property
    def clock_offsets_ns(self) -> dict[int, int]:
        """What was added to the clock of each rank, in nanoseconds; empty for a simulation."""
        clocks = () if self.measurement is None else self.measurement.clocks
        return {clock.rank: clock.offset_ns for clock in clocks}

    @property
    def all_ranks(self) -> int:
        """The number of ranks of the pipeline."""
        return self.ranks or self.timeline.ranks

    @property
    def actions_of_ranks(self) -> list[int]:
        """The number of forwards and backwards of each rank of its timelines in the compared step."""
        counts = self.computations.passes_of_ranks.tolist()
        return [counts[rank] for rank in self.pipeline_ranks]

    def of_ranks(self, ranks: Sequence[int]) -> Side:
        """Return the side with some ranks of the pipeline, as if the others had no recording."""
        if tuple(ranks) == self.pipeline_ranks:
            return self
        local = [self.pipeline_ranks.index(rank) for rank in ranks]
        steps = []
        for step in self.steps:
            timeline, chosen = select_ranks(step.timeline, local)
            columns = {
                name: values[chosen]
                for name in ("gap_ns", "short_gap_ns", "host_ns")
                if (values := getattr(step, name)).size
            }
            steps.append(replace(step, timeline=timeline, **columns))
        return replace(self, steps=tuple(steps), numbers=tuple(ranks), ranks=self.all_ranks)

    @property
    def slices(self) -> int:
        """Slices of each microbatch's sequence, which the steps have as microbatches; 1 where they are unknown."""
        if self.run is not None:
            return self.run.prepared.slices
        return 1 if self.measurement is None else self.measurement.slices

    @property
    def analysis(self) -> StepAnalysis:
        """The analysis of the compared step."""
        return self.analyses[self.chosen]

    @property
    def timeline(self) -> Timeline:
        """The timeline of the compared step."""
        return self.steps[self.chosen].timeline

    @property
    def numbered_timeline(self) -> Timeline:
        """The timeline of the compared step, with the rank numbers of the pipeline."""
        if not self.numbers:
            return self.timeline
        return renumber_ranks(self.timeline, np.array([*self.numbers, -1], dtype=np.int32), self.all_ranks)

    @cached_property
    def computations(self) -> Computations:
        """The compared computations; medians over all steps where the side pools them."""
        chosen = self.analysis.computations
        return median_step(chosen, self.other_steps(self.step_computations)) if self.pools else chosen

    @property
    def step_computations(self) -> list[Computations]:
        """The computations of each step, with the times of that step."""
        return [analysis.computations for analysis in self.analyses]

    def other_steps(self, steps: Sequence[Computations]) -> list[Computations]:
        """Return all of the side's steps except the compared step."""
        return [step for index, step in enumerate(steps) if index != self.chosen]

    @property
    def spans_ns(self) -> tuple[int, ...]:
        """The span of the computations of each step."""
        return tuple(step.span_ns for step in self.step_computations)


def on_common_ranks(a: Side, b: Side) -> tuple[Side, Side]:
    """Return both sides with the ranks that both have, where a recording of a rank is missing.

    Raises:
        ConfigError: no rank has a recording on both sides.
    """
    if not (a.numbers or b.numbers) or a.all_ranks != b.all_ranks:
        return a, b
    common = sorted({*a.pipeline_ranks} & {*b.pipeline_ranks})
    if not common:
        first, second = (ranks_text(side.pipeline_ranks) for side in (a, b))
        raise ConfigError(f"has files of {second}, {a.name} of {first}: no rank is on both sides", file=b.name)
    return a.of_ranks(common), b.of_ranks(common)


def partial_data(sides: Sequence[Side]) -> str:
    """Return what the compared steps of sides lack, and which ranks figures are of; empty if nothing is."""
    lacks = [
        f"{side.name} has no data of {ranks_text(side.missing_ranks)}" for side in sides if side.missing_ranks
    ]
    compared = [f"figures are those of {ranks_text(sides[0].pipeline_ranks)}"] if lacks else []
    counts = [side.actions_of_ranks for side in sides]
    for side, side_counts in zip(sides, counts, strict=True):
        most = map(max, zip(*counts, strict=False))
        fewer = [
            f"{count} of {whole} actions of rank {rank}"
            for rank, count, whole in zip(side.pipeline_ranks, side_counts, most, strict=False)
            if count < whole
        ]
        if side.computations.partial and (fewer or not side.numbers):
            lacks.append(f"{side.name} has {', '.join(fewer) or 'actions whose inputs are not recorded'}")
    return "; ".join(dict.fromkeys([*lacks, *compared]))


def clock_uncertainty_ns(sides: Sequence[Side], steps: Sequence[Computations]) -> dict[tuple[int, int], float]:
    """Return by sender and receiver how much the difference of their clocks may have changed between two sides.

    Clocks with equal offsets on both sides have not changed. Otherwise the errors of both sides count: those of
    the offsets, and at most half of the shortest messages there and back.
    """
    offsets = [side.clock_offsets_ns for side in sides]
    errors = [_clock_errors_ns(side, step) for side, step in zip(sides, steps, strict=True)]
    uncertain = {}
    for ends in {**errors[0], **errors[1]}:
        apart = [known.get(ends[1], 0) - known.get(ends[0], 0) for known in offsets]
        if apart[0] != apart[1] or not all(offsets):
            uncertain[ends] = sum(known.get(ends, 0.0) for known in errors)
    return uncertain


def _clock_errors_ns(side: Side, step: Computations) -> dict[tuple[int, int], float]:
    """Return the error of the difference of clocks of each pair of ranks that exchange messages."""
    bounds = {clock.rank: clock.bound_ns for clock in side.measurement.clocks} if side.measurement else {}
    sent = step.transfers
    shortest: dict[tuple[int, int], float] = {}
    columns = (
        sent.source,
        sent.target,
        np.where(sent.observed, sent.duration_ns + sent.late_ns, np.iinfo(np.int64).max),
    )
    for source, target, duration_ns in zip(*(column.tolist() for column in columns), strict=True):
        shortest[source, target] = min(duration_ns, shortest.get((source, target), math.inf))
    return {
        (source, target): min(
            bounds.get(source, 0) + bounds.get(target, 0),
            (there + shortest.get((target, source), math.inf)) / 2,
        )
        for (source, target), there in shortest.items()
    }  # fmt: skip


def no_actions(measurement: Measurement) -> str:
    """Return the error message for a trace without actions, with its last notes."""
    noted = "; ".join(measurement.notes[-_REPEATED_NOTES:])
    return f"{_NO_ACTIONS} (noted: {noted})" if noted else _NO_ACTIONS


def simulated_side(run: Run, name: str) -> Side:
    """Return a simulated side."""
    step = Step(label="simulated", timeline=run.timeline, gap_ns=np.zeros(len(run.timeline), dtype=np.int64))
    return Side(name=name, measured=False, steps=(step,), chosen=0, workload=run.prepared.workload, run=run)


def measured_side(measurement: Measurement, name: str, step: str = "median", *, measured: bool = True) -> Side:
    """Return a side of recorded steps, without steps that lack actions unless ``step`` names one.

    Args:
        measurement: the recording.
        name: the name of the side.
        step: a number; ``median`` for the step of median length; or ``all`` for that step with medians over all
            steps as times of actions and messages.
        measured: false for a trace of a simulation by pptrace.

    Raises:
        ConfigError: no such step, or no step at all.
    """
    if not measurement.steps:
        raise NoActionsError(measurement, name)
    counts, spans_ns = zip(*(extent(step.timeline) for step in measurement.steps), strict=True)
    most = max(counts)
    complete = [number for number, count in enumerate(counts) if count == most]
    if step in {"median", "all"}:
        lengths = [spans_ns[number] for number in complete]
        chosen = complete[int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])]
    else:
        chosen = _step_index(measurement, step)
    kept = complete if chosen in complete else [chosen]
    timeline = measurement.steps[chosen].timeline
    placement = timeline.placement
    side = Side(
        name=name,
        measured=measured,
        steps=tuple(measurement.steps[number] for number in kept),
        chosen=kept.index(chosen),
        workload=Workload.uniform(placement.stages, edges=len(placement.edges), f_ns=0, b_ns=0),
        measurement=measurement,
        incomplete=tuple(
            f"{measurement.steps[number].label} has {count} of {most} actions"
            f"{': skipped' if number not in kept else ''}"
            for number, count in enumerate(counts)
            if count < most
        ),
        pools=step == "all" and len(kept) > 1,
        numbers=measurement.numbers,
        ranks=measurement.ranks,
    )
    # A trace of pptrace keeps all ranks of its pipeline, also if it was trimmed to some.
    recorded = [side.pipeline_ranks[rank] for rank in np.unique(timeline.lane_rank).tolist()]
    missing = tuple(rank for rank in range(side.all_ranks) if rank not in recorded)
    return replace(side.of_ranks(recorded), missing_ranks=missing) if missing else side


def _step_index(measurement: Measurement, step: str) -> int:
    """Return the index of the step that ``--step`` names."""
    steps = measurement.steps
    if step.isdecimal() and int(step) < len(steps):
        return int(step)
    known = f"0 ({steps[0].label})" + (f" to {len(steps) - 1} ({steps[-1].label})" if len(steps) > 1 else "")
    raise ConfigError(f"no such step; write {known}, median or all", file=f"--step {step}")


_CONFIGURATIONS, _TABLES = frozenset({".yaml", ".yml"}), frozenset({".csv", ".txt"})
_MOST_NAMED = 5
"""The most kinds of unattributed work in notes."""


def simulate_source(source: str | Path, registry: Registry) -> Side | None:
    """Simulate a configuration or a table and return its side; None for another kind of file.

    Raises:
        PptraceError: the file cannot be read or simulated.
    """
    path, text = Path(source), str(source)
    suffix = path.suffix.lower()
    if suffix not in _CONFIGURATIONS | _TABLES:
        return None
    configuration = load(path) if suffix in _CONFIGURATIONS else load(None, (), {"schedule": text})
    try:
        return simulated_side(simulate(configuration, registry), text)
    except TableError as error:
        advice = advice_on(path, registry) if suffix in _TABLES else ""
        if not advice:
            raise
        raise TraceError(advice, file=path) from error


def read_side(
    source: str | Path | Run | Measurement, step: str, registry: Registry, request: ImportRequest
) -> Side:
    """Return the side of a simulation or a recording; read or simulate it where ``source`` is a path.

    Args:
        source: a step; a configuration (.yaml), a table (.csv, .txt), a trace, or a folder of traces of one run.
        step: which recorded step: its number, ``median`` or ``all``.
        registry: the plugins.
        request: options for measured traces.

    Raises:
        PptraceError: the file cannot be read or has no step.
    """
    if isinstance(source, Run):
        return simulated_side(source, "a simulation")
    if isinstance(source, Measurement):
        return measured_side(source, "a measurement", step)
    simulated = simulate_source(source, registry)
    if simulated is not None:
        return simulated
    if not Path(source).exists():
        raise TraceError("no such file or folder", file=source)
    measurement, measured = read_measurement([Path(source)], registry, request)
    return measured_side(measurement, str(source), step, measured=measured)


def split_step_option(step: str) -> tuple[str, str]:
    """Split ``--step`` into the values for both sides: ``1,3``, or one word for both."""
    first, comma, second = (word.strip() for word in step.partition(","))
    return first or "median", (second or "median") if comma else first or "median"


def notes_on(sides: Sequence[Side], step: str, request: ImportRequest) -> list[str]:
    """Return notes of both sides, and warnings on options and tables that do not fit them."""
    lines = list(dict.fromkeys(note for side in sides for note in notes_of(side)))
    recorded = [side for side in sides if side.measured]
    if recorded:
        planned = [side for side in sides if side.run is not None and Path(side.name).suffix.lower() in _TABLES]
        return [*lines, *(_UNIT_COSTS.format(table=side.name, run=recorded[0].name) for side in planned)]
    idle = ignored_options(step, request)
    return [*lines, f"{idle}: neither side is a measurement"] if idle else lines


def ignored_options(step: str, request: ImportRequest) -> str:
    """Return the sentence that options for recordings have no effect; empty where none is given."""
    is_set = {"--step": step not in {"", "median"}, "--layout": request.layout, "--replica": request.replica}
    is_set |= {"--rules": request.rules is not None, "--iteration": request.iteration is not None}
    ignored = [name for name, is_given in is_set.items() if is_given]
    return f"{', '.join(ignored)} {'has' if len(ignored) == 1 else 'have'} no effect" if ignored else ""


_UNIT_COSTS = (
    "{table} has unit costs (a forward is 1 ms, messages take no time), so only its order can be compared with "
    "{run}. To compare times, run pptrace calibrate {run} -o costs.yaml, add the line `schedule: {table}` to "
    "costs.yaml, and name costs.yaml here"
)
"""The note for a table that is compared with a measurement."""


def notes_of(side: Side) -> list[str]:
    """Return the notes of a side: of its import, its clocks and its unattributed work."""
    measurement = side.measurement
    if measurement is None:
        return []
    lines = [*measurement.notes, *(f"{side.name}: {step}" for step in side.incomplete)]
    clocks = [clock for clock in measurement.clocks if clock.pairs]
    if clocks:
        offsets = ", ".join(f"{clock.offset_ns / 1e6:+.3f} (±{clock.bound_ns / 1e6:.3f})" for clock in clocks)
        ranks = ", ".join(str(clock.rank) for clock in clocks)
        lines.append(f"{side.name}: clocks of ranks {ranks} shifted by {offsets} ms")
    lines += [
        f"{side.name}: rank {work.rank}: {work.count} {work.what} belong to no action "
        f"({work.total_ns / 1e6:.3f} ms)"
        for work in measurement.unattributed[:_MOST_NAMED]
    ]
    more = len(measurement.unattributed) - _MOST_NAMED
    return [*lines, f"{side.name}: {more} further kinds of events belong to no action"] if more > 0 else lines


def median_step(step: Computations, other_steps: Sequence[Computations]) -> Computations:
    """Return a step with the medians over several steps as durations, gaps and transfer times."""
    if not other_steps:
        return step
    durations, gaps, late = (
        np.nanmedian(values_over_steps(step, other_steps, name), axis=0).astype(np.int64)
        for name in ("duration_ns", "gap_ns", "late_ns")
    )
    transfers = _transfers(step.transfers, other_steps)
    return replace(step, duration_ns=durations, gap_ns=gaps, late_ns=late, transfers=transfers)


def values_over_steps(step: Computations, other_steps: Sequence[Computations], name: str) -> NDArray[np.float64]:
    """Return a column of a step and the values of the same actions in other steps of the same size.

    Returns:
        Shape (1 + others, actions); starts and ends are relative to the first start of each step; NaN where a step
        lacks an action.
    """
    stages, microbatches = step.placement.stages, step.placement.microbatches
    rows = []
    for other in (step, *other_steps):
        if (other.placement.stages, other.placement.microbatches) != (stages, microbatches):
            continue
        values = getattr(other, name).astype(np.float64)
        if name in {"start_ns", "end_ns"}:
            values -= other.begin_ns
        if other is not step:
            index = np.full(len(Kind) * stages * microbatches, -1, dtype=np.int64)
            index[other.places] = np.arange(len(other))
            values = np.append(values, np.nan)[index[step.places]]
        rows.append(values)
    return np.stack(rows)


def median_deviation_factor(steps: int) -> float:
    """Return the ratio of the deviation of a median over steps to that of one step: (pi / 2n) ** 0.5."""
    return min(math.sqrt(math.pi / (2 * steps)), 1.0)


def _transfers(transfers: Transfers, other_steps: Sequence[Computations]) -> Transfers:
    """Return messages with the median of their observed transfer times, or of all times where none is observed."""
    steps = (transfers, *(other.transfers for other in other_steps))
    cells = [np.stack([step.kind, step.stage, step.microbatch]).astype(np.int64) for step in steps]
    kind, stage, microbatch = np.concatenate(cells, axis=1)
    places = (kind * (stage.max(initial=0) + 1) + stage) * (microbatch.max(initial=0) + 1) + microbatch
    messages, index = np.unique(places, return_inverse=True)
    duration_ns, blocked_ns, observed = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("duration_ns", "blocked_ns", "observed")
    )
    known = duration_ns >= 0
    is_observed = np.bincount(index[known & observed], minlength=messages.size) > 0
    used = known & (observed | ~is_observed[index])
    step_index = index[: len(transfers)]
    duration_ns, blocked_ns = (
        np.nan_to_num(group_quantiles(values[used], index[used], messages.size)[0][step_index], nan=absent)
        for values, absent in ((duration_ns, -1), (blocked_ns, 0))
    )
    return replace(
        transfers, duration_ns=duration_ns.astype(np.int64), blocked_ns=blocked_ns.astype(np.int64),
        observed=is_observed[step_index],
    )  # fmt: skip


def group_medians(
    values: Int64s, groups: NDArray[np.integer], size: int, absent: float
) -> tuple[list[int], list[Figure]]:
    """Return the number of values of each of ``size`` groups, and their median with the interquartile range."""
    counts = np.bincount(groups, minlength=size).tolist()
    quantiles = np.nan_to_num(group_quantiles(values, groups, size, (0.25, 0.5, 0.75)))
    medians, spreads = quantiles[1].astype(np.int64).tolist(), (quantiles[2] - quantiles[0]).astype(np.int64)
    return counts, [
        Figure(median if count else absent, spread=spread)
        for count, median, spread in zip(counts, medians, spreads.tolist(), strict=True)
    ]


def simulation_of(side: Side, registry: Registry) -> Resimulation | None:
    """Return the simulation of a side, if necessary from the configuration in its trace.

    None for a recording, for actions in segments, and where the simulation does not reproduce the step.
    """
    if side.measured or side.timeline.parts is not None:
        return None
    prepared = side.run.prepared if side.run is not None else source_inputs(side.timeline, registry)
    if prepared is None:
        return None
    simulation, step = Resimulation.of_simulation(prepared), side.computations
    try:
        return simulation if simulation.span_ns(step.times()) == step.span_ns else None
    except PptraceError:
        return None
