"""Every example on the plugins' READMEs does what it says; ``tests/packaging`` holds those of example plugins."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from markdown import blocks, commands

from pptrace.api import simulate

PAGES = {page.parent.name: page for page in sorted((Path(__file__).parents[2] / "plugins").glob("*/README.md"))}
RULES = "pptrace-profilers"
"""Its YAML is a file of rules, which its own tests read."""
STEPS = [
    pytest.param(text, id=name)
    for name, page in PAGES.items() if name != RULES
    for language, text in blocks(page) if language == "yaml"
]  # fmt: skip


def test_every_page_has_an_example() -> None:
    assert {name for name, page in PAGES.items() if not commands(page)} <= {step.id for step in STEPS}


@pytest.mark.needs_plugins
@pytest.mark.parametrize("text", STEPS)
def test_a_step_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(text, encoding="utf-8")

    assert simulate(tmp_path / "step.yaml").metrics.step_ns > 0


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if commands(page)])
def test_commands_run(name: str, shell: Any, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "examples" / "run-1f1b", tmp_path / "run")
    shutil.copy(root / "examples" / "plan-1f1b.yaml", tmp_path / "step.yaml")

    for written in commands(PAGES[name]):
        command = re.sub(r"(?<=time[ =])\d+s\b", "200ms", written)  # a search is no better test for taking longer
        differs = " || [ $? = 1 ]" if command.startswith("pptrace diff") else ""
        shell.run(f"{command}{differs}", tmp_path)
