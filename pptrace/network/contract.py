"""Interface of networks: links and paths between pairs of endpoints, their checks, and flat networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from pptrace.errors import PluginError
from pptrace.steps.columns import Int32s, Int64s, column, none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

UNLIMITED = 0
"""Rate in kB/s of an unlimited path, on which bytes take no time."""

NO_ROUTE = -1
"""Rate of a path between unconnected endpoints."""


class Links(Struct, frozen=True, kw_only=True, eq=False):
    """Shared capacities, one per direction; each column has shape (links,)."""

    name: tuple[str, ...] = ()
    """Name of each link, such as ``leaf0>spine2``; numbered where none are given."""
    rate_kbps: Int64s
    """Capacity in kB/s (1 kB = 1000 bytes)."""
    latency_ns: Int64s = field(default_factory=none)
    """Wire latency of the link; 0 by default, as for the two columns below."""
    overhead_ns: Int64s = field(default_factory=none)
    """Overhead of a message on the link, before its bytes."""
    flow_rate_kbps: Int64s = field(default_factory=none)
    """Upper bound of the rate of one flow in kB/s; 0 for the capacity of the link."""

    def __post_init__(self) -> None:
        rate = column(self.rate_kbps, np.int64)
        force_setattr(self, "rate_kbps", rate)
        for name in ("latency_ns", "overhead_ns", "flow_rate_kbps"):
            value = getattr(self, name)
            values = value if np.size(value) else np.zeros(rate.size, dtype=np.int64)
            force_setattr(self, name, column(values, np.int64))
        if not self.name:
            force_setattr(self, "name", tuple(f"link{link}" for link in range(rate.size)))

    def __len__(self) -> int:
        return int(self.rate_kbps.size)


class Paths(Struct, frozen=True, kw_only=True, eq=False):
    """Paths between pairs of endpoints: ``per_pair`` consecutive rows per pair.

    >>> links = Links(rate_kbps=[1000, 500], latency_ns=[10, 20])
    >>> Paths.along(links, [0, 2], [0, 1]).latency_ns.tolist()
    [30]
    """

    overhead_ns: Int64s
    """Launch overhead of a message: on the stream, before its bytes."""
    latency_ns: Int64s
    """Wire latency: after the last byte is sent, and not on the stream."""
    rate_kbps: Int64s
    """Rate of a message without contention in kB/s; 0 for no limit, -1 for no route."""
    link_ptr: Int32s
    """Shape (rows + 1,): the shared links of a row are ``link[link_ptr[r]:link_ptr[r + 1]]``, source to target."""
    link: Int32s
    """Shared links along the paths; empty where nothing is shared."""
    weight: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Number of the message's flows on each of these links; 1 by default."""
    per_pair: int = 1
    """Routes per pair; a hash of a message's number chooses its route."""
    route_ptr: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Shape (rows + 1,): as ``link_ptr``, for one member's route, which is displayed; ``link_ptr`` by default."""
    route: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Links along the displayed route; ``link`` by default."""

    def __post_init__(self) -> None:
        for name in ("overhead_ns", "latency_ns", "rate_kbps"):
            force_setattr(self, name, column(getattr(self, name), np.int64))
        if not np.size(self.weight):
            force_setattr(self, "weight", np.ones(np.size(self.link), dtype=np.int32))
        for name in ("link_ptr", "link", "weight"):
            force_setattr(self, name, column(getattr(self, name), np.int32))
        has_route = np.size(self.route_ptr) > 0
        for name, default in (("route_ptr", self.link_ptr), ("route", self.link)):
            force_setattr(self, name, column(getattr(self, name), np.int32) if has_route else default)
        columns = ("overhead_ns", "latency_ns", "rate_kbps", "link_ptr", "link", "weight", "route_ptr", "route")
        if any(getattr(self, name).ndim != 1 for name in columns):
            msg = "paths are columns of one dimension"
            raise ValueError(msg)

    def __len__(self) -> int:
        return int(self.rate_kbps.size)

    @classmethod
    def along(cls, links: Links, link_ptr: ArrayLike, link: ArrayLike, *, per_pair: int = 1) -> Self:
        """Return the paths over ``links``: sums of latencies and overheads, minimum of link and flow rates.

        Args:
            links: all links.
            link_ptr: shape (rows + 1,), the offsets of each row's links in ``link``.
            link: the links of each row, source to target; empty for a path from an endpoint to itself.
            per_pair: paths of a pair.
        """
        pointer, used = np.asarray(link_ptr, dtype=np.int32), np.asarray(link, dtype=np.int32)
        cap = np.where(links.flow_rate_kbps > 0, links.flow_rate_kbps, links.rate_kbps)
        tightest = np.minimum(links.rate_kbps, cap)[used]
        overhead, latency = (
            np.diff(np.append(0, values[used].cumsum())[pointer])
            for values in (links.overhead_ns, links.latency_ns)
        )
        rate = np.full(pointer.size - 1, UNLIMITED)
        has_links = np.diff(pointer) > 0
        if has_links.any():
            rate[has_links] = np.minimum.reduceat(tightest, pointer[:-1][has_links])
        return cls(
            overhead_ns=overhead,
            latency_ns=latency,
            rate_kbps=rate,
            link_ptr=pointer,
            link=used,
            per_pair=per_pair,
        )

    def with_links(self, links: Links, single: Sequence[int]) -> Paths:
        """Return these paths and, for each link index in ``single``, a further pair with only this link."""
        used = np.repeat(np.asarray(single, dtype=np.int32), self.per_pair)
        added = Paths.along(links, np.arange(used.size + 1), used)
        columns = {name: np.concatenate([getattr(self, name), getattr(added, name)])
                   for name in ("overhead_ns", "latency_ns", "rate_kbps", "link", "weight", "route")}  # fmt: skip
        pointers = {name: np.concatenate([getattr(self, name), getattr(self, name)[-1] + getattr(added, name)[1:]])
                    for name in ("link_ptr", "route_ptr")}  # fmt: skip
        return Paths(**columns, **pointers, per_pair=self.per_pair)


class Network(Protocol):
    """A network: the return value of a network offer."""

    @property
    def links(self) -> Links:
        """All shared links; empty for a network without contention."""
        ...

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths from each ``src`` to each ``dst`` endpoint, both of shape (pairs,).

        The paths of a pair do not depend on the other pairs or their order.
        """
        ...


