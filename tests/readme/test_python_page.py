"""The code on the page about the Python API prints what the page shows (``--regenerate`` writes outputs anew)."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.needs_plugins
def test_the_code_prints_what_the_page_shows(
    root: Path, examples: Path, page: Any, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(examples.parent)
    python = page(root / "docs" / "python.md")
    namespace: dict[str, Any] = {}
    printed = []
    for code in python.of("python"):
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(code, "python.md", "exec"), namespace)  # noqa: S102 - our own page
        printed.append(output.getvalue())

    if pytestconfig.getoption("--regenerate"):
        for number, text in enumerate(printed):
            python.replace("text", number, text)
    assert python.of("text") == printed
