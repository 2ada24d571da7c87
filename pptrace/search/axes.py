"""Axes of sweeps: keys of a configuration with their values."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.flags import ARGUMENTS, key_of
from pptrace.config.overrides import Assignment, assignment
from pptrace.config.places import key_text
from pptrace.config.schema import Experiment
from pptrace.config.yaml_document import parse_value, read_yaml
from pptrace.errors import ConfigError, nearest
from pptrace.search.basis import parse_entries, split_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace.config.places import KeyPath

_RANGE = re.compile(r"(\d+)\.\.(\d+)([*+])(\d+)(\s*[A-Za-z][\w/]*)?")
_MAPPING = re.compile(r"\{")
_LOOKS_LIKE_RANGE = re.compile(r"\d+\.\.\d*")
_MOST_VALUES = 10_000
_SCHEDULE = ("schedule", "schedule.name")
_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of an axis."""

    text: str
    """As the user wrote it; of a file, its name without folder and suffix."""
    varied: tuple[Assignment, ...]
    """Its assignments: the key, settings of a schedule, or all keys of a file."""
    is_coupled: bool = False
    """Whether it sets several keys together: a file of settings, or a mapping."""

    @property
    def cell(self) -> int | float | str | None:
        """The table cell: a number or name, otherwise the text as written."""
        value = self.varied[0].value if len(self.varied) == 1 and not self.is_coupled else self.text
        return value if isinstance(value, int | float | str) else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A key and its values."""

    key: str
    """A flag's name or a key path, as the user wrote it, or any name before files; the name of its column."""
    values: tuple[Value, ...]
    """The values in their order."""

    @property
    def own_paths(self) -> frozenset[KeyPath]:
        """The key as a name or a whole section; all keys of coupled values."""
        return self.paths if self.is_coupled else frozenset(value.varied[0].path for value in self.values)

    @property
    def is_coupled(self) -> bool:
        """Whether its values are files of settings, or mappings."""
        return self.values[0].is_coupled

    @property
    def paths(self) -> frozenset[KeyPath]:
        """All keys that it sets, settings of schedules included."""
        return frozenset(setting.path for value in self.values for setting in value.varied)


def parse_axes(texts: Sequence[str], option: str = "--over") -> tuple[Axis, ...]:
    """Read axes of ``--over``: ``microbatches=8,16``, ``pp=4..64*2``, ``schedule=gpipe,hanayo:waves=2``.

    A value can be a YAML file (``machine=slow.yaml,fast.yaml``), which sets all its keys. After a name that is no
    key, it can be a mapping (``layout={pp: 8, tp: 2},{pp: 4, tp: 4}``).

    Raises:
        ConfigError: an unknown key, a missing or repeated value, an invalid range, or an unreadable file.

    >>> [[value.text for value in axis.values] for axis in parse_axes(["pp=4..32*2", "network.latency=1..3+2 us"])]
    [['4', '8', '16', '32'], ['1 us', '3 us']]
    """
    return tuple(_parsed(text, option) for text in texts)


def axes_of(over: Mapping[str, Iterable[Any]], option: str = "--over") -> tuple[Axis, ...]:
    """Return axes from plain values by key; ``option`` is their name in errors.

    Raises:
        ConfigError: as for :func:`parse_axes`, or a value of another type.
    """
    return tuple(
        _axis(key, [_text(key, value) for value in _listed(key, values, option)], option)
        for key, values in over.items()
    )


def _parsed(text: str, option: str) -> Axis:
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"write KEY=VALUE,VALUE, such as microbatches=8,16, not {text!r}", file=option)
    key = key.strip()
    words = [word.strip() for word in split_outside(values, ",")]
    return _axis(key, [value for word in words for value in _expand(word, f"{option} {key}")], option)


