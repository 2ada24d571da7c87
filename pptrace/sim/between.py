"""What lies between ranks that exchange messages: the network is asked once, about every pair with a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.check import check_links, check_paths, check_reachable
from pptrace.record import dataclass
from pptrace.sim.records import RouteColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s
    from pptrace.network.contract import Network, Paths
    from pptrace.sim.lanes import Lanes

__all__ = ["Between", "between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Pairs of ranks with messages, what lies between them, and the paths of bytes over single links behind."""

    source: Int32s
    target: Int32s
    paths: Paths
    columns: RouteColumns


def between(ranks: int, lanes: Lanes, network: Network, links: Sequence[str]) -> Between:
    """Ask the network about every pair of ranks with a message; put paths over single ``links`` behind."""
    pairs = np.flatnonzero(lanes.sends_to)
    source, target = (pairs // ranks).astype(np.int32), (pairs % ranks).astype(np.int32)
    paths = network.paths(source, target)
    check_links(network.links)
    check_paths(paths, pairs.size, len(network.links))
    check_reachable(paths, source, target)
    first_path = np.zeros(ranks * ranks, dtype=np.int32)
    first_path[pairs] = np.arange(pairs.size) * paths.ways
    if links:
        paths = paths.with_links(network.links, [network.links.name.index(name) for name in links])
        nobody = np.full(len(links), -1, dtype=np.int32)
        source, target = np.concatenate([source, nobody]), np.concatenate([target, nobody])
    known = paths.overhead_ns.size > 0
    none = np.zeros(1, dtype=np.int64)
    columns = (paths.overhead_ns, paths.latency_ns, paths.rate_kbps) if known else (none, none, none)
    routes = RouteColumns(first_path, pairs.size * paths.ways, paths.ways, *columns)
    return Between(source=source, target=target, paths=paths, columns=routes)
