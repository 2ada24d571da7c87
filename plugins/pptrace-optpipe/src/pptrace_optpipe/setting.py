"""Input of a search: costs, limits and tables."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import (
    Action,
    ConfigError,
    ConstraintError,
    Kind,
    Placement,
    Policy,
    PptraceError,
    Schedule,
    ScheduleError,
    format_size,
    load,
    measure,
    prepare,
    simulate,
    write_table,
)
from pptrace.run.preparation import check_size
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import AWAIT_OF, NO_LIMIT, Op, OpKind, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.plugin import Registry, ScheduleRequest, StepInputs, Workload
    from pptrace_optpipe.problem import Rows


CHUNKS = "parallel.vp"
"""The key of chunks per rank."""
_OPTPIPE = "optpipe"


class Simulated(NamedTuple):
    """Simulated figures of a table."""

    step_ns: int
    bubble: float
    peak_bytes: tuple[int, ...]
    """Shape (ranks,): peak memory, including weights and other static memory."""
    static_bytes: tuple[int, ...]
    """Shape (ranks,): weights and other static memory."""

    @property
    def activation_bytes(self) -> tuple[int, ...]:
        """Shape (ranks,): peak memory without static memory."""
        return tuple(peak - static for peak, static in zip(self.peak_bytes, self.static_bytes, strict=True))


def simulated(prepared: StepInputs) -> Simulated:
    """Simulate the table of a configuration.

    Raises:
        PptraceError: the table cannot run.
    """
    metrics = measure(prepared.simulate().timeline, prepared.workload)
    memory = metrics.memory
    return Simulated(
        int(metrics.step_ns), float(metrics.bubble), tuple(memory.peak_bytes.tolist()),
        tuple(memory.static_bytes.tolist()),
    )  # fmt: skip


class SearchInput(Struct, frozen=True, kw_only=True):
    """A scheduling problem, and the simulator that decides on its tables."""

    placement: Placement
    problem: Problem
    simulate: Callable[[Schedule], Simulated]
    fits: Callable[[Simulated], bool]
    """Returns whether every rank keeps its limit."""
    messages_are_simple: bool
    """Whether the problem's transfers are the only cost of messages."""


class Setting(Struct, frozen=True, kw_only=True):
    """A prepared configuration that can simulate each table of its placement."""

    prepared: StepInputs
    placement: Placement
    static_bytes: tuple[int, ...]
    """Shape (ranks,): bytes held from the step's start to its end."""
    transfers: tuple[tuple[int, ...], tuple[int, ...]]
    """Times in ns from each stage to the next and back, for a single microbatch without contention."""

    prepare_table: Callable[[Schedule], StepInputs]
    """Prepares the configuration with another table."""
    recompute: bool = False
    """Whether recomputation is possible."""
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks whose GPUs share a channel to the host."""
    is_kept: bool = False
    """Whether results keep the placement."""
    sliced: StepInputs | None = None
    """The configuration with its own schedule, if that cuts sequences into slices, which no search does."""

    @property
    def workload(self) -> Workload:
        """Costs of actions."""
        return self.prepared.workload

    @property
    def present(self) -> StepInputs:
        """The configuration with its own schedule."""
        return self.sliced or self.prepared

    def keeps(self, table: Schedule) -> bool:
        """Return whether a table has the placement of the search, or that of the configuration's own schedule."""
        return table.placement in (self.placement, self.present.schedule.placement)

    def simulate(self, table: Schedule) -> Simulated:
        """Simulate a table; see :func:`simulated`.

        The message policy of a framework depends on the order of actions, so each table needs a new preparation.
        """
        has_program = self.prepared.policy.program is not None
        return simulated(self.prepare_table(table) if has_program else replace(self.prepared, schedule=table))

    def fits(self, simulated: Simulated, memory: int) -> bool:
        """Return whether every rank keeps a limit and, if devices differ, its device's memory; 0 is no limit."""
        limits = self.limits(memory)
        return not memory or all(peak <= limit for peak, limit in zip(simulated.peak_bytes, limits, strict=True))

    @property
    def capacities(self) -> tuple[int, ...]:
        """Shape (ranks,): device memory in bytes if devices differ; empty if all are equal."""
        return tuple(self.workload.rank_capacity_bytes.tolist())

    def limits(self, memory: int) -> tuple[int, ...]:
        """Return the bytes that each rank can use: the minimum of a limit and its device's memory."""
        limits = tuple(min(memory, capacity_bytes) for capacity_bytes in self.capacities)
        return limits or (memory,) * len(self.static_bytes)

    def problem(self, memory: int) -> Problem:
        """Return the problem for a memory limit in bytes per rank, including weights; 0 for no limit.

        Raises:
            ConstraintError: the limit is below a rank's static bytes, or too small for one microbatch.
        """
        limits = self.limits(memory)
        limit = tuple(
            size - static if memory else NO_LIMIT for size, static in zip(limits, self.static_bytes, strict=True)
        )
        worst = min(range(len(limit)), key=limit.__getitem__)
        if memory and limit[worst] < 0:
            needed, limit_bytes = self.static_bytes[worst], limits[worst]
            raise ConstraintError(
                f"{format_size(limit_bytes)} is less than rank {worst} needs without activations, "
                f"{format_size(needed)}", nearest=format_size(needed), key="--memory",
                needs_memory=True,
            )  # fmt: skip
        return problem_of(
            self.workload, self.placement, limit, self.transfers, tail=self._tails(),
            recompute=self.recompute, shared=self.shared, key="--memory",
        )  # fmt: skip

    def _tails(self) -> tuple[int, ...]:
        """Return a lower bound of the ns after each rank's last computation: reduction, sync, update."""
        work, tails = self.workload, []
        for rank in range(self.placement.ranks):
            stages = np.flatnonzero(self.placement.stage_rank[0] == rank)
            update = work.optimizer_ns[stages].sum()
            tails.append(int(work.reduce_ns[stages].min() + work.sync_ns + update))
        return tuple(tails)

    def search_input(self, memory: int) -> SearchInput:
        """Return the input of a search for a memory limit in bytes per rank.

        Raises:
            ConstraintError: as :meth:`problem`.
        """
        policy = self.prepared.policy
        return SearchInput(
            placement=self.placement,
            problem=self.problem(memory),
            simulate=self.simulate,
            fits=lambda simulated: self.fits(simulated, memory),
            messages_are_simple=policy.program is None and policy.name.value == "async",
        )


