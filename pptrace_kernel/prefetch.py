"""What a kernel says of memory that it is about to use."""

from __future__ import annotations

from typing import Any

__all__ = ["fetch"]


def fetch(index: int, *columns: Any) -> None:
    """Have a place of some columns brought near the processor; it need not be in them.

    Compiled, these are instructions that wait for nothing: worth it where a kernel goes on in one of many places,
    of which the processor foresees a few. Interpreted, it does nothing.
    """
