"""Strings of a trace, each written once and referred to by its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pptrace.export.kinds import CATEGORY, COLLECTIVE, NAMES
from pptrace.printable import printable
from pptrace.timeline.actions import in_group

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import InternedData

    from pptrace.model.columns import Int8s, Int32s
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "CATEGORIES",
    "DIFFERENCE_CATEGORY",
    "KIND_CATEGORY",
    "LINK_CATEGORY",
    "PATH_CATEGORY",
    "WAIT_CATEGORY",
    "Names",
    "categories",
    "numbered",
]

CATEGORIES = ("compute", "communication", "copy", "collective")
"""Categories of slices on ranks; the number of one is its place, counted from 1."""

LINK_CATEGORY = len(CATEGORIES) + 1
"""The number of the category of slices on links."""

DIFFERENCE_CATEGORY = LINK_CATEGORY + 1
"""The number of the category of slices that tell two steps apart."""

WAIT_CATEGORY, PATH_CATEGORY = DIFFERENCE_CATEGORY + 1, DIFFERENCE_CATEGORY + 2
"""The numbers of the categories of waits and of the critical path."""

_DENSE = 1 << 24
"""Keys below this are numbered by marking them; above, by sorting them."""


KIND_CATEGORY = np.array([CATEGORIES.index(category) + 1 for category in CATEGORY], dtype=np.int8)
"""The category's number of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Slice names such as ``F 3`` and, where asked for, microbatches such as ``mb 3``."""

    names: tuple[str, ...]
    """Name of each number from 1."""
    name: Int32s
    """Each row's name."""
    microbatches: tuple[str, ...] = ()
    """Microbatch of each number from 1."""
    microbatch: Int32s | None = None
    """Each row's microbatch, -1 for none; None where slices are coloured by their names."""

    @classmethod
    def of(cls, timeline: Timeline, *, by_microbatch: bool = False) -> Self:
        """Number the names of a timeline's slices."""
        spans, span = numbered(timeline.span.astype(np.int64))
        microbatches = int(timeline.microbatch.max(initial=-1)) + 2
        pair = span.astype(np.int64) * microbatches + timeline.microbatch + 1
        whats, what = _whats(timeline)
        keys, name = numbered(pair * len(whats) + what)
        texts = _microbatches((keys // len(whats)).tolist(), microbatches, spans.tolist())
        chosen = [whats[key] for key in (keys % len(whats)).tolist()]
        names = tuple(f"{kind}{text}{part}" for (kind, part), text in zip(chosen, texts, strict=True))
        if not by_microbatch:
            return cls(names=names, name=name + np.int32(1))
        keys, place = numbered(pair)
        return cls(
            names=names,
            name=name + np.int32(1),
            microbatches=tuple(f"mb{text}" for text in _microbatches(keys.tolist(), microbatches, spans.tolist())),
            microbatch=np.where(timeline.microbatch < 0, np.int32(-1), place + np.int32(1)),
        )

    def write(self, interned: InternedData) -> None:
        """Add the strings to a packet's interned data."""
        for iid, text in enumerate(CATEGORIES, 1):
            interned.event_categories.add(iid=iid, name=text)
        for iid, text in enumerate(self.names, 1):
            interned.event_names.add(iid=iid, name=printable(text))
        for iid, text in enumerate(self.microbatches, 1):
            interned.correlation_id_str.add(iid=iid, str=text.encode())


def categories(timeline: Timeline) -> Int8s:
    """Return the number of each slice's category."""
    found = KIND_CATEGORY[timeline.kind]
    found[in_group(timeline)] = CATEGORIES.index(COLLECTIVE) + 1
    return found


def _whats(timeline: Timeline) -> tuple[list[tuple[str, str]], NDArray[np.integer[Any]]]:
    """Return what may stand before and behind a name's microbatch, kind and segment, and which each row has."""
    parts = timeline.parts
    if parts is None:
        return [(kind, "") for kind in NAMES], timeline.kind
    segments = ["", *(f" {name}" for name in parts.names)]
    whats = [(kind, segment) for segment in segments for kind in NAMES]
    return whats, (parts.name.astype(np.int64) + 1) * len(NAMES) + timeline.kind


def _microbatches(pairs: list[int], microbatches: int, spans: list[int]) -> list[str]:
    """Return the text behind each name: nothing, `` 3`` or `` 6+2``."""
    beyond = ["" if span == 1 else f"+{span}" for span in spans]
    return [
        f" {pair % microbatches - 1}{beyond[pair // microbatches]}" if pair % microbatches else ""
        for pair in pairs
    ]


def numbered(keys: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], Int32s]:
    """Return the distinct keys, none below zero, and each row's place among them."""
    largest = int(keys.max(initial=0))
    if largest >= _DENSE:
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place.astype(np.int32)
    present = np.zeros(largest + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - np.int32(1))[keys]
