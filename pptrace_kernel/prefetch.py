"""Prefetching of columns."""

from __future__ import annotations

from typing import Any

__all__ = ["fetch"]


def fetch(index: int, *columns: Any) -> None:
    """Prefetch an element of columns. The index can be outside of them.

    A compiled kernel executes prefetch instructions, which do not wait for memory. They pay off where the next
    access is one of several that the kernel can compute in advance. An interpreted kernel does nothing.
    """
