"""Axes of sweeps, the grid of their points, and the number of replicas for a number of GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from copy import deepcopy
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pptrace.config.flags import ARGUMENTS, key_of
from pptrace.config.overrides import Assignment, assignment, assignments, overlaid, parse_value
from pptrace.config.places import Place, key_text
from pptrace.config.resolution import document_of
from pptrace.config.schema import Experiment, Parallel, ScheduleChoice, is_yaml_file
from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError, nearest
from pptrace.search.basis import BaseConfiguration, Entry, digest_of, parse_entries, split_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace.config.places import Document, KeyPath
    from pptrace.run.figures import Row


_RANGE = re.compile(r"(\d+)\.\.(\d+)([*+])(\d+)(\s*[A-Za-z][\w/]*)?")
_MAPPING = re.compile(r"\{")
_LOOKS_LIKE_RANGE = re.compile(r"\d+\.\.\d*")
_MOST_VALUES = 10_000
_SCHEDULE_KEYS = ("schedule", "schedule.name")


class Value(Struct, frozen=True, kw_only=True):
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


class Axis(Struct, frozen=True, kw_only=True):
    """A key and its values."""

    key: str
    """A flag's name or a key path, as the user wrote it, or any name before files; the name of its column."""
    values: tuple[Value, ...]
    """The values in their order."""

    @property
    def own_paths(self) -> frozenset[KeyPath]:
        """The paths of the key, without settings of schedules; of coupled values, the paths of all keys."""
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
        _axis(key, [_text(key, value, option) for value in _listed(key, values, option)], option)
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
    files = [word for word in words if is_yaml_file(word)]
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
            raise ConfigError(f"{value.text} is given twice: write each value once", file=source)
        seen.append(content)
    return Axis(key=key, values=values)


def _overlays(files: Sequence[str], words: Sequence[str], source: str) -> tuple[Value, ...]:
    """Return files of settings as values."""
    from pptrace.config.yaml_document import read_yaml

    other = next((word for word in words if word not in files), None)
    if other is not None:
        raise ConfigError(
            f"{other or 'an empty value'} is mixed with files of settings: write only files", file=source
        )
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is given twice: write each value once", file=source)
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(stems) else files
    return tuple(
        Value(text=name, varied=tuple(_settings(read_yaml(Path(file)).value, file)), is_coupled=True)
        for name, file in zip(names, files, strict=True)
    )


def _settings(value: Any, file: str, path: KeyPath = ()) -> list[Assignment]:
    """Return the assignments of a value in a file of settings, below a key."""
    if isinstance(value, dict) and value:
        return [each for key, below in value.items() for each in _settings(below, file, (*path, key))]
    return [assignment(key_text(path), json.dumps(value), file)]


def _coupled(word: str, source: str) -> Value:
    """Return a mapping of keys as one value."""
    settings = parse_value(word, source)
    if not isinstance(settings, dict) or not settings:
        raise ConfigError(f"{word} is not a mapping of keys: write such as {{pp: 8, tp: 2}}", file=source)
    assigned: list[Assignment] = []
    for key, below in settings.items():
        if key in _SCHEDULE_KEYS and isinstance(below, str):
            assigned += parse_entries([below], source)[0].varied
        elif re.split(r"[.\[]", key_of(str(key)))[0] in Experiment.model_fields:
            assigned.append(assignment(str(key), json.dumps(below), source))
        else:
            raise ConfigError(f"no such key{nearest(str(key), ARGUMENTS)}", key=str(key), file=source)
    return Value(text=word, varied=tuple(assigned), is_coupled=True)


def _value(key: str, word: str, option: str) -> Value:
    if key in _SCHEDULE_KEYS and not word.startswith("{"):
        entry, *further = parse_entries([word], f"{option} {key}")
        if further:
            raise ConfigError(f"{word} are several schedules, and a value is one", file=f"{option} {key}")
        return Value(text=entry.label, varied=entry.varied)
    return Value(text=word, varied=(assignment(key, word, f"{option} {key}={word}"),))