def setting_of(
    config: Path | None, sets: Sequence[str], registry: Registry, warm: Path | None = None, shape: str = "",
    *, is_run: bool = False, vary_stages: bool = False,
) -> tuple[Setting, Schedule | None]:  # fmt: skip
    """Return the setting of a configuration, with the table from which its search starts, if any.

    The placement is that of ``warm``; else the named shape; else that of the configuration's own schedule if
    ``parallel.vp`` is written, the schedule is a table, or the configuration is a fit; else looped. In each case
    but the last, results keep it. A fit names the measured schedule beside ``costs.slices``.
    A schedule that cuts sequences into slices gives the placement, and the search orders whole microbatches.

    Args:
        config: the file.
        sets: further settings.
        registry: the plugins.
        warm: a table.
        shape: ``looped``, ``v``, or empty.
        is_run: whether the configuration is fitted to a run just now; its schedule must be known.
        vary_stages: whether results may have another placement.

    Raises:
        PptraceError: the configuration or the table cannot be used.
    """
    free_sets = [*sets, f"{CHUNKS}=null"] if vary_stages else sets

    def prepare_table(table: Schedule) -> StepInputs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "optpipe.csv"
            write_table(table, file)
            return prepare(load(config, free_sets, {"schedule": str(file)}), registry)

    start = None
    if warm is None and not shape:
        start = _own_schedule(config, sets, registry, is_run=is_run, vary_stages=vary_stages)
    elif warm is not None:
        start = prepare(load(config, sets, {"schedule": str(warm)}), registry)
        rows_of_table(start.schedule)
    if start is not None and start.slices > 1:
        stage_rank = start.schedule.placement.stage_rank[:1]
        whole = Placement.of_stages(stage_rank, start.request.microbatches, start.schedule.ranks)
        setting = setting_in(prepare_table(serial_table(whole)), prepare_table, is_kept=not vary_stages)
        return replace(setting, sliced=start), None
    if start is not None:
        return setting_in(start, prepare_table, is_kept=not vary_stages), start.schedule
    step = load(config, sets, {"schedule": _OPTPIPE})
    if not step.experiment.parallel.pp:
        raise ConfigError("missing: say how many ranks there are", key="parallel.pp", file=step.file)
    check_size(step)
    placed = Placement.v_shaped if shape == "v" else Placement.looped
    placement = placed(
        step.experiment.parallel.pp, step.experiment.batch.known_microbatches, step.experiment.parallel.vp
    )
    try:
        prepared = prepare_table(serial_table(placement))
    except ConstraintError as error:
        if not error.key.startswith("p2p"):
            raise
        prepared = _with_other_schedule(config, sets, registry, placement, error)
    is_kept = not vary_stages and bool(shape or CHUNKS in step.positions)
    return setting_in(prepared, prepare_table, is_kept=is_kept), None


