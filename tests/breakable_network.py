"""A network for tests that can be spoilt: ports into a switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from pptrace.network.contract import Links, Paths
from pptrace.plugin import NetworkOffer

if TYPE_CHECKING:
    from pptrace.plugins.requests import NetworkRequest

__all__ = ["RATE", "Change", "Ports", "between", "changed", "offer", "ports", "spoilt"]

RATE = 1000
Change = Callable[[Paths, np.ndarray, np.ndarray], Paths]


@dataclass(frozen=True, kw_only=True)
class Ports:
    """A link up and a link down for each endpoint, and a switch between; ``change`` spoils it."""

    endpoints: int
    change: Change = field(default=lambda paths, _src, _dst: paths)
    spoil: Callable[[Links], Links] = field(default=lambda links: links)
    rate_kbps: int = RATE

    @property
    def links(self) -> Links:
        names = tuple(f"{way}{port}" for port in range(self.endpoints) for way in ("up", "down"))
        ports = np.ones(2 * self.endpoints, dtype=np.int64)
        return self.spoil(Links(name=names, rate_kbps=ports * self.rate_kbps, latency_ns=ports * 5))

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        others = src != dst
        ports = np.stack([2 * src[others], 2 * dst[others] + 1], axis=1).ravel()
        ptr = np.concatenate([[0], np.cumsum(2 * others)])
        return self.change(Paths.along(self.links, ptr, ports), src, dst)


def ports(request: NetworkRequest) -> Ports:
    return Ports(endpoints=request.endpoints)


def offer(build: Callable[[NetworkRequest], Any] = ports, **changes: Any) -> NetworkOffer:
    return NetworkOffer(**{"name": "mine", "summary": "Mine.", "build": build, **changes})


def changed(change: Change) -> NetworkOffer:
    return offer(lambda request: Ports(endpoints=request.endpoints, change=change))


def spoilt(spoil: Callable[[Links], Links]) -> NetworkOffer:
    return offer(lambda request: Ports(endpoints=request.endpoints, spoil=spoil))


def between(src: int, dst: int, **columns: int) -> Change:
    """Return a change of the figures of one pair."""

    def change(paths: Paths, sources: np.ndarray, targets: np.ndarray) -> Paths:
        here = (sources == src) & (targets == dst)
        return replace(
            paths, **{name: np.where(here, value, getattr(paths, name)) for name, value in columns.items()}
        )

    return change
