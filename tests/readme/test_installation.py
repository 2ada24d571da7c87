"""The README's first line, as written, in a copy of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.packaging

LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "out", "dist", "build")
PRINTED = "printed.txt"


@pytest.fixture
def copy(readme: Any, shell: Any, root: Path, tmp_path: Path) -> Path:
    """Return a copy in which the line ran, with its output: that of ``PPTRACE_INSTALLED``, or one of our own."""
    if made := os.environ.get("PPTRACE_INSTALLED"):
        return Path(made)
    copy = tmp_path / "pptrace"
    shutil.copytree(root, copy, ignore=LEFT_BEHIND)
    (copy / PRINTED).write_text(shell.run(readme.of("bash")[0], copy))
    return copy


def test_the_first_line_installs_everything_and_runs_the_main_job(readme: Any, copy: Path) -> None:
    plugins = subprocess.run(
        [str(copy / ".venv/bin/pptrace"), "plugins"], capture_output=True, text=True, check=True
    )

    assert readme.of("text")[0] in (copy / PRINTED).read_text()
    assert (copy / "step.pftrace").stat().st_size > 0
    for plugin in sorted(path.name for path in (copy / "plugins").iterdir()):
        assert plugin in plugins.stdout
