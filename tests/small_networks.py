"""Small networks with links, for tests: wires of one's own, and a switch with a port per endpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pptrace.network.contract import Links, Paths

__all__ = ["Switch", "Wires"]


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A port up and a port down for each endpoint, into a switch that never holds anything up."""

    endpoints: int
    rate_kbps: int
    flow_rate_kbps: int = 0
    latency_ns: int = 0
    overhead_ns: int = 0

    @property
    def links(self) -> Links:
        ports = np.ones(2 * self.endpoints, dtype=np.int64)
        up = np.tile([1, 0], self.endpoints)
        return Links(
            name=tuple(f"{way}{port}" for port in range(self.endpoints) for way in ("up", "down")),
            rate_kbps=ports * self.rate_kbps,
            flow_rate_kbps=ports * self.flow_rate_kbps,
            latency_ns=up * self.latency_ns,
            overhead_ns=up * self.overhead_ns,
        )

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        ports = np.stack([2 * src, 2 * dst + 1], axis=1).ravel()
        return Paths.along(self.links, 2 * np.arange(src.size + 1), ports)


@dataclass(frozen=True, kw_only=True)
class Wires:
    """A link of its own from each endpoint to each other one."""

    endpoints: int
    rate_kbps: int
    latency_ns: int = 0
    overhead_ns: int = 0

    @property
    def links(self) -> Links:
        each = np.ones(self.endpoints**2, dtype=np.int64)
        return Links(
            rate_kbps=each * self.rate_kbps, latency_ns=each * self.latency_ns, overhead_ns=each * self.overhead_ns
        )

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        return Paths.along(self.links, np.arange(src.size + 1), src * self.endpoints + dst)
