"""Discovery of plugins by their entry points."""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from typing import TYPE_CHECKING

from pptrace.errors import nearest
from pptrace.plugins import hookspecs
from pptrace.plugins.hookspecs import MARK, PROJECT
from pptrace.plugins.offers import Provider
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator


def core_provider() -> Provider:
    """Return the provider of the core's own offers."""
    return Provider(name="builtin", distribution=PROJECT, version=__version__)


def entry_points() -> Iterator[tuple[Provider, metadata.EntryPoint | str]]:
    """Yield each plugin with its entry point or an error message.

    ``metadata.entry_points`` fails if one line of any installed distribution is malformed.
    """
    seen_names = set()
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
        if name and name in seen_names:  # Python imports from the first on its path
            continue
        seen_names.add(name)
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
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except UnicodeDecodeError:
        return "", ""
    headers = text.partition("\n\n")[0]  # distribution.metadata parses the description, too
    matches = (re.search(rf"^{key}: *(.*)$", headers, re.MULTILINE) for key in ("Name", "Version"))
    name, version = (match[1].strip() if match else "" for match in matches)
    return name, version


def _entry_point(line: str) -> metadata.EntryPoint | str:
    name, _, value = (part.strip() for part in line.partition("="))
    if name and metadata.EntryPoint.pattern.match(value):
        return metadata.EntryPoint(name, value, PROJECT)
    return f"its entry point {line!r} is not NAME = MODULE"


_PREFIX = f"{PROJECT}_"


def misfit(plugin: object) -> str:
    """Return the reason why ``plugin`` is unusable as one sentence; the empty string for a usable plugin."""
    known = {name for name in vars(hookspecs) if name.startswith(_PREFIX)}
    hooks = 0
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        mark = getattr(function, MARK, None)
        if mark is None:
            if name in known:
                return f"{name} is not marked; write @hookimpl above it"
            continue
        hook = mark["specname"] or name
        if hook not in known:
            return f"hook {hook!r} does not exist{nearest(hook, known)}"
        if inspect.signature(function).parameters:
            return f"{name} takes no arguments, and this one declares {inspect.signature(function)}"
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return f"{name} is async, and nothing awaits it: write it without async"
        hooks += 1
    if hooks:
        return ""
    return f"it implements no hook{nearest('', known)}"
