"""Tables, costs and bounds of the members of a plan's groups, and the split of layers over stages."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Hashable
from functools import cache, cached_property, partial
from heapq import heapify, heapreplace
from itertools import product
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.places import key_text
from pptrace.config.validation import merged
from pptrace.errors import ConfigError, ConstraintError, PptraceError, ScheduleError
from pptrace.network.collectives import LinkCollectives
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.inputs import Preparation
from pptrace.run.preparation import build_costs, message_policy, too_large
from pptrace.run.schedule_request import LazyRequest, times
from pptrace.run.stacks import condition_keys, schedule_conditions
from pptrace.run.table_changes import NO_COPY_TIMES, copies_take_time, count_units, with_sharding
from pptrace.search.basis import short_reason
from pptrace.search.bounds import (
    Bound,
    TableSummary,
    bound_of,
    exceeds_device_memory,
    least,
    sharded_step_ns,
    state_bound,
    work_bound,
)
from pptrace.search.launch_arguments import FRAMEWORKS
from pptrace.search.plan_axes import LAYERS, PLAIN, RECOMPUTE, RECOMPUTE_OPTIONS, SCHEDULE_OPTION, setting
from pptrace.steps.action_insertion import with_branches, with_units
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment
    from pptrace.plugins.requests import CostRequest
    from pptrace.run.costs import Costs
    from pptrace.search.basis import Entry
    from pptrace.search.plan_axes import LayoutGroup, PlanLayout, PlanProblem, Space
    from pptrace.steps.schedule import Schedule


_COST_KEYS = (RECOMPUTE, *RECOMPUTE_OPTIONS, "costs.zero", LAYERS)
"""Settings that affect a step only through its costs: with equal costs, steps are duplicates."""
_COST_REQUEST_KEYS = ("batch.micro", RECOMPUTE, *RECOMPUTE_OPTIONS, "costs.zero")
"""Settings whose groups share a request to the cost model, unless a rule of the stack reads them."""
_STATELESS = frozenset({"batch.micro", "batch.global", "parallel.order", RECOMPUTE, *RECOMPUTE_OPTIONS})
"""Settings that change neither the training state of a stage nor whether its actions have segments."""
_SIZE_KEYS = frozenset(f"parallel.{size}" for size in ("pp", "tp", "cp", "ep", "dp"))
"""Keys of the sizes of a layout."""
_OF_COLLECTIVES = frozenset({"costs.segments", "costs.overlap_tp"})
"""Settings that change collectives and what hides them, and no computation."""
_OF_REPLICAS = frozenset({"costs.zero", "parallel.order", "data_parallel.shard"})
"""Settings of replicas: groups that differ in these and have equal times of stages have equal times of layers."""
_REPLICAS, _WITHIN_REPLICAS = ("dp", "edp"), ("tp", "cp", "ep", "etp", "pp")
"""Axes of collectives between replicas, and of all other ones."""
_KEPT_GROUPS = 96
"""Groups in the cost cache."""
_KEPT_FAMILIES = 2048
"""Families of groups in the cost cache."""
_KEPT_OUTLINES = 2048
"""Outlines of tables in the cache; groups with as many ranks and microbatches share them."""
_COLUMNS = tuple(name for name in Workload.__struct_fields__ if name not in {"classes", "notes", "kernels"})
"""The costs of a step: all fields of a workload except its classes, which have the same fields, and texts."""
Splits: TypeAlias = "Mapping[str, list[int]]"
"""Layers per stage by key, such as that of the decoder."""
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Recent(Generic[_Key, _Value]):
    """The values of the most recently used keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def of(self, key: _Key, build: Callable[[], _Value]) -> _Value:
        """Return the value of a key, built if it is not kept."""
        if key not in self._values:
            self._values[key] = build()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


class GroupMember(NamedTuple):
    """A configuration of a group: a schedule with chunks and a split of layers."""

    entry: int
    """The index of its schedule in the space."""
    chunks: int | None = None
    """Chunks per rank; None for the default of the schedule."""
    split: Any = "even"
    """The split of layers: ``even``, ``balanced``, or layers per stage."""
    reason: str = ""
    """Why it cannot run."""
    is_covered: bool = False
    """Whether :data:`PLAIN` represents it."""

    @property
    def settings(self) -> tuple[Assignment, ...]:
        """The setting of several chunks."""
        return (setting("parallel.vp", self.chunks),) if self.chunks is not None and self.chunks > 1 else ()


class GroupBounds(Struct, frozen=True, kw_only=True):
    """Lower bounds of the members of a group, for any table."""

    plain: Bound | None = None
    """Of schedules without overlapped pairs; None if the group cannot run."""
    paired: Bound | None = None
    """Of schedules with overlapped pairs."""
    state: Bound | None = None
    """Of the training state alone, for any batch and recomputation."""
    bubble: float = 0.0
    """Expected bubble of interleaved 1F1B, as a share of the work of a rank."""
    exceeds_device: bool = False
    """Whether 1F1B needs more memory than there is."""
    overlaps: bool = False
    """Whether overlapped pairs hide communication on one rank."""
    reason: str = ""
    """Why the group cannot run."""
    concerns_all: bool = False
    """Whether no group can run for this reason, such as a cluster of another size or a failing plugin."""
    concerns_sizes: bool = False
    """Whether no group with these sizes can run for this reason."""

    def factor(self, *, has_pairs: bool) -> float:
        """Return the expected step over its bound, which orders a search.

        A bound of overlapped pairs has no collectives. Half of them are expected to be hidden.
        """
        exposure = 1.0
        if has_pairs and self.plain and self.paired and self.paired.step_ns:
            exposure = (self.plain.step_ns + self.paired.step_ns) / (2 * self.paired.step_ns)
        return (1 + self.bubble) * (1 + self.exceeds_device) * exposure

    @property
    def has_room(self) -> bool:
        """Whether the training state alone fits."""
        return self.state is not None and self.state.fits

    def for_recomputation(self) -> GroupBounds | None:
        """Return bounds of groups that also recompute activations, from those of a group that recomputes nothing.

        Recomputation takes time, and leaves the training state. None if these groups may run and this one cannot.
        """
        if self.plain is None or self.paired is None or self.state is None:
            return self if self.concerns_sizes else None
        plain, paired = (replace(self.state, step_ns=bound.step_ns) for bound in (self.plain, self.paired))
        return replace(self, plain=plain, paired=paired, exceeds_device=False)

    def of(self, *, has_pairs: bool) -> Bound | None:
        """Return the bound of schedules with or without overlapped pairs."""
        return self.paired if has_pairs else self.plain


