"""The network of the job, and the replicas of each stage."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.schema import Cluster as Section
from pptrace.config.schema import Device
from pptrace.config.validation import merged
from pptrace.errors import ConfigError, PluginError
from pptrace.network.cluster import Cluster, Hops
from pptrace.network.collectives import LinkCollectives
from pptrace.network.layout import Layout
from pptrace.plugins.construction import build_network
from pptrace.plugins.requests import NetworkRequest
from pptrace.run.inputs import OnCluster, at_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import ClusterOffer, NetworkOffer, Provided
    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import Assembly
    from pptrace.steps.columns import Int32s
    from pptrace.steps.placement import Placement
    from pptrace.steps.workload import Workload

__all__ = ["layout_of", "on_cluster", "with_stage_replicas"]

_NODES = re.compile(r"[1-9][0-9]{0,9}")
_MOST_NODES = 2**31 - 1

_PARTS = ("node", "fabric")


def layout_of(resolved: Resolved) -> Layout:
    """Return the layout of a configuration's parallel sizes.

    Raises:
        ConfigError: an order with a missing, doubled or unknown axis; sizes that do not fit each other.
    """
    parallel = resolved.experiment.parallel
    with at_location(resolved, "parallel"):
        return Layout(
            pp=parallel.pp or 1, dp=parallel.dp, cp=parallel.cp, ep=parallel.ep, tp=parallel.tp,
            etp=parallel.etp or 0, order=tuple(parallel.order.split("-")),
        )  # fmt: skip


def on_cluster(work: Assembly) -> tuple[Assembly, OnCluster]:
    """Build the cluster of a configuration that has one, and put its job's GPUs on it.

    Returns:
        The run with everything about the cluster filled in, and the job on it.

    Raises:
        ConfigError: what is missing, or does not fit the job.
        PluginError: a preset or network that no plugin offers, or a plugin that fails.
    """
    resolved = work.resolved
    section = resolved.experiment.cluster or Section()
    if resolved.experiment.network.name != "ideal":
        raise resolved.error("network", "the cluster describes the network: remove one of the two")
    layout = layout_of(resolved)
    offer, count = _preset(resolved, work.registry, section)
    work = work if offer is None else work.using(offer)
    values = merged(offer.offer.values if offer else {}, section.model_dump(exclude_none=True, exclude={"preset"}))
    _check_whole(resolved, values)
    values["nodes"], origin = _nodes(resolved, section, values, count, layout)
    values.setdefault("nics", 0)
    request = _Requests(nodes=values["nodes"], gpus=values["gpus"], nics=values["nics"])
    work, node = _part(work, values, "node", request.node())
    fabric = None
    if values["nodes"] > 1 and "fabric" in values:
        work, fabric = _part(work, values, "fabric", request.fabric())
    elif "fabric" in values:
        _options(work, values, "fabric")
    cluster = Cluster(node=node, fabric=fabric, nodes=values["nodes"], gpus=values["gpus"], nics=values["nics"])
    filled = Section.model_validate({**values, "preset": section.preset})
    resolved = resolved.with_section("cluster", filled, _origins(values, section, origin))
    resolved = _with_device(resolved, offer)
    return work.at(resolved), OnCluster(cluster=cluster, layout=layout, hops=Hops(network=cluster, layout=layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """What a cluster's parts are asked for."""

    nodes: int
    gpus: int
    nics: int

    def node(self) -> NetworkRequest:
        return NetworkRequest(endpoints=self.gpus + self.nics, nics=self.nics)

    def fabric(self) -> NetworkRequest:
        return NetworkRequest(endpoints=self.nodes * self.nics, per_node=self.nics)


def _preset(
    resolved: Resolved, registry: Registry, section: Section
) -> tuple[Provided[ClusterOffer] | None, int | None]:
    """Return the preset and the number of nodes that its name carries."""
    if section.preset is None:
        return None, None
    with at_location(resolved, "cluster"):
        name, _, nodes = section.preset.rpartition("x")
        is_count = _NODES.fullmatch(nodes) is not None and int(nodes) <= _MOST_NODES
        if section.preset not in registry.clusters and name in registry.clusters and not is_count:
            message = f"{nodes!r} is no number of nodes: write 1 to {_MOST_NODES:,}, such as {name}x4"
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


