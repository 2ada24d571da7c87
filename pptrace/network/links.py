"""Checked network models, and the ideal and Hockney models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import PluginError
from pptrace.network.contract import NO_ROUTE, Links, Paths

if TYPE_CHECKING:
    from pptrace.steps.columns import Int32s

_LARGEST = 2**60
_NO_LINKS = Links(rate_kbps=np.zeros(0, dtype=np.int64))


def check_links(links: Links) -> None:
    """Check capacities, latencies and names.

    Raises:
        PluginError: a capacity that is not positive, another figure below zero or too large, columns that
            differ in length, two links of one name.
    """
    for name in ("rate_kbps", "latency_ns", "overhead_ns", "flow_rate_kbps"):
        values, least = getattr(links, name), int(name == "rate_kbps")
        if values.size != len(links.name):
            raise PluginError(f"the network has {len(links.name)} links and {values.size} {name}: one each")
        invalid = np.flatnonzero((values < least) | (values >= _LARGEST))
        if invalid.size:
            link = int(invalid[0])
            message = f"link {links.name[link]} has {name} of {values[link]}: expected {least} to 2**60"
            raise PluginError(f"{message} (kB/s, ns)")
    if len(set(links.name)) < len(links.name):
        duplicate = next(name for name in links.name if links.name.count(name) > 1)
        raise PluginError(f"two links of the network are called {duplicate}: name each differently")


def check_paths(paths: Paths, pairs: int, links: int) -> None:
    """Check the paths of ``pairs`` pairs of endpoints in a network of ``links`` links.

    Raises:
        PluginError: a column of the wrong length, a value below zero or too large, or an unknown link.
    """
    if paths.ways < 1:
        raise PluginError(f"the network gives {paths.ways} ways per pair: expected 1 or more")
    rows = pairs * paths.ways
    noun = f"{pairs} pairs of ranks" if paths.ways == 1 else f"{pairs} pairs of {paths.ways} ways"
    for name in ("overhead_ns", "latency_ns", "rate_kbps"):
        values = getattr(paths, name)
        if values.size != rows:
            raise PluginError(f"the network gives {values.size} {name} for {noun}: one each")
        least = NO_ROUTE if name == "rate_kbps" else 0
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if low < least or high >= _LARGEST:
            invalid = low if low < least else high
            raise PluginError(f"the network gives {name} of {invalid} between two ranks: expected 0 to 2**60")
    for ptr, link in (("link_ptr", "link"), ("route_ptr", "route")):
        _check_link_lists(getattr(paths, ptr), getattr(paths, link), rows, links, link)
    if paths.weight.size != paths.link.size or int(paths.weight.min(initial=1)) < 1:
        raise PluginError("the network's weights are not one positive number for each link of each path")


def check_reachable(paths: Paths, src: Int32s, dst: Int32s) -> None:
    """Check that every pair has a route.

    Raises:
        PluginError: a pair has no route.
    """
    unreachable = np.flatnonzero(paths.rate_kbps == NO_ROUTE)
    if unreachable.size:
        pair = int(unreachable[0]) // paths.ways
        message = f"the network has no route from rank {src[pair]} to rank {dst[pair]}"
        raise PluginError(f"{message}: join them, or choose another network")


def _check_link_lists(ptr: Int32s, link: Int32s, rows: int, links: int, name: str) -> None:
    if ptr.size != rows + 1 or int(ptr[0]) != 0 or int(ptr[-1]) != link.size or (np.diff(ptr) < 0).any():
        raise PluginError(f"the network's {name}_ptr is no list of {rows + 1} rising places in {name}")
    low, high = int(link.min(initial=0)), int(link.max(initial=-1))
    if low < 0 or high >= links:
        invalid = low if low < 0 else high
        raise PluginError(f"the network's paths name link {invalid}, and it has {links} links, counted from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """A network without contention: a message takes overhead + bytes / rate + latency.

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
        """No links: the network has no contention."""
        return _NO_LINKS

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
    """Two :class:`Flat` networks, one within a node and one between nodes."""

    node: Flat
    """Within a node."""
    between: Flat
    """Between nodes."""
    ranks: int
    """Consecutive ranks that share a node."""

    @property
    def links(self) -> Links:
        """No links: the network has no contention."""
        return self.between.links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return each pair's figures, which depend on whether both ranks share a node."""
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
