"""A Python that has imported PyTorch, which takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from forked_python import ForkedPython

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def torch_python() -> Iterator[ForkedPython]:
    with ForkedPython("pptrace.cli.main", "pptrace_torch.command", "pptrace_torch.worker") as python:
        yield python
