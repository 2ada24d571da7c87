"""The page about diffs shows what its example prints, and its Python works."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("page", "example"), [("diff.md", "diff.out"), ("measured.md", "measured.out")])
def test_the_output_on_a_page_is_the_example_s(page: str, example: str, root: Path) -> None:
    page = (root / "docs" / page).read_text(encoding="utf-8")
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown

    assert shown[1] in (root / "examples" / example).read_text(encoding="utf-8")


@pytest.mark.needs_plugins
def test_the_python_on_the_page_runs(root: Path, shell: Any, examples: Path) -> None:
    page = (root / "docs" / "diff.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program
    (examples.parent / "page.py").write_text(program[1], encoding="utf-8")

    printed = shell.run("python page.py", examples.parent)

    assert "run-1f1b" in printed
    assert (examples.parent / "report.html").is_file()
    assert (examples.parent / "both.pftrace").is_file()
