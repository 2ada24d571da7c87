"""The manifest of an archive of traces: whose each file is, and how their clocks relate.

Format: https://perfetto.dev/docs/reference/perfetto-manifest, version 1, which trace processors from v57 on heed.
They refuse an entry for a packed file, which is an archive to them, so files stand in the archive unpacked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NAME", "Member", "manifest_json"]

NAME = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"
"""The clock of a Perfetto trace whose packets name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trace of the archive."""

    path: str
    """Its name in the archive."""
    machine: str
    """Whose it is: files of one machine share processes."""
    offset_ns: int
    """What is added to its times."""
    has_clock: bool
    """Whether it has a clock of its own, as Perfetto's format does and Chrome JSON does not."""


def manifest_json(members: Sequence[Member], attributes: Mapping[str, str]) -> str:
    """Return the manifest's text.

    The first trace with a clock is what the others are placed against, else the first of all.
    """
    reference = next((one for one in members if one.has_clock), members[0])
    document: dict[str, Any] = {"version": 1}
    if reference.has_clock:
        document["trace_time"] = {"clock": _CLOCK, "file": reference.path}
    document["files"] = [_entry(one, reference) for one in members]
    document["attributes"] = dict(attributes)
    # A trace processor knows a manifest by how it begins.
    return json.dumps({"perfetto_manifest": document}, indent=1) + "\n"


def _entry(one: Member, reference: Member) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": one.path, "machine": {"name": one.machine}}
    if one is reference:
        return entry
    clocks: dict[str, Any] = {"clock": _CLOCK} if one.has_clock else {}
    clocks["sync_to"] = {"file": reference.path, **({"clock": _CLOCK} if reference.has_clock else {})}
    clocks["offset_ns"] = one.offset_ns - reference.offset_ns
    return {**entry, "clocks": clocks}