def _own_schedule(
    config: Path | None, sets: Sequence[str], registry: Registry, *, is_run: bool, vary_stages: bool
) -> StepInputs | None:
    """Return the configuration with its own schedule, if the search keeps that schedule's placement.

    Raises:
        PptraceError: the schedule of a run or fit, or a table, cannot be used.
    """
    try:
        step = load(config, sets)
    except ConfigError as error:
        if is_run or error.key != "schedule":
            raise
        return None
    schedule, positions = step.experiment.schedule, step.positions
    is_fit = "costs.slices" in positions and positions["costs.slices"].source == positions["schedule.name"].source
    must_hold = is_run or schedule.kind == "table" or (is_fit and not vary_stages)
    if schedule.name == _OPTPIPE or not (must_hold or is_fit or CHUNKS in positions):
        return None
    try:
        prepared = prepare(step, registry)
        _check_one_chain(prepared.schedule.placement)
    except PptraceError:
        if must_hold:
            raise
        return None
    return prepared


def _with_other_schedule(
    config: Path | None, sets: Sequence[str], registry: Registry, placement: Placement, error: ConstraintError
) -> StepInputs:
    """Return a configuration with a schedule of a given placement that its message policy accepts."""
    for name in sorted(set(registry.schedules) - {_OPTPIPE}):
        with suppress(PptraceError):
            prepared = prepare(load(config, sets, {"schedule": name}), registry)
            if prepared.schedule.placement == placement:
                return prepared
    raise error


def setting_in(
    prepared: StepInputs,
    prepare_table: Callable[[Schedule], StepInputs],
    *,
    recompute: bool = False,
    shared: tuple[tuple[int, ...], ...] = (),
    is_kept: bool = False,
) -> Setting:
    """Return the setting of a prepared configuration, with the placement of its table.

    Raises:
        PptraceError: the configuration cannot be used.
    """
    table, workload = prepared.schedule, prepared.workload
    if workload.classes:
        raise ConfigError("the search needs equal costs of all microbatches", key="costs")
    single_table = serial_table(Placement.of_stages(table.placement.stage_rank[:1], 1, table.ranks))
    policy = prepared.policy if prepared.policy.program is None else Policy()
    timeline = simulate(single_table, workload, prepared.network, policy, contention=prepared.contention)
    memory = measure(timeline, workload).memory
    start, end = {}, {}
    for kind in (Kind.F, Kind.I):
        for stage in range(table.stages):
            rows = np.flatnonzero((timeline.kind == kind) & (timeline.stage == stage))
            start[kind, stage] = int(timeline.start_ns[rows].min())
            end[kind, stage] = int(timeline.end_ns[rows].max())
    boundaries = range(table.stages - 1)
    return Setting(
        prepared=prepared,
        prepare_table=prepare_table,
        recompute=recompute,
        shared=shared,
        is_kept=is_kept,
        placement=table.placement,
        static_bytes=tuple(int(value) for value in memory.static_bytes),
        transfers=(
            tuple(start[Kind.F, stage + 1] - end[Kind.F, stage] for stage in boundaries),
            tuple(start[Kind.I, stage] - end[Kind.I, stage + 1] for stage in boundaries),
        ),
    )


def stages_text(table: Schedule, placement: Placement) -> str:
    """Return in words how a table's stages differ from a placement.

    >>> from pptrace.plugin import Placement, Schedule
    >>> stages_text(Schedule.from_rows([["0F0", "1F0", "1B0", "0B0"]]), Placement.looped(1, 1, 1))
    '2 in place of 1'
    """
    slices = table.microbatches // placement.microbatches
    if slices > 1 and np.array_equal(table.placement.stage_rank[0], placement.stage_rank[0]):
        return f"{table.stages}, and sequences in {slices} slices"
    routes = f" on {table.placement.routes} routes" if table.placement.routes > 1 else ""
    if table.stages != placement.stages:
        return f"{table.stages}{routes} in place of {placement.stages}"
    return f"{table.stages}{routes}, placed otherwise"


