"""Schedules side by side on one configuration, at all three levels, with their ranks at each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, PptraceError
from pptrace.printable import Printed, csv_of
from pptrace.study.levels import at_levels
from pptrace.study.policies import check_policies, compare_policies
from pptrace.study.ranking import groups_within, moves, ranked, uncertainty_of
from pptrace.study.reason import short_reason
from pptrace.study.row import metrics_row
from pptrace.study.stand_in import policy_text, run_anyhow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry
    from pptrace.study.levels import Levels
    from pptrace.study.policies import PolicyTable
    from pptrace.study.row import Row

__all__ = ["ComparedSchedule", "Comparison", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSchedule:
    """One schedule of a comparison; ranks count from 1, and equal values share one."""

    entry: Entry
    """The schedule, as the user wrote it."""
    levels: Levels | None = None
    """What it is at the three levels; None where it cannot run."""
    reason: str = ""
    """Why it cannot run, in one line."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``p2p`` that it alone ran with, because the configuration's cannot place its messages."""
    formula_is_exact: bool = True
    """Whether its tables have the formula's very bubble."""
    formula_rank: int | None = None
    """By the formula's bubble; None where it offers no formula for these sizes."""
    table_rank: int | None = None
    """By the idealised table's bubble."""
    simulated_rank: int | None = None
    """By step time."""
    table_move: int = 0
    """Places won at the table against the formula, among those with a formula; lost where negative."""
    simulated_move: int = 0
    """Places won in the simulation against the table; lost where negative."""

    def row(self) -> Row:
        """Return everything as one row of a tidy table, times in ns and sizes in bytes."""
        row: Row = {"schedule": self.entry.label}
        if self.levels is not None:
            prepared = self.levels.run.prepared
            row |= {
                "pp": prepared.schedule.ranks,
                "vp": prepared.schedule.stages // prepared.schedule.ranks,
                "microbatches": prepared.request.microbatches,
                "policy": policy_text(self.levels.run),
                **metrics_row(self.levels),
                "formula_is_exact": None if self.levels.formula is None else int(self.formula_is_exact),
            }
        ranks: Row = {
            "formula_rank": self.formula_rank, "table_rank": self.table_rank,
            "simulated_rank": self.simulated_rank,
        }  # fmt: skip
        gone: Row = {"table_move": None, "simulated_move": None}
        won: Row = {"table_move": self.table_move, "simulated_move": self.simulated_move}
        return row | ranks | (gone if self.levels is None else won) | {"refused": self.reason or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Printed):
    """Schedules at three levels; prints as its table."""

    rows: tuple[ComparedSchedule, ...]
    """One per schedule, in the order in which they were asked for."""
    policies: PolicyTable | None = None
    """What every way of issuing messages costs each; None where that was not asked for."""

    @property
    def uncertainty(self) -> float:
        """By which share steps may be off, as their costs say (``costs.uncertainty``); 0 where they do not."""
        return uncertainty_of(row.levels.run for row in self.rows if row.levels is not None)

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Schedules, the fastest first, whose steps are nearer to each other than they are known."""
        steps = sorted(
            (row.levels.run.metrics.step_ns, number, row.entry.label)
            for number, row in enumerate(self.rows)
            if row.levels is not None
        )
        return groups_within([(step, label) for step, _, label in steps], self.uncertainty)

    def table(self) -> list[Row]:
        """Return one row per schedule, all with the same columns; takes well to pandas."""
        rows = [row.row() for row in self.rows]
        columns = next(list(row) for row, one in zip(rows, self.rows, strict=True) if one.levels is not None)
        return [{column: row.get(column) for column in columns} for row in rows]

    def to_csv(self) -> str:
        """Return :meth:`table` as CSV, or the policies' rows where there are any; what is unknown is empty."""
        return csv_of([row.row() for row in self.policies.rows] if self.policies else self.table())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, with what each run was made from."""
        ran = [row.levels.run for row in self.rows if row.levels is not None]
        runs = iter(ran)
        rows = [
            {**row, "configuration": None if one.levels is None else next(runs).provenance["configuration"]}
            for row, one in zip(self.table(), self.rows, strict=True)
        ]
        plugins = {name: version for run in ran for name, version in run.provenance["plugins"].items()}
        policies = {"policies": self.policies.to_dict()} if self.policies else {}
        return {
            "pptrace": ran[0].provenance["pptrace"], "plugins": dict(sorted(plugins.items())), "rows": rows,
            **({"uncertainty": self.uncertainty, "ties": self.ties} if self.uncertainty else {}), **policies,
        }  # fmt: skip

    def summary(self) -> str:
        """Return the table that the command line prints, as plain text."""
        from pptrace.study.compare_text import comparison_lines
        from pptrace.study.policies_text import policy_lines

        lines = comparison_lines(self)
        if self.policies is not None:
            first = next(row.levels.run for row in self.rows if row.levels is not None)
            lines += ["", *policy_lines(self.policies, first, self.uncertainty)]
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Draw the three levels: a .png, .svg or .pdf file.

        Raises:
            PptraceError: another suffix, no matplotlib, or a file that cannot be written.
        """
        from pptrace.study.compare_plot import save_plot

        return save_plot(self, path)


