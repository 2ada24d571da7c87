"""The settings that Python's functions take by name, typed, so that editors complete and check them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    from pptrace.config.choices import PolicyName, Sharing

__all__ = ["Settings", "SettingsBesideSchedule"]

Section: TypeAlias = Mapping[str, Any]
"""A whole section, as its file has it."""
Count: TypeAlias = int | str | None
Named: TypeAlias = str | PathLike[str] | Section | None

_Reserved = TypedDict("_Reserved", {"global": Count}, total=False)
"""``global`` is a word of Python's, so it is given as ``**{"global": 64}``, or with ``batch``."""


class SettingsBesideSchedule(_Reserved, total=False):
    """Every flag but ``schedule``, and the sections that have none; None is as good as absent."""

    pp: Count
    tp: Count
    dp: Count
    cp: Count
    ep: Count
    vp: Count
    microbatches: Count
    micro: Count
    sequence: Count
    model: Named
    device: Named
    network: Named
    cluster: Named
    contention: Sharing | str | Section | None
    p2p: PolicyName | str | Section | None
    costs: Named
    parallel: Section | None
    batch: Section | None
    data_parallel: Section | None


class Settings(SettingsBesideSchedule, total=False):
    """Every flag, and the sections that have none."""

    schedule: Named
