"""Find plugins by their entry points, one by one, so that a broken one costs nobody else anything."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from pptrace.hooks.call import interruption, one_line, plugin_output
from pptrace.hooks.provider import Failure, Provider
from pptrace.hooks.specs import PROJECT
from pptrace.record import dataclass
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
    for provider, entry_point in sorted(_entry_points(), key=lambda pair: (pair[0].distribution, pair[0].name)):
        names = {provider.name, provider.distribution}
        used |= names
        if ALL in disable or not names.isdisjoint(disable):
            disabled.append(provider)
            continue
        if isinstance(entry_point, str):
            failures.append(Failure(provider=provider, reason=entry_point))
            continue
        try:
            with plugin_output():
                plugins.append((provider, entry_point.load()))
        except interruption():
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


def _entry_points() -> Iterator[tuple[Provider, metadata.EntryPoint | str]]:
    """Yield each plugin with its entry point, or with what is wrong with that.

    ``metadata.entry_points`` fails where one line of anything that is installed is malformed.
    """
    seen = set()
    for distribution in metadata.distributions():
        try:
            lines = _lines_of_group(distribution.read_text("entry_points.txt") or "")
        except UnicodeDecodeError:
            name, version = _identity(distribution)
            yield Provider(name=name, distribution=name, version=version), "its entry_points.txt is not UTF-8 text"
            continue
        if not lines:
            continue
        name, version = _identity(distribution)
        if name and name in seen:  # Python imports from the first on its path
            continue
        seen.add(name)
        for line in lines:
            entry = line.partition("=")[0].strip()
            yield Provider(name=entry, distribution=name, version=version), _entry_point(line)


def _lines_of_group(text: str) -> list[str]:
    lines, section = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == f"[{PROJECT}]" and line and not line.startswith("#"):
            lines.append(line)
    return lines


def _identity(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version, empty where the metadata does not hold them."""
    try:
        described = distribution.metadata  # name and version each parse it anew
    except (UnicodeDecodeError, FileNotFoundError):
        return "", ""
    name, version = (described.get_all(key, [""])[0] for key in ("Name", "Version"))
    return name, version


def _entry_point(line: str) -> metadata.EntryPoint | str:
    name, _, value = (part.strip() for part in line.partition("="))
    if name and metadata.EntryPoint.pattern.match(value):
        return metadata.EntryPoint(name, value, PROJECT)
    return f"its entry point {line!r} is not NAME = MODULE"