def compare(
    basis: Basis, entries: Sequence[Entry], watch: Callable[[str], None] | None = None, *, policies: bool = False
) -> Comparison:
    """Run every schedule, and rank them at each level.

    Args:
        basis: what the runs have in common.
        entries: the schedules.
        watch: told what runs next.
        policies: whether to run each under every point-to-point policy too.

    Raises:
        PptraceError: an unknown name or option, before anything runs; or no schedule can run.
    """
    if not entries:
        raise ConfigError("no schedule to compare: write them as gpipe,1f1b", key="schedules")
    for entry in entries:
        basis.check(entry, basis.resolve(entry))
        if policies:
            check_policies(entry)
    rows: list[ComparedSchedule] = []
    errors: list[PptraceError] = []
    for index, entry in enumerate(entries):
        if watch is not None:
            watch(f"{entry.label} ({index + 1} of {len(entries)})")
        try:
            rows.append(_compared(basis, entry))
        except PptraceError as error:
            errors.append(error)
            rows.append(ComparedSchedule(entry=entry, reason=short_reason(error)))
    if len(errors) == len(rows):
        raise _none_runs(rows, errors)
    table = compare_policies(basis, entries, watch) if policies else None
    return Comparison(rows=_with_ranks(rows), policies=table)


def _compared(basis: Basis, entry: Entry) -> ComparedSchedule:
    run, messages = run_anyhow(basis, entry)
    offer = basis.find(entry)
    exact = offer is None or offer.bubble_is_exact
    return ComparedSchedule(entry=entry, levels=at_levels(run), messages=messages, formula_is_exact=exact)


def _with_ranks(rows: Sequence[ComparedSchedule]) -> tuple[ComparedSchedule, ...]:
    levels = [row.levels for row in rows]
    formula = ranked([one and one.formula for one in levels])
    table = ranked([one and one.table for one in levels])
    simulated = ranked([one and one.run.metrics.step_ns for one in levels])
    return tuple(
        replace(
            row, formula_rank=formula[index], table_rank=table[index], simulated_rank=simulated[index],
            table_move=moves(formula, table)[index], simulated_move=moves(table, simulated)[index],
        )
        for index, row in enumerate(rows)
    )  # fmt: skip


def _none_runs(rows: Sequence[ComparedSchedule], errors: Sequence[PptraceError]) -> PptraceError:
    """Return the one error that all share, or one that says what stops each."""
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    return PptraceError("no schedule can run: " + "; ".join(f"{row.entry.label}: {row.reason}" for row in rows))
