"""Costs of each layout, and the split of layers over stages."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.places import key_text
from pptrace.errors import PptraceError
from pptrace.run.neighbourhood import NO_COPY_TIMES, copies_take_time
from pptrace.run.preparation import build_costs, costs_and_network
from pptrace.run.schedule_request import times
from pptrace.search.basis import short_reason
from pptrace.search.bounds import Bound, bound_of, least_fits, least_memory, least_work_ns
from pptrace.search.problem import setting
from pptrace.search.space import OPTIONS, RECOMPUTE
from pptrace.search.table_cache import TableCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Network
    from pptrace.run.costs import Costs
    from pptrace.search.basis import Entry
    from pptrace.search.problem import PlanProblem
    from pptrace.search.space import Layout
    from pptrace.search.table_cache import CachedTable
    from pptrace.steps.workload import Workload

LAYERS = "model.layers_per_stage"
_OF_COSTS = (RECOMPUTE, *OPTIONS, "costs.zero", LAYERS)
"""Settings that affect a step through its costs alone."""
_KEPT = 96
"""Layouts in the cost cache; candidates of one layout are consecutive."""
_COLUMNS = (
    "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns",
    "boundary_bytes", "activation_bytes", "weight_activation_bytes", "weights_bytes", "gradients_bytes",
    "optimizer_bytes", "reduce_ns", "optimizer_ns", "offload_ns", "reload_ns", "recompute_ns", "unshard_ns",
    "offload_bytes", "checkpoint_bytes", "microbatch_class", "gathered_bytes", "unreduced_bytes",
    "boundary_gradient_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Candidates of one layout and settings, which differ in schedule, chunks and split."""

    number: int
    """Its index in the order of the space."""
    layout: Layout
    varied: tuple[Assignment, ...]
    """Its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs of a candidate's bound."""

    group: Group
    """The layout with its settings."""
    entry: int
    """The index of its schedule in the space."""
    chunks: int | None
    """Chunks per rank; None for the default of the schedule."""
    split: Any
    """The split of layers: ``even``, ``balanced``, or layers per stage."""


@dataclass(slots=True, kw_only=True)
class Priced:
    """The bound of a candidate by its own table and costs."""

    chunks: int | None = None
    """Chunks per rank; None where the table cannot be built."""
    layers: list[int] | None = None
    """Layers per stage; None for the default split of the model."""
    is_even: bool = False
    """Whether the balanced split equals the even one."""
    reason: str = ""
    """Why it cannot run."""
    sameness: Any = None
    """Digest that configurations with the same step share."""
    bound: Bound | None = None
    """Its lower bounds; None where an equal candidate has them."""