def _expand(word: str, source: str) -> Iterator[str]:
    """Yield the numbers of a range with its unit; yield any other word unchanged."""
    match = _RANGE.fullmatch(word)
    if match is None:
        if _LOOKS_LIKE_RANGE.match(word):
            raise ConfigError(f"{word} is not a range: write 8..64*2 (doubling) or 8..64+8", file=source)
        yield word
        return
    number, last, step = int(match[1]), int(match[2]), int(match[4])
    grows = step > 1 and number > 0 if match[3] == "*" else step > 0
    if not grows or number > last:
        raise ConfigError(f"{word} is not a range: it must grow from its first number to its last", file=source)
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


def _text(key: str, value: Any, option: str) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    try:
        return json.dumps(value.item() if hasattr(value, "item") else value, allow_nan=False)
    except (TypeError, ValueError):
        message = f"a value of type {type(value).__name__} is not a number, text, list or mapping"
        raise ConfigError(message, file=f"{option} {key}") from None


_MOST_POINTS = 1_000_000
_SCHEDULE: KeyPath = ("schedule", "name")
_GLOBAL: KeyPath = ("batch", "global")
_MICROBATCHES: KeyPath = ("batch", "microbatches")
_TABLE_SIZES: tuple[KeyPath, ...] = (("parallel", "pp"), ("parallel", "vp"), _MICROBATCHES, _GLOBAL)


class Point(Struct, frozen=True, kw_only=True):
    """One combination of the axes' values."""

    values: tuple[Value, ...]
    """One value per axis."""
    identity: str
    """Digest of its configuration; after a hyphen, the digest of the schedule's file."""
    actions: int
    """Estimated number of actions of its table."""
    replicas: tuple[Assignment, ...] = ()
    """Further assignments: the replicas for a number of GPUs."""
    refused: str = ""
    """The reason why it cannot run; empty if it can."""

    @property
    def entry(self) -> Entry:
        """Its overrides of the base, as an entry."""
        return Entry(label="--over", name="", settings=(), varied=(*_varied(self.values), *self.replicas))


class Grid(Struct, frozen=True, kw_only=True):
    """All points of a sweep."""

    base: BaseConfiguration
    """Their common configuration."""
    axes: tuple[Axis, ...]
    """The outermost first: it changes most slowly from point to point."""
    points: tuple[Point, ...]
    """In grid order."""
    configuration: str
    """Digest of the base and the swept keys, without the values of axes."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the axes' keys."""
        return tuple(axis.key for axis in self.axes)

    def cells(self) -> list[Row]:
        """Return the points' values by key."""
        return [
            {key: value.cell for key, value in zip(self.keys, point.values, strict=True)} for point in self.points
        ]


def grid_of(
    file: Path | Document | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    axes: Sequence[Axis],
    gpus: int | None = None,
) -> Grid:
    """Return the points of a sweep; a number of GPUs of each point determines its replicas.

    Raises:
        ConfigError: no axis, axes that contradict each other or the command line, an invalid value, two values
            with the same step, or a configuration that is invalid at every point.
    """
    flag_values = {name: value for name, value in flags.items() if value is not None}
    document = document_of(file)
    base = BaseConfiguration(document=document, sets=tuple(sets), flags=flag_values)
    overrides = assignments(base.sets, base.flags)
    _check_axes(axes, overrides)
    digests: dict[str, str] = {}
    if gpus is not None:
        check_replicas(gpus, overrides, axes)
    all_values = product(*(axis.values for axis in axes))
    points = tuple(_point(base, overrides, values, digests, gpus) for values in all_values)
    _check_distinct(axes, points)
    tree, _ = overlaid(document.value, document.places, overrides)
    _check_tables(tree, axes)
    _check_values(base, overrides, axes)
    _check_some_point(base, points)
    return Grid(
        base=base,
        axes=tuple(axes),
        points=points,
        configuration=digest_of([*_without(tree, axes), *([gpus] if gpus else [])]),
    )


