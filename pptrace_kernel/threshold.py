"""Whether compiled code is worth its making: how much of each kernel there is to do, against how long it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AS_LOADING", "AS_ONE_BYTE", "SPREAD", "Account", "is_worth"]

AS_LOADING = 4_000
"""Rows from which a step takes longer to interpret, in its dozen kernels, than LLVM and their code to load."""

AS_ONE_BYTE = 30
"""Rows for each byte of a kernel's bytecode: 0.03 ms to compile, and a row takes about a microsecond."""


SPREAD = 4_000
"""Bytes of bytecode that a process compiles for the benefit of later ones: 0.12 s."""


def is_worth(rows: int, size: int, spent: int) -> bool:
    """Whether to compile a kernel now.

    It is worth it where that takes no longer than interpreting so many rows. Else a process compiles for a moment,
    so that later ones find ever more on the disk and none waits for all of it.

    Args:
        rows: what there is to do, and what was interpreted already for want of compiled code: who compiles once
            that is as much waits at most twice as long as one who had known.
        size: bytes of the kernel's bytecode.
        spent: bytes of bytecode that this process compiled.
    """
    return rows >= AS_ONE_BYTE * size or spent == 0 or spent + size <= SPREAD


@dataclass(slots=True)
class Account:
    """What a process has compiled, and interpreted for want of compiled code."""

    spent: int = 0
    """Bytes of bytecode."""
    interpreted: Counter[Callable[..., Any]] = field(default_factory=Counter)
    """Rows of each kernel."""

    def rows(self, kernel: Callable[..., Any], work: int, *, ahead: int = 0) -> int:
        """Return what counts for a kernel: rows until now and ``work``, or those ahead where these are more."""
        return max(self.interpreted[kernel] + work, ahead)

    def compiles(self, rows: int, size: int) -> bool:
        """Decide, and remember."""
        worth = is_worth(rows, size, self.spent)
        self.spent += size * worth
        return worth
