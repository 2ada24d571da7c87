"""What changes would bring, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.experiment.summary import job_text, schedule_text, setting_text, time_text

if TYPE_CHECKING:
    from pptrace.study.whatif import WhatIf, WhatIfs

__all__ = ["whatif_lines"]


def whatif_lines(found: WhatIfs) -> list[str]:
    """Return the step, and a line per change: the step with it, and what it saves."""
    run = found.run
    rows = [("what if", "step", "saves"), *(_cells(found, row) for row in found.rows)]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
    chunks = run.prepared.schedule.stages // run.prepared.schedule.ranks
    heading = f"{job_text(run)}: {schedule_text(run)}, {run.prepared.schedule.microbatches} microbatches"
    return [heading, setting_text(run, chunks=chunks), "", *lines]


def _cells(found: WhatIfs, row: WhatIf) -> tuple[str, str, str]:
    if row.step_ns is None:
        return row.name, "-", row.note
    step = found.run.metrics.step_ns
    if row is found.rows[0]:
        return row.name, time_text(found.run, step), "-"
    share = row.saved_ns / step if step else 0.0
    saved = f"{share:.1%}" if round(share, 3) else "nothing"
    return row.name, time_text(found.run, row.step_ns), saved
