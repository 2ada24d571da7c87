"""Software stacks: values of a configuration that follow from the framework release that a job runs on."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from pptrace.config.resolution import leaves_by_key
from pptrace.config.schema import DEFAULT_STACK, is_yaml_file
from pptrace.config.validation import Parameters, validate_options
from pptrace.errors import ConfigError, nearest
from pptrace.plugins.offers import StackOffer, StackRule
from pptrace.run.costs import look_up_cost_model
from pptrace.run.hardware import preset_values
from pptrace.run.inputs import at_location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic import BaseModel

    from pptrace.run.inputs import Preparation

_SECTIONS = ("parallel", "p2p", "data_parallel", "contention", "model", "costs")
"""Sections whose keys a stack can set."""
_UNREAD = frozenset({"batch", "network"})
"""Sections that a stack does not set and that conditions of rules hardly read: only they differ in many sweeps."""
_ROWS = 200
"""Rows of a memo that take as much memory as a configuration."""
_SCHEDULE = "schedule.name"
_RELEASE = re.compile(r"(?P<family>.+)-(?P<version>\d+(?:\.\d+)*)")


def fill_stack(inputs: Preparation) -> None:
    """Fill in the values of the configuration's stack that the user did not write.

    A configuration with a model has the default stack if it names none and a plugin offers it.

    Raises:
        ConfigError: a file that is no stack, or a value that its key cannot have.
        PluginError: a stack that no plugin offers.
    """
    name = _stack_name(inputs)
    if name is None:
        return
    inputs.share(
        lambda inputs: _fill(inputs, name), f"stack {name}",
        reads=[section for section in type(inputs.experiment).model_fields if section not in _UNREAD],
        fills=(*_SECTIONS, "stack"), rows=_ROWS,
        may_keep=lambda: not any(key.partition(".")[0] in _UNREAD for key in condition_keys(inputs)),
    )  # fmt: skip


def _fill(inputs: Preparation, name: str) -> None:
    """Fill in the values of a stack, and its release."""
    with at_location(inputs.resolved, "stack"):
        offer = _offer(inputs, name)
        rules = list(_rules(inputs, offer))
    if not is_yaml_file(name):
        inputs.resolved = inputs.resolved.with_section("stack", offer.name)
    readers, written = _readers(inputs), leaves_by_key(inputs.resolved.written.value)
    if is_yaml_file(name):
        _check_keys(offer, readers, name)
    facts = _facts(inputs, readers)
    for stack, rule in rules:
        if _holds(facts, rule):
            values = {
                key: value for key, value in rule.set.items()
                if _is_read(key, readers) and key not in written
                and not (key.startswith("p2p.") and "p2p.policy" in written)
            }  # fmt: skip
            for key, value in values.items():
                inputs.resolved = inputs.resolved.with_key(key, value, f"stack {stack}: {rule.source}")
            facts |= values


def _stack_name(inputs: Preparation) -> str | None:
    """Return the name of the configuration's stack, or of the default stack; None without a stack."""
    experiment = inputs.experiment
    if experiment.stack or experiment.model is None:
        return experiment.stack
    has_default = any(name.startswith(f"{DEFAULT_STACK}-") for name in inputs.registry.stacks)
    return DEFAULT_STACK if has_default else None


def condition_keys(inputs: Preparation) -> frozenset[str]:
    """Return the keys that the conditions of the stack's rules read.

    Raises:
        ConfigError: a file that is no stack.
        PluginError: a stack that no plugin offers.
    """
    return frozenset(key for rule in _configured_rules(inputs) for key in (*rule.when, *rule.unless))


def schedule_conditions(inputs: Preparation, schedule: str, without: Collection[str] = ()) -> tuple[bool, ...]:
    """Return which conditions of the stack's rules on the name of the schedule hold for a name.

    Configurations that differ in the name alone have equal costs if the same conditions hold. Rules are left out
    that set only keys of messages, or only keys ``without``.

    Raises:
        ConfigError: a file that is no stack.
        PluginError: a stack that no plugin offers.
    """
    return tuple(
        _matches(schedule, conditions[_SCHEDULE])
        for rule in _configured_rules(inputs)
        for conditions in (rule.when, rule.unless)
        if _SCHEDULE in conditions and any(key not in without and not key.startswith("p2p.") for key in rule.set)
    )


def _configured_rules(inputs: Preparation) -> Iterator[StackRule]:
    """Yield the rules of the configuration's stack; none without a stack."""
    name = _stack_name(inputs)
    if name is not None:
        yield from (rule for _, rule in _rules(inputs, _offer(inputs, name)))


def framework_of(inputs: Preparation) -> str:
    """Return the framework of the stack that :func:`fill_stack` has chosen; empty without one."""
    name, framework = inputs.experiment.stack, ""
    while name and not framework:
        offer = _offer(inputs, name)
        name, framework = offer.inherits, offer.framework
    return framework


class _Rule(Parameters):
    set: dict[str, Any]
    source: str
    when: dict[str, Any] = Field(default={})
    unless: dict[str, Any] = Field(default={})

    @field_validator("when", "unless")
    @classmethod
    def _has_ranges(cls, conditions: dict[str, Any]) -> dict[str, Any]:
        for key, wanted in conditions.items():
            for condition in wanted if isinstance(wanted, list) else [wanted]:
                if isinstance(condition, dict) and not ({*condition} and {*condition} <= {"min", "max"}):
                    raise ValueError(f"{key}: a range has min, max or both, not {', '.join(map(str, condition))}")
        return conditions


