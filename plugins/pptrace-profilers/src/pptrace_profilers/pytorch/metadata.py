"""What PyTorch's profiler writes about a process beside its events: its rank, and its process groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pptrace_profilers.recording.recording import MOST_RANKS
from pptrace_profilers.rules.ranks import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["groups_of", "positive", "rank_of"]


def positive(value: Any, most: int = 2**62) -> int:
    """Return a positive number, 0 for anything else."""
    return value if isinstance(value, int) and 0 < value < most else 0


def rank_of(metadata: Mapping[str, Any], path: Path) -> int:
    """Return the global rank that metadata say, else the file's name; -1 for none."""
    rank = metadata.get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < MOST_RANKS else FILE_NAME.read(path.name)


def groups_of(metadata: Mapping[str, Any], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the process groups that have a description and ranks; old traces write ranks as text.

    Of several that are described alike, such as those of all pipelines, the one that holds ``rank`` counts.
    """
    groups: dict[str, tuple[int, ...]] = {}
    listed = metadata.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        if not isinstance(group, dict):
            continue
        name = str(group.get("pg_desc") or group.get("pg_name") or "")
        ranks = _ranks(group.get("ranks"))
        if ranks is not None and (rank in ranks or name not in groups):
            groups[name] = ranks
    return groups


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Return a group's ranks, None where they are none or not all different."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not all(isinstance(rank, int) for rank in value):
        return None
    return tuple(value) if len(set(value)) == len(value) else None
