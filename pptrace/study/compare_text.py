"""A comparison as a table of plain text."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from pptrace.config.quantity import format_size
from pptrace.experiment.summary import job_text, options_text, setting_text, time_text
from pptrace.model.kinds import Kind
from pptrace.study.ranking import listed
from pptrace.study.stand_in import policy_text, stand_in_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.experiment.run import Run
    from pptrace.study.compare import ComparedSchedule, Comparison
    from pptrace.study.levels import Levels

__all__ = ["comparison_heading", "comparison_lines", "first_text", "options_notes", "slower_text", "work_note"]

_SIZES = ("pp", "vp", "microbatches")
"""Sizes that have a column where schedules differ in them."""

_COARSE = 0.1
"""The part of a step from which a difference is written without decimals."""

_AS_MUCH = 1.05
"""The work of a step over another's up to which both count as the same."""


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the lines: what is compared, a row per schedule, what marks mean, and who is the fastest."""
    rows = comparison.rows
    ran = [row.levels for row in rows if row.levels is not None]
    cells = _columns(rows, ran)
    widths = [max(len(text) for text in (*head, *below)) for head, below in cells]
    labels = ["", "schedule", *(row.entry.label for row in rows)]
    first = max(map(len, labels))
    body = iter(range(len(ran)))
    lines = [*comparison_heading(comparison), ""]
    lines += [_line(labels[at], first, [head[at] for head, _ in cells], widths) for at in (0, 1)]
    for row in rows:
        if row.levels is None:
            lines.append(f"{row.entry.label:<{first}}  cannot run: {row.reason}")
        else:
            at = next(body)
            lines.append(_line(row.entry.label, first, [below[at] for _, below in cells], widths))
    return [*lines, "", *_notes(rows), *_ties(comparison), _verdict(rows, comparison.uncertainty)]


def comparison_heading(comparison: Comparison) -> list[str]:
    """Return what is compared: the job, and where its sizes and network are the same for all, those."""
    ran = [(row.entry, row.levels) for row in comparison.rows if row.levels is not None]
    usual = {row.entry for row in comparison.rows if not row.messages}
    counts = {_size(levels, "microbatches") for _, levels in ran}
    microbatches = f": {counts.pop()} microbatches" if len(counts) == 1 else ""
    # Entries with settings of their own say in their names how they differ from the others.
    plain = [levels.run for entry, levels in ran if not entry.settings]
    as_said = [levels.run for entry, levels in ran if not entry.settings and entry in usual]
    settings = {setting_text(run) for run in as_said or plain or [levels.run for _, levels in ran]}
    return [f"{job_text(ran[0][1].run)}{microbatches}", *(settings if len(settings) == 1 else ())]


def _columns(rows: Sequence[ComparedSchedule], ran: Sequence[Levels]) -> list[tuple[tuple[str, str], list[str]]]:
    """Return each column: its two headings, and its text for every schedule that ran."""
    running = [row for row in rows if row.levels is not None]
    columns = []
    for name in _SIZES:
        sizes = [_size(one, name) for one in ran]
        if len(set(sizes)) > 1:
            columns.append((("", name), [str(size) for size in sizes]))
    policies = [policy_text(one.run) for one in ran]
    if any(row.messages for row in running):
        columns.append((("", "p2p"), policies))
    tilde = ["" if row.formula_is_exact else "~" for row in running]
    formulas = [
        "-" if one.formula is None else f"{mark}{float(one.formula):.2%}"
        for one, mark in zip(ran, tilde, strict=True)
    ]
    least = min(one.run.metrics.step_ns for one in ran)
    columns += [
        (("formula", "bubble"), formulas),
        (("", "#"), [_rank(row.formula_rank, 0) for row in running]),
        (("table", "bubble"), [f"{float(one.table):.2%}" for one in ran]),
        (("", "#"), [_rank(row.table_rank, row.table_move) for row in running]),
        (("simulated", "idle"), [f"{float(one.run.metrics.bubble):.2%}" for one in ran]),
        (("", "step"), [time_text(one.run, one.run.metrics.step_ns) for one in ran]),
        (("", "#"), [_rank(row.simulated_rank, row.simulated_move) for row in running]),
        (("", "slower"), [slower_text(one.run.metrics.step_ns, least) for one in ran]),
    ]
    if any(one.run.metrics.tokens_per_s for one in ran):
        tokens = [one.run.metrics.tokens_per_s for one in ran]
        columns.append((("", "tokens/s"), [f"{value:,.0f}" if value else "-" for value in tokens]))
    if any(one.run.metrics.memory.peak_bytes.any() for one in ran):
        columns.append((("", "peak"), _peaks(ran)))
    return columns


def _line(label: str, first: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join a row's cells; a rank stands left in its column, close to what it ranks, all else right."""
    texts = [
        f"{cell:<{width}}" if _is_rank(cell) else f"{cell:>{width}}"
        for cell, width in zip(cells, widths, strict=True)
    ]
    return f"{label:<{first}}  {'  '.join(texts)}".rstrip()


def _size(levels: Levels, name: str) -> int:
    prepared = levels.run.prepared
    if name == "microbatches":
        return prepared.request.microbatches
    return prepared.schedule.ranks if name == "pp" else prepared.schedule.stages // prepared.schedule.ranks


