"""Slices on links: a message once more on each link that it went over, as lines of JSON.

They are of a process and a category of their own, and of no stream: readers of measured traces count the
kernels of a rank by their streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.export.hops import Hops, link_title
from pptrace.export.kinds import NAMES
from pptrace.export.kineto.cells import Block, Part, microseconds, number, words
from pptrace.export.kineto.lanes import process_of
from pptrace.export.kineto.slices import color_of, shared_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pptrace.export.kineto.slices import Encoder
    from pptrace.timeline.timeline import Timeline

__all__ = ["LinkEncoder", "thread_names", "thread_of"]

_BLANK = ord(" ")
_KINDS = [b'"%s"' % name.encode() for name in NAMES]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEncoder:
    """Turns hops into text."""

    slices: Encoder
    """What turns the rows of the same timeline into text."""
    hops: Hops
    """What is written."""
    rank: NDArray[np.int32]
    """Rank of each row of the timeline."""
    titles: Block
    """Shape (messages, width): what the slices of each message are called, with the closing quote."""

    @classmethod
    def of(cls, slices: Encoder, hops: Hops) -> Self:
        """Prepare to write the hops of the slices' timeline."""
        quoted = np.strings.add(hops.titles(slices.timeline), np.bytes_(b'"'))
        titles = quoted.view(np.uint8).reshape(hops.sent.size, quoted.itemsize)
        return cls(
            slices=slices,
            hops=hops,
            rank=slices.timeline.rank_of_row(),
            titles=np.where(titles == 0, np.uint8(_BLANK), titles),
        )

    def encode(self, lane: int, which: slice) -> Iterator[Block]:
        """Yield the lines of some hops of one lane."""
        timeline, hops, arrows = self.slices.timeline, self.hops, self.slices.arrows
        row, message = hops.row[which], hops.message[which]
        start, took = timeline.start_ns[row], timeline.end_ns[row] - timeline.start_ns[row]
        place = b',"pid":%d,"tid":%d,"ts":' % (process_of(-1, timeline.ranks), thread_of(lane, timeline.ranks))
        facts: dict[str, NDArray[np.integer]] = {
            "hop": hops.place[which],
            "rank": self.rank[row],
            "peer": hops.peer[message],
            "stage": timeline.stage[row],
            "microbatch": timeline.microbatch[row],
            "span": timeline.span[row],
            "bytes": timeline.size_bytes[row],
        }
        lines: list[Part] = [
            b'{"ph":"X","cat":"link","name":"', self.titles[message], place, self._time(start),
            b',"dur":', self._time(took), b',"cname":', color_of(timeline, row, self.slices.color),
            b',"args":{"link":%d,"transfer":' % hops.lane_link[lane], number(row.astype(np.int64) + arrows.first),
            b',"kind":', words(timeline.kind[row], _KINDS),
        ]  # fmt: skip
        for name, values in facts.items():
            lines += [b',"%s":' % name.encode(), shared_number(values)]
        lines.append(b"}},")
        rows = len(timeline)
        return arrows.behind(lines, place, slice(rows + which.start, rows + which.stop))

    def _time(self, times_ns: NDArray[np.int64]) -> Block:
        return microseconds(times_ns, whole=self.slices.whole)


def thread_of(lane: int, ranks: int) -> int:
    """Return the thread of a lane: above the process, for viewers take a thread of its number for the main one."""
    return process_of(-1, ranks) + 1 + lane


def thread_names(timeline: Timeline, hops: Hops) -> Iterator[tuple[int, str]]:
    """Yield the lanes' threads with their names: ``leaf0>spine2 (50 GB/s)``, and ``#2`` behind the second's."""
    if timeline.routes is None:
        return
    for lane, (link, copy) in enumerate(zip(hops.lane_link.tolist(), hops.lane_copy.tolist(), strict=True)):
        title = link_title(timeline.routes, link)
        yield thread_of(lane, timeline.ranks), f"{title} #{copy + 1}" if copy else title
