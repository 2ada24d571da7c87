"""Two threads for any amount of work, on any machine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def two_threads() -> Iterator[None]:
    """Divide the ranks of every kernel that :func:`pptrace_kernel.run_parts` runs in the block."""
    with patch("pptrace_kernel.TWO_THREADS_FROM", 0), patch("pptrace_kernel.has_second_core", lambda: True):
        yield
