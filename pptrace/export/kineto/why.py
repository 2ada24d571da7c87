"""Why ranks wait, and the critical path, as lines of JSON.

Waits are a thread of their rank, the path is a process of its own behind the links. Both have categories of
their own and no stream, as slices on links have none: readers of measured traces count kernels by their streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.export.kinds import NAMES, NUMBERED
from pptrace.export.kineto.cells import Choice, microseconds, number, pieces, words
from pptrace.export.kineto.lanes import process_of
from pptrace.export.kineto.names import named
from pptrace.export.kineto.slices import color_of, shared_number
from pptrace.timeline.critical_path import PATH_PARTS
from pptrace.timeline.idle import IdleCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.export.kineto.cells import Block, Part
    from pptrace.export.kineto.slices import Encoder
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.critical_path import OnPath
    from pptrace.timeline.idle import Waits

__all__ = ["WAITS", "WhyEncoder", "path_process"]

WAITS = 2
"""Thread of each process that says why its rank waits."""

_CAUSES = [b'"%s"' % cause.word.encode() for cause in IdleCause]
_COLORS = {
    IdleCause.FILL: b'"grey"', IdleCause.DRAIN: b'"grey"', IdleCause.TRANSFER: b'"rail_load"',
    IdleCause.CONTENTION: b'"terrible"', IdleCause.HEAD_OF_LINE: b'"bad"', IdleCause.PEER_COMPUTE: b'"white"',
    IdleCause.REDUCTION: b'"olive"', IdleCause.SLOWER_REPLICA: b'"bad"',
}  # fmt: skip
"""Names among the colours that viewers of this format know."""
_NAMES = [
    *(b'"%s%s' % (name.encode(), b" " * bool(n)) for name, n in zip(NAMES, NUMBERED, strict=True)),
    *(b'"%s' % name.encode() for name in PATH_PARTS[1:]),
]
_PLAIN = frozenset([*np.flatnonzero(~NUMBERED).tolist(), *range(len(NAMES), len(_NAMES))])
"""Which of them have no microbatch behind them."""


def path_process(ranks: int) -> int:
    """Return the process of the critical path."""
    return process_of(-1, ranks) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyEncoder:
    """Turns waits and the critical path into text."""

    slices: Encoder
    """What turns the rows of the same timeline into text."""
    first_row: int
    """The number of the timeline's first row, from which waits and path count."""

    def waits(self, waits: Waits) -> Iterator[Block]:
        """Yield a line per wait."""
        timeline = self.slices.timeline
        ranks, starts = np.unique(waits.rank, return_index=True)
        for rank, (start, stop) in zip(ranks.tolist(), pairwise([*starts.tolist(), len(waits)]), strict=True):
            part = slice(start, stop)
            cause = waits.cause[part]
            yield from pieces(stop - start, [
                b'{"ph":"X","cat":"wait","name":', words(cause, _CAUSES),
                b',"pid":%d,"tid":%d,"ts":' % (process_of(rank, timeline.ranks), WAITS),
                *self._times(waits.start_ns[part], waits.end_ns[part]),
                b',"cname":', words(cause, [_COLORS[cause] for cause in IdleCause]),
                b',"args":{"rank":%d,"peer":' % rank, shared_number(waits.peer[part]),
                b',"cause":', shared_number(self._numbered(waits.row[part])), b"}},\n",
            ])  # fmt: skip

    def path(self, path: OnPath) -> Iterator[Block]:
        """Yield a line per part of the critical path."""
        if not len(path):
            return
        timeline, row = self.slices.timeline, path.row - np.int32(self.first_row)
        process = path_process(timeline.ranks)
        kind, part = timeline.kind[row].astype(np.int64), path.part
        what = Choice.of(np.where(part == 0, kind, len(NAMES) - 1 + part))
        names = self.slices.names
        yield from pieces(len(path), [
            b'{"ph":"X","cat":"critical path","name":', *named(what, _NAMES, names.ends[names.end[row]], _PLAIN),
            b',"pid":%d,"tid":%d,"ts":' % (process, process + 1), *self._times(path.start_ns, path.end_ns),
            b',"cname":', color_of(timeline, row, self.slices.color),
            b',"args":{"rank":', shared_number(timeline.rank_of_row()[row]),
            b',"stage":', shared_number(timeline.stage[row]),
            b',"microbatch":', shared_number(timeline.microbatch[row]),
            b',"shown":', number(self._numbered(path.row)), b"}},\n",
        ])  # fmt: skip

    def _times(self, start_ns: Int64s, end_ns: Int64s) -> list[Part]:
        return [microseconds(start_ns, whole=False), b',"dur":', microseconds(end_ns - start_ns, whole=False)]

    def _numbered(self, row: Int32s) -> Int64s:
        """Return what the file calls rows of the whole timeline, 0 for none."""
        return np.where(row < 0, 0, row.astype(np.int64) + self.slices.arrows.first - self.first_row)
