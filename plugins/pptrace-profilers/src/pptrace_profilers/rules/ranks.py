"""Where a process's global rank is read: by default behind ``rank`` in its file's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace_profilers.recording.recording import MOST_RANKS

if TYPE_CHECKING:
    from pptrace_profilers.rules.timed import Matcher

__all__ = ["FILE_NAME", "RankRule"]

_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRule:
    """Where global ranks are read."""

    source: str = "file"
    """``file``, ``pid``, ``process_name``, or ``args.`` and an argument's key."""
    pattern: Matcher = re.compile(r"rank[_\-.]?(?P<rank>\d+)", re.IGNORECASE)
    """Finds the rank in it."""

    def read(self, text: str) -> int:
        """Return the rank that a text says, -1 for none.

        >>> RankRule().read("rank_3.json"), RankRule().read("trace.json")
        (3, -1)
        """
        match = self.pattern.search(text)
        digits = match["rank"] if match is not None else None
        rank = int(digits) if digits and digits.isdecimal() and len(digits) <= _MOST_DIGITS else MOST_RANKS
        return rank if rank < MOST_RANKS else -1


FILE_NAME = RankRule()
"""What is read without a rules file."""
