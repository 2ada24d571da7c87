"""The best settings of each schedule under one memory limit."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.quantities import format_duration, format_size
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, ConstraintError, PptraceError
from pptrace.files import write_csv
from pptrace.report.charts import add_captions, draw_bars, write_picture
from pptrace.report.document import Code, Column, Document, Printed, Section, command_lines, table_of
from pptrace.run.neighbourhood import Change
from pptrace.run.preparation import build_costs
from pptrace.run.summary import job_text, setting_text, time_text
from pptrace.run.table_changes import NO_COPY_TIMES, copies_take_time
from pptrace.search.basis import LIMITS, limit_settings, memory_limit, short_reason
from pptrace.search.compare import first_text, rank_text, step_columns
from pptrace.search.launch_arguments import simulate_command
from pptrace.search.ranking import (
    ANY_TABLE,
    POLICY,
    fallback_notes,
    fallback_policy,
    join_names,
    notes_on_copies,
    policy_text,
    ranked,
    share_text,
    slower_text,
    uncertainty_of,
    versions_of,
)
from pptrace.search.settings_search import SettingsSearch, varied_settings
from pptrace.timeline.metrics import hidden_ns, plausibility_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.run.figures import Row
    from pptrace.run.neighbourhood import Trial
    from pptrace.run.run import Run
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.settings_search import VariableSetting
    from pptrace.steps.workload import Workload

_DERIVED = "batch.microbatches"
"""A setting that follows from other settings."""


class EqualSchedule(Struct, frozen=True, kw_only=True):
    """One schedule of a comparison on equal memory."""

    entry: Entry
    """The schedule, as the user wrote it."""
    variants: SettingsSearch | None = None
    """The search of its settings; None if its costs cannot be built."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The settings of all its variants: the schedule's name and settings, and the limit."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of ``p2p`` if the configured policy cannot place its messages."""
    under_common_policy: EqualSchedule | None = None
    """This schedule under the policy for all tables, if a schedule needs that policy and this one fits."""
    reason: str = ""
    """The reason why the configured variant, or every variant, cannot run, in one line."""
    needs_memory: bool = False
    """Whether this reason is a lack of memory."""
    remedy: Trial | None = None
    """Further settings with which the variant of least memory fits, if none fits; None without such settings."""
    rank: int | None = None
    """By step time among fitting schedules, from 1; equal steps share a rank."""

    @property
    def fits(self) -> bool:
        """Whether a variant fits on every rank."""
        return self.variants is not None and self.variants.fits

    @property
    def run(self) -> Run | None:
        """The step of the best variant; None if no variant fits."""
        return self.variants.run if self.variants and self.variants.fits else None

    @property
    def best(self) -> Trial | None:
        """The best variant, or the variant of least memory if no variant fits; None if no variant runs."""
        return self.variants.best if self.variants else None

    @property
    def step_ns(self) -> int | None:
        """The step of the best variant; None if no variant fits."""
        return self.best.step_ns if self.fits and self.best else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the best variant that override the configuration."""
        return {**self.given, **(self.best.change.settings if self.best else {})}

    @property
    def arguments(self) -> str:
        """The arguments of ``pptrace simulate`` that reproduce the best variant."""
        return Change(settings=self.settings).arguments

    @property
    def variant(self) -> str:
        """The settings in which the best variant differs from the configured one."""
        if self.best is None or self.variants is None:
            return ""
        return variant_text(self.best.change, self.variants.configured.change)

    @property
    def common_policy_variant(self) -> str:
        """The settings of the best variant under the common policy; empty if it is also the best variant."""
        common = self.under_common_policy
        if not common or not common.best or not self.best or not self.variants:
            return ""
        change = common.best.change
        text = variant_text(change, self.variants.configured.change) or "as configured"
        return "" if change == self.best.change else text


