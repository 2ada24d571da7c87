"""Tables and costs of candidates, their lower bounds, and the split of layers over stages.

The bounds follow from a table and its costs, without a simulation. A rank runs its row in order. An action starts
after its predecessors in the model: a forward after all forwards of its microbatch on earlier stages, a backward
after all forwards and the backwards of later stages. The step ends after all successors of an action, down to the
backward of the first stage. No step of the table is shorter, even with messages of zero duration. With these, the
bound is exact for 1F1B and its interleaved forms on a chain of stages. The activation memory follows from the
order of the row alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Validation
from pptrace.config.places import key_text
from pptrace.errors import ConfigError, PptraceError
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.costs import in_parts, part_times
from pptrace.run.inputs import Inputs
from pptrace.run.preparation import build_costs, message_policy, too_large
from pptrace.run.schedule_request import LazyRequest, times
from pptrace.search.basis import short_reason
from pptrace.search.settings_search import NO_COPY_TIMES, copies_take_time
from pptrace.search.space import LAYERS, OPTIONS, RECOMPUTE, setting
from pptrace.steps.kinds import COMPUTE, TABLE, Kind
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.run.costs import Costs
    from pptrace.search.basis import Entry
    from pptrace.search.space import Layout, PlanProblem
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule


_COST_SETTINGS = (RECOMPUTE, *OPTIONS, "costs.zero", LAYERS)
"""Settings that affect a step only through its costs."""
_KEPT_LAYOUTS = 96
"""Layouts in the cost cache; candidates of one layout are consecutive."""
_COLUMNS = tuple(field.name for field in fields(Workload) if field.name not in {"classes", "notes", "kernels"})
"""The costs of a step: all fields of a workload except its classes, which have the same fields, and texts."""


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

    @property
    def settings(self) -> tuple[Assignment, ...]:
        """The setting of several chunks."""
        return (setting("parallel.vp", self.chunks),) if self.chunks is not None and self.chunks > 1 else ()


@dataclass(slots=True, kw_only=True)
class Price:
    """The bound of a candidate from its table and costs."""

    chunks: int | None = None
    """Chunks per rank; None if the table cannot be built."""
    layers: list[int] | None = None
    """Layers per stage; None for the default split of the model."""
    is_even: bool = False
    """Whether the balanced split equals the even one."""
    reason: str = ""
    """The reason why it cannot run."""
    step_key: Any = None
    """Key of the step; equal for configurations with the same step."""
    bound: Bound | None = None
    """Its lower bounds; None if it cannot run."""


class Pricing:
    """Bounds of candidates, with caches of tables and costs."""

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
        self._groups: OrderedDict[int, _LayoutCosts] = OrderedDict()
        self._bounds: dict[Any, Bound] = {}

    def lower_bound(self, group: Group, *, has_pairs: bool = False) -> Bound:
        """Return lower bounds of all candidates of a group, for any table: means over the ranks.

        The total computation is assumed not to depend on the number of stages.

        Args:
            group: the layout with its settings.
            has_pairs: whether their schedules have overlapped pairs.

        Raises:
            PptraceError: invalid costs.
        """
        layout = group.layout
        workload = self._costs_of(group).workload(layout.pp, has_pairs=has_pairs)
        static_bytes = int(workload.static_bytes.sum()) + layout.pp * workload.reserved_bytes
        return Bound(
            step_ns=_least_work_ns(workload, layout.pp, layout.microbatches),
            peak_bytes=static_bytes // layout.pp,
            fits=not workload.capacity_bytes or static_bytes <= int(workload.capacities(layout.pp).sum()),
        )

    def price(self, origin: Origin) -> Price:
        """Return the bound of a candidate from its table and costs."""
        price = Price()
        try:
            self._compute(price, origin)
        except PptraceError as error:
            price.reason = short_reason(error)
        return price

    def _compute(self, price: Price, origin: Origin) -> None:
        group, entry = origin.group, self.entries[origin.entry]
        layout, work = group.layout, self._costs_of(group)
        cached = self.tables.of(entry, layout, origin.chunks)
        stages = layout.pp * cached.chunks
        price.chunks = cached.chunks
        layers = work.split(origin.split, stages, self.layers)
        if layers is None and origin.split == "balanced":
            price.is_even = True
            return
        price.layers = layers
        layer_settings = (setting(LAYERS, layers),) if layers is not None else ()
        resolved = self.problem.resolved((*group.varied, *entry.varied, *origin.settings, *layer_settings))
        has_pairs = self.has_pairs(entry) if cached.table is None else cached.table.has_pairs
        workload = work.workload(stages, layers, has_pairs=has_pairs)
        if resolved.experiment.schedule.offload is not None and not copies_take_time(workload):
            raise resolved.error("schedule.offload", NO_COPY_TIMES)
        if cached.table is None:
            cached = self.tables.build_from_times(entry, cached, times(workload, work.costs.network, layout.pp))
        self.tables.check_policy(resolved, cached)
        price.step_key = _step_key(work, entry, cached, workload)
        if price.step_key not in self._bounds and cached.table is not None:
            provided = self.problem.registry.schedules[entry.name]
            self._bounds[price.step_key] = bound_of(
                cached.table, cached.request, workload, resolved.experiment, provided
            )
        price.bound = self._bounds[price.step_key]

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
        return bool(self._costs_of(group).workload(group.layout.pp, has_pairs=True).segments)

    def _costs_of(self, group: Group) -> _LayoutCosts:
        costs = self._groups.get(group.number)
        if costs is None:
            costs = self._groups[group.number] = _LayoutCosts(self.problem, group.varied)
            if len(self._groups) > _KEPT_LAYOUTS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group.number)
        return costs


class _LayoutCosts:
    """The costs of a layout, for each split of layers."""

    def __init__(self, problem: PlanProblem, varied: tuple[Assignment, ...]) -> None:
        self.problem, self.varied = problem, varied
        self.costs = build_costs(problem.resolved(varied), problem.registry)
        self._by_split: dict[tuple[int, ...], Costs] = {(): self.costs}
        self._splits: dict[int, list[int] | None] = {}

    def workload(self, stages: int, layers: list[int] | None = None, *, has_pairs: bool = False) -> Workload:
        """Return the workload of a number of stages; layers per stage default to those of the model.

        Raises:
            PptraceError: an invalid number of stages or layers.
        """
        key = tuple(layers or ())
        if key not in self._by_split:
            resolved = self.problem.resolved((*self.varied, setting(LAYERS, layers)))
            costs = build_costs(resolved, self.problem.registry)
            # The configuration only locates errors; sharing it between splits saves memory.
            self._by_split[key] = replace(costs, resolved=self.costs.resolved)
        return self._by_split[key].workload(stages, has_pairs=has_pairs)

    def split(self, split: Any, stages: int, layers: int) -> list[int] | None:
        """Return the layers of each stage; None for the even split."""
        if isinstance(split, list):
            return split
        if split == "even":
            return None
        if stages not in self._splits:
            self._splits[stages] = balanced_split(self.costs, stages, layers)
        return self._splits[stages]


def _step_key(work: _LayoutCosts, entry: Entry, cached: CachedTable, workload: Workload) -> Any:
    """Return a key that is equal for configurations with the same step."""
    settings = [(key_text(setting.path), repr(setting.value)) for setting in work.varied]
    entry_settings = [(key_text(setting.path), repr(setting.value)) for setting in entry.varied]
    other_settings = sorted(
        (key, value)
        for key, value in entry_settings
        if key != "schedule.name" and not key.startswith("schedule.options.")
    )
    group_settings = sorted((key, value) for key, value in settings if key not in _COST_SETTINGS)
    return cached.digest, _digest(workload), str(group_settings), str(other_settings)


def _digest(workload: Workload) -> str:
    """Return a digest of all costs of a step."""
    digest = hashlib.sha256()
    for costs in (workload, *workload.classes):
        for name in _COLUMNS:
            value = getattr(costs, name)
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
            digest.update(b"|")
    return digest.hexdigest()[:16]


_KEPT_TABLES = 96
"""Tables in the cache; layouts with the same tables are consecutive."""
_MOST_ACTIONS = 2**24
"""Largest number of actions of a candidate's step."""
_TIMES: dict[str, Any] = {
    "f_ns": (), "b_ns": (), "i_ns": (), "w_ns": (), "transfer_ns": 0, "activation_bytes": (), "offload_ns": (),
    "reload_ns": (), "memory_limit_bytes": 0, "weight_activation_bytes": (), "stage_bytes": (), "device_bytes": 0,
    "rank_bytes": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTable:
    """The table of a schedule for given sizes."""

    request: ScheduleRequest
    """The request of the schedule."""
    table: Schedule | None
    """The table; None if it depends on times, see :meth:`TableCache.build_from_times`."""
    digest: str
    """Digest of the table; empty without one."""
    chunks: int
    """Chunks per rank."""


class TableCache:
    """The tables of a plan."""

    def __init__(self, problem: PlanProblem, entries: Sequence[Entry]) -> None:
        """Read the options of all schedules.

        Raises:
            PptraceError: an invalid option, or an unknown schedule.
        """
        self.registry = problem.registry
        self._tables: OrderedDict[Any, CachedTable] = OrderedDict()
        self._policies: dict[Any, PptraceError | None] = {}
        self._refusals: dict[Any, PptraceError | None] = {}
        self._options: dict[str, Mapping[str, Any]] = {}
        plain = [setting("parallel.pp", 1), setting("batch.global", 1)]
        for entry in entries:
            resolved = problem.resolved([*plain, *entry.varied])
            options_model = self.registry.schedules[entry.name].offer.options
            inputs = Inputs(resolved=resolved, registry=self.registry)
            self._options[entry.label] = inputs.fill_options("schedule", options_model)

    def refusal(self, entry: Entry, layout: Layout, chunks: int | None) -> PptraceError | None:
        """Return the error with which a schedule rejects sizes before it builds a table; None without an error."""
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._refusals:
            provided = self.registry.schedules[entry.name]
            self._refusals[key] = None
            try:
                request = self._request(entry, layout, chunks)
                if provided.offer.check is not None:
                    call_plugin(provided.provider, provided.offer.check, request)
            except PptraceError as error:
                self._refusals[key] = error
        return self._refusals[key]

    def of(self, entry: Entry, layout: Layout, chunks: int | None) -> CachedTable:
        """Return the table of a schedule on a layout's ranks and microbatches.

        Args:
            entry: the schedule with its settings.
            layout: the layout.
            chunks: chunks per rank; None for the default of the schedule.

        Raises:
            PptraceError: refused sizes, or a failing plugin.
        """
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._tables:
            self._tables[key] = self._build(entry, self._request(entry, layout, chunks))
            if len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return self._tables[key]

    def build_from_times(self, entry: Entry, cached: CachedTable, times: Mapping[str, Any]) -> CachedTable:
        """Return the table that a schedule builds from times and memory.

        Raises:
            PptraceError: refused times or memory.
        """
        request = replace(cached.request, **times)
        table = build_schedule(self.registry.schedules[entry.name], request)
        return replace(cached, request=request, table=table, digest=_table_digest(table))

    def check_policy(self, resolved: Resolved, cached: CachedTable) -> None:
        """Refuse a table that the message policy does not accept.

        Raises:
            PptraceError: the error of the policy.
        """
        p2p = resolved.experiment.p2p
        key = (p2p.policy, str(p2p.options), cached.digest)
        if key not in self._policies and cached.table is not None:
            try:
                message_policy(Inputs(resolved=resolved, registry=self.registry), cached.table)
                self._policies[key] = None
            except PptraceError as error:
                self._policies[key] = error
        refused = self._policies.get(key)
        if refused is not None:
            raise refused

    def _request(self, entry: Entry, layout: Layout, chunks: int | None) -> ScheduleRequest:
        provided = self.registry.schedules[entry.name]
        request = ScheduleRequest(
            ranks=layout.pp,
            microbatches=layout.microbatches,
            chunks=chunks or 1,
            options=self._options[entry.label],
        )
        if chunks is None and provided.offer.chunks is not None:
            request = replace(request, chunks=call_plugin(provided.provider, provided.offer.chunks, request))
        reason = too_large(request.ranks, request.chunks, request.microbatches)
        actions = 2 * request.ranks * request.chunks * request.microbatches
        if not reason and actions > _MOST_ACTIONS:
            reason = (
                f"{actions:,} actions in a step, and the most in a plan is {_MOST_ACTIONS:,}: name fewer "
                "sequences (--global) or larger microbatches (--vary micro=8)"
            )
        if reason:
            raise ConfigError(reason, key="batch.microbatches")
        return request

    def _build(self, entry: Entry, request: ScheduleRequest) -> CachedTable:
        reads: list[bool] = []

        def read_times() -> dict[str, Any]:
            reads.append(True)
            return _TIMES

        table = build_schedule(self.registry.schedules[entry.name], LazyRequest.of(request, read_times))
        chunks = table.stages // table.ranks
        if reads:
            return CachedTable(request=request, table=None, digest="", chunks=chunks)
        return CachedTable(request=request, table=table, digest=_table_digest(table), chunks=chunks)


def _table_digest(table: Schedule) -> str:
    """Return a digest of the content of a table."""
    digest = hashlib.sha256()
    placement = table.placement
    for column in (
        table.row_ptr, *table.cells, placement.stage_rank, placement.microbatch_route, placement.edges,
        *table.waits,
    ):  # fmt: skip
        digest.update(column.tobytes())
        digest.update(b"|")
    digest.update(repr((sorted(table.interleave.items()), table.recompute_waits)).encode())
    return digest.hexdigest()[:16]


_MIN_STAGES = 3
_SPLIT_COLUMNS = ("weights_bytes", "activation_bytes", "f_ns", "b_ns")
"""Columns that identify a split."""


def balanced_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers per stage with the shortest slowest stage; None if that is the even split.

    Every layer is assumed to cost as much as a layer in the middle of the model. The first and the last stage
    have further costs. Each layer goes to the fastest stage so far, which is optimal for such costs.

    Args:
        costs: costs of the configuration.
        stages: number of stages.
        layers: layers of the model.
    """
    if stages < _MIN_STAGES or layers < stages:
        return None
    base, remainder = divmod(layers, stages)
    even = [base + (0 < stage <= remainder) for stage in range(stages)]
    if remainder > stages - 2:
        even[0], even[-1] = base + 1, base + (remainder == stages)
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
        fastest = min(range(stages), key=lambda stage: (totals[stage], -stage))
        totals[fastest] += layer_ns
        split[fastest] += 1
    return None if max(totals) >= max(stage_ns) else split


def default_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers per stage of the default split; None if the costs do not identify them.

    Inner stages with more weights than other inner stages have one more layer. The first and last stage share the
    remaining layers.
    The result has the same costs on every stage as the model without a configured split.

    Args:
        costs: costs of the configuration without layers per stage.
        stages: number of stages.
        layers: layers of the model.
    """
    base = layers // stages
    expected = costs.workload(stages)
    weights = expected.weights_bytes[1:-1]
    lowest = int(weights.min(initial=weights.max(initial=0)))
    has_more = (weights - lowest) * 2 * max(base, 1) > lowest
    for inner, rounding in product((base, base + 1), (0, 1)):
        middle = (inner + has_more).tolist()
        ends = layers - sum(middle)
        first = (ends + rounding) // 2
        if ends >= 0 and _has_costs(costs, [first, *middle, ends - first], expected):
            return [first, *middle, ends - first]
    return None


def _has_costs(costs: Costs, split: list[int], expected: Workload) -> bool:
    try:
        workload = _with_split(costs, split)
    except PptraceError:
        return False
    return all(np.array_equal(getattr(workload, name), getattr(expected, name)) for name in _SPLIT_COLUMNS)


def _with_split(costs: Costs, split: list[int]) -> Workload:
    model = {**costs.request.model, LAYERS.partition(".")[2]: split}
    return replace(costs, request=replace(costs.request, model=model)).workload(len(split))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a simulated step."""

    step_ns: int
    """Step time."""
    peak_bytes: int
    """Memory of the fullest rank."""
    fits: bool = True
    """Whether the bound of each rank is within its known capacity."""


def _least_work_ns(workload: Workload, ranks: int, microbatches: int) -> int:
    """Return a lower bound on the computation of the busiest rank: the mean over the ranks."""
    times = _durations(workload)
    backward = np.minimum(times[Kind.B], times[Kind.I] + times[Kind.W])
    work_ns = int((times[Kind.F] + backward).sum()) * microbatches
    # Parts of a microbatch are rounded down, by less than a nanosecond each.
    return max(work_ns // ranks - 64 * workload.stages * microbatches, 0)


def bound_of(
    table: Schedule,
    request: ScheduleRequest,
    workload: Workload,
    experiment: Experiment,
    provided: Provided[ScheduleOffer],
) -> Bound:
    """Return the lower bounds of a table.

    Args:
        table: the table.
        request: its request.
        workload: its costs, per stage of the table.
        experiment: their configuration.
        provided: the schedule.
    """
    if table.microbatches > request.microbatches:
        parts = table.microbatches // request.microbatches
        workload = in_parts(workload, request.microbatches, parts, part_times(provided, request, workload))
    peaks = _peaks(table, workload, experiment)
    fits = not workload.capacity_bytes or bool((peaks <= workload.capacities(table.ranks)).all())
    return Bound(
        step_ns=_step_ns(table, workload, experiment), peak_bytes=int(peaks.max(initial=0)), fits=fits,
    )  # fmt: skip


def _step_ns(table: Schedule, workload: Workload, experiment: Experiment) -> int:
    times = _durations(workload)
    duration_ns = times[table.kind, table.stage] * table.span
    duration_ns[~COMPUTE.mask(table.kind)] = 0
    before_ns, until_end_ns = _dependency_times(table, workload, times)
    row = np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))
    done_ns = duration_ns.cumsum()
    # An offset per rank, larger than any time, lets one pass accumulate all rows.
    offset_ns = row * (int(done_ns[-1] if done_ns.size else 0) + int(before_ns.max(initial=0)) + 1)
    idle_ns = np.maximum.accumulate(before_ns - (done_ns - duration_ns) + offset_ns) - offset_ns
    ends_ns = idle_ns + done_ns
    filled = np.diff(table.row_ptr) > 0
    last_ns = np.zeros(table.ranks, dtype=np.int64)
    last_ns[filled] = ends_ns[table.row_ptr[1:][filled] - 1]
    optimizer_ns = _optimizer_times(table, workload, experiment)
    return int(max(
        (last_ns + optimizer_ns).max(initial=0),
        (ends_ns + until_end_ns).max(initial=0) + int(optimizer_ns.min(initial=0)),
    ))  # fmt: skip


def _dependency_times(table: Schedule, workload: Workload, times: Int64s) -> tuple[Int64s, Int64s]:
    """Return lower bounds on the time before the start and after the end of each action."""
    none = np.zeros(len(table), dtype=np.int64)
    if not table.placement.is_chain or workload.segments:
        return none, none
    forward = times[Kind.F]
    backward = np.minimum(times[Kind.B], times[Kind.I]) if (table.kind == Kind.I).any() else times[Kind.B]
    first = np.concatenate([[0], forward.cumsum()])
    up = np.concatenate([[0], backward.cumsum()])
    stage, is_forward = table.stage, table.kind == Kind.F
    is_backward = (table.kind == Kind.B) | (table.kind == Kind.I)
    before = np.where(is_forward, first[stage], 0) + np.where(is_backward, first[-1] + up[-1] - up[stage + 1], 0)
    until_end = np.where(is_forward, first[-1] - first[stage + 1] + up[-1], 0) + np.where(
        is_backward, up[stage], 0
    )
    return before, until_end


def _optimizer_times(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    """Return the optimizer time of each rank after its row; 0 where the validation moves it."""
    if experiment.data_parallel.validation is not Validation.BEFORE:
        return np.zeros(table.ranks, dtype=np.int64)
    optimizer_ns: Int64s = table.placement.copies().astype(np.int64) @ workload.optimizer_ns
    return optimizer_ns


def _peaks(table: Schedule, workload: Workload, experiment: Experiment) -> Int64s:
    static: Int64s = table.placement.copies().astype(np.int64) @ workload.static_bytes + workload.reserved_bytes
    choice = experiment.schedule
    moved = choice.offload is not None or choice.recompute is not None
    if moved or workload.segments or workload.classes or TABLE.copied[table.kind].any():
        return static
    if TABLE.recomputed[table.kind].any():
        return static
    kind, stage = table.kind, table.stage
    change = TABLE.activation[kind] * workload.activation_bytes[stage]
    change = (change + TABLE.weight_activation[kind] * workload.weight_activation_bytes[stage]) * table.span
    taken: NDArray[Any] = change.cumsum()
    for rank in range(table.ranks):
        low, high = int(table.row_ptr[rank]), int(table.row_ptr[rank + 1])
        base = int(taken[low - 1]) if low else 0
        static[rank] += max(int(taken[low:high].max(initial=base)) - base, 0)
    return static


def _durations(workload: Workload) -> Int64s:
    """Return the least duration of each kind per stage, shape (kinds, stages); of segments, the computation."""
    durations: list[Int64s] = []
    for costs in (workload, *workload.classes):
        rows = [costs.duration_ns(kind) - (costs.collective_ns(kind) if costs.segments else 0) for kind in Kind]
        durations.append(np.stack(rows))
    least: Int64s = np.min(np.stack(durations), axis=0)
    return least
