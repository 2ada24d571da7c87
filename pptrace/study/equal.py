"""Schedules on equal memory: as many GPUs, the same global batch, each schedule in its best form that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, PptraceError
from pptrace.experiment.candidates import Change
from pptrace.experiment.form import Variation
from pptrace.experiment.forms import FormSearch
from pptrace.experiment.limit import LIMITS, limit_settings, memory_limit
from pptrace.experiment.prepare import costs_alone
from pptrace.experiment.varied import varied_settings
from pptrace.printable import Printed, csv_of
from pptrace.study.equal_rows import equal_row
from pptrace.study.equal_schedule import EqualSchedule, without_copy_times
from pptrace.study.equal_shortage import none_fits
from pptrace.study.equal_text import equal_lines
from pptrace.study.ranking import ranked
from pptrace.study.reason import short_reason
from pptrace.study.stand_in import ANY_TABLE, POLICY, other_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.costs import Costs
    from pptrace.experiment.form import Forms
    from pptrace.experiment.varied import VariedSetting
    from pptrace.model.workload import Workload
    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry
    from pptrace.study.row import Row

__all__ = ["EqualComparison", "check_together", "compare_equal", "parse_names"]

_JOB = ("pp", "tp", "dp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualComparison(Printed):
    """Schedules within one limit of memory; prints as its table."""

    rows: tuple[EqualSchedule, ...]
    """One per schedule, in the order in which they were asked for."""
    limit_bytes: int
    """What every rank may hold."""
    varied: tuple[VariedSetting, ...]
    """What may differ between the schedules' forms."""

    def table(self) -> list[Row]:
        """Return one row per schedule, all with the same columns; takes well to pandas."""
        rows = [equal_row(row, self.limit_bytes) for row in self.rows]
        columns = next(list(row) for row, one in zip(rows, self.rows, strict=True) if one.fits)
        return [{column: row.get(column) for column in columns} for row in rows]

    def to_csv(self) -> str:
        """Return :meth:`table` as CSV; what is unknown is empty."""
        return csv_of(self.table())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, with all forms tried and what each best was made from."""
        fitting = [row.forms.run.provenance for row in self.rows if row.fits and row.forms and row.forms.run]
        plugins = {name: version for one in fitting for name, version in one["plugins"].items()}
        rows = [
            {
                **cells,
                "settings": dict(row.settings) if row.fits else None,
                "as_configured": row.forms.own.to_dict() if row.forms else None,
                "tried": [one.to_dict() for one in row.forms.tried] if row.forms else [],
                "configuration": row.forms.run.provenance["configuration"]
                if row.fits and row.forms and row.forms.run
                else None,
            }
            for cells, row in zip(self.table(), self.rows, strict=True)
        ]
        return {
            "pptrace": fitting[0]["pptrace"], "plugins": dict(sorted(plugins.items())),
            "memory_limit_bytes": self.limit_bytes, "varied": {one.name: one.text for one in self.varied},
            "without_copy_times": without_copy_times(self.rows, self.varied), "rows": rows,
        }  # fmt: skip

    def summary(self) -> str:
        """Return the table that the command line prints, as plain text."""
        return "\n".join(equal_lines(self.rows, self.limit_bytes, self.varied))

    def save(self, path: str | Path) -> Path:
        """Draw steps and memory: a .png, .svg or .pdf file.

        Raises:
            PptraceError: another suffix, no matplotlib, or a file that cannot be written.
        """
        from pptrace.study.equal_plot import save_plot

        return save_plot(self, path)


def compare_equal(
    basis: Basis,
    entries: Sequence[Entry],
    memory: object,
    vary: Sequence[str] = (),
    watch: Callable[[str], None] | None = None,
    *,
    option: str = "",
) -> EqualComparison:
    """Find the best form of every schedule that fits a limit on every rank.

    Args:
        basis: what the schedules have in common.
        entries: the schedules; what one sets itself is kept.
        memory: what a rank may hold, such as ``76GiB``.
        vary: names of :data:`~pptrace.experiment.varied.VARIED`; those that need no request unless given.
        watch: told what runs next.
        option: stands before the names of arguments in errors.

    Raises:
        PptraceError: no size, a name that is none, schedules of other jobs, costs that know no memory; or no
            schedule fits.
    """
    if not entries:
        raise ConfigError("no schedule to compare: write them as gpipe,1f1b", key="schedules")
    source = f"{option}memory"
    limit, settings = memory_limit(memory, source), varied_settings(vary, f"{option}vary")
    roots = [basis.resolve(entry) for entry in entries]
    for entry, root in zip(entries, roots, strict=True):
        basis.check(entry, root)
    _check_jobs(entries, roots)
    searches = _Searches(basis=basis, limit=limit, settings=settings, source=source, workloads={})
    rows = searches.rows(entries, roots, watch)
    if not any(row.fits for row in rows):
        raise none_fits(rows, limit, source)
    steps = [row.forms.best.step_ns if row.fits and row.forms and row.forms.best else None for row in rows]
    rows = [replace(row, rank=rank) for row, rank in zip(rows, ranked(steps), strict=True)]
    if len({POLICY in row.messages for row in rows if row.fits}) > 1:
        rows = searches.alike(rows, roots, watch)
    return EqualComparison(rows=tuple(rows), limit_bytes=limit, varied=settings)


def parse_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return names separated by commas.

    >>> parse_names(["vp, micro", "zero"])
    ('vp', 'micro', 'zero')
    """
    return tuple(name.strip() for text in texts for name in text.split(","))


