"""A comparison on equal memory as a table of plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import format_size
from pptrace.experiment.moved import NO_COPY_TIMES
from pptrace.experiment.summary import job_text, setting_text, time_text
from pptrace.study.compare_text import first_text, slower_text
from pptrace.study.equal_rows import equal_row
from pptrace.study.equal_schedule import without_copy_times
from pptrace.study.equal_shortage import needs, shortage
from pptrace.study.ranking import listed, uncertainty_of
from pptrace.study.stand_in import ANY_TABLE, POLICY, policy_text, stand_in_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.experiment.run import Run
    from pptrace.experiment.varied import VariedSetting
    from pptrace.study.equal_schedule import EqualSchedule
    from pptrace.study.row import Row

__all__ = ["equal_heading", "equal_lines"]

_STATE = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "buffer_bytes", "reserved_bytes")


def equal_lines(rows: Sequence[EqualSchedule], limit_bytes: int, varied: Sequence[VariedSetting]) -> list[str]:
    """Return the lines: what is compared, a row per schedule, who is the fastest, and how to get each step."""
    runs = {row.entry.label: row.forms.run for row in rows if row.fits and row.forms and row.forms.run}
    columns = _columns([row for row in rows if row.fits], runs, limit_bytes)
    widths = [max(map(len, column)) for column in columns]
    first = max(len(label) for label in ["schedule", *(row.entry.label for row in rows)])
    table = [_line(cells, widths) for cells in zip(*columns, strict=True)]
    body = iter(table[1:])
    lines = [*equal_heading(rows, limit_bytes), "", f"{'schedule':<{first}}  {table[0]}"]
    lines += [
        f"{row.entry.label:<{first}}  {next(body) if row.fits else shortage(row, limit_bytes)}" for row in rows
    ]
    lines += ["", *_legend(rows, varied), *_mended(rows, limit_bytes), *_arguments(rows, first)]
    steps = [(run.metrics.step_ns, label) for label, run in runs.items()]
    uncertainty = uncertainty_of(runs.values())
    alike = [(row.alike_ns, row.entry.label) for row in rows if row.alike_ns is not None]
    if alike:
        lines += [_alike_forms(rows), f"fastest under {ANY_TABLE[POLICY]}: {first_text(alike, uncertainty)}"]
    return [*lines, f"fastest: {first_text(steps, uncertainty)}"]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join a row's cells: figures right, the rank before them and the form behind them left."""
    figures = [f"{cell:>{width}}" for cell, width in zip(cells[1:-1], widths[1:-1], strict=True)]
    return "  ".join([f"{cells[0]:<{widths[0]}}", *figures, cells[-1]])


def equal_heading(rows: Sequence[EqualSchedule], limit_bytes: int) -> list[str]:
    """Return what is compared: the job, its batch and the limit, and the configuration's policy if one has it."""
    ran = [(row.messages, row.forms.run) for row in rows if row.fits and row.forms and row.forms.run]
    run = next((run for messages, run in ran if not messages), ran[0][1])
    total = run.prepared.resolved.experiment.batch.global_batch
    return [f"{job_text(run)}: global batch {total:,}, {format_size(limit_bytes)} per rank", setting_text(run)]


