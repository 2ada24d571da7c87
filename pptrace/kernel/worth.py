"""Whether it is worth compiling a kernel whose compiled code is neither in this process nor on the disk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AS_COMPILING", "AS_ONE_BYTE", "SEVERAL", "SPREAD", "Account", "is_worth"]

AS_COMPILING = 400_000
"""Rows that take about as long to interpret as a small kernel takes to compile."""

AS_ONE_BYTE = 220
"""The same for each byte of a large one: 0.2 ms to compile, and a row of any kernel takes about a microsecond."""

SEVERAL = 3
"""How many times as much a kernel is interpreted in small parts before it is compiled after all."""

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
    enough = max(AS_COMPILING, AS_ONE_BYTE * size)
    pays = work >= enough or before + work >= SEVERAL * enough
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
