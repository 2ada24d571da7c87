"""Comparison of schedules at three levels and under message policies, and its document."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.config.overrides import assignment
from pptrace.config.quantities import format_size
from pptrace.errors import ConfigError, DeadlockError, PptraceError
from pptrace.files import write_csv
from pptrace.report.charts import CYCLE, add_captions, columns_of, draw_bars, write_picture
from pptrace.report.document import Column, Document, Printed, Table, table_of
from pptrace.run.figures import at_levels, metrics_row
from pptrace.run.summary import job_text, options_text, setting_text, time_text
from pptrace.search.basis import short_reason
from pptrace.search.ranking import (
    POLICY,
    fallback_notes,
    groups_within,
    join_names,
    moves,
    notes_on_copies,
    policy_text,
    ranked,
    run_with_fallback,
    share_text,
    slower_text,
    uncertainty_of,
    versions_of,
)
from pptrace.timeline.metrics import plausibility_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.config.choices import Choice
    from pptrace.report.document import Block
    from pptrace.run.figures import Levels, Row
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Basis, Entry


class ComparedSchedule(Struct, frozen=True, kw_only=True):
    """One schedule of a comparison. Ranks count from 1; equal values share a rank."""

    entry: Entry
    """The schedule, as the user wrote it."""
    levels: Levels | None = None
    """Its figures at the three levels; None if it cannot run."""
    reason: str = ""
    """The reason why it cannot run, in one line."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of ``p2p`` if the configured policy cannot place its messages."""
    formula_is_exact: bool = True
    """Whether the bubble of its tables equals the formula."""
    formula_rank: int | None = None
    """Rank by the bubble of the formula; None without a formula for these sizes."""
    table_rank: int | None = None
    """Rank by the bubble of the idealised table."""
    simulated_rank: int | None = None
    """Rank by step time."""
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
                "vp": prepared.chunks,
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


class Comparison(Printed, Struct, frozen=True, kw_only=True):
    """Schedules at three levels; prints as its table."""

    rows: tuple[ComparedSchedule, ...]
    """One per schedule, in the requested order."""
    policies: PolicyTable | None = None
    """The steps under every message policy; None where not requested."""

    @property
    def ran(self) -> list[tuple[ComparedSchedule, SimulatedStep]]:
        """The schedules that ran, with their steps."""
        return [(row, row.levels.run) for row in self.rows if row.levels is not None]

    @property
    def uncertainty(self) -> float:
        """Relative uncertainty of steps (``costs.uncertainty``); 0 where unknown."""
        return uncertainty_of(run for _, run in self.ran)

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of schedules whose steps differ by less than their uncertainty, fastest first."""
        steps = [(run.metrics.step_ns, row.entry.label) for row, run in self.ran]
        return groups_within(sorted(steps, key=itemgetter(0)), self.uncertainty)

    def table(self) -> list[Row]:
        """Return one row per schedule, all with the same columns, for pandas."""
        rows = [row.row() for row in self.rows]
        columns = max(rows, key=len)
        return [{column: row.get(column) for column in columns} for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain JSON values, with the configuration of each run."""
        rows = [
            {**cells, "configuration": row.levels.run.provenance["configuration"] if row.levels else None}
            for cells, row in zip(self.table(), self.rows, strict=True)
        ]
        policies = {"policies": self.policies.to_dict()} if self.policies else {}
        return {
            **versions_of(run.provenance for _, run in self.ran), "rows": rows,
            **({"uncertainty": self.uncertainty, "ties": self.ties} if self.uncertainty else {}), **policies,
        }  # fmt: skip

    def document(self) -> Document:
        """Return the table that the command line prints, with the legend and the fastest schedule."""
        rows = [(row.row(), row.reason and f"cannot run: {row.reason}") for row in self.rows]
        policies = self.policies
        return Document(title="comparison", lead=[
            *_heading(self), "", table_of(_columns(self), rows), "", *_notes(self), *_ties(self),
            _verdict(self), *(_policy_blocks(policies, self.ran[0][1], self.uncertainty) if policies else []),
        ])  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Draw the three levels (.png, .svg or .pdf), or write :meth:`table` or the rows of the policies (.csv).

        The same comparison gives the same bytes.

        Raises:
            OutputError: another suffix, or a file that cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() == ".csv":
            write_csv(path, [row.row() for row in self.policies.rows] if self.policies else self.table())
            return path
        rows = [row for row, _ in self.ran]
        rows.sort(key=lambda row: (row.simulated_rank or 0, row.entry.label))
        refused = [f"{row.entry.label} cannot run: {row.reason}" for row in self.rows if row.levels is None]

        def draw(figure: Any) -> None:
            ranks, bubbles = figure.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.7))
            _draw_ranks(ranks, rows)
            _draw_bubbles(bubbles, rows)
            add_captions(figure, _heading(self), refused)

        write_picture(path, (11.0, 2.2 + 0.62 * len(rows) + 0.18 * len(refused)), draw)
        return path


