"""Overrides of a configuration file by ``--set key=value`` and flags; flags take precedence over ``--set``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import Struct

from pptrace.config.choices import Choice
from pptrace.config.flags import ARGUMENTS, HEADLINES, key_of
from pptrace.config.places import KeyPath, Place, Places, Plain, key_text, record
from pptrace.config.quantities import is_one_word, tag_of, value_of
from pptrace.config.validation import shown
from pptrace.errors import ConfigError, nearest

_SIZES = frozenset({"parallel", "batch"})
"""Sections whose other keys do not get the place of an override: ``--pp`` is no place of ``parallel.vp``."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]{1,9})\]")
_KEPT = {"schedule": ("offload", "recompute")}
"""Keys of a section that stay when its name changes."""
_DERIVED_FROM_EACH_OTHER = (("global", "microbatches"), ("microbatches", "global"))


class Assignment(Struct, frozen=True):
    """An override of one key."""

    path: KeyPath
    """The path of the key."""
    value: Any
    """A plain value; None removes the key, so that its default applies."""
    place: Place
    """The part of the command line."""


def assignments(sets: Sequence[str], flags: Mapping[str, Any]) -> list[Assignment]:
    """Read ``key=value`` texts, then flags, in the order in which they apply; flags that are None are absent.

    Raises:
        ConfigError: no ``key=value``, broken YAML in a value, an unknown flag.
    """
    parsed = [_parsed(text) for text in sets]
    return parsed + [_flag(name, value) for name, value in flags.items() if value is not None]


def assignment(key: str, text: str, source: str) -> Assignment:
    """Return an override of a key path, or a flag's key, by a value in YAML.

    Args:
        key: such as ``pp``, ``network.bandwidth`` or ``p2p``.
        text: the value; empty text or ``null`` removes the key.
        source: the part of the command line, for errors.

    Raises:
        ConfigError: no key path, or broken YAML.
    """
    path = _path(key_of(key))
    if path is None:
        raise ConfigError(f"{_brief(key)!r} is not a key: write one such as network.bandwidth", file=source)
    return _assignment(path, parse_value(text, source), source)


def parse_value(text: str, source: str) -> Plain:
    """Read one value as YAML, as after ``--set key=``.

    >>> parse_value("{a: [1, 0x10, no]}", "--set")
    {'a': [1, 16, 'no']}
    """
    if is_one_word(text):
        return value_of(tag_of(text), text)
    from pptrace.config.yaml_document import parse_yaml

    try:
        return parse_yaml(text, source).value
    except ConfigError as error:
        raise ConfigError(error.message, file=source) from None


