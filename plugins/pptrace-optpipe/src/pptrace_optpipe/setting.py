"""The setting of a search: costs, limits and tables."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from pptrace.plugin import (
    Action,
    ConfigError,
    ConstraintError,
    Kind,
    Placement,
    Policy,
    PolicyName,
    PptraceError,
    Schedule,
    ScheduleError,
    check_size,
    format_size,
    load,
    measure,
    prepare,
    simulate,
    write_table,
)
from pptrace_optpipe.playback import play
from pptrace_optpipe.problem import NO_LIMIT, Op, Part, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.plugin import Prepared, Registry, Workload
    from pptrace_optpipe.problem import Problem, Rows

__all__ = [
    "Ground",
    "Setting",
    "Simulated",
    "alone",
    "joined",
    "keeps",
    "rows_of_table",
    "setting_in",
    "setting_of",
    "simulated",
    "table_of",
]


class Simulated(NamedTuple):
    """What the simulator says of a table."""

    step_ns: int
    bubble: float
    peak_bytes: tuple[int, ...]
    """Shape (ranks,): the most in use, weights and all else included."""


def simulated(prepared: Prepared, table: Schedule) -> Simulated:
    """Return what the simulator says of a table, under a configuration's policy and network.

    Raises:
        PptraceError: the table cannot run.
    """
    metrics = measure(replace(prepared, schedule=table).simulate().timeline, prepared.workload)
    peak = tuple(int(value) for value in metrics.memory.peak_bytes)
    return Simulated(int(metrics.step_ns), float(metrics.bubble), peak)


def _limits(capacities: tuple[int, ...], ranks: int, memory: int) -> tuple[int, ...]:
    """Return what each rank may hold under a limit: where devices differ, no more than its own has."""
    return tuple(min(memory, own) for own in capacities) or (memory,) * ranks


def keeps(peak_bytes: tuple[int, ...], capacities: tuple[int, ...], memory: int) -> bool:
    """Return whether every rank keeps a limit and, where devices differ, its own device's; 0 is none."""
    limits = _limits(capacities, len(peak_bytes), memory)
    return not memory or all(peak <= limit for peak, limit in zip(peak_bytes, limits, strict=True))


class Ground(Protocol):
    """What a search searches in: a placement of stages, its costs and limits, and the simulator."""

    @property
    def placement(self) -> Placement:
        """Where stages are."""
        ...

    @property
    def messages_are_simple(self) -> bool:
        """Whether messages cost what a search sees of them."""
        ...

    def problem(self, memory: int) -> Problem:
        """Return what there is to search for under a limit; see :meth:`Setting.problem`."""
        ...

    def simulate(self, table: Schedule) -> Simulated:
        """Return what the simulator says of a table."""
        ...

    def fits(self, simulated: Simulated, memory: int) -> bool:
        """Return whether every rank keeps a limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A configuration, ready for any table of its placement."""

    prepared: Prepared
    placement: Placement
    static_bytes: tuple[int, ...]
    """Shape (ranks,): what is there from the step's start to its end."""
    transfers: tuple[tuple[int, ...], tuple[int, ...]]
    """From each stage to the next and back, in ns, as one microbatch alone meets them."""

    remade: Callable[[Schedule], Prepared] | None = None
    """Prepares the configuration for another table."""
    recompute: bool = False
    """Whether forwards may be computed again."""
    shared: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks whose GPUs copy to the host by one channel."""

    @property
    def workload(self) -> Workload:
        """What actions cost."""
        return self.prepared.workload

    def simulate(self, table: Schedule) -> Simulated:
        """Return what the simulator says of a table; see :func:`simulated`.

        A framework's message policy is made anew for each table, since it goes by the order of actions.
        """
        prepared = self.prepared
        if prepared.policy.program is not None and self.remade is not None:
            prepared = self.remade(table)
        return simulated(prepared, table)

    @property
    def messages_are_simple(self) -> bool:
        """Whether messages cost what a search sees of them."""
        policy = self.prepared.policy
        return policy.program is None and policy.name is PolicyName.ASYNC

    def fits(self, simulated: Simulated, memory: int) -> bool:
        """Return whether every rank keeps a limit and its own device's, where they differ; 0 is none."""
        return keeps(simulated.peak_bytes, self.capacities, memory)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Shape (ranks,): memory of each rank's device where they differ; empty where they do not."""
        return tuple(self.workload.rank_capacity_bytes.tolist())

    def limits(self, memory: int) -> tuple[int, ...]:
        """Return the bytes that each rank can use under a limit, at most the memory of its device."""
        return _limits(self.capacities, len(self.static_bytes), memory)

    def problem(self, memory: int) -> Problem:
        """Return what there is to search for within so many bytes per rank, weights included; 0 for any.

        Raises:
            ConstraintError: a rank has no room for what is always there, or for one microbatch.
        """
        limits = self.limits(memory)
        limit = tuple(
            own - static if memory else NO_LIMIT for own, static in zip(limits, self.static_bytes, strict=True)
        )
        worst = min(range(len(limit)), key=limit.__getitem__)
        if memory and limit[worst] < 0:
            need = self.static_bytes[worst]
            raise ConstraintError(
                f"{format_size(limits[worst])} is {format_size(need - limits[worst])} less than the weights "
                f"and all else that rank {worst} always holds", nearest=format_size(need), key="--memory",
            )  # fmt: skip
        return problem_of(self.workload, self.placement, limit, self.transfers, recompute=self.recompute,
                          shared=self.shared)  # fmt: skip


