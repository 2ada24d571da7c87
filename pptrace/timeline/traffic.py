"""Traffic is what a step's messages did on the links: which they took, and at which rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.columns import Int32s, Int64s, column
from pptrace.record import dataclass
from pptrace.timeline.routes import Routes

if TYPE_CHECKING:
    from pptrace.network.contract import Links, Paths

__all__ = ["Segments", "Traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Times in which one message went at one rate."""

    row: Int32s
    """The message's row in the timeline."""
    start_ns: Int64s
    """From when."""
    end_ns: Int64s
    """Until when; never the same instant."""
    rate_kbps: Int64s
    """Rate of each of its flows; 0 while it waited for a link."""
    limit: Int32s
    """The link that held it at this rate, -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Links, the paths of each pair of ranks over them, and the rates of each message."""

    links: Links
    """All links of the network."""
    paths: Paths
    """Paths between the pairs of ranks with messages."""
    source: Int32s
    """Shape (pairs,): the sending rank."""
    target: Int32s
    """Shape (pairs,): the receiving rank."""
    path: Int32s
    """Shape (rows,): each message's path, on the row of its sender; -1 for other rows."""
    row: Int32s
    """Row of each change of rate; sorted by row, then time. Messages that nothing held up have none."""
    at_ns: Int64s
    """When the rate changed."""
    rate_kbps: Int64s
    """The rate of each of the message's flows from then on."""
    limit: Int32s
    """The link that set the rate, -1 where it went as fast as alone."""

    def __post_init__(self) -> None:
        for name in ("at_ns", "rate_kbps"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))
        for name in ("source", "target", "path", "row", "limit"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))

    def routes(self) -> Routes:
        """Return the links of each message's first flow, as a timeline keeps them."""
        sent = self.path >= 0
        length = np.zeros(self.path.size, dtype=np.int64)
        length[sent] = np.diff(self.paths.route_ptr)[self.path[sent]]
        ptr = np.concatenate([[0], np.cumsum(length)])
        first = np.repeat(self.paths.route_ptr[:-1][self.path[sent]] - ptr[:-1][sent], length[sent])
        return Routes(
            name=self.links.name,
            rate_kbps=self.links.rate_kbps,
            ptr=ptr.astype(np.int32),
            link=self.paths.route[np.arange(int(ptr[-1])) + first],
        )

    def segments(self, start_ns: Int64s, end_ns: Int64s) -> Segments:
        """Return the times at one rate of every message that takes time on its path.

        Args:
            start_ns: start of each of the timeline's rows.
            end_ns: end of each row.
        """
        changed = np.zeros(self.path.size, dtype=bool)
        changed[self.row] = True
        last = np.ones(self.row.size, dtype=bool)
        last[:-1] = self.row[1:] != self.row[:-1]
        until = end_ns[self.row].copy()
        until[~last] = self.at_ns[1:][~last[:-1]]
        plain = np.flatnonzero((self.path >= 0) & ~changed).astype(np.int32)
        path = self.path[plain]
        moves = self.paths.rate_kbps[path] > 0
        plain, path = plain[moves], path[moves]
        begun = np.concatenate([self.at_ns, start_ns[plain] + self.paths.overhead_ns[path]])
        ended = np.concatenate([until, end_ns[plain]])
        takes = np.flatnonzero(ended > begun)
        return Segments(
            row=np.concatenate([self.row, plain])[takes],
            start_ns=begun[takes],
            end_ns=ended[takes],
            rate_kbps=np.concatenate([self.rate_kbps, self.paths.rate_kbps[path]])[takes],
            limit=np.concatenate([self.limit, np.full(plain.size, -1, dtype=np.int32)])[takes],
        )
