"""Comparison of schedules, and its document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import format_size
from pptrace.errors import ConfigError, PptraceError
from pptrace.report.charts import CYCLE, INK, MUTED, write_picture
from pptrace.run.figures import at_levels, metrics_row
from pptrace.run.summary import job_text, options_text, setting_text, time_text
from pptrace.sanitize import Printed, csv_of
from pptrace.search.basis import short_reason
from pptrace.search.policies import check_policies, compare_policies
from pptrace.search.ranking import (
    POLICY,
    fallback_notes,
    groups_within,
    join_names,
    moves,
    policy_text,
    ranked,
    run_with_fallback,
    slower_text,
    uncertainty_of,
)
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.run.figures import Levels, Row
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.policies import PolicyTable


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
        from pptrace.search.policies import policy_lines

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
        return save_comparison_plot(self, path)


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
    run, messages = run_with_fallback(basis, entry)
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


_SIZES = ("pp", "vp", "microbatches")
"""Sizes that have a column where schedules differ in them."""


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
    notes += fallback_notes([(row.entry.label, row.messages, row.levels.run) for row in running if row.levels])
    notes += work_note([(row.entry.label, row.levels.run) for row in running if row.levels])
    over = [row.levels for row in running if row.levels and row.levels.run.metrics.over_capacity]
    if over:
        capacities = sorted({int(size) for one in over for size in one.run.metrics.memory.room_bytes})
        notes.append(f"!: more than the device has, {' or '.join(map(format_size, capacities))}")
    return notes


def options_notes(runs: Sequence[tuple[str, SimulatedStep]]) -> list[str]:
    """Return a line per schedule with options of its own, which says those that it ran with."""
    return [f"{label} runs with {options_text(run)}" for label, run in runs if options_text(run)]


def work_note(runs: Sequence[tuple[str, SimulatedStep]]) -> list[str]:
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
    ties = "; ".join(join_names(tie) for tie in comparison.ties)
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
        return f"{join_names([label for _, label in near])}, a tie ({apart})"
    behind = sorted((step, label) for step, label in steps if step > least)
    lead = f", {behind[0][0] / least - 1:.2%} before {behind[0][1]}" if behind and least else ""
    return " and ".join(label for _, label in near) + lead


_LEVELS = ("formula", "table", "simulated")

_SHADES = ("#c6dbef", "#6baed6", "#08519c")
"""Of the levels, light to dark: told apart without their hue (ColorBrewer's Blues, https://colorbrewer2.org)."""

_BAR = 0.25
"""Height of one of three bars in a row of height 1."""

_LONGEST_LINE = 28
"""Letters of a schedule's name that are written."""


def save_comparison_plot(comparison: Comparison, path: str | Path) -> Path:
    """Draw a comparison into a .png, .svg or .pdf file; the same comparison gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    rows = sorted((row for row in comparison.rows if row.levels is not None), key=_simulated)
    refused = [f"{row.entry.label} cannot run: {row.reason}" for row in comparison.rows if row.levels is None]

    def draw(figure: Any) -> None:
        ranks, bubbles = figure.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.7))
        _draw_ranks(ranks, rows)
        _draw_bubbles(bubbles, rows)
        figure.suptitle("\n".join(comparison_heading(comparison)), x=0.01, ha="left", fontsize=11, color=INK)
        if refused:
            figure.supxlabel("\n".join(map(_cut_line, refused)), x=0.01, ha="left", fontsize=8, color=INK)

    write_picture(Path(path), (11.0, 2.2 + 0.62 * len(rows) + 0.18 * len(refused)), draw)
    return Path(path)


def _simulated(row: ComparedSchedule) -> tuple[int, str]:
    return row.simulated_rank or 0, row.entry.label


def _draw_ranks(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    """Draw a line per schedule through its places; the simulated ones are the rows of the bubbles beside."""
    columns = [[_bar_rank(row, level) for row in rows] for level in range(len(_LEVELS))]
    places = [_bar_places(ranks) for ranks in columns]
    for level, ranks in enumerate(columns):
        _draw_ties(axes, level, ranks, places[level])
    for index, row in enumerate(rows):
        color = CYCLE[index % len(CYCLE)]
        known = [
            (level, places[level][index]) for level in range(len(_LEVELS)) if places[level][index] is not None
        ]
        style = ("-", (0, (4, 1.5)))[index // len(CYCLE) % 2]
        axes.plot(*zip(*known, strict=True), color=color, lw=2.6, ls=style, zorder=2, solid_capstyle="round")
        for level, place in known:
            axes.plot(level, place, "o", ms=17, mfc="white", mec=color, mew=2.2, zorder=3)
            tilde = "~" if level == 0 and not row.formula_is_exact else ""
            text = f"{tilde}{_bar_rank(row, level)}"
            axes.text(level, place, text, ha="center", va="center_baseline", fontsize=9, color=INK, zorder=4)
    axes.set(xlim=(-0.35, len(_LEVELS) - 0.65), xticks=range(len(_LEVELS)), xticklabels=_LEVELS)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10, labelcolor=INK, labelleft=False)
    axes.spines[:].set_visible(False)
    axes.set_title("rank", loc="left", fontsize=10, fontweight="bold", color=INK, pad=22)


def _draw_ties(axes: Any, level: int, ranks: Sequence[int | None], places: Sequence[int | None]) -> None:
    """Join the places of schedules that share a rank."""
    for rank in sorted({rank for rank in ranks if rank is not None and ranks.count(rank) > 1}):
        tied = [place for place, own in zip(places, ranks, strict=True) if own == rank and place is not None]
        axes.plot([level] * 2, [min(tied), max(tied)], color="#e1e5ea", lw=24, solid_capstyle="round", zorder=1)


def _draw_bubbles(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    for level, (name, shade) in enumerate(zip(_LEVELS, _SHADES, strict=True)):
        values = [_bubble(row, level) for row in rows]
        at = [index + (level - 1) * _BAR for index in range(len(rows))]
        axes.barh(at, [100 * (value or 0) for value in values], _BAR * 0.92, color=shade, label=name)
    most = max(_bubble(row, level) or 0 for row in rows for level in range(len(_LEVELS))) or 1
    least = min(row.levels.run.metrics.step_ns for row in rows if row.levels is not None)
    for index, row in enumerate(rows):
        end = max(_bubble(row, level) or 0 for level in range(len(_LEVELS)))
        axes.text(100 * end + 1.2 * most, index, _step(row, least), va="center", fontsize=9, color=INK)
    axes.set(
        xlim=(0, 100 * most * 1.32), ylim=(len(rows) - 0.45, -0.55), yticks=range(len(rows)),
        yticklabels=[_name(row) for row in rows],
    )  # fmt: skip
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK, labelleft=True)
    axes.tick_params(axis="x", labelsize=8, color=MUTED, labelcolor=INK)
    axes.set_xlabel("% of all ranks' time", fontsize=9, color=INK)
    axes.grid(axis="x", color="#eaeef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_title(
        "bubble, and idle time in the simulation", loc="left", fontsize=10, fontweight="bold", color=INK, pad=22
    )
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=3, fontsize=9, frameon=False, borderaxespad=0
    )


def _bar_rank(row: ComparedSchedule, level: int) -> int | None:
    return (row.formula_rank, row.table_rank, row.simulated_rank)[level]


def _bubble(row: ComparedSchedule, level: int) -> float | None:
    if row.levels is None:
        return None
    value = (row.levels.formula, row.levels.table, row.levels.run.metrics.bubble)[level]
    return None if value is None else float(value)


def _bar_places(ranks: Sequence[int | None]) -> list[int | None]:
    """Return a place of its own for each that has a rank, tied ones in the order in which they stand."""
    order = sorted((rank, index) for index, rank in enumerate(ranks) if rank is not None)
    place = {index: at for at, (_, index) in enumerate(order)}
    return [place.get(index) for index in range(len(ranks))]


def _step(row: ComparedSchedule, least_ns: int) -> str:
    if row.levels is None:
        return ""
    run = row.levels.run
    slower = slower_text(run.metrics.step_ns, least_ns)
    text = f"{time_text(run, run.metrics.step_ns)}{'' if slower == '-' else f'  {slower}'}"
    return f"{text}\nover its memory" if run.metrics.over_capacity else text


def _name(row: ComparedSchedule) -> str:
    label = row.entry.label
    name = label if len(label) <= _LONGEST_LINE else f"{label[: _LONGEST_LINE - 1]}…"
    policy = row.messages.get(POLICY)
    return f"{name}\np2p {policy}" if policy else name


def _cut_line(line: str) -> str:
    longest = 150
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
