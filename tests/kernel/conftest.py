"""A kernel in a file of its own, for processes that start with an empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = """
def double(values, out):
    for i in range(len(values)):
        out[i] = 2 * values[i]
    return len(values)

def triple(values, out):
    for i in range(len(values)):
        out[i] = 3 * values[i]
"""


class RunProgram(Protocol):
    """Runs a program beside ``kernels.py`` in a new process."""

    def __call__(self, source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run_program(tmp_path: Path) -> RunProgram:
    """Return a function that runs a program with a cache of its own."""
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")

    def run(source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(source, encoding="utf-8")
        own = {"PPTRACE_KERNEL_CACHE": str(tmp_path / "cache"), "PPTRACE_INTERPRET": ""}
        return subprocess.run(
            [sys.executable, tmp_path / "program.py", *arguments], env=os.environ | own | environment,
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip

    return run
