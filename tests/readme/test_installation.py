"""The README's first commands, as written, in a copy of the repository."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.packaging

LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "out", "dist", "build")


def test_the_first_block_installs_everything_and_runs_the_main_job(
    readme: Any, shell: Any, root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "pptrace"
    shutil.copytree(root, copy, ignore=LEFT_BEHIND)

    printed = shell.run(readme.of("bash")[0], copy)

    assert readme.of("text")[0] in printed
    assert (copy / "step.pftrace").stat().st_size > 0
    plugins = subprocess.run(
        [str(copy / ".venv/bin/pptrace"), "plugins"], capture_output=True, text=True, check=True
    )
    assert "pptrace-models" in plugins.stdout
    assert "pptrace-schedules" in plugins.stdout
