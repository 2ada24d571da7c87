"""Pages of Markdown as blocks of commands, each with its output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of Markdown with fenced blocks."""

    path: Path
    """Where it is."""

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and content of each block."""
        return [(block[1], block[2]) for block in _BLOCK.finditer(self.text)]

    def of(self, language: str) -> list[str]:
        """Return the blocks of one language."""
        return [content for name, content in self.blocks if name == language]

    def replace(self, language: str, number: int, content: str) -> None:
        """Write other content into a block of a language."""
        found = [block for block in _BLOCK.finditer(self.text) if block[1] == language][number]
        text = self.text
        self.path.write_text(text[: found.start(2)] + content + text[found.end(2) :], encoding="utf-8")


@pytest.fixture(scope="session")
def page() -> type[Page]:
    return Page


@pytest.fixture(scope="session")
def readme(root: Path) -> Page:
    return Page(root / "README.md")
