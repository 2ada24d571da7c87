"""Comparison of schedules, and its document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import format_size
from pptrace.errors import ConfigError, PptraceError
from pptrace.report.charts import CYCLE, add_captions, columns_of, draw_bars, write_picture
from pptrace.run.figures import at_levels, metrics_row
from pptrace.run.summary import job_text, options_text, setting_text, time_text
from pptrace.sanitize import Printed, csv_of
from pptrace.search.basis import short_reason
from pptrace.search.policies import check_policies, compare_policies, policy_lines
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
from pptrace.search.text_table import table_lines
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.run.figures import Levels, Row
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.policies import PolicyTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSchedule:
    """One schedule of a comparison. Ranks count from 1; equal values share a rank."""

    entry: Entry
    """The schedule, as the user wrote it."""
    levels: Levels | None = None
    """Its figures at the three levels; None where it cannot run."""
    reason: str = ""
    """Why it cannot run, in one line."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of ``p2p``, where the configured policy cannot place its messages."""
    formula_is_exact: bool = True
    """Whether the bubble of its tables equals the formula."""
    formula_rank: int | None = None
    """By the bubble of the formula; None without a formula for these sizes."""
    table_rank: int | None = None
    """By the bubble of the idealised table."""
    simulated_rank: int | None = None
    """By step time."""
    table_move: int = 0
    """Places gained from formula to table, among schedules with a formula; negative if lost."""
    simulated_move: int = 0
    """Places gained from table to simulation; negative if lost."""

    def row(self) -> Row:
        """Return one row of a tidy table, times in ns and sizes in bytes."""
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
        return row | {
            "formula_rank": self.formula_rank, "table_rank": self.table_rank,
            "simulated_rank": self.simulated_rank,
            "table_move": None if self.levels is None else self.table_move,
            "simulated_move": None if self.levels is None else self.simulated_move,
            "refused": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Printed):
    """Schedules at three levels; prints as its table."""

    rows: tuple[ComparedSchedule, ...]
    """One per schedule, in the requested order."""
    policies: PolicyTable | None = None
    """The steps under every message policy; None where not requested."""

    @property
    def uncertainty(self) -> float:
        """Relative uncertainty of steps (``costs.uncertainty``); 0 where unknown."""
        return uncertainty_of(row.levels.run for row in self.rows if row.levels is not None)

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of schedules whose steps differ by less than their uncertainty, fastest first."""
        steps = sorted(
            (row.levels.run.metrics.step_ns, number, row.entry.label)
            for number, row in enumerate(self.rows)
            if row.levels is not None
        )
        return groups_within([(step, label) for step, _, label in steps], self.uncertainty)

    def table(self) -> list[Row]:
        """Return one row per schedule, all with the same columns, for pandas."""
        rows = [row.row() for row in self.rows]
        columns = next(list(row) for row, one in zip(rows, self.rows, strict=True) if one.levels is not None)
        return [{column: row.get(column) for column in columns} for row in rows]

    def to_csv(self) -> str:
        """Return :meth:`table`, or the rows of the policies, as CSV; unknown values are empty."""
        return csv_of([row.row() for row in self.policies.rows] if self.policies else self.table())

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain JSON values, with the configuration of each run."""
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
    """Simulate every schedule, and rank them at each level.

    Args:
        basis: the common configuration.
        entries: the schedules.
        watch: receives the name of each run before it starts.
        policies: whether to simulate each under every point-to-point policy too.

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
    """Return the common error of all schedules, or one that lists the reason of each."""
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    return PptraceError("no schedule can run: " + "; ".join(f"{row.entry.label}: {row.reason}" for row in rows))


_SIZES = ("pp", "vp", "microbatches")
"""Sizes that have a column where schedules differ in them."""

_AS_MUCH = 1.05
"""Ratio of two works up to which they count as equal."""


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the lines: heading, a row per schedule, the legend, and the fastest schedule."""
    rows = comparison.rows
    columns = _columns(rows, [row.levels for row in rows if row.levels is not None])
    cells = zip(*(texts for _, texts in columns), strict=True)
    table: list[Sequence[str]] = [
        ["", *(heading for (heading, _), _ in columns)],
        ["schedule", *(heading for (_, heading), _ in columns)],
    ]
    for row in rows:
        texts = next(cells) if row.levels is not None else (f"cannot run: {row.reason}",)
        table.append([row.entry.label, *texts])
    left = [index for index, heading in enumerate(table[1]) if heading in {"schedule", "#"}]
    return [
        *comparison_heading(comparison), "", *table_lines(table, left), "", *_notes(rows), *_ties(comparison),
        _verdict(rows, comparison.uncertainty),
    ]  # fmt: skip


def comparison_heading(comparison: Comparison) -> list[str]:
    """Return the lines of the job, and of its sizes and network where all schedules share them."""
    ran = [(row.entry, row.levels) for row in comparison.rows if row.levels is not None]
    usual = {row.entry for row in comparison.rows if not row.messages}
    counts = {_size(levels, "microbatches") for _, levels in ran}
    microbatches = f": {counts.pop()} microbatches" if len(counts) == 1 else ""
    # The label of an entry with settings shows how it differs.
    plain = [levels.run for entry, levels in ran if not entry.settings]
    configured = [levels.run for entry, levels in ran if not entry.settings and entry in usual]
    settings = {setting_text(run) for run in configured or plain or [levels.run for _, levels in ran]}
    return [f"{job_text(ran[0][1].run)}{microbatches}", *(settings if len(settings) == 1 else ())]


