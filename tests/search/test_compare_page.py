"""``docs/compare.md`` shows what its example prints, and its commands and code run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from forked_python import ForkedPython


def blocks(root: Path, language: str) -> list[str]:
    page = (root / "docs" / "compare.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_every_output_on_the_page_is_the_example_s(root: Path) -> None:
    recorded = "".join(
        (root / "examples" / f"{name}.out").read_text(encoding="utf-8") for name in ("compare", "compare_memory")
    )

    shown = blocks(root, "text")

    assert len(shown) == 6
    assert [block for block in shown if block not in recorded] == []


def test_every_command_on_the_page_is_the_example_s(root: Path) -> None:
    scripts = "".join((root / "examples" / f"{name}.sh").read_text() for name in ("compare", "compare_memory"))

    shown = [command.replace("examples/", "").replace(" -o compare.svg", "") for command in blocks(root, "bash")]

    assert len(shown) == 3
    assert [command for command in shown if command not in scripts] == []


@pytest.mark.needs_plugins
def test_the_page_s_code_runs(root: Path, examples: Path, forked_python: ForkedPython) -> None:
    program = examples.parent / "code.py"
    program.write_text("".join(blocks(root, "python")))

    ran = forked_python.run(examples.parent, program=program)

    assert ran.returncode == 0, ran.stderr
    assert (examples.parent / "compare.png").is_file()
