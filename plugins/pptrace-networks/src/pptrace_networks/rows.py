"""Paths and names, put together from columns: one link of each path per column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s, Links, NetworkRequest

__all__ = ["ABSENT", "halves", "hosts", "walked"]

ABSENT = -1
"""Stands for no link in a column."""


def walked(links: Links, columns: Sequence[Int64s], *, ways: int = 1) -> Paths:
    """Return paths from columns of shape (rows,), source to target, that hold a link or ``ABSENT``."""
    steps = np.stack(columns, axis=1)
    there = steps != ABSENT
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    return Paths.along(links, ends, steps[there], ways=ways)


def halves(latency_ns: int) -> tuple[int, int]:
    """Return a latency in two parts, for the links on either side of a switch.

    >>> halves(601)
    (301, 300)
    """
    return latency_ns - latency_ns // 2, latency_ns // 2


def hosts(request: NetworkRequest) -> list[str]:
    """Return the name of each endpoint of a fabric.

    >>> from pptrace.plugin import NetworkRequest
    >>> hosts(NetworkRequest(endpoints=4, per_node=2))
    ['node0.nic0', 'node0.nic1', 'node1.nic0', 'node1.nic1']
    """
    if request.per_node == 1:
        return [f"host{host}" for host in range(request.endpoints)]
    return [f"node{e // request.per_node}.nic{e % request.per_node}" for e in range(request.endpoints)]
