"""Pages of Markdown as their tests read them: blocks of code, and the commands of pptrace in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["blocks", "commands"]

_BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>(?s:.*?))^```$|(?P<indented>(?:^ {4}\S.*\n)+)", re.MULTILINE
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and content of a page's blocks, fenced or indented; those have no language."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [
        (block["language"] or "", block["fenced"] or re.sub(r"^ {4}", "", block["indented"], flags=re.MULTILINE))
        for block in found
    ]


def commands(page: Path) -> list[str]:
    """Return a page's lines that run pptrace, continued lines joined."""
    shell = [re.sub(r"\\\n\s*", "", text) for language, text in blocks(page) if language in {"", "bash"}]
    return [line for text in shell for line in text.splitlines() if line.startswith("pptrace ")]
