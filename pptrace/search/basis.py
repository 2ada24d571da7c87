"""The common configuration of a search, and its schedule entries."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pptrace.config.flags import ARGUMENTS, key_of
from pptrace.config.overrides import Assignment, assignment, assignments
from pptrace.config.places import Place, key_text
from pptrace.config.quantities import exact_size, parse_size
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, ConstraintError, PluginError
from pptrace.plugins.from_file import is_file_reference
from pptrace.run.inputs import Preparation, at_location
from pptrace.run.run import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from pptrace.config.places import Document
    from pptrace.config.resolution import Resolved
    from pptrace.errors import PptraceError
    from pptrace.plugins.offers import CostModelOffer, ScheduleOffer
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.run.run import Run


class BaseConfiguration(Struct, frozen=True, kw_only=True):
    """The common configuration of the runs of a search, read once."""

    document: Document
    """The content of the configuration file."""
    sets: tuple[str, ...]
    """``key.path=value`` texts."""
    flags: Mapping[str, Any]
    """Values by flag name."""

    @property
    def given(self) -> dict[str, Any]:
        """Settings over the file, by key."""
        flags = {name: value for name, value in self.flags.items() if value is not None}
        return {key_text(each.path): each.value for each in assignments(self.sets, flags)}

    def resolve(self, entry: Entry, varied: Sequence[Assignment] = ()) -> Resolved:
        """Return the configuration of one run."""
        return load(self.document, self.sets, self.flags, [*varied, *entry.varied])


class Basis(BaseConfiguration, frozen=True, kw_only=True):
    """The common configuration of the runs of a search, with plugins."""

    registry: Registry
    """The plugins."""

    def find(self, entry: Entry) -> ScheduleOffer | None:
        """Return the schedule of an entry; None for a table file, which is validated.

        Raises:
            PptraceError: an unknown name, or an invalid file.
        """
        if entry.is_table:
            from pptrace.steps.text_forms import load_table

            load_table(Path(entry.name))
            return None
        try:
            return self.registry.schedules[entry.name].offer
        except PluginError as error:
            if error.plugin and not is_file_reference(error.plugin):
                raise
            message = f"{entry.source}: {error}"
            raise PluginError(message, plugin=error.plugin, distribution=error.distribution) from error

    def check(self, entry: Entry, resolved: Resolved) -> None:
        """Refuse unknown names and options before anything runs.

        Raises:
            PptraceError: the name or option, and its location.
        """
        offer = self.find(entry)
        if offer is not None:
            Preparation(resolved=resolved, registry=self.registry).fill_options("schedule", offer.options)
        with at_location(resolved, "p2p"):
            _ = self.registry.message_policies[resolved.experiment.p2p.policy]

    def run(self, entry: Entry, varied: Sequence[Assignment] = ()) -> Run:
        """Simulate one step.

        A schedule that does not accept the configured chunks uses its default, unless its entry sets them.

        Raises:
            PptraceError: a refusal of the schedule or the simulation.
        """
        return simulate(self.resolve(entry, varied), self.registry, may_drop_chunks=not entry.sets("parallel.vp"))


_SETTING = re.compile(r"\s*([A-Za-z_][\w.\[\]-]*)\s*=(.*)", re.DOTALL)


class Entry(Struct, frozen=True, kw_only=True):
    """A schedule with its settings."""

    label: str
    """As the user wrote it."""
    name: str
    """The schedule's name."""
    settings: tuple[tuple[str, str], ...]
    """Keys with their values as YAML, sorted."""
    varied: tuple[Assignment, ...]
    """The same as assignments."""
    source: str = ""
    """Its part of the command line, for errors."""

    @property
    def is_table(self) -> bool:
        """Whether it is a table in a file."""
        return self.name.lower().endswith((".csv", ".txt"))

    def sets(self, key: str) -> bool:
        """Return whether the entry itself sets a key, such as ``parallel.vp``."""
        return any(".".join(map(str, setting.path)) == key for setting in self.varied)


def parse_entries(texts: Sequence[str], option: str) -> tuple[Entry, ...]:
    """Read schedules, separated by commas, with settings after colons.

    A setting is a flag of the command line (``vp=2``), a key path as for ``--set`` (``p2p.policy=ordered``), or an
    option of the schedule (``waves=2``).

    Args:
        texts: the input, in any number of parts.
        option: its name in errors, such as ``--schedules``.

    Raises:
        ConfigError: a missing name, an invalid setting, or a repeated entry.
    """
    words = [word.strip() for text in texts for word in split_outside(text, ",")]
    entries = tuple(_entry(word, option) for word in words)
    for index, entry in enumerate(entries):
        if any((entry.name, entry.settings) == (other.name, other.settings) for other in entries[:index]):
            raise ConfigError(f"{entry.label} is given twice: write each schedule once", file=option)
    return entries


