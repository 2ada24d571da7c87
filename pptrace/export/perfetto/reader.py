"""Reads pptrace's own Perfetto traces back into a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.export.damage import DAMAGE, checked_timeline, named_damage
from pptrace.export.hops import routed
from pptrace.export.perfetto.events import scan
from pptrace.export.perfetto.marker import placement_of
from pptrace.export.perfetto.parts import Part, joined
from pptrace.limits.reading import read_unpacked
from pptrace.timeline.counter import Counter
from pptrace.timeline.parts import Parts
from pptrace.timeline.routes import Routes
from pptrace.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.export.perfetto.events import Events
    from pptrace.model.columns import Int64s

__all__ = ["read"]

_FIELDS = {
    "kind": "kind",
    "stage": "stage",
    "microbatch": "microbatch",
    "span": "span",
    "enter_ns": "enter_ns",
    "lag_ns": "lag_ns",
    "uncontended_ns": "uncontended_ns",
    "collective_ns": "collective_ns",
    "bytes": "size_bytes",
    "cause": "cause",
    "pair": "pair",
}
"""The timeline's column of each typed field."""
_DEFAULTS = {"span": 1, "lag_ns": 0, "collective_ns": 0, "bytes": 0}
"""What an absent field stands for, where that is the same for all rows and not -1."""


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, one file for all ranks or one per rank.

    Raises:
        TraceError: a file is missing, truncated, not pptrace's or does not belong with the others.
    """
    parts = [_read_one(path) for path in paths]
    with named_damage(paths):
        return checked_timeline(joined(parts), paths[0])


def _read_one(path: Path) -> Part:
    raw = read_unpacked(path)
    try:
        events = scan(raw, str(path))
        return Part(path=path, timeline=_timeline(events, str(path)), first_row=events.step["first_row"])
    except DAMAGE as error:
        raise TraceError(f"is damaged ({' '.join(str(error).split())}); write it again", file=path) from None


def _timeline(events: Events, file: str) -> Timeline:
    rank, stream, peer = (np.array(part, dtype=np.int32) for part in events.step["lanes"][:3])
    tracks = np.array(events.step["lanes"][3], dtype=np.int64)
    names = ("position", "track", "start", "row", *_FIELDS, "segment", "segment_number")
    begin = {name: _joined(events.begins, name) for name in names}
    end = {name: _joined(events.ends, name) for name in ("position", "track", "end")}
    start, end_ns, order = _matched(begin, end, tracks, file)
    row = begin["row"][order] - events.step["first_row"]
    if row.size != events.step["slices"] or not np.array_equal(np.sort(row), np.arange(row.size)):
        raise TraceError(f"holds {row.size} of its {events.step['slices']} slices; write it again", file=file)
    columns: dict[str, Any] = {"start_ns": np.empty_like(start), "end_ns": np.empty_like(start)}
    columns["start_ns"][row], columns["end_ns"][row] = start, end_ns
    for name, column in _FIELDS.items():
        columns[column] = np.empty_like(start)
        columns[column][row] = begin[name][order]
    _fill(columns)
    sizes = np.bincount(_lanes(begin["track"][order], tracks), minlength=tracks.size)
    return Timeline(
        placement=placement_of(events.step),
        lane_rank=rank,
        lane_stream=stream.astype(np.int8),
        lane_peer=peer,
        lane_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        **columns,
        counters=_counters(events, file),
        routes=_routes(events, file),
        parts=_parts(events, begin, order, row),
        provenance=events.provenance,
    )


def _lanes(track: Int64s, tracks: Int64s) -> Int64s:
    """Return the lane of each track, -1 for a track that is no lane's."""
    order = np.argsort(tracks)
    place = np.minimum(np.searchsorted(tracks[order], track), max(tracks.size - 1, 0))
    if not tracks.size:
        return np.full_like(track, -1)
    return np.where(tracks[order][place] == track, order[place], -1)


def _matched(
    begin: dict[str, Int64s], end: dict[str, Int64s], tracks: Int64s, file: str
) -> tuple[Int64s, Int64s, Int64s]:
    """Pair begins and ends as a trace processor does; return starts, ends and the begins' places."""
    lane = _lanes(np.concatenate([begin["track"], end["track"]]), tracks)
    time = np.concatenate([begin["start"], end["end"]])
    position = np.concatenate([begin["position"], end["position"]])
    ours = np.flatnonzero(lane >= 0)
    order = ours[np.lexsort((position[ours], time[ours], lane[ours]))]
    first, second = order[0::2], order[1::2]
    begins = begin["track"].size
    if (
        first.size != second.size
        or (first >= begins).any()
        or (second < begins).any()
        or (lane[first] != lane[second]).any()
    ):
        raise TraceError("has slices that overlap or never end; write it again", file=file)
    return time[first], time[second], first


def _fill(columns: dict[str, Any]) -> None:
    """Replace absent values by what they stand for."""
    for name, default in _DEFAULTS.items():
        column = columns[_FIELDS[name]]
        column[column < 0] = default
    for column, default in (
        (columns["enter_ns"], columns["start_ns"]),
        (columns["uncontended_ns"], columns["end_ns"] - columns["start_ns"]),
    ):
        absent = column < 0
        column[absent] = default[absent]


def _counters(events: Events, file: str) -> tuple[Counter, ...]:
    track, at_ns, value = (_joined(events.points, name) for name in ("track", "at", "value"))
    order = np.argsort(track, kind="stable")
    track, at_ns, value = track[order], at_ns[order], value[order]
    found = []
    for rank, name, unit, uuid, points in events.step["counters"]:
        part = slice(np.searchsorted(track, uuid), np.searchsorted(track, uuid, side="right"))
        if at_ns[part].size != points:
            raise TraceError(f"holds {at_ns[part].size} of {points} values of {name}; write it again", file=file)
        found.append(Counter(rank=rank, name=name, unit=unit, at_ns=at_ns[part], value=value[part]))
    return tuple(found)


def _routes(events: Events, file: str) -> Routes | None:
    """Return the routes that slices on links spell out, hop by hop."""
    if "routes" not in events.step:
        return None
    name, rate_kbps, hops = events.step["routes"]
    link, row, place = (_joined(events.hops, key) for key in ("link", "transfer", "hop"))
    found = routed(events.step["slices"], row - events.step["first_row"], place, link)
    if found is None or link.size != hops or not np.isin(link, np.arange(len(name))).all():
        raise TraceError(f"holds {link.size} of its {hops} slices on links; write it again", file=file)
    return Routes(name=tuple(name), rate_kbps=np.array(rate_kbps, dtype=np.int64), ptr=found[0], link=found[1])


def _parts(events: Events, begin: Mapping[str, Int64s], order: Int64s, row: Int64s) -> Parts | None:
    """Return which rows are segments; None where the step has none."""
    if "segments" not in events.step:
        return None
    number, name = np.empty((2, row.size), dtype=np.int32)
    number[row], name[row] = begin["segment_number"][order], begin["segment"][order]
    return Parts(number=number, name=name, names=tuple(events.step["segments"]))


def _joined(parts: list[dict[str, Int64s]], name: str) -> Int64s:
    """Concatenate a column of all parts, -1 for a part that lacks it."""
    arrays = [part[name] if name in part else np.full(part["track"].size, -1) for part in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
