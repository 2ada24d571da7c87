"""What an archive holds."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["members"]


def members(archive: Path) -> dict[str, bytes]:
    """Return the files of a tar archive by name."""
    with tarfile.open(archive) as file:
        opened = {entry.name: file.extractfile(entry) for entry in file}
        return {name: one.read() for name, one in opened.items() if one is not None}
