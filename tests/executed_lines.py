"""The work of a function as a count of Python lines, which is the same under any load."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from interpreted import interpreted_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["executed_lines"]


def executed_lines(run: Callable[[], object]) -> int:
    """Return how many lines of Python a call executes; kernels are interpreted."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    with interpreted_kernels():
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(before)
    return count
