"""What a schedule lacks that does not fit a limit of memory, and what would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import format_duration, format_size
from pptrace.errors import PptraceError
from pptrace.study.equal_schedule import form_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.equal_schedule import EqualSchedule

__all__ = ["needs", "none_fits", "shortage"]


def shortage(row: EqualSchedule, limit_bytes: int) -> str:
    """Return why no form of a schedule fits, as its row says it."""
    best = row.forms.best if row.forms else None
    return f"{'cannot run' if best is None else 'does not fit'}: {_lack(row, limit_bytes)}"


def _lack(row: EqualSchedule, limit_bytes: int) -> str:
    """Return which rank of the form of least memory needs how much and what would fit, or why none runs."""
    best, run = (row.forms.best, row.forms.run) if row.forms else (None, None)
    remedy = row.remedy
    with_more = remedy and f": fits with {form_text(remedy.change)} at {format_duration(remedy.step_ns or 0)}"
    if row.forms is None or best is None or run is None:
        return f"{row.reason}{with_more or ''}"
    state = int(run.metrics.memory.static_bytes[best.rank])
    form, room = form_text(best.change, row.forms.own.change), best.room_bytes or limit_bytes
    text = f"{needs(best.rank, best.peak_bytes, room)}{f', with {form}' if form else ''}"
    if state > room:
        text += f", {format_size(state)} of it before any activation, {format_size(state - room)} more"
    # A device that has less than the limit has no more under a larger one.
    enough = f": fits from {_rounded_up(best.peak_bytes)} on" if room == limit_bytes else ""
    return f"{text}{with_more or enough}"


def none_fits(rows: Sequence[EqualSchedule], limit_bytes: int, source: str) -> PptraceError:
    """Return the error where no schedule fits: which is the nearest, and what it lacks."""
    ran = [(row.forms.best.peak_bytes, row) for row in rows if row.forms and row.forms.best]
    if not ran:
        labels: dict[str, list[str]] = {}
        for row in rows:
            labels.setdefault(row.reason, []).append(row.entry.label)
        said = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in labels.items())
        return PptraceError(f"{source}: no schedule runs in {format_size(limit_bytes)}: {said}")
    least = min(ran, key=lambda one: one[0])[1]
    return PptraceError(
        f"{source}: no schedule fits {format_size(limit_bytes)}; {least.entry.label} comes nearest: "
        f"{_lack(least, limit_bytes)}"
    )


def needs(rank: int, peak_bytes: int, limit_bytes: int) -> str:
    """Return by how much a rank is over the limit.

    >>> needs(0, 80 * 2**30, 76 * 2**30)
    'rank 0 needs 80 GiB, 4 GiB more than 76 GiB'
    """
    more = format_size(peak_bytes - limit_bytes)
    return f"rank {rank} needs {format_size(peak_bytes)}, {more} more than {format_size(limit_bytes)}"


def _rounded_up(size_bytes: int) -> str:
    return format_size(-(-size_bytes * 1001 // 1000))
