"""Find plugins by their entry points, one by one, so that a broken one costs nobody else anything."""

from __future__ import annotations

import contextlib
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from pptrace.hooks.call import one_line
from pptrace.hooks.provider import Failure, Provider
from pptrace.hooks.specs import PROJECT
from pptrace.record import dataclass
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ALL", "Found", "core_provider", "find_entry_points"]

ALL = "all"
"""Stands for every entry point where plugins are disabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the entry points of the group ``pptrace`` gave."""

    plugins: tuple[tuple[Provider, object], ...]
    """Plugins that could be imported, in the order of distribution and name."""
    failures: tuple[Failure, ...]
    """Plugins that could not."""
    disabled: tuple[Provider, ...]
    """Plugins that were not tried, as asked."""
    unknown: tuple[str, ...]
    """Names that were to be disabled and that no plugin has."""


def find_entry_points(disable: Collection[str]) -> Found:
    """Import every plugin whose name or distribution is not in ``disable``."""
    plugins: list[tuple[Provider, object]] = []
    failures: list[Failure] = []
    disabled: list[Provider] = []
    used: set[str] = {ALL}
    for provider, entry_point in _entry_points():
        names = {provider.name, provider.distribution}
        used |= names
        if ALL in disable or not names.isdisjoint(disable):
            disabled.append(provider)
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of our output
                plugins.append((provider, entry_point.load()))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - others' code may raise anything
            failures.append(Failure(provider=provider, reason=one_line(error)))
    return Found(
        plugins=tuple(plugins),
        failures=tuple(failures),
        disabled=tuple(disabled),
        unknown=tuple(sorted(set(disable) - used)),
    )


def core_provider() -> Provider:
    """Return the provider that stands for the core itself."""
    return Provider(name="builtin", distribution=PROJECT, version=__version__)


def _entry_points() -> list[tuple[Provider, metadata.EntryPoint]]:
    found = []
    for entry_point in metadata.entry_points(group=PROJECT):
        described = entry_point.dist.metadata if entry_point.dist else None  # name and version each parse it anew
        provider = Provider(
            name=entry_point.name,
            distribution=described["Name"] if described else "",
            version=described["Version"] if described else "",
        )
        found.append((provider, entry_point))
    return sorted(found, key=lambda pair: (pair[0].distribution, pair[0].name))
