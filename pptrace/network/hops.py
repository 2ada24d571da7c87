"""A hop between two pipeline ranks is a bundle of flows: one per member of the rank, over its own links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Paths
from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.layout import Layout
    from pptrace.network.contract import Links, Network

__all__ = ["Hops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """A network between pipeline ranks, each of which is many GPUs of a network between GPUs.

    Member ``m`` of a rank sends to member ``m`` of its peer, all at once and at one pace, that of the slowest:
    every tensor- and context-parallel member of every data-parallel replica. Where only one replica's schedule is
    simulated, the others do the same at the same time, and a link that carries ``n`` of a hop's flows counts
    ``n`` times each flow's rate. A message's size is that of one flow.
    """

    network: Network
    """What lies between GPUs."""
    layout: Layout
    """Which GPUs each rank is."""
    apart: bool = False
    """Whether all replicas are simulated, rank by rank: rank ``r`` of replica ``d`` is ``d pp + r``."""

    @property
    def links(self) -> Links:
        """The links between the GPUs."""
        return self.network.links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the bundles from each ``src`` to each ``dst`` pipeline rank.

        Raises:
            ConfigError: two GPUs that no route joins.
        """
        members = self.layout.replicas() if self.apart else self.layout.members()
        flows, count = members.shape[1], src.size
        source, target = members[src].ravel(), members[dst].ravel()
        own = self.network.paths(source, target)
        lost = np.flatnonzero(own.rate_kbps == NO_ROUTE)
        if lost.size:
            pair = int(lost[0]) // own.ways
            at = pair // flows
            message = f"no route from GPU {source[pair]} of rank {src[at]} to GPU {target[pair]} of rank {dst[at]}"
            raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")
        way = np.arange(own.ways)
        turn = (_scattered(np.arange(flows)) % own.ways)[None, :, None]
        pair_of = np.arange(count * flows).reshape(count, flows, 1)
        # Shape (pairs, ways, members): the row of each member's flow on each way of the bundle.
        rows = (pair_of * own.ways + (way[None, None, :] + turn) % own.ways).transpose(0, 2, 1).reshape(-1, flows)
        return _bundled(own, rows, self.links)


def _scattered(number: Int64s) -> Int64s:
    """Return hashes of small numbers, so that members do not take neighbouring ways in step."""
    hashed: Int64s = (number * 48_271 + 11) % 2_147_483_647 * 48_271 % 2_147_483_647
    return hashed


def _bundled(own: Paths, rows: Int64s, links: Links) -> Paths:
    """Return one path per row of ``rows``, which holds rows of ``own`` that belong together."""
    bundles, flows = rows.shape
    length = np.diff(own.link_ptr)[rows.ravel()]
    starts = np.cumsum(length) - length
    entry = (
        np.arange(int(length.sum()))
        - np.repeat(starts, length)
        + np.repeat(own.link_ptr[:-1][rows.ravel()], length)
    )
    bundle = np.repeat(np.arange(bundles * flows) // flows, length)
    key, first = np.unique(bundle * max(len(links), 1) + own.link[entry], return_inverse=True)
    weight = np.bincount(first, weights=own.weight[entry], minlength=key.size).astype(np.int32)
    owner, link = np.divmod(key, max(len(links), 1))
    rate = own.rate_kbps[rows]
    rate = np.where(rate == UNLIMITED, np.iinfo(np.int64).max, rate).min(axis=1)
    np.minimum.at(rate, owner, links.rate_kbps[link] // weight)
    route = np.diff(own.link_ptr)[rows[:, 0]]
    route_ptr = np.concatenate([[0], np.cumsum(route)])
    shown = np.arange(int(route.sum())) - np.repeat(route_ptr[:-1], route)
    return Paths(
        overhead_ns=own.overhead_ns[rows].max(axis=1), latency_ns=own.latency_ns[rows].max(axis=1),
        rate_kbps=np.where(rate == np.iinfo(np.int64).max, UNLIMITED, np.maximum(rate, 1)),
        link_ptr=np.searchsorted(owner, np.arange(bundles + 1)).astype(np.int32),
        link=link, weight=weight, ways=own.ways,
        route_ptr=route_ptr, route=own.link[shown + np.repeat(own.link_ptr[:-1][rows[:, 0]], route)],
    )  # fmt: skip