class MemberBound(Struct, kw_only=True):
    """The bound of a member from its table and costs."""

    chunks: int | None = None
    """Chunks per rank; None if the table cannot be built."""
    splits: Splits = field(default_factory=dict)
    """Layers per stage by key, for the decoder and encoders; those of other modules have the default split."""
    is_even: bool = False
    """Whether the balanced split equals the even one."""
    reason: str = ""
    """The reason why it cannot run."""
    needs_memory: bool = False
    """Whether it runs with more memory than there is."""
    foreign: str = ""
    """The reason why the framework of the plan does not run it."""
    step_key: Any = None
    """Key of the step, from the whole table; equal for configurations with the same step."""
    bound: Bound | None = None
    """Its lower bounds; None if it cannot run, or if its outline gives none."""


class _TableOutline(NamedTuple):
    """A table's outline, or why there is none."""

    outline: TableSummary | None = None
    """None if the table depends on times, or has parts of microbatches."""
    foreign: str = ""
    """The reason why the framework of the plan never runs the table."""
    error: PptraceError | None = None
    """The error of its schedule."""


class SpaceBounds:
    """Bounds of groups and their members, with caches of tables and costs."""

    def __init__(self, space: Space) -> None:
        """Read the options of all schedules.

        Raises:
            PptraceError: an invalid option, or an unknown schedule.
        """
        self.space, self.problem, self.entries = space, space.problem, space.entries
        self.tables = TableCache(space.problem, space.entries)
        self._name_costs()
        self._groups: _Recent[tuple[int, str], _GroupCosts] = _Recent(_KEPT_GROUPS)
        self._bounding: _Recent[tuple[int, str], _GroupCosts] = _Recent(_KEPT_GROUPS)
        self._shared: _Recent[Any, _GroupCosts] = _Recent(_KEPT_GROUPS)
        self._within: _Recent[LinkCollectives, LinkCollectives] = _Recent(_KEPT_FAMILIES)
        self._outlines: _Recent[Any, _TableOutline] = _Recent(_KEPT_OUTLINES)
        self._families: _Recent[Any, _Family] = _Recent(_KEPT_FAMILIES)
        self._checked: dict[tuple[str, str], Any] = {}
        self._members: dict[Any, tuple[tuple[GroupMember, ...], Counter[bool]]] = {}
        self._bounds: dict[Any, Bound] = {}
        self._group_bounds: dict[Any, GroupBounds] = {}
        self._splits: dict[Any, Splits] = {}
        self._states: dict[Any, GroupBounds] = {}
        self._fixed: dict[Any, frozenset[str]] = {}

    def members(self, layout: PlanLayout, *, overlaps: bool) -> tuple[tuple[GroupMember, ...], Mapping[bool, int]]:
        """Return the members of a layout's groups, and the number that can run, without and with overlapped pairs.

        There is one member per schedule, accepted number of chunks, and split.
        """
        key = layout.pp, layout.branches, layout.microbatches, overlaps
        if key not in self._members:
            members = tuple(
                member
                for index, entry in enumerate(self.entries)
                for member in self._of_entry(layout, index, entry, overlaps=overlaps)
            )
            counts: Counter[bool] = Counter()
            for member in members:
                counts[self.has_pairs(self.entries[member.entry])] += not (member.reason or member.is_covered)
            self._members[key] = members, counts
        return self._members[key]

    def bounds_of(self, number: int) -> GroupBounds:
        """Return lower bounds of all members of the group with a number, for any table."""
        group = self.space.group(number)
        layout = group.layout
        if not layout.microbatches:
            step = layout.dp * layout.micro
            return GroupBounds(reason=f"batch.global: {layout.sequences} is not a multiple of dp x micro = {step}")
        state = tuple(item for item in group.texts.items() if item[0] not in _STATELESS)
        ranks, microbatches, edges = layout.pp, layout.microbatches, layout.edges
        encoder_ranks = sum(layout.branches)
        try:
            if state not in self._states:
                self._states[state] = self._state_bounds(group)
            of_state = self._states[state]
            if not of_state.has_room and not self.space.request.exhaustive:
                return of_state
            plain_costs, paired_costs = (
                [self._bounding_costs_of(group, name) for name in self._bounding_names[has_pairs]]
                for has_pairs in (False, True)
            )
            key = tuple(costs.key for costs in (*plain_costs, *paired_costs))
            if key in self._group_bounds:
                return self._group_bounds[key]
            plain, paired = (
                [each.workload(ranks, edges=edges) for each in costs] for costs in (plain_costs, paired_costs)
            )
        except PptraceError as error:
            concerns_sizes = isinstance(error, ConstraintError) and error.key in _SIZE_KEYS
            return GroupBounds(
                reason=short_reason(error), concerns_all=self._concerns_all(error), concerns_sizes=concerns_sizes
            )
        bound = partial(work_bound, ranks=ranks, microbatches=microbatches, encoder_ranks=encoder_ranks)
        self._group_bounds[key] = replace(
            of_state,
            plain=least([bound(workload) for workload in plain]),
            paired=least([bound(workload, has_pairs=True) for workload in paired]),
            bubble=(ranks - 1) / (microbatches * max(self.space.chunks_of(layout))),
            exceeds_device=all(exceeds_device_memory(workload, ranks, microbatches) for workload in plain),
        )  # fmt: skip
        return self._group_bounds[key]

    def _concerns_all(self, error: PptraceError) -> bool:
        """Return whether an error concerns every layout: a cluster size, a failing plugin, a varied key."""
        key = getattr(error, "key", "") or ""
        is_size = isinstance(error, ConstraintError) or key.startswith(("parallel", "batch", "device.ranks"))
        return not is_size and (not key or key.startswith("cluster") or key in self.problem.axes)

    def _state_bounds(self, group: LayoutGroup) -> GroupBounds:
        """Return bounds of the training state alone, which groups with the same state share.

        Raises:
            PptraceError: the group cannot run.
        """
        layout, ranks = group.layout, group.layout.pp
        names = dict.fromkeys([*self._bounding_names[False], *self._bounding_names[True]])
        costs = [self._bounding_costs_of(group, name).workload(ranks, edges=layout.edges) for name in names]
        bound = least([state_bound(workload, ranks, sum(layout.branches)) for workload in costs])
        overlaps = ranks == 1 and self._overlaps(group)
        return GroupBounds(plain=bound, paired=bound, state=bound, overlaps=overlaps)

    def _pair_fault(self, group: LayoutGroup, name: str) -> str:
        """Return why the framework of the plan runs no overlapped pairs with these costs; empty if it does."""
        if not self.problem.framework:
            return ""
        request = self._bounding_costs_of(group, name).costs.request
        framework = FRAMEWORKS[self.problem.framework]
        return next(framework.pair_faults(request.model, request.options, group.layout.ep, group.layout.pp), "")

    def check(self, group: LayoutGroup) -> None:
        """Refuse a group that cannot run.

        Raises:
            PptraceError: the reason.
        """
        self._costs_of(group, "").workload(group.layout.pp, edges=group.layout.edges)

    def part_bounds(self, item: tuple[tuple[int, bool], Sequence[GroupMember]]) -> list[MemberBound]:
        """Return the bounds of members of the group with a number, from the outlines of their tables."""
        (number, _), members = item
        group = self.space.group(number)
        return [self.outline_bound(group, member) for member in members]

    def outline_bound(self, group: LayoutGroup, member: GroupMember, *, foreign: bool = False) -> MemberBound:
        """Return the bound of a member from the outline of its table.

        Unless ``foreign``, a member that the framework of the plan does not run has the bound of its group.
        """
        return self._guarded(partial(self._bound_outline, foreign=foreign), group, member)

    def table_bound(self, group: LayoutGroup, member: GroupMember) -> MemberBound:
        """Return the bound of a member from its whole table."""
        return self._guarded(self._bound_table, group, member)

    def has_pairs(self, entry: Entry) -> bool:
        """Return whether tables of a schedule may have overlapped pairs."""
        return self.problem.registry.schedules[entry.name].offer.has_pairs

    def _guarded(
        self,
        compute: Callable[[MemberBound, LayoutGroup, GroupMember], None],
        group: LayoutGroup,
        member: GroupMember,
    ) -> MemberBound:
        result = MemberBound()
        try:
            compute(result, group, member)
        except PptraceError as error:
            result.reason = short_reason(error)
            result.needs_memory = isinstance(error, ConstraintError) and error.needs_memory
        return result

    def _bound_outline(
        self, result: MemberBound, group: LayoutGroup, member: GroupMember, *, foreign: bool
    ) -> None:
        entry, layout = self.entries[member.entry], group.layout
        key = entry.label, layout.pp, layout.branches, layout.microbatches, member.chunks
        outline, result.foreign, error = self._outlines.of(
            key, lambda: self._outline(entry, layout, member.chunks)
        )
        if error is not None:
            raise error
        if outline is None or _other_settings(entry) or (result.foreign and not foreign):
            return
        name = self._costs_name[entry.label]
        fault = self._pair_fault(group, name) if outline.has_pairs and not foreign else ""
        if fault:
            result.foreign = f"schedule {entry.name}: {fault}"
            return
        costs = self._bounding_costs_of(group, name)
        workload = self._split_costs(
            result, group, member, costs, outline.chunks, edges=outline.edges, has_pairs=outline.has_pairs
        )
        if workload is not None:
            of_table = entry.label, member.chunks, repr(result.splits)
            if of_table not in costs.bounds:
                costs.bounds[of_table] = outline.bound(workload, costs.experiment)
            result.bound = costs.bounds[of_table]

    def _outline(self, entry: Entry, layout: PlanLayout, chunks: int | None) -> _TableOutline:
        try:
            cached = self.tables.of(entry, layout, chunks)
        except PptraceError as error:
            return _TableOutline(error=error)
        table, foreign = cached.table, ""
        if self.problem.framework:
            framework = FRAMEWORKS[self.problem.framework]
            faults = (
                [framework.timed_fault]
                if table is None
                else framework.table_faults(entry.name, table, layout.microbatches)
            )
            foreign = next((f"schedule {entry.name}: {fault}" for fault in faults if fault), "")
        if table is None or table.microbatches > cached.request.microbatches:
            return _TableOutline(foreign=foreign)
        return _TableOutline(outline=TableSummary.of(table), foreign=foreign)

    def _split_costs(
        self,
        result: MemberBound,
        group: LayoutGroup,
        member: GroupMember,
        costs: _GroupCosts,
        chunks: int,
        *,
        edges: tuple[tuple[int, int], ...],
        has_pairs: bool,
    ) -> Workload | None:
        """Return the costs with the split of a member, and note it in the result; None if it is the even split.

        Only chains of stages, and encoders on separate GPUs, have a balanced split.
        """
        stages = group.layout.pp * chunks
        result.chunks = chunks
        if isinstance(member.split, list):
            result.splits = {LAYERS: member.split}
        elif member.split == "balanced" and edges == group.layout.edges:
            name = self._costs_name[self.entries[member.entry].label]
            result.splits = self._balanced_splits(group, name, stages, has_pairs=has_pairs)
        result.is_even = not result.splits and member.split == "balanced"
        return None if result.is_even else costs.workload(stages, result.splits, edges=edges, has_pairs=has_pairs)

    def _balanced_splits(self, group: LayoutGroup, name: str, stages: int, *, has_pairs: bool) -> Splits:
        """Return layers per stage as :meth:`_GroupCosts.balanced_splits`, once for groups with equal times."""
        costs, edges = self._bounding_costs_of(group, name), group.layout.edges
        try:
            stage_ns = _stage_times(costs.workload(stages, edges=edges, has_pairs=has_pairs))
        except PptraceError:  # such as more stages than layers
            stage_ns = []
        of_layers = tuple(item for item in group.texts.items() if item[0] not in _OF_REPLICAS)
        key = name, of_layers, tuple(stage_ns), stages
        if key not in self._splits:
            self._splits[key] = costs.balanced_splits(stages, edges, has_pairs=has_pairs)
        return self._splits[key]

    def _bound_table(self, result: MemberBound, group: LayoutGroup, member: GroupMember) -> None:
        entry, layout = self.entries[member.entry], group.layout
        costs = self._costs_of(group, self._costs_name[entry.label])
        cached = self.tables.of(entry, layout, member.chunks)
        has_pairs = self.has_pairs(entry) if cached.table is None else cached.table.has_pairs
        edges = cached.table.placement.graph if cached.table else ()
        workload = self._split_costs(result, group, member, costs, cached.chunks, edges=edges, has_pairs=has_pairs)
        if workload is None:
            return
        split_settings = [setting(key, layers) for key, layers in result.splits.items()]
        resolved = self.problem.resolved((*group.varied, *entry.varied, *member.settings, *split_settings))
        if resolved.experiment.schedule.offload is not None and not copies_take_time(workload):
            raise resolved.error("schedule.offload", NO_COPY_TIMES)
        if cached.table is None:
            cached = self.tables.build_from_times(
                entry, cached, times(workload, costs.costs.network, layout.pp, layout.branches)
            )
        self.tables.check_policy(resolved, cached)
        result.step_key = _step_key(costs, entry, cached, workload)
        if result.step_key not in self._bounds and cached.table is not None:
            provided = self.problem.registry.schedules[entry.name]
            bound = bound_of(cached.table, cached.request, workload, resolved.experiment, provided)
            if layout.pp == 1 and workload.gathered_bytes.any():
                step_ns = _sharded_step_ns(costs.costs, cached.table)
                bound = replace(bound, step_ns=max(bound.step_ns, step_ns))
            self._bounds[result.step_key] = bound
        result.bound = self._bounds[result.step_key]

    def _of_entry(self, layout: PlanLayout, index: int, entry: Entry, *, overlaps: bool) -> Iterator[GroupMember]:
        """Yield a schedule's members: one per accepted number of chunks and per split."""
        is_covered = layout.pp == 1 and self.space.is_covered_by_plain(entry)
        if is_covered and not (overlaps and self.has_pairs(entry)):
            yield GroupMember(entry=index, is_covered=True, reason=f"{PLAIN} on one rank")
            return
        for chunks in self._chunks_of(layout, entry):
            error = self.tables.refusal(entry, layout, chunks)
            reason = short_reason(error) if error else ""
            for split in self.space.splits:
                yield GroupMember(entry=index, chunks=chunks, split=split, reason=reason)

    def _chunks_of(self, layout: PlanLayout, entry: Entry) -> list[int | None]:
        """Return the chunks per rank that a schedule accepts; its default if it accepts no requested number."""
        requested = self.space.sizes["vp"]
        default = None if self.problem.registry.schedules[entry.name].offer.chunks is not None else 1
        if default is None and not requested:
            return [default]
        accepted: list[int | None] = [
            chunks
            for chunks in self.space.chunks_of(layout)
            if getattr(self.tables.refusal(entry, layout, chunks), "key", "") != "parallel.vp"
        ]
        return accepted or ([default] if requested else [])

    def _overlaps(self, group: LayoutGroup) -> bool:
        """Return whether overlapped pairs of a schedule hide communication on one rank."""
        names = {self._costs_name[entry.label] for entry in self.entries if self.has_pairs(entry)}
        costs = (self._bounding_costs_of(group, name) for name in sorted(names))
        return any(each.workload(1, has_pairs=True).segments for each in costs)

    def _name_costs(self) -> None:
        """Choose one of the schedules with equal costs for each schedule; empty for the configured one.

        Rules of the stack on the name of the schedule give schedules other costs. Bounds of groups with overlapped
        pairs have no collectives, so rules that change only these do not matter to them.
        """
        plain = [setting("parallel.pp", 1), setting("batch.global", 1)]
        inputs = Preparation(resolved=self.problem.resolved(plain), registry=self.problem.registry)
        configured = str(inputs.experiment.schedule.name or "")
        conditions = cache(partial(schedule_conditions, inputs))
        names = [configured, *(entry.name for entry in self.entries)]

        def name_of(entry: Entry, without: frozenset[str] = frozenset()) -> str:
            entry_conditions = conditions(entry.name, without)
            first = next(name for name in names if conditions(name, without) == entry_conditions)
            return "" if first == configured else first

        self._costs_name = {entry.label: name_of(entry) for entry in self.entries}
        plain_names = {name_of(entry) for entry in self.entries if not self.has_pairs(entry)}
        paired_names = {name_of(entry, _OF_COLLECTIVES) for entry in self.entries if self.has_pairs(entry)}
        self._bounding_names = {False: sorted(plain_names or {""}), True: sorted(paired_names or {""})}

    def _costs_of(self, group: LayoutGroup, name: str) -> _GroupCosts:
        """Return the costs of a group with the schedule ``name``; empty for the configured schedule."""
        return self._groups.of(
            (group.number, name), lambda: _GroupCosts(self._build_costs(_with_schedule(group, name)), group.varied)
        )

    def _bounding_costs_of(self, group: LayoutGroup, name: str) -> _GroupCosts:
        """Return costs as :meth:`_costs_of`, without times of reductions, which no bound has.

        Groups that differ in the order of axes alone share them if this order changes no other collective.
        """

        def build() -> _GroupCosts:
            costs = self._build_costs(_with_schedule(group, name))
            key: Hashable = group.number, name
            collectives = costs.request.collectives
            if isinstance(collectives, LinkCollectives):
                within = self._within.of(collectives, lambda: collectives.without(*_REPLICAS))
                costs = replace(costs, request=replace(costs.request, collectives=within))
                if not costs.request.encoders:  # which have further collectives
                    settings = (item for item in group.texts.items() if item[0] != "parallel.order")
                    network = costs.request.data_parallel.items()
                    key = name, *settings, *network, *map(within.group_key, _WITHIN_REPLICAS)
            return self._shared.of(key, lambda: _GroupCosts(costs, group.varied, key))

        return self._bounding.of((group.number, name), build)

    def _build_costs(self, group: LayoutGroup) -> Costs:
        """Return the costs of a group.

        They are those of the first group of its family with other values, if configurations with these values are
        known to be valid and the values change the request alone.
        """
        texts = {name: group.texts[name] for name in _COST_REQUEST_KEYS if name in group.texts}
        common = tuple(item for item in group.texts.items() if item[0] not in _COST_REQUEST_KEYS)
        first = None
        if common not in self._fixed:
            first = self._resolved_costs(group)
            self._fixed[common] = self._fixed_keys(first)
        fixed = tuple(texts.get(name) for name in sorted(self._fixed[common]))
        family = self._families.of((common, fixed), lambda: _Family(first or self._resolved_costs(group), texts))
        changed = {name for name in {*texts, *family.texts} if texts.get(name) != family.texts.get(name)}
        if all((name, texts.get(name)) in self._checked for name in changed):
            known = {name: self._checked[name, texts[name]] for name in changed}
            costs = _with_request_values(family.costs, known, group.layout)
        else:
            costs = self._resolved_costs(group)
        checked = _request_values(costs.request)
        self._checked |= {(name, text): checked[name] for name, text in texts.items() if name in checked}
        return costs

    def _fixed_keys(self, costs: Costs) -> frozenset[str]:
        """Return the keys of :data:`_COST_REQUEST_KEYS` that change more than the request to the cost model."""
        if costs.sequences is not None:
            return frozenset(_COST_REQUEST_KEYS)
        read_by_stack = condition_keys(Preparation(resolved=costs.resolved, registry=self.problem.registry))
        return frozenset(
            {*_COST_REQUEST_KEYS} - _request_values(costs.request).keys() | ({*_COST_REQUEST_KEYS} & read_by_stack)
        )

    def _resolved_costs(self, group: LayoutGroup) -> Costs:
        return build_costs(self.problem.resolved(group.varied), self.problem.registry)