def compare(
    basis: Basis, entries: Sequence[Entry], watch: Callable[[str], None] | None = None, *, policies: bool = False
) -> Comparison:
    """Simulate every schedule, and rank them at each level; ``policies`` adds their steps under every policy.

    ``watch`` receives the name of each run before it starts.

    Raises:
        PptraceError: an unknown name or option, before anything runs; or no schedule can run.
    """
    if not entries:
        raise ConfigError("no schedule to compare: write them as gpipe,1f1b", key="schedules")
    for entry in entries:
        basis.check(entry, basis.resolve(entry))
        if policies and any(override.path[0] == "p2p" for override in entry.varied):
            raise ConfigError("every policy is run: leave p2p out", file=entry.source)
    rows: list[ComparedSchedule] = []
    errors: list[PptraceError] = []
    for index, entry in enumerate(entries):
        if watch is not None:
            watch(f"{entry.label} ({index + 1} of {len(entries)})")
        try:
            rows.append(_compare_levels(basis, entry))
        except PptraceError as error:
            errors.append(error)
            rows.append(ComparedSchedule(entry=entry, reason=short_reason(error)))
    if len(errors) == len(rows):
        raise _all_failed_error(rows, errors)
    table = compare_policies(basis, entries, watch) if policies else None
    return Comparison(rows=_with_ranks(rows), policies=table)


def _compare_levels(basis: Basis, entry: Entry) -> ComparedSchedule:
    run, messages = run_with_fallback(basis, entry)
    offer = basis.find(entry)
    exact = offer is None or offer.bubble_is_exact
    return ComparedSchedule(entry=entry, levels=at_levels(run), messages=messages, formula_is_exact=exact)


def _with_ranks(rows: Sequence[ComparedSchedule]) -> tuple[ComparedSchedule, ...]:
    levels = [row.levels for row in rows]
    formula = ranked([level and level.formula for level in levels])
    table = ranked([level and level.table for level in levels])
    simulated = ranked([level and level.run.metrics.step_ns for level in levels])
    return tuple(
        replace(
            row, formula_rank=formula[index], table_rank=table[index], simulated_rank=simulated[index],
            table_move=moves(formula, table)[index], simulated_move=moves(table, simulated)[index],
        )
        for index, row in enumerate(rows)
    )  # fmt: skip


def _all_failed_error(rows: Sequence[ComparedSchedule], errors: Sequence[PptraceError]) -> PptraceError:
    """Return the common error of all schedules, or one that lists the reason of each."""
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    return PptraceError("no schedule can run: " + "; ".join(f"{row.entry.label}: {row.reason}" for row in rows))


_EQUAL_WORK_RATIO = 1.05
"""Maximum ratio between equal amounts of computation."""


def _heading(comparison: Comparison) -> list[str]:
    """Return the lines of the job, and of its sizes and network where all schedules share them."""
    ran = comparison.ran
    counts = {run.prepared.request.microbatches for _, run in ran}
    microbatches = f": {counts.pop()} microbatches" if len(counts) == 1 else ""
    # The label of an entry with settings shows how it differs.
    plain = [(row, run) for row, run in ran if not row.entry.settings]
    configured = [(row, run) for row, run in plain if not row.messages]
    settings = {setting_text(run) for _, run in configured or plain or ran}
    return [f"{job_text(ran[0][1])}{microbatches}", *(settings if len(settings) == 1 else ())]


