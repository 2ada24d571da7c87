"""The example on the page about kernels prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from markdown import blocks

PAGE = Path(__file__).parents[2] / "pptrace_kernel" / "README.md"


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    (_, code), (_, printed) = blocks(PAGE)
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    environment = os.environ | {"PPTRACE_KERNEL_CACHE": str(tmp_path), "PPTRACE_INTERPRET": ""}

    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout == printed
    assert list(tmp_path.glob("merge_overlaps_*.o"))


def test_the_page_names_every_module() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [file.name for file in PAGE.parent.glob("*.py") if f"`{file.name}`" not in page] == []
