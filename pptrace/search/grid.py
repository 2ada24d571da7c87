"""Grids of points, and the number of replicas for a number of GPUs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.overrides import Assignment, assignment, assignments, overlaid
from pptrace.config.places import Place, key_text
from pptrace.config.resolution import document_of, load
from pptrace.config.schema import Experiment, ScheduleChoice
from pptrace.config.validation import validate_options
from pptrace.errors import ConfigError
from pptrace.search.basis import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.places import KeyPath
    from pptrace.config.yaml_document import Document
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Row
    from pptrace.search.axes import Axis, Value

_MOST_POINTS = 1_000_000
_SCHEDULE: KeyPath = ("schedule", "name")
_GLOBAL: KeyPath = ("batch", "global")
_MICROBATCHES: KeyPath = ("batch", "microbatches")
_TABLE_SIZES: tuple[KeyPath, ...] = (("parallel", "pp"), ("parallel", "vp"), _MICROBATCHES, _GLOBAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The common configuration of all points, read once."""

    document: Document
    """The content of the configuration file."""
    sets: tuple[str, ...]
    """``key.path=value`` texts."""
    flags: Mapping[str, Any]
    """Values by flag name."""

    def basis(self, registry: Registry) -> Basis:
        """Return the configuration with plugins."""
        return Basis(file=self.document, sets=self.sets, flags=self.flags, registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All points of a sweep."""

    base: Base
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
    """Return the points of a sweep.

    Args:
        file: the configuration.
        sets: ``key.path=value`` texts.
        flags: values by flag name.
        axes: the swept keys with their values.
        gpus: GPUs of each point, from which its replicas follow; by default, the configured replicas.

    Raises:
        ConfigError: no axis, axes that contradict each other or the command line, an invalid value, two values
            with the same step, or a configuration that is invalid at every point.
    """
    flag_values = {name: value for name, value in flags.items() if value is not None}
    document = document_of(file)
    base = Base(document=document, sets=tuple(sets), flags=flag_values)
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
        configuration=_digest([*_without(tree, axes), *([gpus] if gpus else [])]),
    )


def _check_axes(axes: Sequence[Axis], overrides: Sequence[Assignment]) -> None:
    if not axes:
        raise ConfigError("missing: say what to sweep, such as --over microbatches=8,16,32", file="--over")
    count = prod(len(axis.values) for axis in axes)
    if count > _MOST_POINTS:
        raise ConfigError(f"{count:,} points; the most is {_MOST_POINTS:,}: name fewer values", file="--over")
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
        message = f"--over {first.key} sets it too{key}: write all values behind one --over"
        raise ConfigError(message, file=source)
    if {_GLOBAL, _MICROBATCHES} <= first.paths | second.paths:
        message = f"it follows from {first.key}, which is swept too: leave one of them out"
        raise ConfigError(message, file=source)
    if any(_is_parent(path, child) for path in second.paths for child in first.paths):
        message = f"replaces all of it, {first.key} too: write --over {second.key} before --over {first.key}"
        raise ConfigError(message, file=source)


def _check_against(axis: Axis, override: Assignment) -> None:
    """Reject a value on the command line for a swept key, or for a key that a swept key replaces."""
    affected = {override.path} | ({_GLOBAL, _MICROBATCHES} if override.path in {_GLOBAL, _MICROBATCHES} else set())
    if axis.own_paths & affected or any(_is_parent(path, override.path) for path in axis.own_paths):
        raise ConfigError(f"it is swept by --over {axis.key}: leave one of them out", file=override.place.source)


def _is_parent(path: KeyPath, child: KeyPath) -> bool:
    return len(path) < len(child) and child[: len(path)] == path


def _check_tables(tree: Mapping[str, Any], axes: Sequence[Axis]) -> None:
    overrides = [override for axis in axes for override in _varied(axis.values)]
    names = [override.value for override in overrides if override.path == _SCHEDULE]
    tables = [name for name in names or [_name(tree)] if name and _kind(name) == "table"]
    for axis in axes if tables else ():
        if axis.paths & set(_TABLE_SIZES):
            message = f"{tables[0]} is a table, which has its own: sweep it by a schedule that makes its table"
            raise ConfigError(message, file=f"--over {axis.key}")


def _check_distinct(axes: Sequence[Axis], points: Sequence[Point]) -> None:
    """Reject two values that configure the same step."""
    seen: dict[str, Point] = {}
    for point in points:
        previous = seen.setdefault(point.identity, point)
        for axis, first, second in zip(axes, previous.values, point.values, strict=True):
            if first is not second:
                message = f"{first.text} and {second.text} make the same step: leave one of them out"
                raise ConfigError(message, file=f"--over {axis.key}")


def _check_values(base: Base, overrides: Sequence[Assignment], axes: Sequence[Axis]) -> None:
    """Reject a value that is invalid with all values of the other axes."""
    defaults = [axis.values[0] for axis in axes]
    for index, axis in enumerate(axes):
        for value in axis.values:
            values = [*defaults[:index], value, *defaults[index + 1 :]]
            tree, places = overlaid(base.document.value, base.document.places, [*overrides, *_varied(values)])
            complete = tree if tree.get("schedule") else {**tree, "schedule": {"name": "none"}}
            validate_options(Experiment, complete, "", places, file=base.document.source)


def _check_some_point(base: Base, points: Sequence[Point]) -> None:
    """Reject a configuration that is invalid at every point, with the error of the first point."""
    first: ConfigError | None = None
    for point in points:
        if point.refused:
            first = first or ConfigError(point.refused, file="--gpus")
            continue
        try:
            load(base.document, base.sets, base.flags, point.entry.varied)
        except ConfigError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _point(
    base: Base,
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
    identity = "-".join(filter(None, [_digest(tree), digests[name]]))
    return Point(values=values, identity=identity, actions=_actions(tree), replicas=replicas, refused=refused)


def _varied(values: Sequence[Value]) -> list[Assignment]:
    return [override for value in values for override in value.varied]


def _without(tree: dict[str, Any], axes: Sequence[Axis]) -> list[Any]:
    """Return a base without the swept keys, and these keys."""
    swept = [path for axis in axes for path in (axis.paths if axis.is_coupled else [_path(axis.key)])]
    for *parents, last in sorted(swept, key=str):
        section: Any = tree
        for key in parents:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(last, None)
    tree = {section: values for section, values in tree.items() if values != {}}
    return [tree, sorted(axis.key for axis in axes), _file_digest(_name(tree))]


def _path(key: str) -> KeyPath:
    return assignment(key, "name", "").path


def _name(tree: Mapping[str, Any]) -> str:
    schedule = tree.get("schedule")
    return str(schedule.get("name") or "") if isinstance(schedule, dict) else ""


def _kind(name: str) -> str:
    return ScheduleChoice(name=name).kind


def _file_digest(name: str) -> str:
    """Return a digest of the file of a schedule; empty for a plugin's schedule."""
    kind = _kind(name) if name else "plugin"
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


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


REPLICAS: KeyPath = ("parallel", "dp")
"""The key of the replicas."""


def check_replicas(gpus: int, overrides: Sequence[Assignment], axes: Sequence[Axis]) -> None:
    """Reject an invalid number of GPUs, and configured replicas in addition to it.

    Raises:
        ConfigError: the value and its location.
    """
    if gpus < 1:
        raise ConfigError(f"{gpus} is no number of GPUs: write 1 or more", file="--gpus")
    for path, source in [(override.path, str(override.place.source)) for override in overrides] + [
        (path, f"--over {axis.key}") for axis in axes for path in axis.paths
    ]:
        if path == REPLICAS:
            raise ConfigError("it follows from --gpus: leave one of them out", file=source)


def replicas_of(tree: Mapping[str, Any], gpus: int) -> tuple[int, str]:
    """Return the replicas for a number of GPUs, and the reason if there are none."""
    parallel = tree.get("parallel") or {}
    sizes = {name: parallel.get(name) or 1 for name in ("pp", "tp", "cp")}
    if not all(isinstance(size, int) for size in sizes.values()):
        return 1, ""
    dp, remainder = divmod(gpus, prod(sizes.values()))
    if dp and not remainder:
        return dp, ""
    factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return 1, f"{factors} is a replica of {prod(sizes.values())} GPUs, which do not make {gpus}"