class _Family(NamedTuple):
    """Groups whose settings differ only in those of :data:`_COST_REQUEST_KEYS` that change the request alone."""

    costs: Costs
    """The costs of its first group."""
    texts: Mapping[str, str]
    """The values of :data:`_COST_REQUEST_KEYS` of its first group."""


def _request_values(request: CostRequest) -> dict[str, Any]:
    """Return the checked values of :data:`_COST_REQUEST_KEYS` in a request to a cost model."""
    values = {f"model.{name}": value for name, value in request.model.items()}
    values |= {f"costs.{name}": value for name, value in request.options.items()}
    values["batch.micro"] = request.micro
    return {key: values[key] for key in _COST_REQUEST_KEYS if key in values}


def _with_request_values(costs: Costs, values: Mapping[str, Any], layout: PlanLayout) -> Costs:
    """Return costs with other values of :data:`_COST_REQUEST_KEYS`."""
    model, options = (
        {**section, **{key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}}
        for section, prefix in ((costs.request.model, "model."), (costs.request.options, "costs."))
    )
    micro, microbatches = layout.micro, layout.microbatches
    request = replace(costs.request, model=model, options=options, micro=micro, microbatches=microbatches)
    resolved = costs.resolved.with_values("batch", {"micro": micro, "microbatches": microbatches})
    return replace(costs, resolved=resolved, request=request)


