"""What a measurement without actions still tells: communication and computation by rank and name."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pptrace.analysis.steps.words import aligned, ms
from pptrace.config.quantity import format_rate, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.timeline.measurement import Measurement, Occupied, Summary

__all__ = ["TO_SEE_ACTIONS", "brief", "summed_document", "summed_lines"]

TO_SEE_ACTIONS = (
    "to see a pipeline's actions, mark them where they run (pptrace annotate prints a module for that), or say in "
    "a file how the annotations that are there name them (--rules FILE)"
)
"""What to do about traces without actions."""

_LONGEST_NAME = 64


def summed_lines(measurement: Measurement, name: str, top: int = 10) -> list[str]:
    """Return a table by rank, one by name, and what to do; ``top`` bounds the names of each sort."""
    found = measurement.summaries
    lines = [f"{name}: no action of a pipeline was found; its operations, times in sum", ""]
    lines += ["by rank", *aligned(_ranks(found))]
    if measurement.occupied:
        lines += ["", "each GPU from its first operation to its last", *aligned(_occupied(measurement.occupied))]
    for communicates, title in ((True, "communication"), (False, "computation")):
        own = [one for one in found if one.communicates == communicates]
        if own:
            lines += ["", f"{title}, all ranks", *aligned(_names(own, top))]
    return [*lines, "", *_clocks(measurement), TO_SEE_ACTIONS]


def summed_document(measurement: Measurement) -> dict[str, Any]:
    """Return everything that is known as plain JSON values, times in nanoseconds."""
    ranks = []
    for rank in sorted({one.rank for one in measurement.summaries}):
        own = [one for one in measurement.summaries if one.rank == rank]
        both = {
            name: _whole(own, communicates=name == "communication") for name in ("communication", "computation")
        }
        ranks.append({"rank": rank, **both})
    return {
        "step": None,
        "ranks": ranks,
        "occupied": [asdict(one) for one in measurement.occupied],
        "summaries": [asdict(one) for one in measurement.summaries],
        "clocks": [asdict(one) for one in measurement.clocks],
        "unattributed": [asdict(one) for one in measurement.unattributed],
        "notes": [*measurement.notes, TO_SEE_ACTIONS],
    }  # fmt: skip


def brief(name: str) -> str:
    """Return a kernel's name without its parameters, at most 64 characters of it.

    >>> brief("void at::native::(anonymous namespace)::fill<int, (kind)2>(int*, long)")
    'at::native::fill<int, (kind)2>'
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            plain = plain[:at] or plain
            break
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 3]}..."


def _whole(summaries: Iterable[Summary], *, communicates: bool) -> dict[str, int]:
    own = [one for one in summaries if one.communicates == communicates]
    return {
        "count": sum(one.count for one in own),
        "total_ns": sum(one.total_ns for one in own),
        "size_bytes": sum(one.size_bytes for one in own),
    }


def _ranks(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "communication", "operations", "bytes", "computation", "operations")]
    for rank in sorted({one.rank for one in summaries}):
        own = [one for one in summaries if one.rank == rank]
        told = [_whole(own, communicates=each) for each in (True, False)]
        rows.append((
            f"rank {rank}", ms(told[0]["total_ns"]), f"{told[0]['count']:,}", _size(told[0]["size_bytes"]),
            ms(told[1]["total_ns"]), f"{told[1]['count']:,}",
        ))  # fmt: skip
    return rows


def _occupied(gpus: Sequence[Occupied]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "in all", "computing", "exposed communication", "idle")]
    for one in gpus:
        parts = (one.computing_ns, one.exposed_ns, one.idle_ns)
        whole = sum(parts)
        rows.append(
            (f"rank {one.rank}", ms(whole), *(f"{ms(part)} {part / max(whole, 1):6.1%}" for part in parts))
        )
    return rows


def _names(summaries: Iterable[Summary], top: int) -> list[tuple[str, ...]]:
    """Return a row per name, the longest in sum first, and one of the rest."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in summaries:
        parts = (one.count, one.total_ns, one.size_bytes)
        totals[one.what] = [a + b for a, b in zip(totals[one.what], parts, strict=True)]
    order = sorted(totals, key=lambda what: (-totals[what][1], what))
    sized = any(size for _, _, size in totals.values())
    rows = [_row("", ("how many", "in sum", "each"), ("bytes", "a second"), sized=sized)]
    rows += [_figures(brief(what), totals[what], sized=sized) for what in order[:top]]
    rest = [totals[what] for what in order[top:]]
    if rest:
        rows.append(
            _figures(f"{len(rest)} further names", [sum(part) for part in zip(*rest, strict=True)], sized=sized)
        )
    return rows


def _figures(name: str, total: Sequence[int], *, sized: bool) -> tuple[str, ...]:
    count, time, size = total
    rate = format_rate(round(size * 1e9 / time)) if size and time else ""
    return _row(name, (f"{count:,}", ms(time), ms(time / max(count, 1))), (_size(size), rate), sized=sized)


def _row(name: str, always: Sequence[str], sizes: Sequence[str], *, sized: bool) -> tuple[str, ...]:
    return (name, *always, *(sizes if sized else ()))


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else ""


def _clocks(measurement: Measurement) -> list[str]:
    return [
        f"clock of rank {clock.rank}: set by {clock.offset_ns / 1e6:+.3f} (±{clock.bound_ns / 1e6:.3f}) ms"
        for clock in measurement.clocks
        if clock.pairs
    ]
