"""Which links can hold a step up: those that several pairs of ranks use and together can fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.contract import UNLIMITED
from pptrace.record import dataclass
from pptrace.sim.contention import Sharing

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.network.contract import Links, Paths

__all__ = ["SharedLinks", "shared_links"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """The links that the event kernel keeps account of, renumbered."""

    number: Int32s
    """The network's link that each one is."""
    rate_kbps: Int64s
    """Capacity of each."""
    ptr: Int32s
    """Shape (paths + 1,): the kept links of each path are ``link[ptr[p]:ptr[p + 1]]``."""
    link: Int32s
    """Kept links along the paths."""
    weight: Int32s
    """Flows of a message on each of them."""

    @property
    def width(self) -> int:
        """The most kept links of a path, at least 1."""
        return max(int(np.diff(self.ptr).max(initial=0)), 1)


def shared_links(paths: Paths, links: Links, sharing: Sharing, *, prune: bool = True) -> SharedLinks:
    """Return the links on which messages of several pairs can meet and have less for it.

    Messages of one ordered pair follow one another, so a link that serves one pair is never shared, and where all
    pairs' rates together do not fill a link, max-min sharing never takes from them there. Of links that the same
    messages use alike, the tightest decides. What is left out changes no result; ``prune=False`` keeps everything.
    """
    path = np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))
    link, weight = paths.link.astype(np.int64), paths.weight.astype(np.int64)
    kept = np.zeros(len(links), dtype=bool)
    if sharing is not Sharing.NONE:
        kept[link] = True
        if prune:
            kept &= _meeting(paths, links, path, link, weight, by_rate=sharing is Sharing.MAX_MIN)
            kept &= _tightest(links, path, link, weight, kept)
    number = np.flatnonzero(kept).astype(np.int32)
    renumbered = np.cumsum(kept) - 1
    entry = np.flatnonzero(kept[link])
    count = np.bincount(path[entry], minlength=len(paths))
    return SharedLinks(
        number=number,
        rate_kbps=links.rate_kbps[number],
        ptr=np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
        link=renumbered[link[entry]].astype(np.int32),
        weight=paths.weight[entry],
    )


def _meeting(
    paths: Paths, links: Links, path: Int64s, link: Int64s, weight: Int64s, *, by_rate: bool
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which links several pairs use and, ``by_rate``, can fill."""
    key, entry = np.unique(path // paths.ways * len(links) + link, return_inverse=True)
    user = key % max(len(links), 1)
    several = np.bincount(user, minlength=len(links)) > 1
    if not by_rate:
        return several
    rate = paths.rate_kbps[path]
    demand = np.zeros(key.size, dtype=np.float64)
    np.maximum.at(demand, entry, np.where(rate == UNLIMITED, np.inf, rate * weight.astype(np.float64)))
    total = np.bincount(user, weights=demand, minlength=len(links))
    return several & (total > links.rate_kbps)


def _tightest(
    links: Links, path: Int64s, link: Int64s, weight: Int64s, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return ``kept`` without the links that a tighter one, used by the same messages alike, stands for."""
    order = np.lexsort((path, link))
    order = order[kept[link[order]]]
    used = np.stack([path[order], weight[order]], axis=1)
    number, first = np.unique(link[order], return_index=True)
    best: dict[bytes, int] = {}
    for one, users in zip(number.tolist(), np.split(used, first)[1:], strict=True):
        alike = users.tobytes()
        if alike not in best or links.rate_kbps[one] < links.rate_kbps[best[alike]]:
            best[alike] = one
    chosen = np.zeros(len(links), dtype=bool)
    chosen[list(best.values())] = True
    return chosen