def transfer_ns(
    size_bytes: NDArray[np.int64], overhead_ns: NDArray[np.int64], rate_kbps: NDArray[np.int64]
) -> Int64s:
    """Return the time on the stream of uncontended messages: overhead plus bytes over rate, rounded up.

    >>> transfer_ns(np.array([1000]), np.array([5]), np.array([1_000_000])).tolist()
    [1005]
    """
    divisor = np.maximum(rate_kbps, 1)
    bytes_ns = np.where(rate_kbps > 0, -((-size_bytes * 1_000_000) // divisor), 0)
    total: Int64s = overhead_ns + bytes_ns
    return total


_LARGEST = 2**60
"""Largest figure of a link or path, exclusive."""
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
        if values.size and not least <= int(values.min()) <= int(values.max()) < _LARGEST:
            link = int(np.argmax((values < least) | (values >= _LARGEST)))
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
    if paths.per_pair < 1:
        raise PluginError(f"the network gives {paths.per_pair} paths per pair: expected 1 or more")
    rows = pairs * paths.per_pair
    noun = f"{pairs} pairs of ranks" if paths.per_pair == 1 else f"{pairs} pairs of {paths.per_pair} paths"
    for name in ("overhead_ns", "latency_ns", "rate_kbps"):
        values = getattr(paths, name)
        if values.size != rows:
            raise PluginError(f"the network gives {values.size} {name} for {noun}: one each")
        least = NO_ROUTE if name == "rate_kbps" else 0
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if low < least or high >= _LARGEST:
            invalid = low if low < least else high
            raise PluginError(f"the network gives {name} of {invalid} between two ranks: expected 0 to 2**60")
    _check_link_lists(paths.link_ptr, paths.link, rows, links, "link")
    if paths.route_ptr is not paths.link_ptr or paths.route is not paths.link:
        _check_link_lists(paths.route_ptr, paths.route, rows, links, "route")
    if paths.weight.size != paths.link.size or int(paths.weight.min(initial=1)) < 1:
        raise PluginError("the network's weights are not one positive number for each link of each path")


def check_reachable(paths: Paths, src: Int32s, dst: Int32s) -> None:
    """Check that every pair has a route.

    Raises:
        PluginError: a pair has no route.
    """
    unreachable = np.flatnonzero(paths.rate_kbps == NO_ROUTE)
    if unreachable.size:
        pair = int(unreachable[0]) // paths.per_pair
        message = f"the network has no route from rank {src[pair]} to rank {dst[pair]}"
        raise PluginError(f"{message}: join them, or choose another network")


def _check_link_lists(ptr: Int32s, link: Int32s, rows: int, links: int, name: str) -> None:
    if ptr.size != rows + 1 or int(ptr[0]) != 0 or int(ptr[-1]) != link.size or (np.diff(ptr) < 0).any():
        raise PluginError(f"the network's {name}_ptr is not a list of {rows + 1} rising places in {name}")
    low, high = int(link.min(initial=0)), int(link.max(initial=-1))
    if low < 0 or high >= links:
        invalid = low if low < 0 else high
        raise PluginError(f"the network's paths name link {invalid}, and it has {links} links, counted from 0")


class Flat(Struct, frozen=True, kw_only=True):
    """A network without contention: a message takes overhead + bytes / rate + latency, by default no time.

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


class FlatNodes(Struct, frozen=True):
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
        names = ("overhead_ns", "latency_ns", "rate_kbps")
        columns = {name: np.where(same, getattr(near, name), getattr(far, name)) for name in names}
        return replace(far, **columns)
