"""Configuration values with their places: a file's line and column, a ``--set`` or a flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field

from pptrace.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Path of a value in a configuration: keys of mappings and indices of lists."""


class Place(Struct, frozen=True):
    """The place of a value in a file or on the command line.

    >>> str(Place(source="step.yaml", line=3, column=7))
    'step.yaml:3'
    """

    source: str
    """A file's name as the user gave it, or the part of the command line."""
    line: int = 0
    """From 1; 0 outside a file."""
    column: int = 0
    """From 1; 0 outside a file."""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source

    def error(self, key: str, message: str) -> ConfigError:
        """Return an error about a key at this place."""
        return ConfigError(message, key=key, file=self.source, line=self.line, column=self.column)


Places: TypeAlias = Mapping[str, Place]
"""The place of every key that the user wrote, by key text."""


Plain: TypeAlias = Any
"""None, bool, int, float, str, list or dict of these, with text keys."""


class Document(Struct, frozen=True, kw_only=True):
    """One YAML document."""

    value: Plain = None
    """Its content."""
    places: Places = field(default_factory=dict)
    """Where each key and list item is."""
    source: str = ""
    """The file's name, as the user gave it."""


def key_text(path: Sequence[str | int], prefix: str = "") -> str:
    """Write a key path as messages and ``--set`` do.

    >>> key_text(("model", "layers_per_stage", 3))
    'model.layers_per_stage[3]'
    """
    text = prefix
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isprintable() else repr(part))
    return text


def place_of(key: str, places: Places) -> Place | None:
    """Return the place of a key, or of the nearest key above it."""
    while key not in places:
        cut = max(key.rfind("."), key.rfind("["))
        if cut < 0:
            return None
        key = key[:cut]
    return places[key]


def error_at(key: str, message: str, places: Places, file: object = "") -> ConfigError:
    """Return an error about a key, located at the key, at the nearest key above it, or in ``file``."""
    return (place_of(key, places) or Place(source=str(file))).error(key, message)


def record(places: dict[str, Place], key: str, value: object, place: Place) -> None:
    """Set the place of a key and of all keys below it."""
    for old in [old for old in places if old.startswith((f"{key}.", f"{key}["))]:
        del places[old]
    _record_below(places, key, value, place)


def _record_below(places: dict[str, Place], key: str, value: object, place: Place) -> None:
    places[key] = place
    if isinstance(value, Mapping):
        for name, below in value.items():
            _record_below(places, key_text((name,), key), below, place)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            _record_below(places, f"{key}[{index}]", below, place)
