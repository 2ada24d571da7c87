"""Presets, and the device of each pipeline rank by ``device.ranks``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.schema import Device, is_yaml_file
from pptrace.config.validation import merged, validate_options

if TYPE_CHECKING:
    from pptrace.config.resolution import Resolved
    from pptrace.run.inputs import Inputs

_KEY = "device.ranks"
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def preset_values(inputs: Inputs, key: str, name: str | None, place: str) -> Mapping[str, Any]:
    """Return the values of a preset or file of a ``model`` or ``device``; empty without a name.

    Raises:
        ConfigError: a file that cannot be read.
        PluginError: a name that no plugin offers.
    """
    if not name:
        return {}
    if is_yaml_file(name):
        from pptrace.config.yaml_document import read_yaml

        values: Mapping[str, Any] = read_yaml(Path(name), example="layers: 32").value
        return values
    if key == "model":
        return inputs.look_up(inputs.registry.models, name, place).offer.values
    return inputs.look_up(inputs.registry.devices, name, place).offer.values


def fill_first_device(inputs: Inputs) -> None:
    """Fill in the device of rank 0 as the default device, where the section has only ``device.ranks``.

    Raises:
        ConfigError: a rank that has no device then, or what :func:`rank_devices` refuses.
    """
    section = inputs.experiment.device
    if section is None or not section.ranks or section.preset or section.values:
        return
    ranks = inputs.experiment.parallel.pp or 1
    entry_of = _entries(inputs.resolved, section.ranks, ranks)
    missing = next((rank for rank in range(ranks) if rank not in entry_of), None)
    if missing is not None:
        message = f"rank {missing} has no device: write it here, or a preset beside ranks, which all others have"
        raise inputs.resolved.error(_KEY, message)
    first = section.ranks[entry_of[0]]
    values = {"preset": first} if isinstance(first, str) else first
    device = Device.model_validate({**values, "ranks": section.ranks})
    origins = {"device.preset": f"{_KEY}.{entry_of[0]}"}
    inputs.resolved = inputs.resolved.with_section("device", device, origins)


def rank_devices(inputs: Inputs, model: Any, base: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the checked device of each pipeline rank; empty where all are equal.

    Args:
        inputs: the configuration, its ``device`` filled in.
        model: returns the parameter model of a device.
        base: the device of ranks that ``device.ranks`` does not name.

    Raises:
        ConfigError: a range of ranks that cannot be read, is not there or is named twice; a wrong parameter.
        PluginError: a preset that no plugin offers.
    """
    section = inputs.experiment.device
    if section is None or not section.ranks:
        return ()
    count = inputs.experiment.parallel.pp or 1
    entry_of = _entries(inputs.resolved, section.ranks, count)
    parameters: dict[str, dict[str, Any]] = {}
    filled: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for text, entry in section.ranks.items():
        key = f"{_KEY}.{text}"
        name, written = _preset_and_parameters(inputs.resolved, key, entry)
        preset = preset_values(inputs, "device", name, key)
        values = merged(preset or section.values, written)
        resolved = inputs.resolved
        checked = validate_options(model(), values, key, resolved.positions, file=resolved.file)
        parameters[text] = dict(checked.model_dump())
        filled[text] = {**({"preset": name} if name else {}), **checked.model_dump(mode="json", by_alias=True)}
        label = f"preset {name}" if name else "device"
        origins |= {f"{key}.{parameter}": label for parameter in filled[text] if parameter not in written}
    section = section.model_copy(update={"ranks": filled})
    inputs.resolved = inputs.resolved.with_section("device", section, origins)
    devices = tuple(parameters[entry_of[rank]] if rank in entry_of else dict(base) for rank in range(count))
    return devices if any(device != base for device in devices) else ()


def check_unread_device(inputs: Inputs, costs: str) -> None:
    """Check the device of costs that do not read it: its presets and ranks exist, and it has no parameters.

    Raises:
        ConfigError: a range of ranks as for :func:`rank_devices`, or a parameter.
        PluginError: a preset that no plugin offers.
    """
    section = inputs.experiment.device
    if section is None:
        return
    ranks = section.ranks or {}
    _entries(inputs.resolved, ranks, inputs.experiment.parallel.pp or 1)
    entries: dict[str, Any] = {"device": {"preset": section.preset, **section.values}}
    entries |= {f"{_KEY}.{text}": entry for text, entry in ranks.items()}
    for key, entry in entries.items():
        name, parameters = _preset_and_parameters(inputs.resolved, key, entry)
        preset_values(inputs.copy(), "device", name, key)
        if parameters:
            message = f"{costs} costs read no parameters of a device: remove it, or choose other costs"
            raise inputs.resolved.error(f"{key}.{next(iter(parameters))}", message)


def ranks_named(section: object) -> int:
    """Return the least number of pipeline ranks for ``device.ranks`` as written; 1 without it."""
    ranks = section.get("ranks") if isinstance(section, Mapping) else None
    matches = [_RANKS.fullmatch(str(text)) for text in ranks] if isinstance(ranks, Mapping) else []
    return 1 + max((int(match[2] or match[1]) for match in matches if match), default=0)


def _preset_and_parameters(
    resolved: Resolved, key: str, entry: str | Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    parameters = {"preset": entry} if isinstance(entry, str) else dict(entry)
    name = parameters.pop("preset", None)
    if name is not None and not isinstance(name, str):
        raise resolved.error(f"{key}.preset", "a preset's name, or a file of parameters (.yaml)")
    return name, parameters


def _entries(resolved: Resolved, ranks: Mapping[str, Any], count: int) -> dict[int, str]:
    """Return the key of each rank's device."""
    entry_of: dict[int, str] = {}
    for text in ranks:
        key, match = f"{_KEY}.{text}", _RANKS.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            message = f"{text!r} names no ranks: write one such as 3, or a range such as 4-7"
            raise resolved.error(key, message)
        if last >= count:
            last_rank = "there is rank 0 alone" if count == 1 else f"pipeline ranks are 0 to {count - 1}"
            raise resolved.error(key, f"rank {max(first, count)} is not there: {last_rank}")
        for rank in range(first, last + 1):
            if rank in entry_of:
                raise resolved.error(key, f"rank {rank} is also listed under {entry_of[rank]}: list it once")
            entry_of[rank] = text
    return entry_of