def _columns(comparison: Comparison) -> list[Column]:
    rows, runs = [row.row() for row, _ in comparison.ran], {row.entry.label: run for row, run in comparison.ran}
    step, *columns_after_rank = step_columns(rows, runs)
    return [
        Column("schedule", ("schedule",), str, is_words=True),
        *(Column(key, (key,), str, len({row[key] for row in rows}) > 1) for key in ("pp", "vp", "microbatches")),
        Column("p2p", ("policy",), str, len({row["policy"] for row in rows}) > 1),
        Column("bubble", ("formula_bubble", "formula_is_exact"), share_text, group="formula"),
        Column("#", ("formula_rank",), rank_text, is_words=True),
        Column("bubble", ("table_bubble",), share_text, group="table"),
        Column("#", ("table_rank", "table_move"), rank_text, is_words=True),
        Column("idle", ("idle",), share_text, group="simulated"),
        step,
        Column("#", ("simulated_rank", "simulated_move"), rank_text, is_words=True),
        *columns_after_rank,
    ]


def step_columns(rows: Sequence[Row], runs: Mapping[str, SimulatedStep]) -> list[Column]:
    """Return the columns of step, slowdown, tokens per second and peak memory, for schedules that run."""
    shortest_ns = min(run.metrics.step_ns for run in runs.values())
    mark = "" if all(row.get("fits", True) for row in rows) else "  "
    return [
        Column("step", ("schedule", "step_ns"), lambda label, step_ns: time_text(runs[label], step_ns)),
        Column("slower", ("step_ns",), lambda step_ns: slower_text(step_ns, shortest_ns)),
        Column(
            "tokens/s", ("tokens_per_s",), lambda rate: f"{rate:,.0f}" if rate else "-",
            any(row["tokens_per_s"] for row in rows),
        ),
        Column(
            "peak", ("peak_memory_bytes", "fits"),
            lambda size, fits: f"{format_size(size)}{' !' if fits is False else mark}",
            any(row["peak_memory_bytes"] for row in rows),
        ),
    ]  # fmt: skip


def rank_text(rank: int | None, move: int = 0) -> str:
    """Return a rank with the places that were gained or lost."""
    if rank is None:
        return "#-"
    return f"#{rank} ({move:+d})" if move else f"#{rank}"


def _notes(comparison: Comparison) -> list[str]:
    rows = [row for row, _ in comparison.ran]
    runs = [(row.entry.label, run) for row, run in comparison.ran]
    notes = ["#: place by bubble, or by step time in the simulation; ties share a place"]
    if any(row.table_move or row.simulated_move for row in rows):
        notes.append("(+1), (-1): places gained or lost from formula to table, or from table to simulation")
    if any(row.formula_rank is not None and not row.formula_is_exact for row in rows):
        notes.append("~: approximate formula")
    notes += options_notes(runs)
    notes += fallback_notes([(row.entry.label, row.messages, run) for row, run in comparison.ran])
    notes += notes_on_copies(runs)
    notes += work_note(runs)
    notes += plausibility_notes((label, run.metrics.mfu, run.metrics.plausible_mfu) for label, run in runs)
    over = [run.metrics.memory for _, run in runs if run.metrics.memory.over_capacity]
    if over:
        capacities = sorted({int(size) for memory in over for size in memory.device_bytes})
        reserve = runs[0][1].prepared.workload.reserve_text
        notes.append(f"!: more than the device has, {' or '.join(map(format_size, capacities))}{reserve}")
    return notes


def options_notes(runs: Sequence[tuple[str, SimulatedStep]]) -> list[str]:
    """Return a line with the options of each schedule that has any."""
    return [f"{label} runs with {options_text(run)}" for label, run in runs if options_text(run)]


