"""Candidates of one layout with their bounds: what can run, what cannot and why, and what equals another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pptrace.config.places import key_text
from pptrace.errors import ConstraintError, PptraceError
from pptrace.experiment.asked import times
from pptrace.experiment.prepare import costs_alone, priced
from pptrace.study.plan.balance import balanced_split
from pptrace.study.plan.bounds import Bound, bound_of, least_fits, least_memory, least_work_ns
from pptrace.study.plan.candidate import Candidate, Fate
from pptrace.study.plan.ground import setting
from pptrace.study.plan.shapes import Shapes
from pptrace.study.reason import short_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.costs import Costs
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.study.entry import Entry
    from pptrace.study.plan.ground import Ground
    from pptrace.study.plan.shapes import Shape
    from pptrace.study.plan.space import Layout, Space

__all__ = ["Origin", "Scales", "Weighed"]

_VP, _LAYERS = "parallel.vp", "model.layers_per_stage"
_OF_COSTS = ("model.recompute", "costs.zero", _LAYERS)
"""Settings that a step knows by its costs alone."""
_COLUMNS = (
    "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns",
    "boundary_bytes", "activation_bytes", "weight_activation_bytes", "weights_bytes", "gradients_bytes",
    "optimizer_bytes", "reduce_ns", "optimizer_ns", "offload_ns", "reload_ns", "recompute_ns", "unshard_ns",
    "offload_bytes", "checkpoint_bytes", "microbatch_class", "gathered_bytes", "unreduced_bytes",
    "boundary_gradient_bytes",
)  # fmt: skip


class Scales:
    """Weighs layouts one after another, roughly; then single candidates, with their tables."""

    def __init__(self, space: Space) -> None:
        self.space, self.ground = space, space.ground
        self.question = space.question
        self.shapes = Shapes(space.ground, space.entries)
        self.count = 0
        self.seen: dict[Any, Candidate] = {}

    def weighed(self, layout: Layout, varied: tuple[Assignment, ...]) -> list[Candidate]:
        """Return a layout's candidates, with what they compute and keep at least, whatever their tables.

        What all stages compute together is taken not to depend on their number.

        Args:
            layout: the layout.
            varied: what it sets.
        """
        entries = self.space.entries
        if not layout.microbatches:
            step = layout.dp * layout.micro
            reason = f"batch.global: {layout.sequences} is no multiple of dp x micro = {step}"
            return [self.made(layout, entry, varied, reason) for entry in entries]
        try:
            resolved = self.ground.resolved(varied)
            costs, network = priced(resolved, self.ground.registry)
            work = Weighed(layout, varied, resolved, costs, network)
            workload = work.workload(layout.pp, None)
        except PptraceError as error:
            if self.question.objective != "gpus" and _is_everywhere(error):
                raise
            return [self.made(layout, entry, varied, short_reason(error)) for entry in entries]
        least = Bound(
            step_ns=least_work_ns(workload, layout.pp, layout.microbatches),
            peak_bytes=least_memory(workload, layout.pp),
            fits=least_fits(workload, layout.pp),
        )
        found = [one for entry in entries for one in self._of_entry(work, entry)]
        for one in found:
            if one.fate is Fate.BOUNDED:
                self._put(one, least)
        return found

    def made(self, layout: Layout, entry: Entry, varied: tuple[Assignment, ...], reason: str = "") -> Candidate:
        """Return a new candidate; with a reason, one that is refused."""
        self.count += 1
        return Candidate(
            number=self.count - 1, layout=layout, schedule=entry.label, chunks=1,
            varied=(*varied, *entry.varied), fate=Fate.REFUSED if reason else Fate.BOUNDED, reason=reason,
        )  # fmt: skip

    def refine(self, candidate: Candidate) -> None:
        """Bound a candidate by its own table and costs; it may be found to be refused, or equal to another."""
        origin, candidate.origin = candidate.origin, None
        if origin is None:
            return
        try:
            self._refined(candidate, origin)
        except PptraceError as error:
            candidate.fate, candidate.reason = Fate.REFUSED, short_reason(error)

    def _refined(self, candidate: Candidate, origin: Origin) -> None:
        layout, work, entry = candidate.layout, origin.work, origin.entry
        shape = self.shapes.of(entry, layout, origin.chunks)
        stages = layout.pp * shape.chunks
        candidate.chunks = shape.chunks
        layers = work.split(origin.split, stages, self.space.layers)
        if layers is None and origin.split == "balanced":
            candidate.fate, candidate.reason = Fate.EQUAL, "an even split"
            return
        if layers is not None:
            candidate.varied += (setting(_LAYERS, layers),)
        resolved = self.ground.resolved(candidate.varied)
        workload = work.workload(stages, layers, self.ground)
        if shape.table is None:
            shape = self.shapes.timed(entry, shape, times(workload, work.network, layout.pp))
        self.shapes.check_policy(resolved, shape)
        first = self.seen.setdefault(_sameness(work, entry, shape, workload), candidate)
        if first is not candidate:
            candidate.fate, candidate.reason = Fate.EQUAL, first.name
            return
        provided = self.ground.registry.schedules[entry.name]
        self._put(candidate, bound_of(shape, workload, resolved.experiment, provided))

    def _put(self, candidate: Candidate, bound: Bound) -> None:
        layout = candidate.layout
        candidate.bound = bound
        candidate.worth = self.question.worth(bound.step_ns, layout.sequences, layout.gpus)
        if not bound.fits and not self.question.exhaustive:
            candidate.fate = Fate.MEMORY

    def _of_entry(self, work: Weighed, entry: Entry) -> Iterator[Candidate]:
        """Yield a schedule's candidates on a layout: with each number of chunks that it takes, and each split."""
        offer = self.ground.registry.schedules[entry.name].offer
        own = offer.chunks is not None and not self.space.sizes["vp"]
        for chunks in (None,) if own else self.space.chunks_of(work.layout.pp):
            refused = self.shapes.refusal(entry, work.layout, chunks)
            if refused is not None and getattr(refused, "key", "") == _VP:
                continue
            settings = (setting(_VP, chunks),) if chunks is not None and chunks > 1 else ()
            for split in self.space.splits:
                reason = short_reason(refused) if refused else ""
                one = self.made(work.layout, entry, work.varied, reason)
                one.chunks, one.varied = chunks or 1, (*one.varied, *settings)
                one.origin = Origin(work=work, entry=entry, chunks=chunks, split=split)
                yield one


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a candidate's bound is made of."""

    work: Weighed
    """Its layout with costs."""
    entry: Entry
    """Its schedule."""
    chunks: int | None
    """Chunks per rank; None for as many as the schedule makes."""
    split: Any
    """How the layers are split: ``even``, ``balanced``, or layers per stage."""


