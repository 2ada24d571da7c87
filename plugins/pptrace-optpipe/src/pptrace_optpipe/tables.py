"""Rows of the search and tables of pptrace, one as the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import Action, Kind, Schedule, ScheduleError
from pptrace_optpipe.playing import play
from pptrace_optpipe.problem import Op, Part

if TYPE_CHECKING:
    from pptrace.plugin import Placement
    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["joined", "rows_of_table", "table_of"]

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
    """Return a table as rows, backwards split, without its messages and whatever else ranks do beside.

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