def problem_of(
    costs: Workload | ScheduleRequest,
    placement: Placement,
    limit: tuple[int, ...],
    transfers: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    tail: tuple[int, ...] = (),
    recompute: bool = False,
    shared: tuple[tuple[int, ...], ...] = (),
    key: str,
) -> Problem:
    """Return the problem of given costs; unknown times are 1, unknown sizes 0.

    Args:
        costs: times in ns and sizes in bytes of actions.
        placement: ranks of stages.
        limit: shape (ranks,): limit of activations in bytes.
        transfers: times in ns from each stage to the next and back.
        tail: shape (ranks,): ns after the rank's last computation; 0 by default.
        recompute: whether recomputation is possible.
        shared: groups of ranks whose copies share their streams.
        key: the option that sets the limit, for errors.

    Raises:
        ConfigError: the time of the backward already includes recomputation.
        ConstraintError: the limit of a rank is too small for the activation of one microbatch.
    """

    def column(name: str) -> tuple[int, ...]:
        return tuple(map(int, getattr(costs, name)))

    stages = placement.stages
    offload, reload = column("offload_ns"), column("reload_ns")
    recompute_times = column("recompute_ns") * recompute
    can_copy = all(offload) and all(reload)
    if not all(recompute_times):
        message = "the model's backward already recomputes its forward: remove the key, or model.recompute"
        raise ConfigError(message, key="recompute")
    problem = Problem(
        microbatches=placement.microbatches,
        stage_rank=tuple(int(rank) for rank in placement.stage_rank[0]),
        f=column("f_ns") or (1,) * stages,
        i=column("i_ns") or (1,) * stages,
        w=column("w_ns") or (1,) * stages,
        b=column("b_ns"),
        offload=offload * can_copy,
        reload=reload * can_copy,
        recompute=recompute_times,
        activation=column("activation_bytes") or (0,) * stages,
        weight_activation=column("weight_activation_bytes") or (0,) * stages,
        checkpoint=column("checkpoint_bytes") if recompute_times else (),
        limit=limit,
        forward_transfer=transfers[0],
        backward_transfer=transfers[1],
        tail=tail,
        shared=shared,
    )
    _check_room(problem, key)
    return problem


def _check_room(problem: Problem, key: str) -> None:
    """Check that one microbatch fits into each limit; ``key`` is the option that sets the limits.

    Raises:
        ConstraintError: a limit is too small; the message names the rank and the missing bytes.
    """
    for rank, limit in enumerate(problem.limit):
        stages = problem.stages_of[rank]
        activations = [problem.activation[stage] for stage in stages]
        least = max(activations) if problem.copies else sum(activations)
        if problem.recomputes:
            peaks = [
                problem.activation[stage] + sum(problem.checkpoint[earlier] for earlier in stages[:place])
                for place, stage in enumerate(stages)
            ]
            least = min(least, max(peaks))
        if limit not in (NO_LIMIT, max(limit, least)):
            subject = "of a stage" if problem.copies or problem.recomputes else "of all its stages"
            room, more = format_size(limit), format_size(least - limit)
            if not limit:
                room, more = "no memory left beside its weights and state", f"at least {more}"
            raise ConstraintError(
                f"rank {rank} has {room} for activations, and one microbatch's {subject} take "
                f"{format_size(least)}: allow {more} more", key=key, needs_memory=True,
            )  # fmt: skip