def _nodes(
    resolved: Resolved, section: Section, values: Mapping[str, Any], count: int | None, layout: Layout
) -> tuple[int, str]:
    """Return the number of nodes and where it comes from."""
    if count is not None and section.nodes is not None and count != section.nodes:
        raise resolved.error("cluster.nodes", f"{section.nodes}, but preset {section.preset} says {count}")
    given = section.nodes if section.nodes is not None else count
    sizes = " x ".join(f"{axis} {getattr(layout, axis)}" for axis in ("pp", "dp", "cp", "tp"))
    gpus, fits = values["gpus"], -(-layout.gpus // values["gpus"])
    if given is None:
        return fits, "derived: as many as the job needs"
    here = f"{given} nodes of {gpus} GPUs are {given * gpus}"
    key = "cluster.nodes" if section.nodes is not None else "cluster.preset"
    if layout.gpus > given * gpus:
        raise resolved.error(key, f"{sizes} need {layout.gpus} GPUs, and {here}: {fits} nodes hold them")
    if layout.gpus < given * gpus and not section.spare:
        advice = f"use all, write {fits} nodes" if fits < given else "use all"
        message = f"{sizes} make {layout.gpus} GPUs, and {here}: {advice}, or cluster.spare: true"
        raise resolved.error(key, message)
    return given, f"preset {section.preset}"


def _part(work: Assembly, values: dict[str, Any], part: str, request: NetworkRequest) -> tuple[Assembly, Network]:
    """Build the inside of a node, or the fabric, and write its options back into ``values``."""
    key = f"cluster.{part}"
    provided, checked, plain = _options(work, values, part)
    values[part] = {"name": provided.offer.name, **plain}
    work = work.using(provided)
    with at_location(work.resolved, key, options=True):
        try:
            return work, build_network(provided, replace(request, options=checked))
        except PluginError as error:
            raise error if error.plugin else PluginError(f"{key}: {error}") from error


def _options(
    work: Assembly, values: Mapping[str, Any], part: str
) -> tuple[Provided[NetworkOffer], Mapping[str, Any], dict[str, Any]]:
    """Return the network of a part, and its options, checked and as plain values."""
    options = dict(values[part])
    name = options.pop("name")
    with at_location(work.resolved, f"cluster.{part}.name"):
        provided = work.registry.networks[name]
    model = provided.offer.options
    return provided, *work.resolved.part(f"cluster.{part}", model() if model else None, options)


def _origins(values: Mapping[str, Any], section: Section, nodes: str) -> dict[str, str]:
    label = f"preset {section.preset}" if section.preset else "default"
    found = {f"cluster.{key}": label for key in ("gpus", "nics")} | {"cluster.nodes": nodes}
    for part in _PARTS:
        found |= {f"cluster.{part}.{key}": label for key in values.get(part, {})}
    return found


def _with_device(resolved: Resolved, offer: Provided[ClusterOffer] | None) -> Resolved:
    """Take the cluster's device where the configuration names none and a model needs one."""
    own = resolved.experiment.device
    alone = own is None or not (own.preset or own.values)
    if offer is None or not offer.offer.device or not alone or resolved.experiment.model is None:
        return resolved
    device, label = offer.offer.device, f"cluster {offer.offer.name}"
    ranks = own.ranks if own else None
    if isinstance(device, str):
        return resolved.with_section("device", Device(preset=device, ranks=ranks), {"device.preset": label})
    return resolved.with_section(
        "device", Device.model_validate({**device, "ranks": ranks}),
        dict.fromkeys((f"device.{key}" for key in device), label),
    )  # fmt: skip


_NOT_REDUCED = "gradients of stages that several ranks hold are not reduced between them: "
_OFF = f"{_NOT_REDUCED}data_parallel.stage_replicas is false"
_UNKNOWN = f"{_NOT_REDUCED}costs {{name}} know no gradients"
_KEY = "data_parallel.stage_replicas"


@dataclass(frozen=True, slots=True)
class _Holders:
    """Groups of endpoints that hold the same stages."""

    rows: Int32s

    def groups(self, axis: str) -> Int32s:
        """Return the groups; there is one axis, ``replicas``."""
        del axis
        return self.rows


def with_stage_replicas(
    resolved: Resolved, workload: Workload, placement: Placement, network: Network, job: OnCluster | None
) -> Workload:
    """Add what an all-reduce between the holders of each stage takes to its reduction, if switched on.

    All groups of holders reduce at once, behind the reduction over the data-parallel replicas. Costs that know
    no gradients have nothing to reduce, which a note says.

    Raises:
        ConfigError: the costs know no gradients, and the configuration asks for their reduction.
    """
    holders = placement.copies()
    shared = np.flatnonzero(holders.sum(axis=0) > 1)
    if not shared.size:
        return workload
    if not resolved.experiment.data_parallel.stage_replicas:
        return replace(workload, notes=(*workload.notes, _OFF))
    if not workload.gradients_bytes[shared].any():
        name = resolved.experiment.costs.name
        if _KEY not in resolved.positions:
            return replace(workload, notes=(*workload.notes, _UNKNOWN.format(name=name)))
        message = f"costs {name} know no gradients to reduce: write costs.gradients, or use costs that count them"
        raise resolved.error(_KEY, message)
    reduce_ns = workload.reduce_ns.copy()
    for copies in np.unique(holders.sum(axis=0)[shared]).tolist():
        stages = np.flatnonzero(holders.sum(axis=0) == copies)
        sets = np.unique([np.flatnonzero(holders[:, stage]) for stage in stages], axis=0)
        if job is not None:
            sets = job.layout.grid()[sets].transpose(0, 2, 3, 4, 1).reshape(-1, copies)
        over = LinkCollectives(network=job.cluster if job else network, layout=_Holders(sets.astype(np.int32)))
        with at_location(resolved, "network"):
            for stage in stages.tolist():
                reduce_ns[stage] += over.ns("all-reduce", "replicas", int(workload.gradients_bytes[stage]))
    return replace(workload, reduce_ns=reduce_ns)
