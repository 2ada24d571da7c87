"""The page on the loop with PyTorch: its commands and its program run as they are printed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from markdown import blocks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]
PAGE = Path(__file__).parents[3] / "docs" / "pytorch.md"


def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    (program,) = (text for language, text in blocks(PAGE) if language == "python")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    commands = [
        line
        for language, text in blocks(PAGE)
        if language == "bash"
        for line in text.replace("\\\n", "").splitlines()
    ]
    assert len(commands) > 8

    for command in commands:
        ran = subprocess.run(  # noqa: S602 - lines of our own page
            command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        differs = command.startswith("pptrace diff")
        assert ran.returncode in ({0, 1} if differs else {0}), f"{command}\n{ran.stderr}"
    assert (tmp_path / "captured" / "run.manifest.json").exists()