def split_outside(text: str, separator: str) -> list[str]:
    """Split at a separator outside brackets and quotes; a quote begins a part, or is inside brackets.

    >>> split_outside("a,b:x=[1,2],c", ",")
    ['a', 'b:x=[1,2]', 'c']
    """
    parts, depth, quote = [""], 0, ""
    for character in text:
        opens = character in "\"'" and not quote and (not parts[-1].strip() or depth > 0)
        if opens or character == quote:
            quote = character if opens else ""
        elif not quote:
            depth += (character in "[{(") - (character in "]})")
        if character == separator and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _entry(word: str, option: str) -> Entry:
    parts = split_outside(word, ":")
    first = next((index for index, part in enumerate(parts) if index and _SETTING.fullmatch(part)), len(parts))
    name = ":".join(parts[:first]).strip()
    if not name:
        raise ConfigError("a schedule has no name: write them as gpipe,1f1b", file=option)
    source = f"{option} {word}"
    settings = tuple(sorted(_setting(part, source) for part in parts[first:]))
    keys = [key for key, _ in settings]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(f"sets {twice} twice", file=source)
    named = Assignment(path=("schedule", "name"), value=name, place=Place(source=source))
    varied = (named, *(assignment(*setting, source) for setting in settings))
    return Entry(label=word, name=name, source=source, settings=settings, varied=varied)


def _setting(text: str, source: str) -> tuple[str, str]:
    """Return a setting's key as ``--set`` takes it, and its value."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a setting: write key=value, such as vp=2", file=source)
    key, value = match[1], match[2].strip()
    if key in {"schedule", "schedule.name"}:
        raise ConfigError("an entry begins with the name of its schedule", file=source)
    if not value:
        raise ConfigError(f"{key} has no value: write {key}=VALUE", file=source)
    if key in ARGUMENTS:
        return key_of(key), value
    return (key if "." in key else f"schedule.options.{key}"), value


def short_reason(error: PptraceError) -> str:
    """Return the line of an error without its location in a configuration."""
    short: PptraceError = error
    if isinstance(error, ConstraintError):
        short = ConstraintError(error.reason, nearest=error.nearest, key=error.key)
    elif isinstance(error, ConfigError):
        short = ConfigError(error.message, key=error.key)
    return " ".join(str(short).split())


def digest_of(parts: Any) -> str:
    """Return a short digest of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


LIMITS = ("device.memory", "costs.capacity")
"""Keys of the device's memory in cost models."""


def memory_limit(text: object) -> int:
    """Read a limit such as ``76GiB``, in bytes.

    Raises:
        ConfigError: no positive size.
    """
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(error.message, file="--memory") from None
    if not size:
        raise ConfigError("nothing fits into 0 bytes", file="--memory")
    return size


def limit_settings(resolved: Resolved, costs: Costs, size_bytes: int) -> dict[str, Any]:
    """Return the settings that give a limit to the costs of a configuration as written.

    Raises:
        ConfigError: the costs have no memory.
    """
    offer = costs.offer.offer
    key = next((key for key in LIMITS if _reads(offer, key)), None)
    if key is None:
        message = (
            f"costs {offer.name} have no memory: give a model and a device, or costs with bytes and a capacity"
        )
        raise ConfigError(message, file="--memory")
    device = costs.resolved.experiment.device
    settings: dict[str, Any] = {}
    if key.startswith("device.") and resolved.experiment.device is None and device is not None:
        # A setting below ``device`` would replace the cluster's device.
        values = {f"device.{name}": value for name, value in device.values.items()}
        origins = costs.resolved.origins
        configured = {key: value for key, value in values.items() if key in origins}
        settings = {"device.preset": device.preset} if device.preset else configured
    if key.startswith("device.") and device is not None and device.ranks:
        return {**settings, **device.limited(size_bytes, resolved.experiment.device)}
    capacities = costs.request.options.get("capacity")
    if key == "costs.capacity" and isinstance(capacities, list):
        return {key: json.dumps([exact_size(min(size, size_bytes)) for size in capacities])}
    return {**settings, key: exact_size(size_bytes)}


def _reads(offer: CostModelOffer, key: str) -> bool:
    section, _, name = key.partition(".")
    parameters: type[BaseModel] | None = None
    if section == "device":
        parameters = offer.device() if offer.device else None
    elif offer.options:
        parameters = offer.options()
    return parameters is not None and name in parameters.model_fields