def _check_axes(axes: Sequence[Axis], overrides: Sequence[Assignment]) -> None:
    if not axes:
        raise ConfigError("missing: write an axis to sweep, such as --over microbatches=8,16,32", file="--over")
    count = prod(len(axis.values) for axis in axes)
    if count > _MOST_POINTS:
        raise ConfigError(f"{count:,} points; the maximum is {_MOST_POINTS:,}: name fewer values", file="--over")
    for first, second in combinations(axes, 2):
        _check_pair(first, second)
    for axis in axes:
        for override in overrides:
            _check_against(axis, override)


def _check_pair(first: Axis, second: Axis) -> None:
    source = f"--over {second.key}"
    common = sorted(map(key_text, first.paths & second.paths))
    if common:
        key = "" if common == [first.key] else f" ({common[0]})"
        message = f"--over {first.key} also sets it{key}: write all values in one --over"
        raise ConfigError(message, file=source)
    if {_GLOBAL, _MICROBATCHES} <= first.paths | second.paths:
        message = f"it follows from {first.key}, which is also an axis: remove one of the two"
        raise ConfigError(message, file=source)
    if any(_is_parent(path, child) for path in second.paths for child in first.paths):
        message = f"replaces all of it, also {first.key}: write --over {second.key} before --over {first.key}"
        raise ConfigError(message, file=source)


def _check_against(axis: Axis, override: Assignment) -> None:
    """Reject a value on the command line for a swept key, or for a key that a swept key replaces."""
    affected = {override.path} | ({_GLOBAL, _MICROBATCHES} if override.path in {_GLOBAL, _MICROBATCHES} else set())
    if axis.own_paths & affected or any(_is_parent(path, override.path) for path in axis.own_paths):
        raise ConfigError(f"--over {axis.key} sets it too: remove one of the two", file=override.place.source)


def _is_parent(path: KeyPath, child: KeyPath) -> bool:
    return len(path) < len(child) and child[: len(path)] == path


def _check_tables(tree: Mapping[str, Any], axes: Sequence[Axis]) -> None:
    overrides = [override for axis in axes for override in _varied(axis.values)]
    names = [override.value for override in overrides if override.path == _SCHEDULE]
    tables = [name for name in names or [_name(tree)] if name and ScheduleChoice(name=name).kind == "table"]
    for axis in axes if tables else ():
        if axis.paths & set(_TABLE_SIZES):
            message = f"{tables[0]} is a table with fixed sizes: sweep a schedule that builds its table"
            raise ConfigError(message, file=f"--over {axis.key}")


def _check_distinct(axes: Sequence[Axis], points: Sequence[Point]) -> None:
    """Reject two values that configure the same step."""
    seen: dict[str, Point] = {}
    for point in points:
        previous = seen.setdefault(point.identity, point)
        for axis, first, second in zip(axes, previous.values, point.values, strict=True):
            if first is not second:
                message = f"{first.text} and {second.text} make the same step: remove one of the two"
                raise ConfigError(message, file=f"--over {axis.key}")


def _check_values(base: BaseConfiguration, overrides: Sequence[Assignment], axes: Sequence[Axis]) -> None:
    """Reject a value that is invalid with all values of the other axes."""
    defaults = [axis.values[0] for axis in axes]
    for index, axis in enumerate(axes):
        for value in axis.values:
            values = [*defaults[:index], value, *defaults[index + 1 :]]
            tree, places = overlaid(base.document.value, base.document.places, [*overrides, *_varied(values)])
            complete = tree if tree.get("schedule") else {**tree, "schedule": {"name": "none"}}
            validate_options(Experiment, complete, "", places, file=base.document.source)


def _check_some_point(base: BaseConfiguration, points: Sequence[Point]) -> None:
    """Reject a configuration that is invalid at every point, with the error of the first point."""
    first: ConfigError | None = None
    for point in points:
        if point.refused:
            first = first or ConfigError(point.refused, file="--gpus")
            continue
        try:
            base.resolve(point.entry)
        except ConfigError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _point(
    base: BaseConfiguration,
    overrides: Sequence[Assignment],
    values: tuple[Value, ...],
    digests: dict[str, str],
    gpus: int | None,
) -> Point:
    tree, places = overlaid(base.document.value, base.document.places, [*overrides, *_varied(values)])
    replicas: tuple[Assignment, ...] = ()
    refused = ""
    if gpus is not None:
        dp, refused = replicas_of(tree, gpus)
        replicas = (Assignment(path=REPLICAS, value=dp, place=Place(source="--gpus")),)
        tree, _ = overlaid(tree, places, replicas)
    name = _name(tree)
    if name not in digests:
        digests[name] = _file_digest(name)
    identity = "-".join(filter(None, [digest_of(tree), digests[name]]))
    return Point(values=values, identity=identity, actions=_actions(tree), replicas=replicas, refused=refused)


