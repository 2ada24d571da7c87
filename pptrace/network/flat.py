"""Networks in which messages never meet: ``ideal`` takes no time, ``hockney`` latency and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.contract import Links, Paths

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s

__all__ = ["Flat", "ideal"]


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


def ideal() -> Flat:
    """Return the network on which messages take no time."""
    return Flat()
