"""A network answers one question: what lies between two ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pptrace.model.columns import Int32s, Int64s, column

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Links", "Network", "Paths", "transfer_ns"]

UNLIMITED = 0
"""A rate of zero kB/s stands for no limit: bytes take no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Shared capacities, one per direction."""

    name: tuple[str, ...] = ()
    """Name of each link."""
    rate_kbps: Int64s
    """Capacity of each link in kB/s (1 kB = 1000 bytes)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate_kbps", column(self.rate_kbps, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """What lies between pairs of ranks, one row per pair asked for."""

    overhead_ns: Int64s
    """Launch overhead of a message: on the stream, before its bytes."""
    latency_ns: Int64s
    """Wire latency: after the last byte left, and not on the stream."""
    rate_kbps: Int64s
    """What one message alone gets, in kB/s; 0 for no limit."""
    link_ptr: Int32s
    """Shape (pairs + 1,): the shared links of a pair are ``link[link_ptr[p]:link_ptr[p + 1]]``."""
    link: Int32s
    """Shared links along the paths; empty where nothing is shared."""

    def __post_init__(self) -> None:
        for name in ("overhead_ns", "latency_ns", "rate_kbps"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))
        for name in ("link_ptr", "link"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))
        if any(getattr(self, name).ndim != 1 for name in self.__slots__):
            msg = "paths are columns of one dimension, a row per pair"
            raise ValueError(msg)


class Network(Protocol):
    """What a network plugin returns."""

    @property
    def links(self) -> Links:
        """All shared links; none where messages never meet."""
        ...

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths from each ``src`` to each ``dst`` rank, both of shape (pairs,)."""
        ...


def transfer_ns(
    size_bytes: NDArray[np.int64], overhead_ns: NDArray[np.int64], rate_kbps: NDArray[np.int64]
) -> Int64s:
    """Return the time on the stream of uncontended messages: overhead plus bytes over rate, rounded up.

    >>> transfer_ns(np.array([1000]), np.array([5]), np.array([1_000_000])).tolist()
    [1005]
    """
    safe = np.maximum(rate_kbps, 1)
    carried = np.where(rate_kbps > 0, -((-size_bytes * 1_000_000) // safe), 0)
    total: Int64s = overhead_ns + carried
    return total
