"""Fit a network alone, to operations of known sizes and times that nothing says the purpose of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.calibration.fit import fit_link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.calibration.fit import LinkFit
    from pptrace.timeline.measurement import BySize

__all__ = ["SortFit", "fit_network", "network_of"]

_SLOWEST = 1000
"""Bytes per second: a network's smallest rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortFit:
    """Operations of one sort."""

    what: str
    """The sort."""
    messages: bool
    """Whether they are messages between two ranks, and no collectives."""
    link: LinkFit
    """What was fitted to them; of collectives the rate is that of a rank's link."""


def fit_network(sorts: Sequence[BySize]) -> tuple[SortFit, ...]:
    """Fit each sort by itself."""
    return tuple(
        SortFit(what=one.what, messages=one.messages, link=fit_link(one.took_ns, one.size_bytes))
        for one in sorts
        if one.took_ns.size
    )


def network_of(sorts: Sequence[SortFit]) -> SortFit | None:
    """Return the sort that stands for the network; None where latency and rate of none are known.

    The slowest messages count, else the slowest collective.
    """
    known = [one for one in sorts if (one.link.bytes_per_s or 0) >= _SLOWEST]
    return min(known, key=lambda one: (not one.messages, one.link.bytes_per_s), default=None)
