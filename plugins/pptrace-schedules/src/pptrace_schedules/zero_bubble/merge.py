"""Backwards whose two halves stand side by side, run as one.

Source: PyTorch 2.13, ``torch/distributed/pipelining/schedules.py``, ``_merge_bw``. A whole backward computes
weight gradients beside the collectives of the gradient that it hands on; apart, these collectives have nothing of
their own action to hide behind. In exchange the gradient is handed on later.
"""

from __future__ import annotations

import numpy as np

from pptrace.plugin import Kind, Schedule

__all__ = ["merged"]


def merged(table: Schedule) -> Schedule:
    """Return a table where an input gradient and its own weight gradient right behind it are a full backward."""
    rank = np.repeat(np.arange(table.ranks), np.diff(table.row_ptr))
    first, behind = slice(None, -1), slice(1, None)
    pairs = (table.kind[first] == Kind.I) & (table.kind[behind] == Kind.W)
    for column in (rank, table.stage, table.microbatch):
        pairs &= column[first] == column[behind]
    kind = table.kind.copy()
    kind[np.flatnonzero(pairs)] = Kind.B
    kept = np.flatnonzero(np.append(True, ~pairs))
    row_ptr = np.append(0, np.cumsum(np.bincount(rank[kept], minlength=table.ranks)))
    return Schedule.from_columns(table.placement, row_ptr, kind[kept], table.stage[kept], table.microbatch[kept])