def pairs(ranks: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of ranks 2i and 2i + 1."""
    return tuple((rank, rank + 1) for rank in range(0, ranks - 1, 2))


def channels_of(prepared: StepInputs, copies: str) -> tuple[tuple[int, ...], ...]:
    """Return groups of pipeline ranks that share a channel to the host and a channel back.

    Args:
        prepared: the configuration; in a cluster with ``pcie`` nodes, the GPUs of a switch share an uplink.
        copies: ``pair`` for ranks 2i and 2i + 1, ``direction`` for none, ``cluster`` for those of the cluster.
    """
    ranks = prepared.schedule.ranks
    if copies == "pair":
        return pairs(ranks)
    section, job = prepared.resolved.experiment.cluster, prepared.job
    if copies == "direction" or job is None or section is None or section.node is None or not section.gpus:
        return ()
    per_switch = section.node.values.get("gpus_per_switch") if section.node.name == "pcie" else None
    if not per_switch:
        return ()
    ranks_by_switch: dict[tuple[int, int], list[int]] = {}
    for rank in range(ranks):
        node, gpu_index = divmod(int(job.layout.rank_grid(rank).flat[0]), section.gpus)
        ranks_by_switch.setdefault((node, gpu_index // per_switch), []).append(rank)
    return tuple(tuple(group) for group in ranks_by_switch.values() if len(group) > 1)


def serial_table(placement: Placement) -> Schedule:
    """Return the table that runs one microbatch after another, with weight gradients last."""
    rows: Rows = [[] for _ in range(placement.ranks)]
    for microbatch in range(placement.microbatches):
        up = range(placement.stages)
        for kind, stages in ((OpKind.F, up), (OpKind.I, up[::-1]), (OpKind.W, up[::-1])):
            for stage in stages:
                rows[placement.rank_of(stage, 0)].append(Op(kind, stage, microbatch))
    return table_of(rows, placement)


_KINDS = {
    OpKind.F: Kind.F,
    OpKind.I: Kind.I,
    OpKind.W: Kind.W,
    OpKind.B: Kind.B,
    OpKind.O: Kind.OFFLOAD,
    OpKind.R: Kind.RELOAD,
    OpKind.C: Kind.RECOMPUTE,
    OpKind.A: Kind.OFFLOAD,
    OpKind.D: Kind.RELOAD,
}
"""Kinds of actions; ``A`` and ``D`` have the kinds of the copies that they await."""
_OP_KINDS = {kind: op_kind for op_kind, kind in _KINDS.items() if op_kind not in AWAIT_OF.values()}
_TRIES = 8
"""The most groups of ranks for which joined backwards are tested."""


def table_of(rows: Rows, placement: Placement) -> Schedule:
    """Return rows as a table."""
    return Schedule.from_rows([_actions(row) for row in rows], placement)


def _actions(row: list[Op]) -> list[Action]:
    actions, awaited = list[Action](), tuple[Action, ...]()
    for op in row:
        action = Action(kind=_KINDS[op.kind], stage=op.stage, microbatch=op.microbatch)
        if op.kind in AWAIT_OF.values():
            awaited = (*awaited, action)
        else:
            actions.append(replace(action, after=awaited))
            awaited = ()
    return actions


def rows_of_table(table: Schedule) -> Rows:
    """Return the operations of a table as rows.

    Raises:
        ScheduleError: the table has overlapped pairs, actions of several microbatches or several routes, which
            the search cannot split.
    """
    _check_one_chain(table.placement)
    if (table.pair >= 0).any() or (table.span != 1).any():
        raise ScheduleError("overlapped pairs and actions of several microbatches cannot be split: "
                            "give a table of single actions")  # fmt: skip
    rows: Rows = []
    for rank in range(table.ranks):
        row: list[Op] = []
        for action in table[rank]:
            row += [
                Op(AWAIT_OF[_OP_KINDS[copy.kind]], copy.stage, copy.microbatch)
                for copy in action.after
                if copy.kind in (Kind.OFFLOAD, Kind.RELOAD)
            ]
            op_kind = _OP_KINDS.get(action.kind)
            if op_kind is not None:
                row.append(Op(op_kind, action.stage, action.microbatch))
        rows.append(row)
    return rows


def _check_one_chain(placement: Placement) -> None:
    """Raise a ScheduleError unless all microbatches take one chain of stages."""
    if placement.routes > 1 or placement.has_host_state:
        raise ScheduleError("microbatches take several routes: give a table in which all take one")
    if not placement.is_chain or bool((placement.stage_rank < 0).any()):
        raise ScheduleError("stages form no chain that every microbatch takes: give a table in which they do")


def joined(problem: Problem, rows: Rows) -> Rows:
    """Return rows with joined backwards on the ranks where split backwards do not shorten the step."""
    best = play(problem, rows)
    if best is None:
        return rows
    ranks = [rank for rank, row in enumerate(rows) if len(_join(row)) < len(row)]
    groups = [ranks]
    for _ in range(_TRIES):
        if not groups:
            break
        group = groups.pop()
        candidate = [_join(row) if rank in group else row for rank, row in enumerate(rows)]
        played = play(problem, candidate)
        if played is not None and played.fits(problem) and played.step <= best.step:
            rows = candidate
        elif len(group) > 1:
            groups += [group[len(group) // 2 :], group[: len(group) // 2]]
    return rows


def _join(row: list[Op]) -> list[Op]:
    joined_row: list[Op] = []
    for op in row:
        if op.kind is OpKind.W and joined_row and joined_row[-1] == op._replace(kind=OpKind.I):
            joined_row[-1] = op._replace(kind=OpKind.B)
        else:
            joined_row.append(op)
    return joined_row