def _columns(rows: Sequence[ComparedSchedule], ran: Sequence[Levels]) -> list[tuple[tuple[str, str], list[str]]]:
    """Return each column: its two headings, and the text of every schedule that ran."""
    running = [row for row in rows if row.levels is not None]
    columns = []
    for name in _SIZES:
        sizes = [_size(levels, name) for levels in ran]
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


def _size(levels: Levels, name: str) -> int:
    prepared = levels.run.prepared
    if name == "microbatches":
        return prepared.request.microbatches
    return prepared.schedule.ranks if name == "pp" else prepared.schedule.stages // prepared.schedule.ranks


def _rank(rank: int | None, move: int) -> str:
    if rank is None:
        return "#-"
    return f"#{rank} ({move:+d})" if move else f"#{rank}"


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
    """Return a line with the options of each schedule that has any."""
    return [f"{label} runs with {options_text(run)}" for label, run in runs if options_text(run)]


def work_note(runs: Sequence[tuple[str, SimulatedStep]]) -> list[str]:
    """Return a line of the schedules that compute more than another one, if any."""
    whole = (Kind.F, Kind.B)
    work = [run.prepared.workload.total_ns(whole, run.prepared.schedule.microbatches) for _, run in runs]
    least = min(work)
    more = [
        f"{label} {work_ns / least:.3g} times"
        for (label, _), work_ns in zip(runs, work, strict=True)
        if work_ns > _AS_MUCH * least
    ]
    if not more:
        return []
    of = f"the work of {runs[work.index(least)][0]}"
    return [f"steps do not compute the same: {', '.join(more)} {of}; costs are per stage"]


def _ties(comparison: Comparison) -> list[str]:
    """Return the line of ties, where the costs have an uncertainty."""
    if not comparison.uncertainty:
        return []
    ties = "; ".join(join_names(tie) for tie in comparison.ties)
    verdict = f"nearer than that, a tie: {ties}" if ties else "all of these are further apart"
    return [f"steps are known to about ±{comparison.uncertainty:.1%} (costs.uncertainty); {verdict}"]


def _verdict(rows: Sequence[ComparedSchedule], uncertainty: float) -> str:
    """Return the line of the fastest schedule, and of the fastest one that fits."""
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
    """Return the name with the least step time and its lead; all names of a tie.

    Args:
        steps: step times and names.
        uncertainty: lead, as a share of the least step, up to which steps tie.

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
        add_captions(figure, comparison_heading(comparison), refused)

    write_picture(Path(path), (11.0, 2.2 + 0.62 * len(rows) + 0.18 * len(refused)), draw)
    return Path(path)


def _simulated(row: ComparedSchedule) -> tuple[int, str]:
    return row.simulated_rank or 0, row.entry.label


def _draw_ranks(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    """Draw a line per schedule through its places; the places by simulation are the rows of the bubbles."""
    ranks = [[_bar_rank(row, level) for row in rows] for level in range(len(_LEVELS))]
    places = [_bar_places(column) for column in ranks]
    for index, row in enumerate(rows):
        known = [(level, place) for level in range(len(_LEVELS)) if (place := places[level][index]) is not None]
        color, dashes = CYCLE[index % len(CYCLE)], ("-", (0, (4, 1.5)))[index // len(CYCLE) % 2]
        axes.plot(*columns_of(known), "o", color=color, lw=2.6, ls=dashes, ms=17, mfc="white", mew=2.2)
        for level, place in known:
            tilde = "~" if level == 0 and not row.formula_is_exact else ""
            axes.text(level, place, f"{tilde}{ranks[level][index]}", ha="center", va="center_baseline", fontsize=9)
    for level, column in enumerate(ranks):
        for rank in sorted({rank for rank in column if rank is not None and column.count(rank) > 1}):
            tied = [place for place, other in zip(places[level], column, strict=True) if other == rank]
            axes.plot([level] * len(tied), tied, color="#e1e5ea", lw=24, solid_capstyle="round", zorder=1)
    axes.set(xlim=(-0.35, len(_LEVELS) - 0.65))
    axes.set_xticks(range(len(_LEVELS)), _LEVELS, fontsize=10)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelleft=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title("rank", fontweight="bold", pad=22)


def _draw_bubbles(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    parts = {
        name: ([100 * (_bubble(row, level) or 0) for row in rows], shade)
        for level, (name, shade) in enumerate(zip(_LEVELS, _SHADES, strict=True))
    }
    least = min(row.levels.run.metrics.step_ns for row in rows if row.levels is not None)
    draw_bars(
        axes, [_name(row) for row in rows], parts, title="bubble, and idle time in the simulation",
        unit="% of all ranks' time", notes=[_step(row, least) for row in rows],
    )  # fmt: skip
    axes.tick_params(labelleft=True)


def _bar_rank(row: ComparedSchedule, level: int) -> int | None:
    return (row.formula_rank, row.table_rank, row.simulated_rank)[level]


def _bubble(row: ComparedSchedule, level: int) -> float | None:
    if row.levels is None:
        return None
    value = (row.levels.formula, row.levels.table, row.levels.run.metrics.bubble)[level]
    return None if value is None else float(value)


def _bar_places(ranks: Sequence[int | None]) -> list[int | None]:
    """Return a distinct place for each rank; equal ranks keep their order."""
    order = sorted((rank, index) for index, rank in enumerate(ranks) if rank is not None)
    places = {index: place for place, (_, index) in enumerate(order)}
    return [places.get(index) for index in range(len(ranks))]


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