class Pricing:
    """Computes bounds, with caches of tables and costs."""

    def __init__(self, problem: PlanProblem, entries: Sequence[Entry], layers: int) -> None:
        """Read the options of all schedules.

        Args:
            problem: the common configuration.
            entries: the schedules.
            layers: layers of the model.

        Raises:
            PptraceError: an invalid option, or an unknown schedule.
        """
        self.problem, self.entries, self.layers = problem, entries, layers
        self.tables = TableCache(problem, entries)
        self._groups: OrderedDict[int, _Weighed] = OrderedDict()
        self._seen: set[Any] = set()

    def least(self, group: Group, *, has_pairs: bool = False) -> Bound:
        """Return lower bounds of all candidates of a group, for any table.

        The total computation is assumed not to depend on the number of stages.

        Args:
            group: the layout with its settings.
            has_pairs: whether their schedules have overlapped pairs.

        Raises:
            PptraceError: invalid costs.
        """
        layout = group.layout
        workload = self._weighed(group).workload(layout.pp, None, has_pairs=has_pairs)
        return Bound(
            step_ns=least_work_ns(workload, layout.pp, layout.microbatches),
            peak_bytes=least_memory(workload, layout.pp),
            fits=least_fits(workload, layout.pp),
        )

    def priced(self, origin: Origin) -> Priced:
        """Return the bound of a candidate by its own table and costs."""
        found = Priced()
        try:
            self._price(found, origin)
        except PptraceError as error:
            found.reason = short_reason(error)
        return found

    def _price(self, found: Priced, origin: Origin) -> None:
        group, entry = origin.group, self.entries[origin.entry]
        layout, work = group.layout, self._weighed(group)
        cached = self.tables.of(entry, layout, origin.chunks)
        stages = layout.pp * cached.chunks
        found.chunks = cached.chunks
        layers = work.split(origin.split, stages, self.layers)
        if layers is None and origin.split == "balanced":
            found.is_even = True
            return
        found.layers = layers
        own = (setting(LAYERS, layers),) if layers is not None else ()
        settings = _chunks_set(origin)
        resolved = self.problem.resolved((*group.varied, *entry.varied, *settings, *own))
        has_pairs = self.has_pairs(entry) if cached.table is None else cached.table.has_pairs
        workload = work.workload(stages, layers, self.problem, has_pairs=has_pairs)
        if resolved.experiment.schedule.offload is not None and not copies_take_time(workload):
            raise resolved.error("schedule.offload", NO_COPY_TIMES)
        if cached.table is None:
            cached = self.tables.timed(entry, cached, times(workload, work.network, layout.pp))
        self.tables.check_policy(resolved, cached)
        found.sameness = _sameness(work, entry, cached, workload)
        if found.sameness not in self._seen:
            self._seen.add(found.sameness)
            provided = self.problem.registry.schedules[entry.name]
            found.bound = bound_of(cached, workload, resolved.experiment, provided)

    def has_pairs(self, entry: Entry) -> bool:
        """Return whether tables of a schedule may have overlapped pairs."""
        return self.problem.registry.schedules[entry.name].offer.has_pairs

    def overlaps(self, group: Group, entry: Entry) -> bool:
        """Return whether a schedule's overlapped pairs hide communication on a layout.

        Raises:
            PptraceError: invalid costs.
        """
        if not self.has_pairs(entry):
            return False
        return bool(self._weighed(group).workload(group.layout.pp, None, has_pairs=True).segments)

    def forget(self, sameness: Any) -> None:
        """Compute the bound of the same step again at its next request."""
        self._seen.discard(sameness)

    def _weighed(self, group: Group) -> _Weighed:
        found = self._groups.get(group.number)
        if found is None:
            resolved = self.problem.resolved(group.varied)
            costs, network = costs_and_network(resolved, self.problem.registry)
            found = self._groups[group.number] = _Weighed(group.layout, group.varied, resolved, costs, network)
            if len(self._groups) > _KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group.number)
        return found


class _Weighed:
    """A layout with its costs, and caches of workloads and splits."""

    def __init__(
        self, layout: Layout, varied: tuple[Assignment, ...], resolved: Resolved, costs: Costs, network: Network
    ) -> None:
        self.layout, self.varied = layout, varied
        self.resolved, self.costs, self.network = resolved, costs, network
        self._workloads: dict[Any, Workload] = {}
        self._splits: dict[int, list[int] | None] = {}

    def workload(
        self, stages: int, layers: list[int] | None, problem: PlanProblem | None = None, *, has_pairs: bool = False
    ) -> Workload:
        """Return the workload of a number of stages.

        Raises:
            PptraceError: an invalid number of stages or layers.
        """
        key = (stages, tuple(layers or ()), has_pairs)
        if key not in self._workloads:
            costs = self.costs
            if layers is not None and problem is not None:
                costs = build_costs(problem.resolved((*self.varied, setting(LAYERS, layers))), problem.registry)
            self._workloads[key] = costs.workload(stages, _chain(stages), has_pairs=has_pairs)
        return self._workloads[key]

    def split(self, split: Any, stages: int, layers: int) -> list[int] | None:
        """Return the layers of each stage; None for the even split."""
        if isinstance(split, list):
            return split
        if split == "even":
            return None
        if stages not in self._splits:
            self._splits[stages] = balanced_split(self.costs, stages, layers)
        return self._splits[stages]