def setting_of(
    config: Path | None, sets: Sequence[str], registry: Registry, warm: Path | None = None, shape: str = "looped"
) -> tuple[Setting, Schedule | None]:
    """Return a configuration's setting, and the table of ``warm``, whose placement it then has.

    Without one, stages loop over the ranks, or go down and up them where ``shape`` is ``v``.

    Raises:
        PptraceError: what of it cannot be used.
    """
    remade = _remaking(config, sets, registry)
    if warm is not None:
        prepared = prepare(load(config, sets, {"schedule": str(warm)}), registry)
        return setting_in(prepared, remade), prepared.schedule
    step = load(config, sets, {"schedule": "optpipe"})
    if not step.experiment.parallel.pp:
        raise ConfigError("missing: say how many ranks there are", key="parallel.pp", file=step.file)
    check_size(step)
    placed = Placement.v_shaped if shape == "v" else Placement.looped
    placement = placed(
        step.experiment.parallel.pp, step.experiment.batch.known_microbatches, step.experiment.parallel.vp
    )
    try:
        prepared = remade(table_of(alone(placement, placement.microbatches), placement))
    except ConstraintError as refused:
        if not refused.key.startswith("p2p"):
            raise
        prepared = _placed_by(config, sets, registry, placement, refused)
    return setting_in(prepared, remade), None


def _remaking(config: Path | None, sets: Sequence[str], registry: Registry) -> Callable[[Schedule], Prepared]:
    """Return what prepares a configuration for any table, as if it were read from a file."""

    def remade(table: Schedule) -> Prepared:
        with tempfile.TemporaryDirectory() as folder:
            stand_in = Path(folder) / "optpipe.csv"
            write_table(table, stand_in)
            return prepare(load(config, sets, {"schedule": str(stand_in)}), registry)

    return remade


def _placed_by(
    config: Path | None, sets: Sequence[str], registry: Registry, placement: Placement, refused: ConstraintError
) -> Prepared:
    """Return a configuration with a schedule that its message policy takes and that has a placement."""
    for name in sorted(set(registry.schedules) - {"optpipe"}):
        with suppress(PptraceError):
            prepared = prepare(load(config, sets, {"schedule": name}), registry)
            if prepared.schedule.placement == placement:
                return prepared
    raise refused


def setting_in(
    prepared: Prepared,
    remade: Callable[[Schedule], Prepared] | None = None,
    *,
    recompute: bool = False,
    shared: tuple[tuple[int, ...], ...] = (),
) -> Setting:
    """Return the setting of a configuration with a table, whose placement it has.

    Raises:
        PptraceError: what of it cannot be used.
    """
    table, workload = prepared.schedule, prepared.workload
    if workload.classes:
        raise ConfigError("microbatches of different costs cannot be searched for: make them alike", key="costs")
    one = table_of(alone(table.placement, 1), Placement.of_stages(table.placement.stage_rank[:1], 1, table.ranks))
    policy = prepared.policy if prepared.policy.program is None else Policy()
    timeline = simulate(one, workload, prepared.network, policy, contention=prepared.contention)
    memory = measure(timeline, workload).memory
    begin, end = {}, {}
    for kind in (Kind.F, Kind.I):
        for stage in range(table.stages):
            rows = np.flatnonzero((timeline.kind == kind) & (timeline.stage == stage))
            begin[kind, stage] = int(timeline.start_ns[rows].min())
            end[kind, stage] = int(timeline.end_ns[rows].max())
    pairs = range(table.stages - 1)
    return Setting(
        prepared=prepared,
        remade=remade,
        recompute=recompute,
        shared=shared,
        placement=table.placement,
        static_bytes=tuple(int(value) for value in memory.static_bytes),
        transfers=(
            tuple(begin[Kind.F, stage + 1] - end[Kind.F, stage] for stage in pairs),
            tuple(begin[Kind.I, stage] - end[Kind.I, stage + 1] for stage in pairs),
        ),
    )


