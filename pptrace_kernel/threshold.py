"""The decision whether to compile a kernel: rows of work against compile time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_PER_BYTE = 30
"""Rows interpreted, at 1 µs each, in the time that a byte of bytecode takes to compile: 0.03 ms."""

BYTES_PER_PROCESS = 4_000
"""Bytes of bytecode that each process compiles for later processes, in about 0.12 s."""


@dataclass(slots=True)
class CompileBudget:
    """The kernels that this process compiled and interpreted."""

    compiled_bytes: int = 0
    """Bytes of bytecode that were compiled."""
    interpreted: Counter[Callable[..., Any]] = field(default_factory=Counter)
    """Interpreted rows of each kernel."""

    def rows(self, kernel: Callable[..., Any], work: int, *, ahead: int = 0) -> int:
        """Return interpreted rows plus ``work``, or the rows that are expected if these are more."""
        return max(self.interpreted[kernel] + work, ahead)

    def take(self, rows: int, size: int) -> bool:
        """Decide whether to compile a kernel; add its size to the budget if so.

        A kernel is compiled if interpreting its rows takes longer. In addition, each process compiles some kernels
        for later processes: the cache fills over several runs, and no run waits until all kernels are compiled.

        Args:
            rows: the kernel's rows of this run and of earlier interpreted runs in this process. The total time is
                at most twice the optimum for a known amount of work.
            size: bytes of the kernel's bytecode.
        """
        is_faster = rows >= ROWS_PER_BYTE * size
        compiles = is_faster or self.compiled_bytes == 0 or self.compiled_bytes + size <= BYTES_PER_PROCESS
        self.compiled_bytes += size * compiles
        return compiles
