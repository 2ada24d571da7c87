"""Networks in which messages never meet: ``ideal`` takes no time, ``hockney`` latency and bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.contract import Links, Paths
from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s

__all__ = ["Flat", "FlatNodes", "ideal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Every pair of ranks has wires of its own: a message takes overhead + bytes / rate + latency.

    Source: R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
    """

    rate_kbps: int = 0
    """Rate per direction in kB/s; 0 for no limit."""
    latency_ns: int = 0
    """Wire latency."""
    overhead_ns: int = 0
    """Launch overhead on the stream."""

    @property
    def links(self) -> Links:
        """None is shared."""
        return Links(rate_kbps=np.zeros(0, dtype=np.int64))

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the same figures for every pair."""
        del dst
        pairs = src.size
        return Paths(
            overhead_ns=np.full(pairs, self.overhead_ns, dtype=np.int64),
            latency_ns=np.full(pairs, self.latency_ns, dtype=np.int64),
            rate_kbps=np.full(pairs, self.rate_kbps, dtype=np.int64),
            link_ptr=np.zeros(pairs + 1, dtype=np.int32),
            link=np.zeros(0, dtype=np.int32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatNodes:
    """Wires as those of :class:`Flat`, of one sort within a node and of another between nodes."""

    node: Flat
    """Within a node."""
    between: Flat
    """Between nodes."""
    ranks: int
    """Consecutive ranks that share a node."""

    @property
    def links(self) -> Links:
        """None is shared."""
        return self.between.links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return each pair's figures, by whether both are on one node."""
        near, far = self.node.paths(src, dst), self.between.paths(src, dst)
        same = src // self.ranks == dst // self.ranks
        return Paths(
            overhead_ns=np.where(same, near.overhead_ns, far.overhead_ns),
            latency_ns=np.where(same, near.latency_ns, far.latency_ns),
            rate_kbps=np.where(same, near.rate_kbps, far.rate_kbps),
            link_ptr=near.link_ptr,
            link=near.link,
        )


def ideal() -> Flat:
    """Return the network on which messages take no time."""
    return Flat()