def _axis(key: str, words: Sequence[str], option: str = "--over") -> Axis:
    source = f"{option} {key}"
    files = [word for word in words if word.lower().endswith(_FILES)]
    if files:
        return Axis(key=key, values=_overlays(files, words, source))
    section = re.split(r"[.\[]", key_of(key))[0]
    if section not in Experiment.model_fields and words and all(map(_MAPPING.match, words)):
        return Axis(key=key, values=tuple(_coupled(word, f"{source}={word}") for word in words))
    if section not in Experiment.model_fields:
        raise ConfigError(f"no such key{nearest(key, ARGUMENTS)}", file=source)
    if not words or not all(words):
        what = "an empty value between its commas" if any(words) else "no value"
        raise ConfigError(f"has {what}: write such as {key}=VALUE,VALUE", file=source)
    values = tuple(_value(key, word, option) for word in words)
    seen: list[Any] = []
    for value in values:
        content = sorted((str(setting.path), repr(setting.value)) for setting in value.varied)
        if content in seen:
            raise ConfigError(f"{value.text} is there twice: name each value once", file=source)
        seen.append(content)
    return Axis(key=key, values=values)


def _overlays(files: Sequence[str], words: Sequence[str], source: str) -> tuple[Value, ...]:
    """Return files of settings as values."""
    other = next((word for word in words if word not in files), None)
    if other is not None:
        raise ConfigError(
            f"{other or 'an empty value'} stands among files of settings: write files alone", file=source
        )
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is there twice: name each value once", file=source)
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(stems) else files
    return tuple(
        Value(text=name, varied=_settings(Path(file)), is_coupled=True)
        for name, file in zip(names, files, strict=True)
    )


def _settings(file: Path) -> tuple[Assignment, ...]:
    """Return the assignments of a file of settings."""
    settings: list[Assignment] = []
    pending: list[tuple[KeyPath, Any]] = [((), read_yaml(file).value)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, key), below) for key, below in reversed(value.items())]
        else:
            settings.append(assignment(key_text(path), json.dumps(value), str(file)))
    return tuple(settings)


def _coupled(word: str, source: str) -> Value:
    """Return a mapping of keys as one value."""
    settings = parse_value(word, source)
    if not isinstance(settings, dict) or not settings:
        raise ConfigError(f"{word} is no mapping of keys: write such as {{pp: 8, tp: 2}}", file=source)
    varied: list[Assignment] = []
    for key, below in settings.items():
        if key in _SCHEDULE and isinstance(below, str):
            varied += parse_entries([below], source)[0].varied
        elif re.split(r"[.\[]", key_of(str(key)))[0] in Experiment.model_fields:
            varied.append(assignment(str(key), json.dumps(below), source))
        else:
            raise ConfigError(f"no such key{nearest(str(key), ARGUMENTS)}", key=str(key), file=source)
    return Value(text=word, varied=tuple(varied), is_coupled=True)


def _value(key: str, word: str, option: str) -> Value:
    if key in _SCHEDULE and not word.startswith("{"):
        entry, *others = parse_entries([word], f"{option} {key}")
        if others:
            raise ConfigError(f"{word} are several schedules, where each value is one", file=f"{option} {key}")
        return Value(text=entry.label, varied=entry.varied)
    return Value(text=word, varied=(assignment(key, word, f"{option} {key}={word}"),))


def _expand(word: str, source: str) -> Iterator[str]:
    """Yield the numbers of a range with its unit; yield any other word unchanged."""
    match = _RANGE.fullmatch(word)
    if match is None:
        if _LOOKS_LIKE_RANGE.match(word):
            raise ConfigError(f"{word} is no range: write 8..64*2 (doubling) or 8..64+8", file=source)
        yield word
        return
    number, last, step = int(match[1]), int(match[2]), int(match[4])
    grows = step > 1 and number > 0 if match[3] == "*" else step > 0
    if not grows or number > last:
        raise ConfigError(f"{word} is no range: it must grow from its first number to its last", file=source)
    for _ in range(_MOST_VALUES):
        yield f"{number}{match[5] or ''}"
        number = number * step if match[3] == "*" else number + step
        if number > last:
            return
    raise ConfigError(f"{word} has more than {_MOST_VALUES:,} values", file=source)


def _listed(key: str, values: Any, option: str) -> list[Any]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(f"write a list of values, not {values!r:.60}", file=f"{option} {key}")
    return list(values)


def _text(key: str, value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    try:
        return json.dumps(value.item() if hasattr(value, "item") else value, allow_nan=False)
    except (TypeError, ValueError):
        message = f"a {type(value).__name__} is no number, text, list or mapping"
        raise ConfigError(message, file=f"--over {key}") from None
