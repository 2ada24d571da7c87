"""Costs of slow operations, ranks and workers, and their part of an explanation.

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025). In the ideal step,
every operation has the mean duration of its type, or the median if it communicates. A slowdown is the length of a
step over that of the ideal step (equation 1). The slowdown of some operations is that of the ideal step with the
measured durations of these operations (2, 4). The slowdown of a worker is the lesser of its replica's and its
rank's. The step with ideal durations of some operations gives the share of the loss that they cause: M_W for the
slowest workers (5), M_S for the last stage.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from pptrace.plugin import (
    Cell,
    ExplanationPart,
    Kind,
    ScheduleError,
    Section,
    Slice,
    Stream,
    Table,
    Timeline,
    kinds,
    write_picture,
)
from pptrace_stragglers.simulation import Job, JobSimulation, build_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Measurement, Placement, Step
    from pptrace_stragglers.simulation import Times

_SLOWEST_PERCENT = 3
"""Share of the workers that count as the slowest, rounded up."""
_CAUSE_SHARE = 0.5
"""Minimum share of the loss that a cause explains."""
_LENGTHS_CORRELATION = 0.9
"""Minimum correlation of forwards with backwards for sequence lengths as the cause."""
_NO_LOSS = 1.005
"""Maximum slowdown of a job without a cause."""


class Effect(Struct, frozen=True, kw_only=True):
    """Slowdown by some operations."""

    slowdown: float
    """The ideal step with the measured durations of these operations, over the ideal step; mean over steps."""
    by_step: tuple[float, ...]
    """The slowdown of each step."""


class Removed(Struct, frozen=True, kw_only=True):
    """The step with ideal durations of some operations, and the ideal step with their measured durations."""

    without_ns: float
    """Length of the step with ideal durations of these operations."""
    alone_ns: float
    """Length of the ideal step with measured durations of these operations."""
    removed: float
    """Step minus ``without_ns``, as a share of the loss."""
    added: float
    """``alone_ns`` minus ideal step, as a share of the loss."""


class Worker(Struct, frozen=True, kw_only=True):
    """One of the slowest workers."""

    replica: str
    """Name of the replica."""
    rank: int
    """Rank in the pipeline."""
    worker: int
    """Global rank."""
    slowdown: float


class Stragglers(Struct, frozen=True, kw_only=True):
    """A job's stragglers; lengths are means over its steps."""

    cause: str
    """``none``, ``workers``, ``last-stage``, ``lengths`` (of sequences), or ``mixed``."""
    step_ns: float
    """Length of a recorded step."""
    replayed_ns: float
    """Length of the simulated step, without the host's gaps between operations."""
    ideal_ns: float
    """Length of the ideal step."""
    slowdown: float
    """The simulated step over the ideal step."""
    steps: tuple[str, ...]
    """Names of the steps."""
    by_step: tuple[float, ...]
    """The slowdown of each step."""
    by_type: Mapping[str, Effect]
    """Slowdown by type of operation, the largest first; both ends of messages have one type."""
    by_replica: Mapping[str, Effect]
    """Slowdown by replica."""
    by_rank: tuple[Effect, ...]
    """Slowdown by rank of the pipeline, in all replicas."""
    heat: NDArray[np.float64]
    """Slowdown of each worker, shape (replicas, ranks)."""
    slowest: tuple[Worker, ...]
    """The slowest workers, the slowest first."""
    slowest_workers: Removed
    """Their cost; ``removed`` is M_W."""
    last_stage: Removed
    """The cost of the pipeline's last rank; ``removed`` is M_S."""
    lengths: Removed
    """The cost of different amounts of work in microbatches."""
    correlation: float
    """Correlation of microbatches' forwards with their backwards: near 1 if sequences differ in length, NaN
    without variation."""


class _Loss(Struct, frozen=True):
    """Measured and ideal durations, and the resulting lengths of steps."""

    simulation: JobSimulation
    measured: Times
    ideal: Times
    steps_ns: Times
    ideal_ns: Times

    def effect(self, chosen: NDArray[np.bool_]) -> Effect:
        steps_ns = self.simulation.steps_ns(np.where(chosen, self.measured, self.ideal))
        return Effect(
            slowdown=float(steps_ns.mean() / self.ideal_ns.mean()),
            by_step=tuple((steps_ns / self.ideal_ns).tolist()),
        )

    def removed(self, chosen: NDArray[np.bool_], repaired: Times | None = None) -> Removed:
        """Return the change if operations have ideal durations, or the ``repaired`` durations."""
        repaired_ns = self.ideal if repaired is None else repaired
        without_ns = float(self.simulation.steps_ns(np.where(chosen, repaired_ns, self.measured)).mean())
        slowed_ns = self.measured if repaired is None else np.maximum(self.ideal + self.measured - repaired, 0)
        alone_ns = float(self.simulation.steps_ns(np.where(chosen, slowed_ns, self.ideal)).mean())
        step_ns, ideal_ns = float(self.steps_ns.mean()), float(self.ideal_ns.mean())
        loss_ns = step_ns - ideal_ns or 1.0
        return Removed(
            without_ns=without_ns,
            alone_ns=alone_ns,
            removed=(step_ns - without_ns) / loss_ns,
            added=(alone_ns - ideal_ns) / loss_ns,
        )