def work_note(runs: Sequence[tuple[str, SimulatedStep]]) -> list[str]:
    """Return a line of the schedules that compute more than another one, if any."""
    work = [run.work_ns for _, run in runs]
    lowest = min(work)
    larger = [
        f"{label} {work_ns / lowest:.3g} times"
        for (label, _), work_ns in zip(runs, work, strict=True)
        if work_ns > _EQUAL_WORK_RATIO * lowest
    ]
    if not larger:
        return []
    reference = f"the work of {runs[work.index(lowest)][0]}"
    return [f"steps do not compute the same: {', '.join(larger)} {reference}; costs are per stage"]


def _ties(comparison: Comparison) -> list[str]:
    """Return the line of ties, where the costs have an uncertainty."""
    if not comparison.uncertainty:
        return []
    ties = "; ".join(join_names(tie) for tie in comparison.ties)
    verdict = f"ties within that: {ties}" if ties else "no ties within that"
    return [f"steps are known to about ±{comparison.uncertainty:.1%} (costs.uncertainty); {verdict}"]


def _verdict(comparison: Comparison) -> str:
    """Return the line of the fastest schedule, and of the fastest one that fits."""
    steps = [(run.metrics.step_ns, row.entry.label) for row, run in comparison.ran]
    fits = [
        (run.metrics.step_ns, row.entry.label)
        for row, run in comparison.ran
        if run.metrics.memory.over_capacity is None
    ]
    line = f"fastest: {first_text(steps, comparison.uncertainty)}"
    if not fits:
        return f"{line}; none fits its device's memory"
    if min(fits)[0] > min(steps)[0]:
        return f"{line}; of those that fit: {first_text(fits, comparison.uncertainty)}"
    return line


def first_text(steps: Sequence[tuple[int, str]], uncertainty: float = 0.0) -> str:
    """Return the name with the shortest step and its lead; all names of a tie.

    Args:
        steps: step times and names.
        uncertainty: lead, as a share of the least step, up to which steps tie.

    >>> first_text([(110, "a"), (100, "b"), (150, "c")])
    'b, 10.00% before a'
    >>> first_text([(110, "a"), (100, "b"), (150, "c")], 0.2)
    'b and a, a tie (10.00% difference, uncertainty about ±20.0%)'
    """
    shortest_ns = min(step for step, _ in steps)
    limit_ns = shortest_ns * (1 + uncertainty)
    tied = sorted(((step, label) for step, label in steps if step <= limit_ns), key=itemgetter(0))
    if tied[-1][0] > shortest_ns:
        spread = f"{tied[-1][0] / shortest_ns - 1:.2%} difference, uncertainty about ±{uncertainty:.1%}"
        return f"{join_names([label for _, label in tied])}, a tie ({spread})"
    slower = sorted((step, label) for step, label in steps if step > shortest_ns)
    lead = f"; {slower[0][1]} is {slower[0][0] / shortest_ns - 1:.2%} slower" if slower and shortest_ns else ""
    return " and ".join(label for _, label in tied) + lead


_LEVELS = {"formula": "formula_bubble", "table": "table_bubble", "simulated": "idle"}
"""Names of the levels, and the figure of each."""

_SHADES = ("#c6dbef", "#6baed6", "#08519c")
"""Colors of the levels, distinguishable without hue (ColorBrewer's Blues, https://colorbrewer2.org)."""

_MAX_NAME = 28
"""Maximum length of a displayed name."""