def overlaid(
    value: Mapping[str, Any] | None, places: Places, over: Sequence[Assignment]
) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return a file's values and their locations after assignments; short forms are expanded.

    A new name for a model, schedule, device, network or cost model drops the file's options of the old one.
    Keys that every schedule takes, such as ``offload``, stay. A new policy drops the old policy's options. An
    assignment of ``global`` or ``microbatches`` drops the other one, and one of a cluster drops the network.
    Unchanged values are those of the file, and not copies.

    Raises:
        ConfigError: an assignment below a value that has no keys.
    """
    tree = {section: below for section, below in (value or {}).items() if below is not None}
    noted = dict(places)
    for section, headline in HEADLINES.items():
        if isinstance(tree.get(section), str):
            tree[section] = {headline: tree[section]}
            noted[f"{section}.{headline}"] = noted[section]
    _drop_superseded(tree, noted, over)
    for override in over:
        _assign(tree, override)
        key, path = key_text(override.path), override.path
        record(noted, key, override.value, override.place)
        if override.value is None:
            del noted[key]
        for depth in range(2 if path[0] in _SIZES else 1, len(path)):
            noted.setdefault(key_text(path[:depth]), override.place)
    for section in HEADLINES:
        if not isinstance(tree.get(section, {}), dict):
            raise noted[section].error(section, f"must be a name or a mapping, not {shown(tree[section])}")
    return tree, noted


def _parsed(text: str) -> Assignment:
    key, equals, value = text.partition("=")
    path = _path(key.strip())
    if not equals or path is None:
        raise ConfigError(f"write --set key.path=value, not {_brief(text)!r}", file="--set")
    source = f"--set {_brief(text)}"
    return _assignment(path, parse_value(value, source), source)


def _path(key: str) -> KeyPath | None:
    steps = list(_STEP.finditer(key))
    if not steps or "".join(step[0] for step in steps) != key:
        return None
    return tuple(step[1] or int(step[2]) for step in steps)


def _flag(name: str, value: object) -> Assignment:
    if name not in ARGUMENTS:
        raise ConfigError(f"unknown flag{nearest(name, ARGUMENTS)}", file=f"--{name}")
    source = f"--{name}"
    is_name = name in HEADLINES and not str(value).startswith("{")
    if isinstance(value, str) and not is_name:
        value = parse_value(value, source)
    return _assignment(tuple(key_of(name).split(".")), plain(value, source), source)


def _assignment(path: KeyPath, value: Any, source: str) -> Assignment:
    """Return an assignment; a bare name for a section is for its headline key."""
    if len(path) == 1 and path[0] in HEADLINES and isinstance(value, str):
        path = (*path, HEADLINES[str(path[0])])
    return Assignment(path=path, value=value, place=Place(source=source))


def _drop_superseded(tree: dict[str, Any], places: dict[str, Place], over: Sequence[Assignment]) -> None:
    last = {override.path: override.value for override in over}
    for section, headline in HEADLINES.items():
        values, path = tree.get(section), (section, headline)
        if not isinstance(values, dict) or (section == "costs" and headline not in values):
            continue  # Without a name, the chosen cost model checks the options.
        renamed = path in last and values.get(headline) != last[path]
        if renamed and section == "p2p":  # The keys of the section apply to every policy.
            tree[section] = {key: tree[section][key] for key in tree[section] if key != "options"}
        elif renamed and section != "contention":
            tree[section] = {key: value for key, value in values.items() if key in _KEPT.get(section, ())}
    if last.get(("cluster", HEADLINES["cluster"])):  # A cluster describes the network.
        tree.pop("network", None)
        for key in [key for key in places if key.partition(".")[0] == "network"]:
            del places[key]
    batch = tree.get("batch")
    for key, derived in _DERIVED_FROM_EACH_OTHER:
        if isinstance(batch, dict) and ("batch", key) in last and ("batch", derived) not in last:
            tree["batch"] = batch = {key: batch[key] for key in batch if key != derived}
            places.pop(f"batch.{derived}", None)


def _assign(tree: dict[str, Any], override: Assignment) -> None:
    below: Any = tree
    for depth, (part, following) in enumerate(zip(override.path, (*override.path[1:], None), strict=True)):
        if isinstance(part, int):
            _check_item(below, part, override, depth)
        elif not isinstance(below, dict):
            key = key_text(override.path[:depth])
            shape = "a list, whose items are set as key[0]" if isinstance(below, list) else "a single value"
            raise override.place.error(key, f"is {shape}; it has no key {part!r}")
        if following is None and override.value is None and isinstance(part, str):
            below.pop(part, None)
        elif following is None:
            below[part] = override.value
        else:
            is_absent = isinstance(part, str) and below.get(part) is None
            below[part] = {} if is_absent else copy(below[part])
            below = below[part]


def _check_item(below: object, index: int, override: Assignment, depth: int) -> None:
    key = key_text(override.path[:depth])
    if not isinstance(below, list):
        raise override.place.error(key, f"is not a list, so it has no item {index}")
    if index >= len(below):
        raise override.place.error(key, f"has no item {index}; its {len(below)} items count from 0")


def plain(value: object, source: str) -> Any:
    """Return a Python value as plain YAML data.

    Raises:
        ConfigError: YAML has no such value.
    """
    if isinstance(value, Choice):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(below, source) for key, below in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(below, source) for below in value]
    raise ConfigError(
        f"a value of type {type(value).__name__} is not a number, text, list or mapping", file=source
    )


def _brief(text: str) -> str:
    longest = 60
    line = text if text.isprintable() else ascii(text)[1:-1]
    return line if len(line) <= longest else line[:longest] + "…"