def ideal_durations(job: Job, duration_ns: Times) -> Times:
    """Return the mean duration of each operation's type, or the median if it communicates."""
    ideal = np.empty_like(duration_ns)
    types = np.array([operation.type for operation in job.operations])
    for type_ in dict.fromkeys(types.tolist()):
        members = types == type_
        communicates = job.operations[int(np.argmax(members))].communicates
        ideal[members] = (np.median if communicates else np.mean)(duration_ns[members])
    return ideal


def find_stragglers(job: Job) -> Stragglers:
    """Return a job's stragglers, their costs and the cause.

    Raises:
        ScheduleError: dependencies of its operations have a cycle.
    """
    simulation = JobSimulation(job)
    measured = simulation.measured_ns()
    ideal = ideal_durations(job, measured)
    loss = _Loss(simulation, measured, ideal, simulation.steps_ns(measured), simulation.steps_ns(ideal))
    shape = measured.shape
    replicas = {name: loss.effect(_mask(shape, replica=index)) for index, name in enumerate(job.replicas)}
    ranks = tuple(loss.effect(_mask(shape, job.indices(rank=rank))) for rank in range(job.ranks))
    heat = np.minimum.outer(
        np.array([effect.slowdown for effect in replicas.values()]),
        np.array([effect.slowdown for effect in ranks]),
    )
    slowest = _slowest(job, heat)
    slowest_mask = np.zeros(shape, dtype=bool)
    for worker in slowest:
        replica = job.replicas.index(worker.replica)
        slowest_mask |= _mask(shape, job.indices(rank=worker.rank), replica=replica)
    workers = loss.removed(slowest_mask)
    last_stage = loss.removed(_mask(shape, job.indices(rank=job.ranks - 1)))
    lengths = loss.removed(np.ones(shape, dtype=bool), equalize_lengths(job, measured))
    correlation = correlate_passes(job, measured)
    slowdown = float(loss.steps_ns.mean() / loss.ideal_ns.mean())
    recorded_ns = (job.end_ns.max(axis=(0, 1)) - job.start_ns.min(axis=(0, 1))).astype(np.float64)
    return Stragglers(
        cause=_cause(slowdown, workers, last_stage, lengths, correlation), step_ns=float(recorded_ns.mean()),
        replayed_ns=float(loss.steps_ns.mean()), ideal_ns=float(loss.ideal_ns.mean()), slowdown=slowdown,
        steps=job.steps, by_step=tuple((loss.steps_ns / loss.ideal_ns).tolist()),
        by_type=_by_type(job, loss), by_replica=replicas, by_rank=ranks, heat=heat, slowest=slowest,
        slowest_workers=workers, last_stage=last_stage, lengths=lengths, correlation=correlation,
    )  # fmt: skip


def _cause(slowdown: float, workers: Removed, last_stage: Removed, lengths: Removed, correlation: float) -> str:
    """Return the cause of at least half of the loss.

    Lengths of sequences also slow the last stage and all workers, so they are checked first.
    """
    if slowdown <= _NO_LOSS:
        return "none"
    if correlation >= _LENGTHS_CORRELATION and lengths.removed >= _CAUSE_SHARE:
        return "lengths"
    cause, share = max(
        ("workers", workers.removed), ("last-stage", last_stage.removed), key=lambda pair: pair[1]
    )  # fmt: skip
    return cause if share >= _CAUSE_SHARE else "mixed"


def _by_type(job: Job, loss: _Loss) -> Mapping[str, Effect]:
    categories = dict.fromkeys(operation.category or operation.type for operation in job.operations)
    effects = {name: loss.effect(_mask(loss.measured.shape, job.indices(category=name))) for name in categories}
    return dict(sorted(effects.items(), key=lambda item: -item[1].slowdown))


def _mask(
    shape: tuple[int, ...], indices: Sequence[int] | None = None, replica: int | None = None
) -> NDArray[np.bool_]:
    """Return a mask of some operations of one replica; of all operations or replicas by default."""
    mask = np.zeros(shape, dtype=bool)
    rows = np.arange(shape[0]) if indices is None else np.array(indices, dtype=np.int64)
    mask[rows, slice(None) if replica is None else slice(replica, replica + 1)] = True
    return mask