class _File(Parameters):
    summary: str = ""
    inherits: str = ""
    rules: list[_Rule]


def _offer(inputs: Preparation, name: str) -> StackOffer:
    """Return the stack of a file, or of a name as :func:`_look_up`."""
    if not is_yaml_file(name):
        return _look_up(inputs, name)
    from pptrace.config.yaml_document import read_yaml

    document = read_yaml(Path(name), example="inherits: megatron-core")
    content = validate_options(_File, document.value, "", document.places, file=name)
    rules = [StackRule(**rule.model_dump()) for rule in content.rules]
    return StackOffer(name=Path(name).stem, summary=content.summary, rules=rules, inherits=content.inherits)


def _look_up(inputs: Preparation, name: str) -> StackOffer:
    """Return the stack of a name, or the newest release of a family.

    A release that no plugin offers stands for the newest one before it, or for the oldest one, with a note.
    """
    stacks = inputs.registry.stacks
    if name in stacks:
        return inputs.use(stacks[name]).offer
    release_name = _RELEASE.fullmatch(name)
    releases = _releases(inputs, release_name["family"] if release_name else name)
    if releases and not release_name:
        name = releases[-1][1]
    elif releases and release_name:
        earlier = [release for release in releases if release[0] < _version(release_name["version"])]
        nearest, which = (earlier[-1], "newest release before it") if earlier else (releases[0], "oldest release")
        note = f"No plugin offers the stack {name}: the step has {nearest[1]}, the {which}."
        inputs.notes = (*inputs.notes, *({note} - {*inputs.notes}))
        name = nearest[1]
    return inputs.use(stacks[name]).offer


def _releases(inputs: Preparation, family: str) -> list[tuple[tuple[int, ...], str]]:
    """Return the versions and names of a family's stacks, oldest first."""
    known = map(_RELEASE.fullmatch, inputs.registry.stacks)
    return sorted((_version(stack["version"]), stack[0]) for stack in known if stack and stack["family"] == family)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _rules(inputs: Preparation, offer: StackOffer, heirs: Collection[str] = ()) -> Iterator[tuple[str, StackRule]]:
    """Yield the rules of a stack with its name, those that it inherits first."""
    if offer.name in heirs:
        raise ConfigError(f"stack {offer.name} inherits from itself: remove the key inherits", key="stack")
    if offer.inherits:
        yield from _rules(inputs, _look_up(inputs, offer.inherits), {*heirs, offer.name})
    for rule in offer.rules:
        for key in rule.set:
            section, _, name = key.partition(".")
            if section not in _SECTIONS or not name:
                message = f"stack {offer.name} sets {key}: it can set keys of {', '.join(_SECTIONS)}"
                raise ConfigError(message, key="stack")
        yield offer.name, rule


def _facts(inputs: Preparation, readers: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Return the values of the configuration by key, with defaults and presets of model, device and costs."""
    facts = {
        f"{section}.{name}": field.default
        for section, reader in readers.items() for name, field in reader.model_fields.items()
    }  # fmt: skip
    experiment, scratch = inputs.experiment, inputs.copy()
    for key, choice in (("model", experiment.model), ("device", experiment.device)):
        if choice is not None:
            facts |= leaves_by_key(preset_values(scratch, key, choice.preset, key), key)
    return facts | leaves_by_key(inputs.resolved.to_dict())


def _holds(facts: Mapping[str, Any], rule: StackRule) -> bool:
    return all(_matches(facts.get(key), wanted) for key, wanted in rule.when.items()) and not any(
        _matches(facts.get(key), wanted) for key, wanted in rule.unless.items()
    )


def _matches(value: Any, wanted: Any) -> bool:
    """Return whether a value meets a condition; a value that is absent meets none but ``null``."""
    if isinstance(wanted, list | tuple):
        return any(_matches(value, each) for each in wanted)
    if isinstance(wanted, dict):
        is_number = isinstance(value, int | float)
        return is_number and wanted.get("min", value) <= value <= wanted.get("max", value)
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatchcase(value, wanted)
    return type(value) is type(wanted) and bool(value == wanted)


def _readers(inputs: Preparation) -> dict[str, type[BaseModel]]:
    """Return the parameter models of model, device and costs, if the configuration's costs read a model."""
    offer = look_up_cost_model(inputs).offer
    if inputs.experiment.model is None or offer.model is None:
        return {}
    readers = {"model": offer.model, "device": offer.device, "costs": offer.options}
    return {section: reader() for section, reader in readers.items() if reader is not None}


def _is_read(key: str, readers: Mapping[str, type[BaseModel]]) -> bool:
    """Return whether something reads a key; of model and costs, the cost model."""
    section, name = key.split(".")[:2]
    if section not in {"model", "costs"}:
        return True
    return section in readers and name in readers[section].model_fields


def _check_keys(offer: StackOffer, readers: Mapping[str, type[BaseModel]], file: str) -> None:
    """Check that model, device and costs have the keys which the rules of a file set and read."""
    for index, rule in enumerate(offer.rules):
        for part, keys in (("set", rule.set), ("when", rule.when), ("unless", rule.unless)):
            for key in keys:
                section, _, name = key.partition(".")
                known = {*readers[section].model_fields, "name", "preset"} if section in readers else set()
                if known and name.split(".")[0] not in known:
                    place = f"rules[{index}].{part}.{key}"
                    raise ConfigError(f"no such key{nearest(name, known)}", file=file, key=place)
