"""A virtual environment of its own, for tests of what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Environment"]


class Environment:
    """A virtual environment that knows nothing of this source tree."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)

    def run(self, program: str, *arguments: str, cwd: Path) -> str:
        return self._run(str(self.bin / program), *arguments, cwd=cwd)

    def pip(self, *arguments: str, cwd: Path) -> None:
        here = ("--python", str(self.bin / "python"))
        self._run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *here, *arguments, cwd=cwd)

    def _run(self, *command: str, cwd: Path) -> str:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "PPTRACE")) or key == "PPTRACE_KERNEL_CACHE"
        }
        result = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command} gave {result.returncode}:\n{result.stdout}\n{result.stderr}"
        return result.stdout