def alone(placement: Placement, microbatches: int) -> Rows:
    """Return rows with one microbatch after another and weight gradients last."""
    rows: Rows = [[] for _ in range(placement.ranks)]
    for microbatch in range(microbatches):
        up = range(placement.stages)
        for part, stages in ((Part.F, up), (Part.I, up[::-1]), (Part.W, up[::-1])):
            for stage in stages:
                rows[placement.rank_of(stage, 0)].append(Op(part, stage, microbatch))
    return rows


_KINDS = {
    Part.F: Kind.F,
    Part.I: Kind.I,
    Part.W: Kind.W,
    Part.B: Kind.B,
    Part.O: Kind.OFFLOAD,
    Part.R: Kind.RELOAD,
    Part.C: Kind.RECOMPUTE,
}
_AWAITED = {Part.A: Part.O, Part.D: Part.R}
"""Which copy an op awaits."""
_AWAITS = {_KINDS[copy]: part for part, copy in _AWAITED.items()}
_TRIES = 8
"""Groups of ranks on which backwards are tried whole."""
_PARTS = {kind: part for part, kind in _KINDS.items()}


def table_of(rows: Rows, placement: Placement) -> Schedule:
    """Return rows as a table."""
    return Schedule.from_rows([_actions(row) for row in rows], placement)


def _actions(row: list[Op]) -> list[Action]:
    actions, after = list[Action](), tuple[Action, ...]()
    for op in row:
        kind = _KINDS[_AWAITED.get(op.part, op.part)]
        if op.part in _AWAITED:
            after = (*after, Action(kind=kind, stage=op.stage, microbatch=op.microbatch))
        else:
            actions.append(Action(kind=kind, stage=op.stage, microbatch=op.microbatch, after=after))
            after = ()
    return actions


def rows_of_table(table: Schedule) -> Rows:
    """Return the computations of a table as rows, with split backwards.

    Raises:
        ScheduleError: it has overlapped pairs, actions of several microbatches or several routes: none of which
            a search here can split.
    """
    if table.placement.routes > 1:
        raise ScheduleError("microbatches take several routes: give a table in which all take one")
    if (table.pair >= 0).any() or (table.span != 1).any():
        raise ScheduleError("overlapped pairs and actions of several microbatches cannot be split: "
                            "give a table of single actions")  # fmt: skip
    if not table.placement.is_chain or bool((table.placement.stage_rank < 0).any()):
        raise ScheduleError("stages form no chain that every microbatch takes: give a table in which they do")
    rows: Rows = []
    for rank in range(table.ranks):
        row: list[Op] = []
        for action in table[rank]:
            row += [
                Op(_AWAITS[one.kind], one.stage, one.microbatch) for one in action.after if one.kind in _AWAITS
            ]
            part = _PARTS.get(action.kind)
            if part is Part.B:
                row += [Op(one, action.stage, action.microbatch) for one in (Part.I, Part.W)]
            elif part is not None:
                row.append(Op(part, action.stage, action.microbatch))
        rows.append(row)
    return rows


def joined(problem: Problem, rows: Rows) -> Rows:
    """Return rows in which backwards are whole again on the ranks where splitting them gains nothing."""
    best = play(problem, rows)
    if best is None:
        return rows
    ranks = [rank for rank, row in enumerate(rows) if len(_joined(row)) < len(row)]
    groups, step = [ranks], best.step
    for _ in range(_TRIES):
        if not groups:
            break
        group = groups.pop()
        whole = [_joined(row) if rank in group else row for rank, row in enumerate(rows)]
        played = play(problem, whole)
        if played is not None and played.fits(problem) and played.step <= step:
            rows = whole
        elif len(group) > 1:
            groups += [group[len(group) // 2 :], group[: len(group) // 2]]
    return rows


def _joined(row: list[Op]) -> list[Op]:
    found: list[Op] = []
    for op in row:
        gradient = op._replace(part=Part.I)
        if op.part is Part.W and found and found[-1] == gradient:
            found[-1] = op._replace(part=Part.B)
        else:
            found.append(op)
    return found