def _sameness(work: _Weighed, entry: Entry, cached: CachedTable, workload: Workload) -> Any:
    """Return the key that configurations with the same step share."""
    group = [(key_text(setting.path), repr(setting.value)) for setting in work.varied]
    entry_settings = [(key_text(setting.path), repr(setting.value)) for setting in entry.varied]
    others = sorted(
        (key, value)
        for key, value in entry_settings
        if key != "schedule.name" and not key.startswith("schedule.options.")
    )
    known = sorted((key, value) for key, value in group if key not in _OF_COSTS)
    return cached.digest, _digest(workload), str(known), str(others)


def _chunks_set(origin: Origin) -> tuple[Assignment, ...]:
    many = origin.chunks is not None and origin.chunks > 1
    return (setting("parallel.vp", origin.chunks),) if many else ()


def _digest(workload: Workload) -> str:
    digest = hashlib.sha256()
    for costs in (workload, *workload.classes):
        for name in _COLUMNS:
            digest.update(getattr(costs, name).tobytes())
            digest.update(b"|")
    digest.update(repr((workload.reserved_bytes, workload.sync_ns, workload.segments)).encode())
    return digest.hexdigest()[:16]


_LAYERS = "layers_per_stage"
_THREE = 3
_OF_SPLIT = ("weights_bytes", "activation_bytes", "f_ns", "b_ns")
"""Columns that identify a split."""


def balanced_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers per stage with the shortest slowest stage; None where that is the even split.

    Every layer is assumed to cost as much as one in the middle of the model. The first and the last stage have
    further costs. Each layer goes to the stage that is then the fastest, which is optimal for such costs.

    Args:
        costs: costs of the configuration.
        stages: number of stages.
        layers: layers of the model.
    """
    if stages < _THREE or layers < stages:
        return None
    base, more = divmod(layers, stages)
    even = [base + (0 < stage <= more) for stage in range(stages)]
    if more > stages - 2:
        even[0], even[-1] = base + 1, base + (more == stages)
        even[1:-1] = [base + 1] * (stages - 2)
    even[1] += layers - sum(even)
    try:
        workload = _with_split(costs, even)
    except PptraceError:
        return None
    stage_ns = (workload.f_ns + workload.b_ns).tolist()
    layer_ns = stage_ns[1] / even[1]
    totals = [max(time_ns - layer_ns * count, 0.0) for time_ns, count in zip(stage_ns, even, strict=True)]
    split = [0] * stages
    for _ in range(layers):
        least = min(range(stages), key=lambda stage: (totals[stage], -stage))
        totals[least] += layer_ns
        split[least] += 1
    return None if max(totals) >= max(stage_ns) else split


def own_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers per stage of the default split; None where costs do not identify them.

    Inner stages with more weights than the other ones have one layer more. The ends share the remaining layers.
    The result has the same costs on every stage as the model without a configured split.

    Args:
        costs: costs of the configuration without layers per stage.
        stages: number of stages.
        layers: layers of the model.
    """
    base = layers // stages
    own = costs.workload(stages, _chain(stages))
    kept = own.weights_bytes[1:-1]
    least = int(kept.min(initial=kept.max(initial=0)))
    more = (kept - least) * 2 * max(base, 1) > least
    for low, up in product((base, base + 1), (0, 1)):
        between = (low + more).tolist()
        left = layers - sum(between)
        first = (left + up) // 2
        if left >= 0 and _costs_as(costs, [first, *between, left - first], own):
            return [first, *between, left - first]
    return None


def _costs_as(costs: Costs, split: list[int], own: Workload) -> bool:
    try:
        found = _with_split(costs, split)
    except PptraceError:
        return False
    return all(np.array_equal(getattr(found, name), getattr(own, name)) for name in _OF_SPLIT)


def _chain(stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(stages - 1))


def _with_split(costs: Costs, split: list[int]) -> Workload:
    model = {**costs.request.model, _LAYERS: split}
    return replace(costs, request=replace(costs.request, model=model)).workload(len(split), _chain(len(split)))
