"""Slices on links: a message shows once more on each link that it went over, and its flow passes there.

Their begins stand between those of sends and of receives, along each route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.kinds import CARRIES
from pptrace.export.perfetto.columns import PlainColumn, TakenColumn
from pptrace.export.perfetto.layout import Layout, Run
from pptrace.export.perfetto.names import LINK_CATEGORY
from pptrace.export.perfetto.records import Records
from pptrace.export.perfetto.slices import begin_place
from pptrace.export.perfetto.wire import varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.hops import Hops
    from pptrace.export.perfetto.columns import Column
    from pptrace.export.perfetto.slices import Slices
    from pptrace.model.columns import Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = ["link_runs", "spelt_names"]

_BEHIND_SENDS = 1
_REPEATED = ("start", "end", "correlation", "kind", "rank", "stage", "microbatch", "span", "bytes")
"""What a slice on a link has of its message."""
_ENTRY, _IID, _NAME = varint(2 << 3 | 2), varint(1 << 3), varint(2 << 3 | 2)
"""InternedData.event_names, EventName.iid and EventName.name."""
_IID_BYTES = 5


def link_runs(timeline: Timeline, hops: Hops, slices: Slices, tracks: Int32s, first_name: int) -> Iterator[Run]:
    """Return the runs of slices on links.

    Args:
        timeline: what they belong to.
        hops: the passages that they show.
        slices: the slices of the messages.
        tracks: track of each of the hops' lanes.
        first_name: number of the first message's name.
    """
    records = Records(_columns(timeline, hops, slices, tracks, first_name))
    along = np.lexsort((hops.place, hops.row)).astype(np.int32)
    lasting = (timeline.end_ns > timeline.start_ns)[hops.row[along]]
    for lasts, rows in ((True, along[lasting]), (False, along[~lasting])):
        if not rows.size:
            continue
        begin = records.begin(rows, leaving=1, ending=0)
        if lasts:
            yield Run(place=0, layout=Layout(tuple(records.end())), rows=rows, values=records.values)
        yield Run(
            place=begin_place(_BEHIND_SENDS, lasting=lasts),
            layout=Layout(tuple(begin if lasts else begin + records.end())),
            rows=rows,
            values=records.values,
        )


def spelt_names(titles: NDArray[np.bytes_], first_name: int) -> bytes:
    """Return entries of ``InternedData.event_names`` for titles that are numbered from ``first_name``."""
    length = np.strings.str_len(titles)
    number = np.arange(first_name, first_name + titles.size)[:, None] >> (7 * np.arange(_IID_BYTES)) & 0x7F
    number[:, :-1] |= 0x80
    inner = len(_IID) + _IID_BYTES + len(_NAME) + 1 + length
    parts = (_constant(_ENTRY, titles.size), inner[:, None], _constant(_IID, titles.size), number,
             _constant(_NAME, titles.size), length[:, None])  # fmt: skip
    head = np.concatenate(parts, axis=1).astype(np.uint8)
    text = titles.view(np.uint8).reshape(titles.size, titles.itemsize)
    whole = np.concatenate([head, text], axis=1)
    kept: NDArray[np.uint8] = whole[np.arange(whole.shape[1]) < (head.shape[1] + length)[:, None]]
    return kept.tobytes()


def _columns(timeline: Timeline, hops: Hops, slices: Slices, tracks: Int32s, first_name: int) -> dict[str, Column]:
    carried = CARRIES[timeline.kind[hops.row]]
    flow = np.where(carried, slices.flows.leaving.at(hops.row, 0), -1)
    columns: dict[str, Column] = {
        name: TakenColumn(slices.columns[name], hops.row) for name in _REPEATED if name in slices.columns
    }
    plain: dict[str, NDArray[np.integer[Any]]] = {
        "track": np.repeat(tracks, np.diff(hops.lane_ptr)),
        "name": hops.message + np.int32(first_name),
        "category": np.full(len(hops), LINK_CATEGORY, dtype=np.int8),
        "peer": hops.peer[hops.message],
        "link": hops.link,
        "hop": hops.place,
        "out 0": flow,
    }
    columns |= {name: PlainColumn(values) for name, values in plain.items()}
    return columns | {"transfer": TakenColumn(slices.columns["row"], hops.row)}


def _constant(raw: bytes, rows: int) -> NDArray[np.uint8]:
    return np.tile(np.frombuffer(raw, dtype=np.uint8), (rows, 1))