class Weighed:
    """One layout with its costs."""

    def __init__(
        self, layout: Layout, varied: tuple[Assignment, ...], resolved: Resolved, costs: Costs, network: Network
    ) -> None:
        self.layout, self.varied = layout, varied
        self.resolved, self.costs, self.network = resolved, costs, network
        self._workloads: dict[Any, Workload] = {}
        self._splits: dict[int, list[int] | None] = {}

    def workload(self, stages: int, layers: list[int] | None, ground: Ground | None = None) -> Workload:
        """Return what so many stages cost.

        Raises:
            PptraceError: stages or layers that the model cannot have.
        """
        key = (stages, tuple(layers or ()))
        if key not in self._workloads:
            costs = self.costs
            if layers is not None and ground is not None:
                costs = costs_alone(ground.resolved((*self.varied, setting(_LAYERS, layers))), ground.registry)
            chain = tuple((stage, stage + 1) for stage in range(stages - 1))
            self._workloads[key] = costs.workload(stages, chain)
        return self._workloads[key]

    def split(self, split: Any, stages: int, layers: int) -> list[int] | None:
        """Return the layers of each stage; None for the model's own, even split."""
        if isinstance(split, list):
            return split
        if split == "even":
            return None
        if stages not in self._splits:
            self._splits[stages] = balanced_split(self.costs, stages, layers)
        return self._splits[stages]


def _sameness(work: Weighed, entry: Entry, shape: Shape, workload: Workload) -> Any:
    """Return what two configurations with the same step have alike."""
    others = [(key_text(one.path), repr(one.value)) for one in work.varied]
    beside = [one for one in entry.settings if not one[0].startswith("schedule.options.")]
    known = sorted(one for one in others if one[0] not in _OF_COSTS)
    return shape.digest, _digest(workload), str(known), str(beside)


def _is_everywhere(error: PptraceError) -> bool:
    """Whether an error is no layout's own: a cluster of another size, a plugin that fails, a key that is none."""
    key = getattr(error, "key", "") or ""
    return not isinstance(error, ConstraintError) and not key.startswith(("parallel", "batch", "device.ranks"))


def _digest(workload: Workload) -> str:
    found = hashlib.sha256()
    for one in (workload, *workload.classes):
        for name in _COLUMNS:
            found.update(getattr(one, name).tobytes())
            found.update(b"|")
    found.update(repr((workload.reserved_bytes, workload.sync_ns, workload.segments)).encode())
    return found.hexdigest()[:16]