def _with_schedule(group: LayoutGroup, name: str) -> LayoutGroup:
    """Return a group whose configuration has a schedule; the configured one if the name is empty."""
    return replace(group, varied=(*group.varied, setting("schedule.name", name))) if name else group


def _other_settings(entry: Entry) -> list[tuple[str, str]]:
    """Return keys and values of an entry beside its schedule and its options."""
    settings = [(key_text(setting.path), repr(setting.value)) for setting in entry.varied]
    return sorted(
        item for item in settings if item[0] != "schedule.name" and not item[0].startswith(SCHEDULE_OPTION)
    )


class _GroupCosts:
    """The costs of a group, for each split of layers."""

    def __init__(self, costs: Costs, varied: tuple[Assignment, ...], key: Hashable = None) -> None:
        """Keep the costs of a group with settings; groups with equal bounds have the same ``key``."""
        self.costs, self.varied, self.key = costs, varied, key
        self._by_split: dict[str, Costs] = {repr({}): self.costs}
        self.bounds: dict[Hashable, Bound] = {}

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration with all parameters of the model and the costs."""
        return self.costs.resolved.experiment

    def workload(
        self,
        stages: int,
        splits: Splits | None = None,
        *,
        edges: tuple[tuple[int, int], ...] = (),
        has_pairs: bool = False,
    ) -> Workload:
        """Return the workload of a number of stages; layers per stage default to those of the model.

        A single stage with units reserves as much memory as its units, which keep less at once.

        Raises:
            PptraceError: an invalid number of stages or layers.
        """
        key = repr(splits or {})
        if key not in self._by_split:
            self._by_split[key] = _with_splits(self.costs, splits or {})
        workload = self._by_split[key].workload(stages, edges, has_pairs=has_pairs)
        if stages > 1 or workload.units == 1 or not workload.unreduced_bytes.any():
            return workload
        reserved = self.costs.workload(workload.units, has_pairs=has_pairs, units=True).reserved_bytes
        return replace(workload, reserved_bytes=min(workload.reserved_bytes, reserved))

    def balanced_splits(
        self, stages: int, edges: tuple[tuple[int, int], ...], *, has_pairs: bool = False
    ) -> Splits:
        """Return the layers of each stage of modules that have a split better than the default one.

        Args:
            stages: number of stages.
            edges: edges between the stages; empty for a chain.
            has_pairs: whether the schedule has overlapped pairs. The split does not depend on them, and the bound
                of the schedule takes the same costs.
        """

        def workload(count: int, splits: Splits) -> Workload:
            return self.workload(count, splits, edges=edges, has_pairs=has_pairs and count == stages)

        modules = modules_of(self.costs.request, stages)
        if all(module.stages == stages for module in modules):  # a decoder alone
            layers = int(self.costs.request.model.get("layers") or 0)
            split = balanced_split(
                lambda count, split: workload(count, {} if split is None else {LAYERS: split}), stages, layers
            )
            return {} if split is None else {LAYERS: split}
        return balanced_module_splits(lambda splits: _stage_times(workload(stages, splits)), modules)


def _sharded_step_ns(costs: Costs, table: Schedule) -> int:
    """Return a lower bound of the step of one rank with gathers and reductions of each unit of its model."""
    units = count_units(costs.resolved, table, costs)
    if units > 1:
        table = with_units(table, units)
    workload = costs.workload_of(table, units=units > 1)
    return sharded_step_ns(with_sharding(costs.resolved, table, workload), workload)


def _step_key(costs: _GroupCosts, entry: Entry, cached: CachedTable, workload: Workload) -> Any:
    """Return a key that is equal for configurations with the same step."""
    settings = [(key_text(setting.path), repr(setting.value)) for setting in costs.varied]
    group_settings = sorted((key, value) for key, value in settings if key not in _COST_KEYS)
    return cached.digest, _digest(workload), str(group_settings), str(_other_settings(entry))


def _digest(workload: Workload) -> str:
    """Return a digest of all costs of a step."""
    return _digest_of(getattr(costs, name) for costs in (workload, *workload.classes) for name in _COLUMNS)


def _digest_of(values: Iterable[object]) -> str:
    """Return a digest of arrays and plain values."""
    digest = hashlib.sha256()
    for value in values:
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


class CachedTable(Struct, frozen=True, kw_only=True):
    """The table of a schedule for given sizes."""

    request: ScheduleRequest
    """The request of the schedule."""
    table: Schedule | None
    """The table; None if it depends on times, see :meth:`TableCache.build_from_times`."""
    digest: str
    """Digest of the table; empty without one."""
    chunks: int
    """Chunks per rank."""
    branches: tuple[int, ...] = ()
    """Ranks of encoders on separate GPUs."""


class TableCache:
    """The tables of a plan."""

    def __init__(self, problem: PlanProblem, entries: Sequence[Entry]) -> None:
        """Read the options of all schedules.

        Raises:
            PptraceError: an invalid option, or an unknown schedule.
        """
        self.registry = problem.registry
        self._tables: _Recent[Any, CachedTable] = _Recent(_KEPT_TABLES)
        self._policies: dict[Any, PptraceError | None] = {}
        self._refusals: dict[Any, PptraceError | None] = {}
        self._options: dict[str, Mapping[str, Any]] = {}
        self._timed: set[str] = set()
        plain = [setting("parallel.pp", 1), setting("batch.global", 1)]
        for entry in entries:
            resolved = problem.resolved([*plain, *entry.varied])
            options_model = self.registry.schedules[entry.name].offer.options
            inputs = Preparation(resolved=resolved, registry=self.registry)
            self._options[entry.label] = inputs.fill_options("schedule", options_model)

    def refusal(self, entry: Entry, layout: PlanLayout, chunks: int | None) -> PptraceError | None:
        """Return the error with which a schedule rejects sizes before it builds a table; None without an error."""
        key = (entry.label, layout.pp, layout.branches, layout.microbatches, chunks)
        if key not in self._refusals:
            provided = self.registry.schedules[entry.name]
            self._refusals[key] = None
            try:
                request = self._request(entry, layout, chunks)
                if provided.offer.check is not None:
                    provided.offer.check(request)
            except PptraceError as error:
                self._refusals[key] = error
        return self._refusals[key]

    def of(self, entry: Entry, layout: PlanLayout, chunks: int | None) -> CachedTable:
        """Return the table of a schedule on a layout's ranks and microbatches.

        Args:
            entry: the schedule with its settings.
            layout: the layout.
            chunks: chunks per rank; None for the default of the schedule.

        Raises:
            PptraceError: refused sizes, or a failing plugin.
        """
        key = (entry.label, layout.pp, layout.branches, layout.microbatches, chunks)
        return self._tables.of(key, lambda: self._build(entry, layout, chunks))

    def build_from_times(self, entry: Entry, cached: CachedTable, times: Mapping[str, Any]) -> CachedTable:
        """Return the table that a schedule builds from times and memory.

        Raises:
            PptraceError: refused times or memory.
        """
        request = dataclasses.replace(cached.request, **times)
        table = with_branches(build_schedule(self.registry.schedules[entry.name], request), cached.branches)
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
                message_policy(Preparation(resolved=resolved, registry=self.registry), cached.table)
                self._policies[key] = None
            except PptraceError as error:
                self._policies[key] = error
        refused = self._policies.get(key)
        if refused is not None:
            raise refused

    def _request(self, entry: Entry, layout: PlanLayout, chunks: int | None) -> ScheduleRequest:
        provided = self.registry.schedules[entry.name]
        request = ScheduleRequest(
            ranks=layout.depth,
            microbatches=layout.microbatches,
            chunks=chunks or 1,
            options=self._options[entry.label],
        )
        if chunks is None and provided.offer.chunks is not None:
            request = dataclasses.replace(request, chunks=provided.offer.chunks(request))
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

    def _build(self, entry: Entry, layout: PlanLayout, chunks: int | None) -> CachedTable:
        request = self._request(entry, layout, chunks)
        timed = CachedTable(
            request=request, table=None, digest="", chunks=request.chunks, branches=layout.branches
        )
        if entry.label in self._timed:
            return timed
        lazy = LazyRequest.of(request, lambda: _TIMES)
        table = build_schedule(self.registry.schedules[entry.name], lazy)
        table_chunks, rest = divmod(table.stages, table.ranks)
        if rest:
            raise ScheduleError(f"{entry.name} has stages beside the chunks of ranks, which plans do not divide")
        if table.placement.has_host_state:
            raise ScheduleError(f"{entry.name} keeps the state of stages in host memory, which plans do not bound")
        table = with_branches(table, layout.branches)
        if not lazy.reads_costs:
            return replace(timed, table=table, digest=_table_digest(table), chunks=table_chunks)
        if table_chunks == request.chunks:
            self._timed.add(entry.label)
        return replace(timed, chunks=table_chunks)


def _table_digest(table: Schedule) -> str:
    """Return a digest of the content of a table."""
    placement = table.placement
    return _digest_of([
        table.row_ptr, *table.cells, *placement.pass_ranks, placement.microbatch_route, placement.edges,
        *table.waits, sorted(table.interleave.items()), table.recompute_waits,
    ])  # fmt: skip


class Module(NamedTuple):
    """Consecutive stages of an encoder or of the decoder."""

    key: str
    """The key of its layers per stage."""
    first: int
    """Its first stage."""
    stages: int
    """Number of stages."""
    layers: int
    """Number of layers."""

    @property
    def slice(self) -> slice:
        """Its stages among all stages."""
        return slice(self.first, self.first + self.stages)


def modules_of(request: CostRequest, stages: int) -> list[Module]:
    """Return the encoders and the decoder whose layers a plan divides: without configured layers per stage.

    Encoders with a common grid have the same stages. An encoder on the decoder's first stage is no module.
    """
    named = request.model.get("encoders") or {"": request.model.get("encoder")}
    ranks = {grid.name: grid.ranks for grid in request.encoders}
    modules, first, end = list[Module](), 0, 0
    for name in sorted(filter(named.get, named), key=lambda name: [*ranks, name].index(name)):
        encoder, section = named[name], f"model.encoders.{name}" if name else "model.encoder"
        count = ranks.get("", ranks.get(name, 0)) if ranks else int(encoder.get("stages") or 0)
        end = first + count
        if _LAYERS_NAME in encoder and encoder[_LAYERS_NAME] is None:
            modules.append(Module(f"{section}.{_LAYERS_NAME}", first, count, int(encoder["layers"])))
        first = 0 if "" in ranks else end
    if request.model.get(_LAYERS_NAME) is None and request.model.get("layout") is None:
        modules.append(Module(LAYERS, end, stages - end, int(request.model.get("layers") or 0)))
    return [module for module in modules if 1 < module.stages < module.layers]


_LAYERS_NAME = LAYERS.partition(".")[2]
_MIN_STAGES = 3
_SPLIT_COLUMNS = ("weights_bytes", "activation_bytes", "f_ns", "b_ns")
"""Columns that identify a split."""


def balanced_split(
    workload: Callable[[int, list[int] | None], Workload], stages: int, layers: int
) -> list[int] | None:
    """Return the layers per stage with the shortest slowest stage; None if that is the even split.

    The first and the last stage have further costs. Equal layers go one by one to the fastest stage so far, which
    is optimal. Unequal layers are partitioned in their order.

    Args:
        workload: returns the costs of a number of stages, with layers per stage or the default split.
        stages: number of stages.
        layers: layers of the model.
    """
    if stages < _MIN_STAGES or layers < stages:
        return None
    try:
        layer_times = _stage_times(workload(layers, [1] * layers))
        if len({*layer_times[1:-1]}) > 1:
            split = balanced_partition(layer_times, stages)
            longest = max(_stage_times(workload(stages, split)))
            return None if longest >= max(_stage_times(workload(stages, None))) else split
    except PptraceError:
        return None
    base, remainder = divmod(layers, stages)
    even = [base + (0 < stage <= remainder) for stage in range(stages)]
    if remainder > stages - 2:
        even[0], even[-1] = base + 1, base + (remainder == stages)
        even[1:-1] = [base + 1] * (stages - 2)
    even[1] += layers - sum(even)
    try:
        stage_ns = _stage_times(workload(stages, even))
    except PptraceError:
        return None
    layer_ns = stage_ns[1] / even[1]
    beside_ns = [max(time_ns - layer_ns * count, 0.0) for time_ns, count in zip(stage_ns, even, strict=True)]
    split, longest_ns = _filled_stages(beside_ns, layer_ns, layers)
    return None if longest_ns >= max(stage_ns) else split


def _filled_stages(beside_ns: Sequence[float], layer_ns: float, layers: int) -> tuple[list[int], float]:
    """Return layers per stage, each given to the fastest stage so far, and the time of the slowest stage.

    Args:
        beside_ns: the time of each stage without layers.
        layer_ns: the time of a layer.
        layers: number of layers.
    """
    fastest = [(time_ns, -stage) for stage, time_ns in enumerate(beside_ns)]
    heapify(fastest)
    split = [0] * len(fastest)
    for _ in range(layers):
        time_ns, stage = fastest[0]
        heapreplace(fastest, (time_ns + layer_ns, stage))
        split[-stage] += 1
    return split, max(fastest)[0]


def balanced_module_splits(stage_times: Callable[[Splits], list[int]], modules: Sequence[Module]) -> Splits:
    """Return layers per stage of modules with the shortest slowest stage of all; none if the default is faster.

    Later stages of a module are as full as this time allows. Earlier stages keep more activations, and the first
    one ends the step. The layers of a module count as equal.

    Args:
        stage_times: returns the time of each stage, in ns, for layers per stage by key.
        modules: the modules, each with more layers than stages and at least two stages.
    """
    default_ns, splits = stage_times({}), dict[str, list[int]]()
    divided = {stage for module in modules for stage in range(len(default_ns))[module.slice]}
    limit_ns = max([
        *(time_ns for stage, time_ns in enumerate(default_ns) if stage not in divided),
        *(_filled_stages(*_module_times(stage_times, module, {}), module.layers)[1] for module in modules),
    ])  # fmt: skip
    for module in modules:
        beside_ns, layer_ns = _module_times(stage_times, module, splits)
        split, remaining = [0] * module.stages, module.layers
        for stage in range(module.stages - 1, 0, -1):
            room = int((limit_ns - beside_ns[stage]) // layer_ns)
            split[stage] = min(max(room, 0), remaining - stage)
            remaining -= split[stage]
        splits[module.key] = [remaining, *split[1:]]
    return splits if max(stage_times(splits)) <= max(default_ns) else {}


def _module_times(
    stage_times: Callable[[Splits], list[int]], module: Module, splits: Splits
) -> tuple[list[float], float]:
    """Return the time of each stage of a module without its layers, and of one of its layers, in ns.

    Args:
        stage_times: as for :func:`balanced_module_splits`.
        module: a module with more layers than stages.
        splits: layers per stage of other modules.
    """
    base, remainder = divmod(module.layers, module.stages)
    even = [base + (stage < remainder) for stage in range(module.stages)]
    shifted = [even[0] - 1, *even[1:-1], even[-1] + 1]
    even_ns, moved_ns = (stage_times({**splits, module.key: split})[module.slice] for split in (even, shifted))
    layer_ns = max(moved_ns[-1] - even_ns[-1], 1)
    return [time_ns - layer_ns * count for time_ns, count in zip(even_ns, even, strict=True)], layer_ns


def _stage_times(workload: Workload) -> list[int]:
    """Return the time of a microbatch's forward and backward on each stage, in ns."""
    times: list[int] = (workload.f_ns + workload.b_ns).tolist()
    return times


