"""Whether it is worth compiling a kernel whose compiled code is neither in this process nor on the disk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AS_COMPILING", "SPREAD", "Account", "is_worth"]

AS_COMPILING = 400_000
"""Rows that take about as long to interpret as the kernel takes to compile.

Both grow with a kernel's bytecode: some 0.2 ms a byte to compile, some 0.5 ns a byte and row to interpret.
Measured kernels lie between 130,000 rows and, one that does little on most rows, 3,500,000.
"""

SEVERAL = 3
"""Times :data:`AS_COMPILING` that a kernel is interpreted in small parts before it is compiled after all."""

SPREAD = 2_500
"""Bytes of bytecode that a process compiles for the benefit of later ones: half a second."""


def is_worth(*, work: int, before: int, size: int, spent: int) -> bool:
    """Whether to compile now.

    Work that takes longer to interpret than to compile is worth it, at once or by and by. Else a process compiles
    for half a second, so that later ones find ever more on the disk and none waits for all of it.

    Args:
        work: rows to run now.
        before: rows of this kernel that this process interpreted for want of compiled code.
        size: bytes of the kernel's bytecode.
        spent: bytes of bytecode that this process compiled.
    """
    pays = work >= AS_COMPILING or before + work >= SEVERAL * AS_COMPILING
    return pays or spent == 0 or spent + size <= SPREAD


@dataclass(slots=True)
class Account:
    """What a process has compiled, and interpreted for want of compiled code."""

    spent: int = 0
    """Bytes of bytecode."""
    interpreted: Counter[Callable[..., Any]] = field(default_factory=Counter)
    """Rows of each kernel."""

    def compiles(self, kernel: Callable[..., Any], work: int, *, size: int, ahead: int = 0) -> bool:
        """Decide, and remember; of ``work`` rows now, or of those that are ``ahead`` where these are more."""
        worth = is_worth(work=max(work, ahead), before=self.interpreted[kernel], size=size, spent=self.spent)
        if worth:
            self.spent += size
        else:
            self.interpreted[kernel] += work
        return worth
