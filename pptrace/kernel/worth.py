"""Whether compiled code is worth its making: how much of each kernel there is to do, against how long it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AS_LOADING", "AS_ONE_BYTE", "Account", "is_worth"]

AS_LOADING = 20_000
"""Rows that take about as long to interpret as LLVM and a kernel's code take to load."""

AS_ONE_BYTE = 30
"""Rows for each byte of a kernel's bytecode: 0.03 ms to compile, and a row takes about a microsecond."""


def is_worth(rows: int, size: int) -> bool:
    """Whether compiling a kernel takes no longer than interpreting it for so many rows.

    Args:
        rows: what there is to do, and what was interpreted already for want of compiled code: who compiles once
            that is as much waits at most twice as long as one who had known.
        size: bytes of the kernel's bytecode.
    """
    return rows >= AS_ONE_BYTE * size


@dataclass(slots=True)
class Account:
    """What a process has interpreted."""

    interpreted: Counter[Callable[..., Any]] = field(default_factory=Counter)
    """Rows of each kernel."""

    def rows(self, kernel: Callable[..., Any], work: int, *, ahead: int = 0) -> int:
        """Return what counts for a kernel: rows until now and ``work``, or those ahead where these are more."""
        return max(self.interpreted[kernel] + work, ahead)