def balanced_partition(times: Sequence[int], parts: int) -> list[int]:
    """Return the sizes of consecutive parts with the smallest largest sum of times.

    Later parts are as full as this sum allows, as earlier stages keep more activations.

    Args:
        times: the times, in order.
        parts: number of parts, at most as many as times; each has one or more.

    >>> balanced_partition([1, 1, 1, 5, 1, 1], 3)
    [3, 1, 2]
    """
    low, high = max(times), sum(times)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _sizes_within(times, parts, middle) else (middle + 1, high)
    return _sizes_within(times, parts, low) or [len(times)]


def _sizes_within(times: Sequence[int], parts: int, limit: int) -> list[int] | None:
    """Return the sizes of parts whose sums are within a limit, the last parts first filled; None if impossible."""
    sizes, end = [0] * parts, len(times)
    for part in range(parts - 1, -1, -1):
        total = 0
        while end > part and total + times[end - 1] <= limit:
            end -= 1
            total += times[end]
            sizes[part] += 1
    return None if end else sizes


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
        workload = _with_splits(costs, {LAYERS: split}).workload(len(split))
    except PptraceError:
        return False
    return all(np.array_equal(getattr(workload, name), getattr(expected, name)) for name in _SPLIT_COLUMNS)


def _with_splits(costs: Costs, splits: Splits) -> Costs:
    """Return costs with layers per stage by key."""
    model = costs.request.model
    for key, layers in splits.items():
        change: Any = layers
        for name in reversed(key.split(".")[1:]):
            change = {name: change}
        model = merged(model, change)
    return replace(costs, request=replace(costs.request, model=model))
