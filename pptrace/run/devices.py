"""From ``device.ranks`` to the device of each pipeline rank, where ranks have unlike ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.schema import Device
from pptrace.config.validation import merged, validate_options
from pptrace.config.yaml_document import read_yaml
from pptrace.run.inputs import at_location

if TYPE_CHECKING:
    from pptrace.config.resolution import Resolved
    from pptrace.run.inputs import Assembly

__all__ = ["check_unread_device", "preset_values", "rank_devices", "ranks_named", "with_first_device"]

_KEY = "device.ranks"
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def preset_values(work: Assembly, key: str, name: str | None, place: str) -> tuple[Assembly, Mapping[str, Any]]:
    """Return the values of a preset, or of a file that stands for one; none without a name.

    Args:
        work: the run.
        key: ``model`` or ``device``.
        name: the preset or file.
        place: the key under which errors are placed.

    Raises:
        ConfigError: a file that cannot be read.
        PluginError: a name that no plugin offers.
    """
    if not name:
        return work, {}
    if name.lower().endswith((".yaml", ".yml")):
        return work, read_yaml(Path(name), example="layers: 32").value
    presets = work.registry.models if key == "model" else work.registry.devices
    with at_location(work.resolved, place):
        provided = presets[name]
    return work.using(provided), provided.offer.values


def with_first_device(work: Assembly) -> Assembly:
    """Let the device of rank 0 stand for all where nothing is written beside ``device.ranks``.

    Raises:
        ConfigError: a rank that has no device then, or what :func:`rank_devices` refuses.
    """
    section = work.experiment.device
    if section is None or not section.ranks or section.preset or section.values:
        return work
    ranks = work.experiment.parallel.pp or 1
    entry_of = _entries(work.resolved, section.ranks, ranks)
    missing = next((rank for rank in range(ranks) if rank not in entry_of), None)
    if missing is not None:
        message = f"rank {missing} has no device: write it here, or a preset beside ranks, which all others have"
        raise work.resolved.error(_KEY, message)
    first = section.ranks[entry_of[0]]
    given = {"preset": first} if isinstance(first, str) else first
    own = Device.model_validate({**given, "ranks": section.ranks})
    return work.at(work.resolved.with_section("device", own, {"device.preset": f"{_KEY}.{entry_of[0]}"}))


def rank_devices(
    work: Assembly, model: Any, base: Mapping[str, Any]
) -> tuple[Assembly, tuple[dict[str, Any], ...]]:
    """Return the device of each pipeline rank, checked; none where all are alike.

    Args:
        work: the run, its ``device`` checked and filled in.
        model: returns the parameter model of a device; None where the costs read none.
        base: the device of ranks that ``device.ranks`` does not name.

    Raises:
        ConfigError: a range of ranks that cannot be read, is not there or is named twice; a wrong parameter.
        PluginError: a preset that no plugin offers.
    """
    section = work.experiment.device
    if model is None or section is None or not section.ranks:
        return work, ()
    count = work.experiment.parallel.pp or 1
    entry_of = _entries(work.resolved, section.ranks, count)
    found: dict[str, dict[str, Any]] = {}
    filled: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for text, entry in section.ranks.items():
        key = f"{_KEY}.{text}"
        name, own = _preset_and_parameters(work.resolved, key, entry)
        work, under = preset_values(work, "device", name, key)
        values = merged(under or section.values, own)
        resolved = work.resolved
        checked = validate_options(model(), values, key, resolved.positions, file=resolved.file)
        found[text] = dict(checked.model_dump())
        filled[text] = {**({"preset": name} if name else {}), **checked.model_dump(mode="json", by_alias=True)}
        label = f"preset {name}" if name else "device"
        origins |= {f"{key}.{parameter}": label for parameter in filled[text] if parameter not in own}
    section = section.model_copy(update={"ranks": filled})
    work = work.at(work.resolved.with_section("device", section, origins))
    devices = tuple(found[entry_of[rank]] if rank in entry_of else dict(base) for rank in range(count))
    return work, devices if any(one != base for one in devices) else ()


def check_unread_device(work: Assembly, costs: str) -> None:
    """Check the device of costs that do not read it: its presets and ranks exist, and it has no parameters.

    Args:
        work: the run.
        costs: the cost model.

    Raises:
        ConfigError: a range of ranks as for :func:`rank_devices`, or a parameter.
        PluginError: a preset that no plugin offers.
    """
    section = work.experiment.device
    if section is None:
        return
    ranks = section.ranks or {}
    _entries(work.resolved, ranks, work.experiment.parallel.pp or 1)
    own = {"preset": section.preset, **section.values}
    for key, entry in {"device": own, **{f"{_KEY}.{text}": one for text, one in ranks.items()}}.items():
        name, parameters = _preset_and_parameters(work.resolved, key, entry)
        preset_values(work, "device", name, key)
        if parameters:
            message = f"{costs} costs read no parameters of a device: remove it, or choose other costs"
            raise work.resolved.error(f"{key}.{next(iter(parameters))}", message)


def ranks_named(section: object) -> int:
    """Return how many pipeline ranks ``device.ranks`` needs at least, as a section is written; 1 without it."""
    ranks = section.get("ranks") if isinstance(section, Mapping) else None
    matches = [_RANKS.fullmatch(str(text)) for text in ranks] if isinstance(ranks, Mapping) else []
    return 1 + max((int(match[2] or match[1]) for match in matches if match), default=0)


def _preset_and_parameters(
    resolved: Resolved, key: str, entry: str | Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    own = {"preset": entry} if isinstance(entry, str) else dict(entry)
    name = own.pop("preset", None)
    if name is not None and not isinstance(name, str):
        raise resolved.error(f"{key}.preset", "a preset's name, or a file of parameters (.yaml)")
    return name, own


def _entries(resolved: Resolved, ranks: Mapping[str, Any], count: int) -> dict[int, str]:
    """Return under which key each rank's device stands."""
    found: dict[int, str] = {}
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
            if rank in found:
                raise resolved.error(key, f"rank {rank} stands under {found[rank]}, too: name each once")
            found[rank] = text
    return found
