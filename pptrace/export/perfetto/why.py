"""Tracks of why ranks wait, and of the critical path.

A wait is named by its cause; a part of the path as the slice that it shows, or ``wire`` and ``wait`` behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.perfetto.columns import PlainColumn, TakenColumn
from pptrace.export.perfetto.counters import counter_run
from pptrace.export.perfetto.layout import Layout, Run
from pptrace.export.perfetto.names import PATH_CATEGORY, WAIT_CATEGORY
from pptrace.export.perfetto.records import Records
from pptrace.export.perfetto.slices import begin_place
from pptrace.timeline.counter import Counter
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pptrace.export.perfetto.columns import Column
    from pptrace.export.perfetto.slices import Slices
    from pptrace.timeline.critical_path import OnPath
    from pptrace.timeline.idle import Waits

__all__ = ["NAMES", "path_runs", "wait_runs"]

NAMES = (*(cause.word for cause in IdleCause), *PATH_PARTS[1:])
"""Names of slices on these tracks, beside those of actions."""

_LAST = 4
_SHOWN = ("kind", "rank", "stage", "microbatch", "span", "bytes", "peer", "correlation")
"""What a part of the path has of its slice."""


def wait_runs(waits: Waits, tracks: Mapping[int, int], first_name: int) -> Iterator[Run]:
    """Return the runs of waits, on each rank's track; :data:`NAMES` are numbered from ``first_name``."""
    track = np.zeros(int(waits.rank.max(initial=0)) + 1, dtype=np.int64)
    for rank in np.unique(waits.rank).tolist():
        track[rank] = tracks[rank]
    columns: dict[str, NDArray[np.integer[Any]]] = {
        "start": waits.start_ns, "end": waits.end_ns, "track": track[waits.rank],
        "name": waits.cause.astype(np.int32) + np.int32(first_name), "category": _alike(waits, WAIT_CATEGORY),
        "rank": waits.rank, "peer": waits.peer, "cause": waits.row,
    }  # fmt: skip
    yield from _runs({name: PlainColumn(values) for name, values in columns.items()}, len(waits))


def path_runs(
    path: OnPath, slices: Slices, tracks: tuple[int, int], first_name: int, first_row: int
) -> Iterator[Run]:
    """Return the runs of the critical path and of the rank that it is on, each on its track.

    The slices' first row has the number ``first_row``.
    """
    row = path.row - np.int32(first_row)
    columns: dict[str, Column] = {
        name: TakenColumn(slices.columns[name], row) for name in _SHOWN if name in slices.columns
    }
    other = np.int32(first_name + len(IdleCause) - 1)
    name = np.where(path.part == 0, slices.columns["name"].at(row), path.part + other)
    plain: dict[str, NDArray[np.integer[Any]]] = {
        "start": path.start_ns, "end": path.end_ns, "track": _alike(path, tracks[0]),
        "name": name, "category": _alike(path, PATH_CATEGORY), "shown": path.row,
    }  # fmt: skip
    yield from _runs(columns | {name: PlainColumn(values) for name, values in plain.items()}, len(path))
    if len(path):
        rank = slices.columns["rank"].at(row).astype(np.int64)
        on_rank = Counter(rank=-1, name="on rank", unit="rank", at_ns=path.start_ns, value=rank)
        yield counter_run([on_rank], tracks[1:])


def _runs(columns: dict[str, Column], size: int) -> Iterator[Run]:
    if not size:
        return
    records, rows = Records(columns), np.arange(size, dtype=np.int32)
    yield Run(place=0, layout=Layout(tuple(records.end())), rows=rows, values=records.values)
    yield Run(
        place=begin_place(_LAST, lasting=True), layout=Layout(tuple(records.begin(rows, leaving=0, ending=0))),
        rows=rows, values=records.values,
    )  # fmt: skip


def _alike(columns: Waits | OnPath, value: int) -> NDArray[np.int64]:
    return np.full(len(columns), value, dtype=np.int64)
