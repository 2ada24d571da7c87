"""The page about diffs shows what its example prints, and its Python works."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
def test_the_python_on_the_page_runs(
    root: Path, examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (root / "docs" / "diff.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program
    monkeypatch.chdir(examples.parent)

    exec(compile(program[1], "diff.md", "exec", dont_inherit=True), {})  # noqa: S102 - our own page

    assert "run-1f1b" in capsys.readouterr().out
    assert (examples.parent / "report.html").is_file()
    assert (examples.parent / "both.pftrace").is_file()