def _slowest(job: Job, heat: NDArray[np.float64]) -> tuple[Worker, ...]:
    """Return the slowest workers; a tie goes to the lowest global rank."""
    count = -(-heat.size * _SLOWEST_PERCENT // 100)
    order = np.lexsort((job.workers.ravel(), -heat.ravel()))[:count]
    return tuple(
        Worker(
            replica=job.replicas[replica], rank=rank, worker=int(job.workers[replica, rank]),
            slowdown=float(heat[replica, rank]),
        )
        for replica, rank in (divmod(index, job.ranks) for index in order.tolist())
    )  # fmt: skip


def equalize_lengths(job: Job, duration_ns: Times) -> Times:
    """Return durations with the mean amount of work in every microbatch.

    The work of a microbatch is the sum of its forwards and backwards on all ranks. It estimates the length of its
    sequences: a long sequence takes long on every rank, while a slow worker affects a single rank.
    """
    indices: dict[int, list[int]] = {}
    for index, operation in enumerate(job.operations):
        action = operation.action
        if action is not None and action.kind in kinds.COMPUTE and action.microbatch >= 0:
            indices.setdefault(action.microbatch, []).append(index)
    equal = duration_ns.copy()
    if indices:
        work = np.stack([duration_ns[members].sum(axis=0) for members in indices.values()])
        lengths = np.maximum(work, 1) / max(float(work.mean()), 1)
        for members, length in zip(indices.values(), lengths, strict=True):
            equal[members] = duration_ns[members] / length
    return equal


def correlate_passes(job: Job, duration_ns: Times) -> float:
    """Return the correlation of microbatches' forwards with their backwards; NaN without variation.

    Both are long for a long sequence, so the correlation is near 1 if lengths differ. All microbatches of a
    slow worker are slow, and jitter of a forward is independent of that of its backward.
    """
    sums: dict[tuple[int, int], dict[bool, Times]] = {}
    for index, operation in enumerate(job.operations):
        action = operation.action
        if action is not None and action.kind in kinds.COMPUTE and action.microbatch >= 0:
            passes = sums.setdefault((action.stage, action.microbatch), {})
            backward = action.kind in kinds.BACKWARD
            passes[backward] = passes.get(backward, 0) + duration_ns[index]
    by_stage: dict[int, list[list[Times]]] = {}
    for (stage, _), passes in sums.items():
        if False in passes and True in passes:
            by_stage.setdefault(stage, []).append([passes[False], passes[True]])
    forwards, backwards = [], []
    for pairs in by_stage.values():
        # Relative to the mean of each worker and step, which removes slow workers and slow steps.
        times = np.array(pairs)
        times = times / np.maximum(times.mean(axis=0, keepdims=True), 1)
        forwards.append(times[:, 0].ravel())
        backwards.append(times[:, 1].ravel())
    if not forwards:
        return float("nan")
    values = np.concatenate(forwards), np.concatenate(backwards)
    if min(float(value.std()) for value in values) == 0:
        return float("nan")
    return float(np.corrcoef(*values)[0, 1])


def ideal_timeline(job: Job, placement: Placement) -> Timeline:
    """Return the ideal step, which is the same in every replica and step. Messages are on their sender's stream.

    Operations without an action in tables, such as the optimizer, take time but have no slice.

    Args:
        job: the replicas.
        placement: the ranks of a replica's stages.
    """
    ideal = ideal_durations(job, JobSimulation(job).measured_ns())[:, :1, :1]
    first = JobSimulation(replace(job, start_ns=job.start_ns[:, :1, :1], end_ns=job.end_ns[:, :1, :1]))
    _, end = first.run(ideal)
    end_ns = np.rint(end[:, 0, 0]).astype(np.int64)
    start_ns = np.rint(end[:, 0, 0] - ideal[:, 0, 0]).astype(np.int64)
    return Timeline.from_slices(_slices(job, start_ns.tolist(), end_ns.tolist()), placement)


def _slices(job: Job, start_ns: list[int], end_ns: list[int]) -> Iterator[Slice]:
    lane_end_ns: dict[tuple[int, Stream, int], int] = {}
    for index in sorted(range(len(start_ns)), key=lambda index: (start_ns[index], end_ns[index])):
        operation = job.operations[index]
        action = operation.action
        if action is None or action.kind in kinds.RECEIVES:
            continue
        peer = -1
        stream = Stream.SEND if action.kind in kinds.SENDS else action.kind.traits.stream
        if action.kind in kinds.COMMUNICATION:
            peer = (operation.rank + (1 if action.kind is Kind.SEND_F else -1)) % job.ranks
        lane = operation.rank, stream, peer
        # With two ranks, messages of both directions share the stream to the peer, one at a time.
        start = max(start_ns[index], lane_end_ns.get(lane, 0))
        lane_end_ns[lane] = max(end_ns[index], start)
        yield Slice(
            rank=operation.rank, stream=stream, action=action, start_ns=start, end_ns=lane_end_ns[lane], peer=peer
        )


_CAUSES = {
    "none": "nothing: operations of each type take nearly the same time",
    "workers": "few workers are slow",
    "last-stage": "the last stage is longer than the others",
    "lengths": "sequences differ in length: forwards and backwards of microbatches vary together",
    "mixed": "several causes, each with less than half of the loss",
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
        values=asdict(stragglers) | {"heat": stragglers.heat.tolist()},
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
            about="The slowdown of a worker is the smaller of two: only its replica is slow in an ideal job, "
            "or only its rank.",
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
