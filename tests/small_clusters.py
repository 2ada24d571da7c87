"""Small clusters for tests: nodes whose GPUs and NICs are ports of a switch, and leaves and spines between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pptrace.network.cluster import Cluster
from pptrace.network.contract import Links, Paths

__all__ = ["LeafSpine", "Ports", "cluster"]


@dataclass(frozen=True, kw_only=True)
class Ports:
    """A port up and a port down for each endpoint: GPUs of one rate, then NICs of another."""

    gpus: int
    nics: int
    gpu_kbps: int
    nic_kbps: int
    latency_ns: int = 3
    overhead_ns: int = 2

    @property
    def links(self) -> Links:
        rates = np.repeat([self.gpu_kbps, self.nic_kbps], [2 * self.gpus, 2 * self.nics])
        return Links(
            name=tuple(f"port{port}{way}" for port in range(self.gpus + self.nics) for way in ("up", "down")),
            rate_kbps=rates,
            latency_ns=np.full(rates.size, self.latency_ns),
            overhead_ns=np.tile([self.overhead_ns, 0], rates.size // 2),
        )

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        others = src != dst
        ports = np.stack([2 * src, 2 * dst + 1], axis=1)[others].ravel()
        return Paths.along(self.links, np.concatenate([[0], np.cumsum(2 * others)]), ports)


@dataclass(frozen=True, kw_only=True)
class LeafSpine:
    """Leaves of hosts under some spines; a path for each spine, all the same for hosts of one leaf."""

    hosts: int
    per_leaf: int
    spines: int
    host_kbps: int
    spine_kbps: int
    """Rate of each link between a leaf and a spine."""
    flow_kbps: int = 0
    """What one flow gets of those at most."""
    latency_ns: int = 100

    @property
    def leaves(self) -> int:
        return -(-self.hosts // self.per_leaf)

    @property
    def links(self) -> Links:
        ports = [f"host{host}{way}" for host in range(self.hosts) for way in ("up", "down")]
        trunks = [f"leaf{a}spine{b}{way}" for a in range(self.leaves) for b in range(self.spines) for way in "ud"]
        kinds = [len(ports), len(trunks)]
        return Links(
            name=(*ports, *trunks),
            rate_kbps=np.repeat([self.host_kbps, self.spine_kbps], kinds),
            flow_rate_kbps=np.repeat([0, self.flow_kbps], kinds),
            latency_ns=np.full(sum(kinds), self.latency_ns),
        )

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        ptr, used = [0], []
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            for spine in range(self.spines):
                if a != b:
                    used.append(2 * a)
                    if a // self.per_leaf != b // self.per_leaf:
                        used += [self.trunk(a // self.per_leaf, spine), self.trunk(b // self.per_leaf, spine) + 1]
                    used.append(2 * b + 1)
                ptr.append(len(used))
        return Paths.along(self.links, ptr, used, per_pair=self.spines)

    def trunk(self, leaf: int, spine: int) -> int:
        """Return the link from a leaf to a spine; the one back follows it."""
        return 2 * self.hosts + 2 * (leaf * self.spines + spine)


def cluster(
    *,
    nodes: int,
    gpus: int,
    nics: int,
    per_leaf: int = 1,
    spines: int = 1,
    gpu_kbps: int = 9000,
    nic_kbps: int = 1000,
    spine_kbps: int = 10**6,
    flow_kbps: int = 0,
    joined: bool = True,
) -> Cluster:
    """Return a cluster of ``Ports`` under a ``LeafSpine`` of all NICs, or under nothing."""
    fabric = LeafSpine(
        hosts=nodes * nics, per_leaf=per_leaf, spines=spines,
        host_kbps=nic_kbps, spine_kbps=spine_kbps, flow_kbps=flow_kbps,
    )  # fmt: skip
    return Cluster(
        node=Ports(gpus=gpus, nics=nics, gpu_kbps=gpu_kbps, nic_kbps=nic_kbps),
        fabric=fabric if joined else None,
        nodes=nodes,
        gpus=gpus,
        nics=nics,
    )