def without_copy_times(rows: Sequence[EqualSchedule], varied: Sequence[VariableSetting]) -> list[str]:
    """Return the schedules whose variants omit requested copies to the host, because copy times are unknown."""
    if all(setting.name != "offload" for setting in varied):
        return []
    prepared = [(row.entry.label, row.variants.run.prepared) for row in rows if row.variants and row.variants.run]
    return [
        label
        for label, step in prepared
        if step.resolved.experiment.schedule.offload is None and not copies_take_time(step.workload)
    ]


def variant_text(change: Change, base: Change | None = None) -> str:
    """Return the settings of a change that ``base`` lacks, such as ``vp 2, recompute full``."""
    base_settings = base.settings if base else {}
    return ", ".join(
        f"{_name(key)} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in change.settings.items()
        if key != _DERIVED and base_settings.get(key) != value
    )


def _name(key: str) -> str:
    """Return a key without its section."""
    return key.partition(".")[2].removeprefix("options.").replace("_", "-")


_JOB = ("pp", "tp", "dp", "cp", "ep")


class EqualComparison(Printed, Struct, frozen=True, kw_only=True):
    """Schedules under one memory limit; prints as its table."""

    rows: tuple[EqualSchedule, ...]
    """One per schedule, in the requested order."""
    limit_bytes: int
    """Memory of every rank."""
    varied: tuple[VariableSetting, ...]
    """Settings that vary between variants."""
    source: str
    """File of the common configuration; empty without one."""
    given: Mapping[str, Any]
    """Common settings over that file, by key."""

    def table(self) -> list[Row]:
        """Return one row per schedule, all with the same columns, for pandas."""
        rows = [equal_row(row, self.limit_bytes) for row in self.rows]
        columns = max(rows, key=len)
        return [{column: row.get(column) for column in columns} for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain JSON values, with all simulated variants and the settings of the best."""
        rows = [
            {
                **cells,
                "settings": dict(row.settings) if row.fits else None,
                "as_configured": row.variants.configured.to_dict() if row.variants else None,
                "tried": [variant.to_dict() for variant in row.variants.tried] if row.variants else [],
                "configuration": row.run.provenance["configuration"] if row.run else None,
            }
            for cells, row in zip(self.table(), self.rows, strict=True)
        ]
        return {
            **versions_of(row.run.provenance for row in self.rows if row.run),
            "memory_limit_bytes": self.limit_bytes,
            "varied": {setting.name: setting.text for setting in self.varied},
            "without_copy_times": without_copy_times(self.rows, self.varied), "rows": rows,
        }  # fmt: skip

    def document(self) -> Document:
        """Return the table that the command line prints, with legend, arguments, and the fastest schedule."""
        rows = [equal_row(row, self.limit_bytes) for row in self.rows]
        table = table_of(_columns(self.rows, rows), [(row, str(row["refused"] or "")) for row in rows])
        return Document(title="comparison", lead=[
            *_heading(self.rows, self.limit_bytes), "", table, "", *_legend(self.rows, self.varied),
            *_refitted(self.rows, self.limit_bytes), *_fastest(self.rows),
        ], sections=(self._commands(),))  # fmt: skip

    def _commands(self) -> Section:
        lines: list[str] = []
        for row in self.rows:
            if row.fits:
                command = simulate_command(self.source, {**self.given, **row.settings})
                lines += [f"# {row.entry.label}", *command_lines(command)]
        return Section(title="commands that reproduce the steps", blocks=(Code(lines=tuple(lines)),))

    def save(self, path: str | Path) -> Path:
        """Draw steps and memory (.png, .svg or .pdf), or write :meth:`table` (.csv).

        The same comparison gives the same bytes.

        Raises:
            OutputError: another suffix, or a file that cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() == ".csv":
            write_csv(path, self.table())
            return path
        rows = sorted((row for row in self.rows if row.fits), key=lambda row: (row.rank or 0, row.entry.label))
        runs = [row.run for row in rows if row.run]
        refused = [f"{row.entry.label} {shortage(row, self.limit_bytes)}" for row in self.rows if not row.fits]

        def draw(figure: Any) -> None:
            steps, memory = figure.subplots(1, 2, sharey=True)
            _draw_steps(steps, rows, runs)
            _draw_memory(memory, rows, runs, self.limit_bytes)
            add_captions(figure, _heading(self.rows, self.limit_bytes), refused)

        write_picture(path, (11.0, 2.2 + 0.5 * len(rows) + 0.18 * len(refused)), draw)
        return path


def compare_equal(
    basis: Basis,
    entries: Sequence[Entry],
    memory: object,
    vary: Sequence[str] = (),
    watch: Callable[[str], None] | None = None,
) -> EqualComparison:
    """Find the best variant of every schedule that fits a limit on every rank.

    Args:
        basis: the common configuration.
        entries: the schedules; settings of an entry do not vary.
        memory: memory of a rank, such as ``76GiB``.
        vary: names of :data:`~pptrace.search.settings_search.VARIED`; by default all that need no request.
        watch: receives the name of each variant before it runs.

    Raises:
        PptraceError: an invalid size or name, schedules of different jobs, costs without memory, or no schedule
            that fits.
    """
    if not entries:
        raise ConfigError("no schedule to compare: write them as gpipe,1f1b", key="schedules")
    limit, settings = memory_limit(memory), varied_settings(vary)
    roots = [basis.resolve(entry) for entry in entries]
    for entry, root in zip(entries, roots, strict=True):
        basis.check(entry, root)
    _check_jobs(entries, roots)
    searches = _Searches(basis=basis, limit=limit, settings=settings, watch=watch)
    rows = searches.rows(entries, roots)
    if not any(row.fits for row in rows):
        raise none_fits(rows, limit)
    ranks = ranked([row.step_ns for row in rows])
    rows = [replace(row, rank=rank) for row, rank in zip(rows, ranks, strict=True)]
    if len({POLICY in row.messages for row in rows if row.fits}) > 1:
        rows = [searches.with_common_policy(row, root) for row, root in zip(rows, roots, strict=True)]
    return EqualComparison(
        rows=tuple(rows), limit_bytes=limit, varied=settings, source=basis.document.source, given=basis.given,
    )  # fmt: skip


def parse_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return names separated by commas.

    >>> parse_names(["vp, micro", "zero"])
    ('vp', 'micro', 'zero')
    """
    return tuple(name.strip() for text in texts for name in text.split(","))


def check_exclusive(*, memory: bool, policies: bool, vary: bool) -> None:
    """Reject options that exclude each other.

    Raises:
        ConfigError: a memory limit with policies, or axes without a limit.
    """
    if memory and policies:
        raise ConfigError("a comparison at equal memory has one policy: remove --policies")
    if vary and not memory:
        raise ConfigError("needs --memory: it varies settings of a comparison at equal memory", file="--vary")


class _Searches(Struct, frozen=True, kw_only=True):
    """The searches of all schedules, with shared workloads."""

    basis: Basis
    limit: int
    settings: tuple[VariableSetting, ...]
    watch: Callable[[str], None] | None
    workloads: dict[Any, Workload | None] = field(default_factory=dict)

    def rows(self, entries: Sequence[Entry], roots: Sequence[Resolved]) -> list[EqualSchedule]:
        """Return the result of each schedule, or the error of its costs as its reason.

        Raises:
            PptraceError: no schedule has usable costs, or no costs know memory.
        """
        rows: list[EqualSchedule] = []
        errors: list[PptraceError] = []
        for index, (entry, root) in enumerate(zip(entries, roots, strict=True)):
            try:
                costs = build_costs(root, self.basis.registry)
            except PptraceError as error:
                errors.append(error)
                rows.append(EqualSchedule(entry=entry, reason=short_reason(error)))
            else:
                limit = limit_settings(root, costs, self.limit)
                rows.append(self._row(entry, root, limit, f"{entry.label} ({index + 1} of {len(entries)})"))
        if len(errors) == len(rows):
            raise errors[0]
        return rows

    def _row(self, entry: Entry, root: Resolved, limit: Mapping[str, Any], title: str) -> EqualSchedule:
        """Return the result of a schedule, with the reason if its configured variant cannot run."""
        messages: dict[str, Any] = {}
        while True:
            search = self._search(entry, root, {**limit, **messages}, title)
            overrides = {} if search.best else fallback_policy(self.basis, entry, search.misplaced)
            if overrides.keys() <= messages.keys():
                break
            messages |= overrides
        if search.run is not None and not search.run.metrics.memory.peak_bytes.any():
            raise ConfigError("the costs have no bytes, so every schedule fits: leave it out", file="--memory")
        return EqualSchedule(
            entry=entry, variants=search, messages=messages,
            given={"schedule.name": entry.name, **dict(entry.settings), **limit, **messages},
            reason=short_reason(search.error) if search.error else "",
            needs_memory=isinstance(search.error, ConstraintError) and search.error.needs_memory,
            remedy=None if search.fits else search.add_memory_savings(),
        )  # fmt: skip

    def _search(
        self, entry: Entry, root: Resolved, settings: Mapping[str, Any], title: str, likely: Change | None = None
    ) -> SettingsSearch:
        """Search the variants of a schedule that share ``settings``."""
        change, watch = Change(settings=settings), self.watch
        resolved = load(root.written, change.sets, change.flags)
        search = SettingsSearch(
            resolved=resolved, registry=self.basis.registry, settings=self.settings, limit_bytes=self.limit,
            fixed=tuple(key for key, _ in entry.settings),
            costs_key=tuple(setting for setting in entry.settings if not setting[0].startswith("schedule.")),
            may_drop_chunks=not entry.sets("parallel.vp"), workloads=self.workloads,
            watch=None if watch is None else lambda count: watch(f"{title}, variant {count}"),
        )  # fmt: skip
        search.search(likely)
        return search

    def with_common_policy(self, row: EqualSchedule, root: Resolved) -> EqualSchedule:
        """Return a schedule with its result under the policy for all tables.

        The search includes the best variant under the configured policy, so its result is no worse.
        Schedules that set a policy have no such result.
        """
        if row.best is None or not row.fits or row.entry.sets(POLICY) or row.entry.sets("p2p"):
            return row
        given = {**{key: value for key, value in row.given.items() if not key.startswith("p2p.")}, **ANY_TABLE}
        search = row.variants
        if POLICY not in row.messages:
            title = f"{row.entry.label} under {ANY_TABLE[POLICY]}"
            search = self._search(row.entry, root, given, title, row.best.change)
        common = replace(row, variants=search, given=given)
        return replace(row, under_common_policy=common if common.fits else None)


def _check_jobs(entries: Sequence[Entry], roots: Sequence[Resolved]) -> None:
    """Reject schedules of different jobs, and entries with a memory limit."""
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
        for (key, value), (_, first) in zip(job, jobs[0][1], strict=True):
            if value != first:
                message = f"has {key} {value}, and {jobs[0][0].label} has {first}: write the same job for all"
                raise ConfigError(message, file=entry.source)


def equal_row(row: EqualSchedule, limit_bytes: int) -> Row:
    """Return one row of a tidy table: times in ns, sizes in bytes, memory of the fullest rank."""
    cells: Row = {"schedule": row.entry.label, "rank": row.rank}
    common = row.under_common_policy
    if row.run is not None:
        cells |= {
            "variant": row.variant,
            "arguments": row.arguments,
            "common_policy_step_ns": common.step_ns if common else None,
            "common_policy_arguments": common.arguments if common else None,
            **_figures(row.run, limit_bytes),
        }
    if row.variants is not None:
        configured = row.variants.configured
        cells |= {
            "configured_step_ns": configured.step_ns,
            "configured_peak_memory_bytes": configured.peak_bytes or None,
            "configured_fits": int(configured.fits),
            "simulated": len(row.variants.tried),
        }
    return cells | {"refused": None if row.fits else shortage(row, limit_bytes)}


def _figures(run: Run, limit_bytes: int) -> Row:
    metrics, memory, schedule = run.metrics, run.metrics.memory, run.prepared.schedule
    fullest = memory.fullest
    peak = int(memory.peak_bytes[fullest])
    return {
        "pp": schedule.ranks,
        "vp": run.prepared.chunks,
        "micro": run.prepared.resolved.experiment.batch.micro,
        "microbatches": run.prepared.request.microbatches,
        "policy": policy_text(run),
        "step_ns": metrics.step_ns,
        "tokens_per_s": metrics.tokens_per_s,
        "mfu": metrics.mfu,
        "bubble": float(metrics.bubble),
        "hidden_communication_ns": int(hidden_ns(run.timeline).sum()),
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "memory_limit_bytes": limit_bytes,
        "fullest_rank": fullest,
        "peak_memory_bytes": peak,
        "left_bytes": (memory.fullest_device_bytes or limit_bytes) - peak,
        **{name: int(getattr(memory, name)[fullest]) for name in _STATE},
        "activation_bytes": int(memory.peak_activation_bytes[fullest]),
    }


def shortage(row: EqualSchedule, limit_bytes: int) -> str:
    """Return the text of a row whose schedule has no fitting variant."""
    return f"{_verdict(row, can_run=row.best is not None)}: {_shortage_reason(row, limit_bytes)}"


def _verdict(row: EqualSchedule, *, can_run: bool = False) -> str:
    """Return whether a schedule, or its configured variant, lacks memory or cannot run."""
    return "does not fit" if can_run or row.needs_memory else "cannot run"


def _shortage_reason(row: EqualSchedule, limit_bytes: int) -> str:
    """Return the excess of the variant of least memory with its remedy, or the reason why no variant runs."""
    best, run, remedy = row.best, row.variants.run if row.variants else None, row.remedy
    with_remedy = remedy and f": fits with {variant_text(remedy.change)} at {format_duration(remedy.step_ns or 0)}"
    if row.variants is None or best is None or run is None:
        return f"{row.reason}{with_remedy or ''}"
    state = int(run.metrics.memory.static_bytes[best.rank])
    variant, capacity = variant_text(best.change, row.variants.configured.change), best.device_bytes or limit_bytes
    text = f"{needs(best.rank, best.peak_bytes, capacity)}{f', with {variant}' if variant else ''}"
    if state > capacity:
        text += f", {format_size(state)} of it without activations"
    # A larger limit does not help a device whose capacity is below the limit.
    sufficient_limit = f": fits from {_format_rounded_up(best.peak_bytes)} on" if capacity == limit_bytes else ""
    return f"{text}{with_remedy or sufficient_limit}"


def none_fits(rows: Sequence[EqualSchedule], limit_bytes: int) -> PptraceError:
    """Return the error if no schedule fits, with the schedule of least memory."""
    valid = [(row.best.peak_bytes, row) for row in rows if row.best]
    if not valid:
        labels: dict[str, list[str]] = {}
        for row in rows:
            labels.setdefault(row.reason, []).append(row.entry.label)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in labels.items())
        return PptraceError(f"--memory: no schedule runs in {format_size(limit_bytes)}: {reasons}")
    nearest = min(valid, key=itemgetter(0))[1]
    return PptraceError(
        f"--memory: no schedule fits {format_size(limit_bytes)}; {nearest.entry.label} needs the least: "
        f"{_shortage_reason(nearest, limit_bytes)}"
    )


def needs(rank: int, peak_bytes: int, limit_bytes: int) -> str:
    """Return the memory of a rank and its excess over the limit.

    >>> needs(0, 80 * 2**30, 76 * 2**30)
    'rank 0 needs 80 GiB, 4 GiB more than 76 GiB'
    """
    excess = format_size(peak_bytes - limit_bytes)
    return f"rank {rank} needs {format_size(peak_bytes)}, {excess} more than {format_size(limit_bytes)}"


def _format_rounded_up(size_bytes: int) -> str:
    return format_size(-(-size_bytes * 1001 // 1000))


_STATE = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "buffer_bytes", "reserved_bytes")


def _fastest(rows: Sequence[EqualSchedule]) -> list[str]:
    """Return the line of the fastest schedule, after that under the common policy if there is one."""
    runs = [(row.entry.label, row.run) for row in rows if row.run]
    uncertainty = uncertainty_of(run for _, run in runs)
    common = [(each.step_ns or 0, each.entry.label) for row in rows if (each := row.under_common_policy)]
    lines = []
    if common:
        lines = [_common_variants(rows), f"fastest under {ANY_TABLE[POLICY]}: {first_text(common, uncertainty)}"]
    return [*lines, f"fastest: {first_text([(run.metrics.step_ns, label) for label, run in runs], uncertainty)}"]


def _heading(rows: Sequence[EqualSchedule], limit_bytes: int) -> list[str]:
    """Return the lines of the job with its batch and limit, and of a run under the configured policy if any."""
    runs = [(row.messages, row.run) for row in rows if row.run]
    run = next((run for messages, run in runs if not messages), runs[0][1])
    total = run.prepared.resolved.experiment.batch.global_batch
    limit = f"{format_size(limit_bytes)} per rank{run.prepared.workload.reserve_text}"
    return [f"{job_text(run)}: global batch {total:,}, {limit}", setting_text(run)]


def _columns(schedules: Sequence[EqualSchedule], rows: Sequence[Row]) -> list[Column]:
    runs = {schedule.entry.label: schedule.run for schedule in schedules if schedule.run}
    has_common = any(schedule.under_common_policy for schedule in schedules)

    def size_text(*sizes_bytes: int) -> str:
        return format_size(sum(sizes_bytes))

    def part_text(time_ns: int, step_ns: int, ranks: int) -> str:
        return share_text(time_ns / ((step_ns or 1) * ranks))

    def common_text(label: str, step_ns: int | None) -> str:
        return time_text(runs[label], step_ns) if step_ns else "-"

    return [
        Column("schedule", ("schedule",), str, is_words=True),
        Column("#", ("rank",), rank_text, is_words=True),
        *step_columns([row for row in rows if row["rank"]], runs),
        Column("left", ("left_bytes",), size_text),
        Column("state", _STATE, size_text),
        Column("activations", ("activation_bytes",), size_text),
        Column("bubble", ("bubble",), share_text),
        Column("hidden", ("hidden_communication_ns", "step_ns", "pp"), part_text),
        Column("exposed", ("exposed_communication_ns", "step_ns", "pp"), part_text),
        Column("p2p", ("policy",), str, len({row["policy"] for row in rows if row["rank"]}) > 1),
        Column(f"all {ANY_TABLE[POLICY]}", ("schedule", "common_policy_step_ns"), common_text, has_common),
        Column("variant", ("variant",), lambda variant: variant or "as configured", is_words=True),
    ]


def _common_variants(rows: Sequence[EqualSchedule]) -> str:
    """Return a line with the best variants under the policy that runs every table, if they differ."""
    policy = ANY_TABLE[POLICY]
    text = f"all {policy}: each schedule's best variant under {policy}"
    changed = [f"{row.entry.label} {row.common_policy_variant}" for row in rows if row.common_policy_variant]
    return f"{text}, another one for {'; '.join(changed)}" if changed else f"{text}, the same variant for each"


def _legend(rows: Sequence[EqualSchedule], varied: Sequence[VariableSetting]) -> list[str]:
    names = ", ".join(setting.name for setting in varied)
    common = [row.under_common_policy for row in rows if row.under_common_policy]
    searches = {id(row.variants): row.variants for row in (*rows, *common) if row.variants}.values()
    simulated = sum(len(search.tried) for search in searches)
    candidates = sum(search.candidates for search in searches)
    untimed = without_copy_times(rows, varied)
    subject = f" for {join_names(untimed)}" if len(untimed) not in {0, len(rows)} else ""
    runs = [(row.entry.label, row.messages, row.run) for row in rows if row.run]
    return [
        "peak: state and activations of the fullest rank; state: weights, gradients, optimizer, buffers, reserve",
        "hidden, exposed: overlapped and non-overlapped communication, as shares of all ranks' time",
        f"varied: {names}; the GPUs, the batch and all other settings are as configured",
        f"simulated {simulated} variants: the best of {candidates} estimated ones, and neighbours of the fastest",
        *([f"offload is not varied{subject}: {NO_COPY_TIMES}"] if untimed else []),
        *fallback_notes(runs),
        *notes_on_copies((label, run) for label, _, run in runs),
        *plausibility_notes((label, run.metrics.mfu, run.metrics.plausible_mfu) for label, _, run in runs),
    ]


def _refitted(rows: Sequence[EqualSchedule], limit_bytes: int) -> list[str]:
    """Return a line per schedule that fits in another variant than the configured one."""
    lines = []
    for row in rows:
        if row.variants is None or row.variants.configured.fits or row.run is None:
            continue
        configured, reason = row.variants.configured, f"{_verdict(row)}: {row.reason}"
        if not configured.reason:
            reason = needs(configured.rank, configured.peak_bytes, configured.device_bytes or limit_bytes)
        step = time_text(row.run, row.run.metrics.step_ns)
        lines.append(f"{row.entry.label} as configured: {reason}: fits with {row.variant} at {step}")
    return lines


_STEP, _STATE_COLOR, _ACTIVATIONS = "#6baed6", "#8c959f", "#e69f00"
_GIB = 2**30


def _draw_steps(axes: Any, rows: Sequence[EqualSchedule], runs: Sequence[Run]) -> None:
    steps = [run.metrics.step_ns for run in runs]
    slower = [slower_text(step, min(steps)).replace("-", "shortest") for step in steps]
    texts = [time_text(run, step) for run, step in zip(runs, steps, strict=True)]
    draw_bars(
        axes, [_settings_label(row) for row in rows], {"step": ([step / 1e9 for step in steps], _STEP)},
        title="step time", unit="s", notes=list(map("{}, {}".format, texts, slower)), stacked=True,
    )  # fmt: skip


def _draw_memory(axes: Any, rows: Sequence[EqualSchedule], runs: Sequence[Run], limit_bytes: int) -> None:
    fullest = [(run.metrics.memory, run.metrics.memory.fullest) for run in runs]
    activations = [int(memory.peak_activation_bytes[rank]) / _GIB for memory, rank in fullest]
    peaks = [int(memory.peak_bytes[rank]) / _GIB for memory, rank in fullest]
    state = [peak - activation for peak, activation in zip(peaks, activations, strict=True)]
    parts = {"model states": (state, _STATE_COLOR), "activations": (activations, _ACTIVATIONS)}
    limit = limit_bytes / _GIB, f"limit, {format_size(limit_bytes)}"
    draw_bars(
        axes, [_settings_label(row) for row in rows], parts, title="peak memory of a rank", unit="GiB",
        limit=limit, stacked=True,
    )  # fmt: skip


def _settings_label(row: EqualSchedule) -> str:
    """Return a schedule's label and variant, with its policy if it overrides the configured policy."""
    policy = row.messages.get(POLICY)
    variant = ", ".join(filter(None, [row.variant, policy and f"p2p {policy}"]))
    return f"{row.entry.label}\n{variant}".rstrip()