def _draw_ranks(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    """Draw a line per schedule through its places; the places by simulation match the rows of the bubbles."""
    ranks = [[getattr(row, f"{name}_rank") for row in rows] for name in _LEVELS]
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
            tied = [place for place, tied_rank in zip(places[level], column, strict=True) if tied_rank == rank]
            axes.plot([level] * len(tied), tied, color="#e1e5ea", lw=24, solid_capstyle="round", zorder=1)
    axes.set(xlim=(-0.35, len(_LEVELS) - 0.65))
    axes.set_xticks(range(len(_LEVELS)), _LEVELS, fontsize=10)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelleft=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title("place", fontweight="bold", pad=22)


def _draw_bubbles(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    figures = [row.row() for row in rows]
    parts = {
        name: ([100 * float(cells[key] or 0) for cells in figures], shade)
        for (name, key), shade in zip(_LEVELS.items(), _SHADES, strict=True)
    }
    shortest_ns = min(row.levels.run.metrics.step_ns for row in rows if row.levels is not None)
    draw_bars(
        axes, [_name(row) for row in rows], parts, title="bubble, and simulated idle time",
        unit="share of all ranks' time [%]", notes=[_step(row, shortest_ns) for row in rows],
    )  # fmt: skip
    axes.tick_params(labelleft=True)


def _bar_places(ranks: Sequence[int | None]) -> list[int | None]:
    """Return a distinct place for each rank; equal ranks keep their order."""
    order = sorted((rank, index) for index, rank in enumerate(ranks) if rank is not None)
    places = {index: place for place, (_, index) in enumerate(order)}
    return [places.get(index) for index in range(len(ranks))]


def _step(row: ComparedSchedule, shortest_ns: int) -> str:
    if row.levels is None:
        return ""
    run = row.levels.run
    slower = slower_text(run.metrics.step_ns, shortest_ns)
    text = f"{time_text(run, run.metrics.step_ns)}{'' if slower == '-' else f'  {slower}'}"
    return f"{text}\nover its memory" if run.metrics.memory.over_capacity else text


def _name(row: ComparedSchedule) -> str:
    label = row.entry.label
    name = label if len(label) <= _MAX_NAME else f"{label[: _MAX_NAME - 1]}…"
    policy = row.messages.get(POLICY)
    return f"{name}\np2p {policy}" if policy else name


_VARIANTS: tuple[tuple[str, type[Choice], frozenset[PolicyName]], ...] = (
    ("p2p.stream", StreamPer, frozenset({PolicyName.ORDERED})),
    ("p2p.receive", Receive, frozenset({PolicyName.BLOCKING, PolicyName.BATCHED})),
)
"""Settings with the largest effect on a policy, their values, and the policies that have them."""


class PolicyRow(Struct, frozen=True, kw_only=True):
    """One schedule under one policy."""

    policy: str
    """The policy with its variant, as ``ordered, stream pair``."""
    settings: Mapping[str, str]
    """Its settings by key."""
    schedule: str
    """The schedule, as the user wrote it."""
    step_ns: int | None = None
    """The step; None if the schedule cannot run under the policy."""
    slowdown: float | None = None
    """Difference from the schedule's shortest step under any policy, as a share of that step."""
    reason: str = ""
    """The reason why it cannot run, in one line."""
    deadlocks: bool = False
    """Whether the reason is a deadlock of messages."""

    def row(self) -> Row:
        """Return one row of a tidy table."""
        return {
            "schedule": self.schedule, "policy": self.policy, "step_ns": self.step_ns,
            "slower": self.slowdown, "refused": self.reason or None,
        }  # fmt: skip


class PolicyTable(Struct, frozen=True, kw_only=True):
    """Schedules under every policy."""

    rows: tuple[PolicyRow, ...]
    """Ordered by policy, then by schedule."""

    def by_policy(self) -> dict[str, list[PolicyRow]]:
        """Return the rows of each policy."""
        rows: dict[str, list[PolicyRow]] = {}
        for row in self.rows:
            rows.setdefault(row.policy, []).append(row)
        return rows

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a mapping per row, with its settings."""
        return [{**row.row(), "settings": dict(row.settings)} for row in self.rows]


def settings_by_policy(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of policies by their titles: the core's with their variants, then those of plugins.

    >>> settings_by_policy(["ordered"])["ordered, stream pair"]
    {'p2p.policy': 'ordered', 'p2p.stream': 'pair'}
    """
    settings: dict[str, dict[str, str]] = {}
    core = PolicyName.words()
    for name in sorted(names, key=lambda name: (core.index(name) if name in core else len(core), name)):
        policies = PolicyName(name) if name in core else None
        words_by_key = [(key, choices.words()) for key, choices, takers in _VARIANTS if policies in takers]
        for key, word in [(key, word) for key, words in words_by_key for word in words]:
            settings[f"{name}, {key.partition('.')[2]} {word}"] = {"p2p.policy": name, key: word}
        if not words_by_key:
            settings[name] = {"p2p.policy": name}
    return settings


def compare_policies(
    basis: Basis, entries: Sequence[Entry], watch: Callable[[str], None] | None = None
) -> PolicyTable:
    """Simulate every schedule, none of which sets a policy, under every policy in place of the configured one.

    ``watch`` receives the name of each policy before it runs.
    """
    rows: list[PolicyRow] = []
    for policy, settings in settings_by_policy(basis.registry.message_policies).items():
        if watch is not None:
            watch(f"policy {policy}")
        rows += [_policy_row(basis, entry, policy, settings) for entry in entries]
    labels = [entry.label for entry in entries]
    shortest_ns = {label: _shortest_ns([row for row in rows if row.schedule == label]) for label in labels}
    return PolicyTable(
        rows=tuple(
            replace(row, slowdown=row.step_ns / shortest_ns[row.schedule] - 1)
            if row.step_ns and shortest_ns[row.schedule]
            else row
            for row in rows
        )
    )


def _policy_row(basis: Basis, entry: Entry, policy: str, settings: Mapping[str, str]) -> PolicyRow:
    assigned = [assignment(key, word, "--policies") for key, word in settings.items()]
    row = PolicyRow(policy=policy, settings=settings, schedule=entry.label)
    try:
        return replace(row, step_ns=basis.run(entry, assigned).metrics.step_ns)
    except PptraceError as error:
        return replace(row, reason=short_reason(error), deadlocks=isinstance(error, DeadlockError))


def _policy_blocks(table: PolicyTable, run: SimulatedStep, uncertainty: float) -> list[Block]:
    """Return a blank line, heading, table and refusals of policies; ``run`` decides whether times have units.

    All schedules whose steps are within the share ``uncertainty`` of the shortest count as the fastest.
    """
    policies = table.by_policy()
    schedules = [row.schedule for row in next(iter(policies.values()))]
    least = [_shortest_ns(rows) for rows in zip(*policies.values(), strict=True)]
    has_several = len(schedules) > 1
    cells = []
    for policy, rows in policies.items():
        steps = chain(*(_step_cells(row, least_ns, run) for row, least_ns in zip(rows, least, strict=True)))
        cells.append((policy, *steps, *([_fastest_under(rows, uncertainty)] if has_several else [])))
    head = ("policy", *chain(*((name, "") for name in schedules)), *(["fastest"] if has_several else []))
    heading = "step time by policy, and its difference from the schedule's fastest policy"
    return ["", heading, Table(head=head, rows=tuple(cells), left=(2 * len(schedules) + 1,)), *_refusals(table)]


def _refusals(table: PolicyTable) -> list[str]:
    """Return a line per schedule that no policy can run, or per policy that cannot run it."""
    reasons: dict[str, dict[str, str]] = {}
    for row in table.rows:
        if row.reason and not row.deadlocks:
            reasons.setdefault(row.schedule, {})[row.policy] = row.reason
    lines = []
    for schedule, by_policy in reasons.items():
        if len(by_policy) == len(table.by_policy()):
            lines.append(f"{schedule} cannot run: {next(iter(by_policy.values()))}")
        else:
            lines += [f"{schedule} under {policy} cannot run: {reason}" for policy, reason in by_policy.items()]
    return lines


def _step_cells(row: PolicyRow, least_ns: int, run: SimulatedStep) -> tuple[str, str]:
    if row.step_ns is None:
        return "deadlocks" if row.deadlocks else "cannot run", ""
    return time_text(run, row.step_ns), slower_text(row.step_ns, least_ns)


def _shortest_ns(rows: Sequence[PolicyRow]) -> int:
    return min((row.step_ns for row in rows if row.step_ns is not None), default=0)


def _fastest_under(rows: Sequence[PolicyRow], uncertainty: float) -> str:
    """Return the schedule with the shortest step under a policy; all schedules of a tie."""
    limit_ns = _shortest_ns(rows) * (1 + uncertainty)
    return " and ".join(row.schedule for row in rows if row.step_ns is not None and row.step_ns <= limit_ns) or "-"
