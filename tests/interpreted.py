"""Interpretation of kernels, also if an earlier test loaded their compiled code."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    """Interpret every kernel in the block."""
    with patch.dict(os.environ, {"PPTRACE_INTERPRET": "1"}):
        yield
