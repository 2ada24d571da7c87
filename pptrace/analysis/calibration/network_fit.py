"""Fit a network alone, to operations of which sizes and times are known and nothing says what they were for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.calibration.fit import fit_link
from pptrace.config.quantity import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.calibration.fit import LinkFit
    from pptrace.timeline.measurement import BySize

__all__ = ["SortFit", "fit_network", "network_lines", "network_yaml"]

_NO_COSTS = (
    "no action of a pipeline was recorded: what computations take is not known, the network alone is fitted"
)

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


def network_lines(fits: Sequence[SortFit]) -> list[str]:
    """Return what a terminal shows."""
    return [_NO_COSTS, "", *(line for one in fits for line in _told(one))]


def network_yaml(fits: Sequence[SortFit], source: str) -> str:
    """Return a configuration's text that holds a network alone; empty where none can be told.

    The slowest messages of which latency and rate are known count, else the slowest collective's rate.
    """
    known = [one for one in fits if one.link.bytes_per_s is not None and one.link.bytes_per_s >= _SLOWEST]
    chosen = min(known, key=lambda one: (not one.messages, one.link.bytes_per_s), default=None)
    if chosen is None or chosen.link.bytes_per_s is None:
        return ""
    lines = [f"# Fitted to {source}: pptrace calibrate.", f"# {_NO_COSTS}"]
    lines += [f"# {line}" for one in fits for line in _told(one)]
    lines += ["network:", "  name: hockney"]
    lines.append(f"  bandwidth: {round(chosen.link.bytes_per_s)} B/s  # {chosen.what}")
    if chosen.messages:
        lines.append(f"  latency: {chosen.link.latency_ns} ns")
    else:
        lines.append("  # what a message takes beside its bytes is not known from collectives")
    return "\n".join(lines) + "\n"


def _told(one: SortFit) -> list[str]:
    link = one.link
    sizes = format_size(link.sizes[0])
    if len(link.sizes) > 1:
        sizes += f" to {format_size(link.sizes[-1])}"
    seen = f"{one.what}: {link.count:,} of {sizes}, median {format_duration(link.median_ns)}"
    if link.bytes_per_s is None or link.latency_ns is None:
        why = "one size" if len(link.sizes) == 1 else "these sizes"
        return [seen, f"  latency and bandwidth cannot be told apart from {why}"]
    rate = f"{format_rate(round(link.bytes_per_s))}{'' if one.messages else ' on each link'}"
    off = f"half are off by less than {format_duration(link.residual_ns)}"
    return [seen, f"  {format_duration(link.latency_ns)} and {rate}; {off}"]