def _rank(rank: int | None, move: int) -> str:
    if rank is None:
        return "#-"
    return f"#{rank} ({move:+d})" if move else f"#{rank}"


def _is_rank(cell: str) -> bool:
    return cell.startswith("#")


def slower_text(step_ns: int, least_ns: int) -> str:
    """Return by how much a step is longer than the shortest.

    >>> slower_text(103, 100), slower_text(300, 100), slower_text(100, 100)
    ('+3.00%', '+200%', '-')
    """
    if step_ns == least_ns or not least_ns:
        return "-"
    more = step_ns / least_ns - 1
    return f"+{more:.2%}" if more < _COARSE else f"+{more:.0%}"


def _peaks(ran: Sequence[Levels]) -> list[str]:
    peaks = [format_size(int(one.run.metrics.memory.peak_bytes.max(initial=0))) for one in ran]
    over = [one.run.metrics.over_capacity is not None for one in ran]
    mark = {True: " !", False: "  "} if any(over) else {False: ""}
    return [f"{peak}{mark[too_much]}" for peak, too_much in zip(peaks, over, strict=True)]


def _notes(rows: Sequence[ComparedSchedule]) -> list[str]:
    running = [row for row in rows if row.levels is not None]
    notes = ["#: rank by bubble, in the simulation by step time; equal ones share it"]
    if any(row.table_move or row.simulated_move for row in running):
        notes.append("(+1), (-1): places won or lost against the level before")
    if any(row.levels and row.levels.formula is not None and not row.formula_is_exact for row in running):
        notes.append("~: a formula that the schedule's tables only come near")
    notes += options_notes([(row.entry.label, row.levels.run) for row in running if row.levels])
    notes += stand_in_notes([(row.entry.label, row.messages, row.levels.run) for row in running if row.levels])
    notes += work_note([(row.entry.label, row.levels.run) for row in running if row.levels])
    over = [row.levels for row in running if row.levels and row.levels.run.metrics.over_capacity]
    if over:
        capacities = sorted({int(size) for one in over for size in one.run.metrics.memory.room_bytes})
        notes.append(f"!: more than the device has, {' or '.join(map(format_size, capacities))}")
    return notes


def options_notes(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """Return a line per schedule with options of its own, which says those that it ran with."""
    return [f"{label} runs with {options_text(run)}" for label, run in runs if options_text(run)]


def work_note(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """Return a line that says whose step computes more than another's, if any does: step times then say little."""
    whole = (Kind.F, Kind.B)
    work = [run.prepared.workload.total_ns(whole, run.prepared.schedule.microbatches) for _, run in runs]
    least = min(work)
    more = [
        f"{label} {own / least:.3g} times"
        for (label, _), own in zip(runs, work, strict=True)
        if own > _AS_MUCH * least
    ]
    if not more:
        return []
    of = f"the work of {runs[work.index(least)][0]}"
    return [f"steps do not compute the same: {', '.join(more)} {of}; costs are per stage"]


def _ties(comparison: Comparison) -> list[str]:
    """Return which schedules are a tie, where the costs say how well steps are known."""
    if not comparison.uncertainty:
        return []
    ties = "; ".join(listed(tie) for tie in comparison.ties)
    said = f"nearer than that, a tie: {ties}" if ties else "all of these are further apart"
    return [f"steps are known to about ±{comparison.uncertainty:.1%} (costs.uncertainty); {said}"]


def _verdict(rows: Sequence[ComparedSchedule], uncertainty: float) -> str:
    """Return who is the fastest, and where that one does not fit, who is of those that do."""
    ran = [(row.levels.run, row.entry.label) for row in rows if row.levels is not None]
    fits = [(run, label) for run, label in ran if run.metrics.over_capacity is None]
    line = f"fastest: {first_text([(run.metrics.step_ns, label) for run, label in ran], uncertainty)}"
    best = min(run.metrics.step_ns for run, _ in ran)
    if not fits:
        return f"{line}; none fits its device's memory"
    if min(run.metrics.step_ns for run, _ in fits) > best:
        steps = [(run.metrics.step_ns, label) for run, label in fits]
        return f"{line}; of those that fit: {first_text(steps, uncertainty)}"
    return line


def first_text(steps: Sequence[tuple[int, str]], uncertainty: float = 0.0) -> str:
    """Return the name with the least step time, with its lead; all names where several share it, or are a tie.

    Args:
        steps: step times and names.
        uncertainty: the share of the least by which others may be off; what is nearer has no lead.

    >>> first_text([(110, "a"), (100, "b"), (150, "c")])
    'b, 10.00% before a'
    >>> first_text([(110, "a"), (100, "b"), (150, "c")], 0.2)
    'b and a, a tie (10.00% apart, known to about ±20.0%)'
    """
    least = min(step for step, _ in steps)
    near = sorted(((step, label) for step, label in steps if step <= least * (1 + uncertainty)), key=itemgetter(0))
    if near[-1][0] > least:
        apart = f"{near[-1][0] / least - 1:.2%} apart, known to about ±{uncertainty:.1%}"
        return f"{listed([label for _, label in near])}, a tie ({apart})"
    behind = sorted((step, label) for step, label in steps if step > least)
    lead = f", {behind[0][0] / least - 1:.2%} before {behind[0][1]}" if behind and least else ""
    return " and ".join(label for _, label in near) + lead