def _varied(values: Sequence[Value]) -> list[Assignment]:
    return [override for value in values for override in value.varied]


def _without(tree: dict[str, Any], axes: Sequence[Axis]) -> list[Any]:
    """Return a base without the swept keys, and these keys."""
    tree = deepcopy(tree)
    swept: list[KeyPath] = []
    for axis in axes:
        swept += axis.paths if axis.is_coupled else [assignment(axis.key, "name", "").path]
    for *parents, last in sorted(swept, key=str):
        section: Any = tree
        for key in parents:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    tree = {section: values for section, values in tree.items() if values != {}}
    return [tree, sorted(axis.key for axis in axes), _file_digest(_name(tree))]


def _name(tree: Mapping[str, Any]) -> str:
    schedule = tree.get("schedule")
    return str(schedule.get("name") or "") if isinstance(schedule, dict) else ""


def _file_digest(name: str) -> str:
    """Return a digest of the file of a schedule; empty for a plugin's schedule."""
    kind = ScheduleChoice(name=name).kind if name else "plugin"
    file = Path(name.rpartition(":")[0] if kind == "python" else name)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8] if kind != "plugin" and file.is_file() else ""


def _actions(tree: Mapping[str, Any]) -> int:
    def size(section: str, key: str) -> int:
        value = (tree.get(section) or {}).get(key)
        return value if isinstance(value, int) and value > 0 else 1

    microbatches = size("batch", "microbatches")
    if microbatches == 1:
        microbatches = max(size("batch", "global") // (size("parallel", "dp") * size("batch", "micro")), 1)
    return 2 * size("parallel", "pp") * size("parallel", "vp") * microbatches


REPLICAS: KeyPath = ("parallel", "dp")
"""The key of the replicas."""


def check_replicas(gpus: int, overrides: Sequence[Assignment], axes: Sequence[Axis]) -> None:
    """Reject an invalid number of GPUs, and configured replicas in addition to it.

    Raises:
        ConfigError: the value and its location.
    """
    if gpus < 1:
        raise ConfigError(f"{gpus} is not a number of GPUs: write 1 or more", file="--gpus")
    for path, source in [(override.path, str(override.place.source)) for override in overrides] + [
        (path, f"--over {axis.key}") for axis in axes for path in axis.paths
    ]:
        if path == REPLICAS:
            raise ConfigError("it follows from --gpus: remove one of the two", file=source)


def replicas_of(tree: Mapping[str, Any], gpus: int) -> tuple[int, str]:
    """Return the replicas for a number of GPUs, and the reason if there are none.

    An encoder on separate GPUs whose replicas are configured has the same GPUs for any number of replicas.
    """
    sizes = tree.get("parallel") or {}
    try:
        parallel, doubled = (Parallel.model_validate({**sizes, "dp": dp}) for dp in (1, 2))
    except ValueError:
        return 1, ""
    replica = doubled.processes - parallel.processes
    if replica < 1:  # as other invalid sizes, an error of the whole configuration
        return 1, ""
    fixed = parallel.processes - replica
    dp, remainder = divmod(gpus - fixed, replica)
    if dp > 0 and not remainder:
        return dp, ""
    factors = f"pp {parallel.pp or 1} x tp {parallel.tp} x cp {parallel.cp}"
    factors += " with its encoders" if parallel.branches else ""
    left = f"{gpus - fixed} ({gpus} without {fixed} of encoders)" if fixed else str(gpus)
    return 1, f"{factors} is a replica of {replica} GPUs, which do not divide {left}"
