"""A network under test: built in one size, with all that it says between its endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError, PluginError
from pptrace.hooks.call import call_plugin, plugin_code, plugin_error
from pptrace.hooks.guarded_network import GuardedNetwork
from pptrace.network.check import check_links, check_paths
from pptrace.network.contract import Links, Paths

if TYPE_CHECKING:
    from pptrace.hooks.offers import NetworkOffer
    from pptrace.hooks.provider import Provided
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.request import NetworkRequest

__all__ = ["Route", "Subject", "routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a network says of one way between two endpoints, in plain values and links by name."""

    links: tuple[str, ...]
    """The shared links."""
    weights: tuple[int, ...]
    """How many flows there are on each."""
    route: tuple[str, ...]
    """The links for display."""
    rate_kbps: int
    """What a message alone gets."""
    latency_ns: int
    """Wire latency."""
    overhead_ns: int
    """Launch overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network of some size; ``paths`` has the rows of every endpoint to every endpoint."""

    title: str
    """Name and size, as messages call it."""
    network: GuardedNetwork
    """What the plugin built."""
    links: Links
    """Its links, checked."""
    src: Int32s
    """Source of each pair."""
    dst: Int32s
    """Target of each pair."""
    paths: Paths
    """What lies between them, checked."""

    @classmethod
    def build(cls, provided: Provided[NetworkOffer], request: NetworkRequest) -> Subject:
        """Build a network and ask it everything.

        Raises:
            AssertionError: it refuses the request, or gives links or paths that no network has.
            PluginError: the plugin's code raised something.
        """
        offer, provider = provided.offer, provided.provider
        title = f"{offer.name} with {request.endpoints} endpoints"
        try:
            built = call_plugin(provider, offer.build, request)
        except ConfigError as error:
            raise AssertionError(f"{title}: refused: {error}") from error
        network = GuardedNetwork(provider=provider, name=offer.name, network=built)
        links = network.links
        try:
            check_links(links)
        except PluginError as error:
            raise AssertionError(f"{title}: {error}") from error
        every = np.arange(request.endpoints, dtype=np.int32)
        src, dst = np.repeat(every, every.size), np.tile(every, every.size)
        paths = _ask(title, network, len(links), src, dst)
        return cls(title=title, network=network, links=links, src=src, dst=dst, paths=paths)

    def ask(self, pairs: Int64s) -> Paths:
        """Ask for the paths of some of the pairs, in an order of the caller's."""
        return _ask(self.title, self.network, len(self.links), self.src[pairs], self.dst[pairs])

    def broken(self, what: str, row: int | None = None) -> AssertionError:
        """Return the error of a row of the paths, or of the whole."""
        pair = "" if row is None else f"endpoint {self.pair(row)}: "
        return AssertionError(f"{self.title}: {pair}{what}")

    def pair(self, row: int) -> str:
        """Return the two endpoints of a row of the paths."""
        pair = row // self.paths.ways
        return f"{self.src[pair]} to {self.dst[pair]}"

    def link(self, entry: int) -> str:
        """Return the name of the link of an entry of the paths' lists."""
        return self.links.name[int(self.paths.link[entry])]


def routes(links: Links, paths: Paths) -> list[list[Route]]:
    """Return what paths say, pair by pair and way by way; where all ways are equal, once."""
    names = np.array([*links.name, ""], dtype=object)
    over, shown, weight = names[paths.link].tolist(), names[paths.route].tolist(), paths.weight.tolist()
    ptr, route_ptr = paths.link_ptr.tolist(), paths.route_ptr.tolist()
    figures = zip(paths.rate_kbps.tolist(), paths.latency_ns.tolist(), paths.overhead_ns.tolist(), strict=True)
    rows = [
        Route(
            links=tuple(over[ptr[row] : ptr[row + 1]]), weights=tuple(weight[ptr[row] : ptr[row + 1]]),
            route=tuple(shown[route_ptr[row] : route_ptr[row + 1]]),
            rate_kbps=rate, latency_ns=latency, overhead_ns=overhead,
        )
        for row, (rate, latency, overhead) in enumerate(figures)
    ]  # fmt: skip
    pairs = [rows[first : first + paths.ways] for first in range(0, len(rows), paths.ways)]
    return [ways[:1] if all(way == ways[0] for way in ways) else ways for ways in pairs]


def _ask(title: str, network: GuardedNetwork, links: int, src: Int32s, dst: Int32s) -> Paths:
    """Return the paths of some pairs; where they are misshapen, name a pair that is so on its own."""
    name = f"paths of network {network.name!r}"
    with plugin_code(network.provider, network.network.paths, name=name):
        paths: object = network.network.paths(src, dst)
    if not isinstance(paths, Paths):
        raise plugin_error(network.provider, f"{name} returned {paths!r:.60}, expected Paths")
    try:
        check_paths(paths, src.size, links)
    except PluginError as error:
        if src.size == 1:
            raise AssertionError(f"{title}: endpoint {src[0]} to {dst[0]}: {error}") from error
        for one in range(src.size):
            _ask(title, network, links, src[one : one + 1], dst[one : one + 1])
        raise AssertionError(f"{title}: {error}") from error
    return paths
