"""The gallery of schedules has a section for every schedule that the plugins of this repository offer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pptrace import Registry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.needs_plugins
def test_the_gallery_has_every_schedule_and_says_when_to_use_it(root: Path) -> None:
    page = (root / "docs" / "schedules.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## ([\w-]+)\n\n(\*\*Use it\*\* )?", page, re.MULTILINE)

    assert sorted(name for name, _ in sections) == sorted(Registry.load().schedules)
    assert all(use for _, use in sections)