def _columns(rows: Sequence[EqualSchedule], runs: dict[str, Run], limit_bytes: int) -> list[list[str]]:
    """Return each column: its heading, and its text for every schedule that fits."""
    figures = [equal_row(row, limit_bytes) for row in rows]
    steps = [run.metrics.step_ns for run in runs.values()]
    columns = [
        ["#", *(f"#{row.rank}" for row in rows)],
        ["step", *(time_text(run, run.metrics.step_ns) for run in runs.values())],
        ["slower", *(slower_text(step, min(steps)) for step in steps)],
    ]
    if any(run.metrics.tokens_per_s for run in runs.values()):
        columns.append(["tokens/s", *(f"{run.metrics.tokens_per_s or 0:,.0f}" for run in runs.values())])
    columns += [
        ["peak", *(_size(one["peak_memory_bytes"]) for one in figures)],
        ["left", *(_size(one["left_bytes"]) for one in figures)],
        ["state", *(_size(sum(int(one[key] or 0) for key in _STATE)) for one in figures)],
        ["activations", *(_size(one["activation_bytes"]) for one in figures)],
        ["bubble", *(f"{float(run.metrics.bubble):.2%}" for run in runs.values())],
    ]
    for name in ("hidden", "exposed"):
        shares = [_share(one, f"{name}_communication_ns") for one in figures]
        columns.append([name, *(f"{share:.2%}" for share in shares)])
    if any(row.alike_ns is not None for row in rows):
        alike = [_alike(row, run) for row, run in zip(rows, runs.values(), strict=True)]
        columns += [
            ["p2p", *map(policy_text, runs.values())],
            [f"all {ANY_TABLE[POLICY]}", *alike],
        ]
    return [*columns, ["form", *(row.form or "as configured" for row in rows)]]


def _alike_forms(rows: Sequence[EqualSchedule]) -> str:
    """Return a line that says which best forms are others under the policy that takes any table."""
    policy = ANY_TABLE[POLICY]
    told = f"all {policy}: each schedule's best form under {policy}"
    others = [f"{row.entry.label} {row.alike_form}" for row in rows if row.alike_ns is not None and row.alike_form]
    return f"{told}, another one for {'; '.join(others)}" if others else f"{told}, the same form for each"


def _alike(row: EqualSchedule, run: Run) -> str:
    return "-" if row.alike_ns is None else time_text(run, row.alike_ns)


def _size(value: object) -> str:
    return format_size(int(str(value)))


def _share(row: Row, key: str) -> float:
    return float(row[key] or 0) / (float(row["step_ns"] or 1) * float(row["pp"] or 1))


def _legend(rows: Sequence[EqualSchedule], varied: Sequence[VariedSetting]) -> list[str]:
    searched = [row.forms for row in rows if row.forms]
    searched += [row.alike for row in rows if row.alike and row.alike is not row.forms]
    simulated, candidates = (sum(count) for count in zip(
        *((len(forms.tried), forms.candidates) for forms in searched), strict=True
    ))  # fmt: skip
    ran = [
        (row.entry.label, row.messages, row.forms.run) for row in rows if row.fits and row.forms and row.forms.run
    ]
    return [
        "peak: the fullest rank's, state and activations; state: weights, gradients, optimizer, buffers, reserve",
        "hidden, exposed: communication that computation hid, and that it did not, in parts of all ranks' time",
        f"varied: {', '.join(one.name for one in varied)}; all else is the configuration's, so are GPUs and batch",
        f"simulated {simulated} forms: of {candidates} estimated ones the likeliest, and others near the best",
        *_copies_note(rows, varied),
        *stand_in_notes(ran),
    ]


def _copies_note(rows: Sequence[EqualSchedule], varied: Sequence[VariedSetting]) -> list[str]:
    untimed = without_copy_times(rows, varied)
    if not untimed:
        return []
    of = f" for {listed(untimed)}" if len(untimed) < len(rows) else ""
    return [f"offload left out{of}: {NO_COPY_TIMES}"]


def _mended(rows: Sequence[EqualSchedule], limit_bytes: int) -> list[str]:
    """Return a line per schedule that does not fit as it is configured, but in another form."""
    lines = []
    for row in rows:
        if not row.fits or row.forms is None or row.forms.own.fits or row.forms.run is None:
            continue
        own = row.forms.own
        said = (
            f"cannot run: {row.reason}"
            if own.reason
            else needs(own.rank, own.peak_bytes, own.room_bytes or limit_bytes)
        )
        step = time_text(row.forms.run, row.forms.run.metrics.step_ns)
        lines.append(f"{row.entry.label} as configured: {said}: fits with {row.form} at {step}")
    return lines


def _arguments(rows: Sequence[EqualSchedule], first: int) -> list[str]:
    lines = [f"  {row.entry.label:<{first}}  {row.arguments}" for row in rows if row.fits]
    return ["each step again, behind pptrace simulate and what stands before --schedules:", *lines]
