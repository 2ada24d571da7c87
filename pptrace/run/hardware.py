"""Presets, the device of each pipeline rank by ``device.ranks``, and the network of a job on a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pptrace.config.schema import Cluster as Section
from pptrace.config.schema import Device, is_yaml_file
from pptrace.config.validation import merged, validate_options
from pptrace.errors import ConfigError, PluginError
from pptrace.memo import memoized
from pptrace.network.cluster import Cluster, RankNetwork
from pptrace.plugins.construction import build_network
from pptrace.plugins.requests import NetworkRequest
from pptrace.run.inputs import at_location, layout_of

if TYPE_CHECKING:
    from pptrace.config.resolution import Resolved
    from pptrace.network.cluster import Layout
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import ClusterOffer, NetworkOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import Preparation

_KEY = "device.ranks"
_RANKS = r"([0-9]{1,9})(?:-([0-9]{1,9}))?"


def preset_values(inputs: Preparation, key: str, name: str | None, place: str) -> Mapping[str, Any]:
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


def fill_first_device(inputs: Preparation) -> None:
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


def rank_devices(inputs: Preparation, model: Any, base: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
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


def check_unread_device(inputs: Preparation, costs: str) -> None:
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
    matches = [re.fullmatch(_RANKS, str(text)) for text in ranks] if isinstance(ranks, Mapping) else []
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
        key, match = f"{_KEY}.{text}", re.fullmatch(_RANKS, text)
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


_NODES = r"[1-9][0-9]{0,9}"
_MOST_NODES = 2**31 - 1

_PARTS = ("node", "fabric")


def job_network(inputs: Preparation) -> RankNetwork:
    """Build the cluster of a configuration, place the job's GPUs on it, and fill in the section.

    Raises:
        ConfigError: a missing key, or sizes that do not fit the job.
        PluginError: a preset or network that no plugin offers, or a plugin that fails.
    """
    resolved = inputs.resolved
    section = resolved.experiment.cluster or Section()
    if resolved.experiment.network.name != "ideal":
        raise resolved.error("network", "the cluster describes the network: remove one of the two")
    layout = layout_of(resolved)
    offer, count = _preset(resolved, inputs.registry, section)
    if offer is not None:
        inputs.use(offer)
    values = merged(offer.offer.values if offer else {}, section.model_dump(exclude_none=True, exclude={"preset"}))
    _check_whole(resolved, values)
    if section.gpus is None:
        _use_equal_trays(values, layout.gpus, section.nodes or count)
    values["nodes"], origin = _nodes(resolved, section, values, count, layout)
    values.setdefault("nics", 0)
    nodes, gpus, nics = values["nodes"], values["gpus"], values["nics"]
    values["spare"] |= layout.gpus < nodes * gpus  # a derived number of nodes is then also valid as a given one
    node = _part(inputs, values, "node", NetworkRequest(endpoints=gpus + nics, nics=nics))
    fabric = None
    if nodes > 1 and "fabric" in values:
        fabric = _part(inputs, values, "fabric", NetworkRequest(endpoints=nodes * nics, per_node=nics))
    elif "fabric" in values:
        _options(inputs, values, "fabric")
    cluster = memoized(
        lambda: Cluster(node=node, fabric=fabric, nodes=nodes, gpus=gpus, nics=nics),
        ("cluster", nodes, gpus, nics), node, fabric, rows=nodes,
    )  # fmt: skip
    filled = Section.model_validate({**values, "preset": section.preset})
    inputs.resolved = resolved.with_section("cluster", filled, _origins(values, section, origin))
    return RankNetwork(network=cluster, layout=layout)


def _preset(
    resolved: Resolved, registry: Registry, section: Section
) -> tuple[Provided[ClusterOffer] | None, int | None]:
    """Return the preset and the number of nodes that its name carries."""
    if section.preset is None:
        return None, None
    with at_location(resolved, "cluster"):
        name, _, nodes = section.preset.rpartition("x")
        is_count = re.fullmatch(_NODES, nodes) is not None and int(nodes) <= _MOST_NODES
        if section.preset not in registry.clusters and name in registry.clusters and not is_count:
            message = f"{nodes!r} is not a number of nodes: write 1 to {_MOST_NODES:,}, such as {name}x4"
            raise ConfigError(message, key="cluster.preset")
        if section.preset in registry.clusters or not is_count:
            return registry.clusters[section.preset], None
        return registry.clusters[name], int(nodes)


def _check_whole(resolved: Resolved, values: Mapping[str, Any]) -> None:
    if "gpus" not in values:
        raise resolved.error("cluster.gpus", "missing: write the GPUs of a node, or a preset such as dgx-h100x4")
    for part in _PARTS:
        if part == "node" and part not in values:
            raise resolved.error(
                "cluster.node", "missing: write what joins a node's GPUs, such as node: {name: nvlink}"
            )
        if part in values and "name" not in values[part]:
            raise resolved.error(f"cluster.{part}.name", "missing: write a network that a plugin offers")
    if "fabric" in values and not values.get("nics"):
        lacking = "0 NICs are too few" if "nics" in values else "missing"
        raise resolved.error("cluster.nics", f"{lacking}: the fabric joins NICs, write how many a node has")


def _use_equal_trays(values: dict[str, Any], gpus: int, nodes: int | None) -> None:
    """Give a job of some GPUs equal numbers of trays in each of several nodes, if the given nodes suffice."""
    tray, most, nics = values.get("tray"), values["gpus"], values.get("nics", 0)
    if not tray or gpus <= most:
        return
    used = max((used for used in range(tray, most + 1, tray) if gpus % used == 0), default=most)
    if 2 * used >= most and nics * used % most == 0 and (nodes is None or nodes * used >= gpus):
        values["gpus"], values["nics"] = used, nics * used // most


def _nodes(
    resolved: Resolved, section: Section, values: Mapping[str, Any], count: int | None, layout: Layout
) -> tuple[int, str]:
    """Return the number of nodes and where it comes from."""
    if count is not None and section.nodes is not None and count != section.nodes:
        raise resolved.error("cluster.nodes", f"{section.nodes}, but preset {section.preset} has {count}")
    nodes = section.nodes if section.nodes is not None else count
    sizes = layout.sizes_text
    gpus, fits = values["gpus"], -(-layout.gpus // values["gpus"])
    if nodes is None:
        return fits, "derived: as many as the job needs"
    here = f"{nodes} nodes of {gpus} GPUs are {nodes * gpus}"
    key = "cluster.nodes" if section.nodes is not None else "cluster.preset"
    if layout.gpus > nodes * gpus:
        raise resolved.error(key, f"{sizes} need {layout.gpus} GPUs, and {here}: use {fits} nodes")
    if layout.gpus < nodes * gpus and not section.spare:
        advice = f"use all, write {fits} nodes" if fits < nodes else "use all"
        message = f"{sizes} make {layout.gpus} GPUs, and {here}: {advice}, or cluster.spare: true"
        raise resolved.error(key, message)
    return nodes, f"preset {section.preset}"


def _part(inputs: Preparation, values: dict[str, Any], part: str, request: NetworkRequest) -> Network:
    """Return the network in a node, or the fabric, and fill its options into ``values``."""
    key = f"cluster.{part}"
    provided, checked, plain = _options(inputs, values, part)
    values[part] = {"name": provided.offer.name, **plain}
    inputs.use(provided)
    request = replace(request, options=checked)
    with at_location(inputs.resolved, key, options=True):
        try:
            return memoized(
                lambda: build_network(provided, request), ("network", repr(request)), provided.offer,
                rows=request.endpoints,
            )  # fmt: skip
        except PluginError as error:
            raise error if error.plugin else PluginError(f"{key}: {error}") from error


def _options(
    inputs: Preparation, values: Mapping[str, Any], part: str
) -> tuple[Provided[NetworkOffer], Mapping[str, Any], dict[str, Any]]:
    """Return the network of a part, and its options: checked, and as plain values."""
    options = dict(values[part])
    name = options.pop("name")
    with at_location(inputs.resolved, f"cluster.{part}.name"):
        provided = inputs.registry.networks[name]
    resolved, model = inputs.resolved, provided.offer.options
    if model is None:
        if options:
            message = "this network takes no options: remove it"
            raise resolved.error(f"cluster.{part}.{next(iter(options))}", message)
        return provided, {}, {}
    checked = validate_options(model(), options, f"cluster.{part}", resolved.positions, file=resolved.file)
    return provided, checked.model_dump(), checked.model_dump(mode="json", by_alias=True)


def _origins(values: Mapping[str, Any], section: Section, nodes: str) -> dict[str, str]:
    label = f"preset {section.preset}" if section.preset else "default"
    origins = {f"cluster.{key}": label for key in ("gpus", "nics")}
    origins |= {"cluster.nodes": nodes, "cluster.spare": nodes if values["spare"] else "default"}
    for part in _PARTS:
        origins |= {f"cluster.{part}.{key}": label for key in values.get(part, {})}
    return origins


def fill_cluster_device(inputs: Preparation) -> None:
    """Fill in the device of the cluster's preset where the configuration has a model and no preset of a device.

    Parameters that the configuration has override those of this device.

    Raises:
        ConfigError: a preset with an invalid number of nodes.
        PluginError: a preset that no plugin offers.
    """
    resolved, experiment = inputs.resolved, inputs.experiment
    section = experiment.device
    if experiment.cluster is None or experiment.model is None or (section is not None and section.preset):
        return
    offer, _ = _preset(resolved, inputs.registry, experiment.cluster)
    if offer is None or not offer.offer.device:
        return
    device, label = offer.offer.device, f"cluster {offer.offer.name}"
    written = section.values if section else {}
    values = merged({"preset": device} if isinstance(device, str) else device, written)
    filled = memoized(
        lambda: Device.model_validate({**values, "ranks": section.ranks if section else None}),
        ("device", label), offer.offer, section,
    )  # fmt: skip
    origins = {f"device.{key}": label for key in values if key not in written}
    inputs.resolved = resolved.with_section("device", filled, origins)