def check_together(*, memory: bool, policies: bool, vary: bool, option: str = "") -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: a limit of memory with policies, or what varies without a limit.
    """
    if memory and policies:
        raise ConfigError(f"on equal memory, schedules run under one policy: leave {option}policies out")
    if vary and not memory:
        raise ConfigError(f"says what differs on equal memory: give {option}memory too", file=f"{option}vary")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searches:
    """What the searches of all schedules share."""

    basis: Basis
    limit: int
    settings: tuple[VariedSetting, ...]
    source: str
    workloads: dict[Any, Workload | None]

    def rows(
        self, entries: Sequence[Entry], roots: Sequence[Resolved], watch: Callable[[str], None] | None
    ) -> list[EqualSchedule]:
        """Return what is found of each schedule; one whose costs cannot be used says why.

        Raises:
            PptraceError: no schedule's costs can be used, or none of them knows memory.
        """
        rows: list[EqualSchedule] = []
        errors: list[PptraceError] = []
        for index, (entry, root) in enumerate(zip(entries, roots, strict=True)):
            told = f"{entry.label} ({index + 1} of {len(entries)})"
            try:
                costs = costs_alone(root, self.basis.registry)
            except PptraceError as error:
                errors.append(error)
                rows.append(EqualSchedule(entry=entry, reason=short_reason(error)))
            else:
                rows.append(self._row(entry, root, costs, _counting(watch, told)))
        if len(errors) == len(rows):
            raise errors[0]
        return rows

    def _row(
        self, entry: Entry, root: Resolved, costs: Costs, watch: Callable[[int], None] | None
    ) -> EqualSchedule:
        """Return what is found of a schedule; one that cannot run says why."""
        limit = limit_settings(root, costs, self.limit, self.source)
        messages: dict[str, Any] = {}
        while True:
            search = self._search(entry, root, {**limit, **messages}, watch)
            forms = search.forms_found()
            more = {} if forms.best else other_messages(self.basis, entry, search.misplaced)
            if more.keys() <= messages.keys():
                break
            messages |= more
        if forms.run is not None and not forms.run.metrics.memory.peak_bytes.any():
            raise ConfigError("the costs say no bytes, so every schedule fits: leave it out", file=self.source)
        settings = {"schedule.name": entry.name, **dict(entry.settings), **limit, **messages}
        row = EqualSchedule(
            entry=entry, forms=forms, given=settings, messages=messages,
            reason=short_reason(forms.error) if forms.error else "",
        )  # fmt: skip
        return row if forms.fits else replace(row, remedy=search.with_room(forms.best or forms.own))

    def _search(
        self, entry: Entry, root: Resolved, given: Mapping[str, Any], watch: Callable[[int], None] | None
    ) -> FormSearch:
        """Look a schedule up among whose forms is to be searched, all of them with the settings given."""
        change = Change(settings=given)
        variation = Variation(
            resolved=root.again(change.sets, change.flags), registry=self.basis.registry, settings=self.settings,
            limit_bytes=self.limit, kept=tuple(key for key, _ in entry.settings),
            apart=tuple(one for one in entry.settings if not one[0].startswith("schedule.")),
            loose=not entry.sets("parallel.vp"),
        )  # fmt: skip
        return FormSearch(variation, self.workloads, watch)

    def alike(
        self, rows: Sequence[EqualSchedule], roots: Sequence[Resolved], watch: Callable[[str], None] | None
    ) -> list[EqualSchedule]:
        """Return schedules with what is found of each under the policy that takes any table."""
        told = f"under {ANY_TABLE[POLICY]}"
        return [
            replace(row, alike=self._alike(row, root, _counting(watch, f"{row.entry.label} {told}")))
            for row, root in zip(rows, roots, strict=True)
        ]

    def _alike(self, row: EqualSchedule, root: Resolved, watch: Callable[[int], None] | None) -> Forms | None:
        """Search a schedule's forms under the policy that takes any table; None where it is not to be compared.

        The best form under the configuration's policy is simulated too, so none that is found is worse.
        """
        best = row.forms.best if row.fits and row.forms else None
        if best is None or row.entry.sets(POLICY) or row.entry.sets("p2p"):
            return None
        if POLICY in row.messages:
            return row.forms
        return self._search(row.entry, root, row.given_alike, watch).forms_found(best.change)


def _check_jobs(entries: Sequence[Entry], roots: Sequence[Resolved]) -> None:
    """Refuse schedules of other jobs, and limits of a schedule's own.

    Raises:
        ConfigError: another number of GPUs or sequences, or a limit beside the comparison's.
    """
    jobs = []
    for entry, root in zip(entries, roots, strict=True):
        limit = next((key for key in LIMITS if entry.sets(key)), None)
        if limit is not None:
            raise ConfigError(f"all schedules have the same limit: leave {limit} out", file=entry.source)
        if not entry.is_table:
            parallel, batch = root.experiment.parallel, root.experiment.batch
            jobs.append(
                (entry, [*((key, getattr(parallel, key)) for key in _JOB), ("global", batch.global_batch)])
            )
    for entry, job in jobs:
        for (key, own), (_, first) in zip(job, jobs[0][1], strict=True):
            if own != first:
                message = f"has {key} {own}, and {jobs[0][0].label} {first}: schedules are compared on one job"
                raise ConfigError(message, file=entry.source)


def _counting(watch: Callable[[str], None] | None, told: str) -> Callable[[int], None] | None:
    return None if watch is None else lambda count: watch(f"{told}, form {count}")
