"""The tutorial and the page on PyTorch: their commands and programs run as they are printed."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown import blocks

if TYPE_CHECKING:
    from forked_python import ForkedPython

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]
TORCHRUN = """
import runpy
from torch.distributed import run

launch = run.elastic_launch

def train(*arguments):
    runpy.run_path(arguments[-1], run_name="__main__")

def forking(config, entrypoint):
    config.start_method = "fork"
    return launch(config, train)

run.elastic_launch = forking
run.main()
"""
"""``python -m torch.distributed.run`` with ranks that are forked, so that none imports PyTorch anew."""
DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "tutorials" / "pytorch-loop.md", DOCS / "pytorch.md"]


def test_the_pages_run_from_top_to_bottom(tmp_path: Path, torch_python: ForkedPython) -> None:
    """The search for a better table has less time than on the page, and the real stages have fewer layers."""
    shown = [block for page in PAGES for block in blocks(page)]
    (program,) = (text for language, text in shown if language == "python")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    commands = [
        line for language, text in shown if language == "bash" for line in text.replace("\\\n", "").splitlines()
    ]
    assert len(commands) > 8

    for command in commands:
        less = command.replace("--time 5s", "--time 200ms").replace("--real", "--set model.layers=4 --real")
        _, *arguments = shlex.split(less)
        if command.startswith("pptrace "):
            ran = torch_python.run(tmp_path, *arguments)
        else:
            assert command.startswith("python -m torch.distributed.run ")
            ran = torch_python.run(tmp_path, *arguments[2:], program=TORCHRUN)
        differs = command.startswith("pptrace diff")
        assert ran.returncode in ({0, 1} if differs else {0}), f"{command}\n{ran.stderr}"
    assert (tmp_path / "captured" / "run.manifest.json").exists()
