"""Rates between GPUs of a cluster, alone and under a pipeline's traffic."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.resolution import load
from pptrace.errors import ConfigError
from pptrace.network.contract import NO_ROUTE, Paths
from pptrace.network.layout import Layout
from pptrace.run.cluster import job_network
from pptrace.run.inputs import Inputs
from pptrace.sim.engines import steady_rates
from pptrace.steps.text_forms import load_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.config.resolution import Resolved
    from pptrace.network.cluster import Hops
    from pptrace.plugins.registry import Registry
    from pptrace.steps.columns import Int64s

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """Links whose names differ only in numbers."""

    pattern: str
    """Their names with ``*`` for each number."""
    links: tuple[int, ...]
    """The links."""
    rate_kbps: tuple[int, ...]
    """Their different capacities."""
    latency_ns: tuple[int, ...]
    """Their different latencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoute:
    """The route between two GPUs."""

    source: int
    """The sending GPU."""
    target: int
    """The receiving GPU."""
    links: tuple[int, ...]
    """Links on the first path."""
    ways: int
    """Number of paths, which messages take in turn."""
    overhead_ns: int
    """Launch overhead of a message."""
    latency_ns: int
    """Wire latency."""
    alone_kbps: int
    """Rate of a message alone; 0 for no limit."""
    shared_kbps: int
    """Rate of a message while all hops of the pipeline are busy, in both directions and all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster and its load by a pipeline."""

    job: Hops
    """The cluster, and the pipeline's place on it."""
    name: str
    """The preset or file."""
    parts: tuple[str, str]
    """The networks inside a node and between nodes; empty for none."""
    groups: tuple[LinkGroup, ...]
    """The links in groups."""
    load: tuple[float, ...]
    """Utilisation of each link while all hops of the pipeline are busy."""
    between: GpuRoute | None = None
    """The route between two GPUs, if requested."""


def view_cluster(
    cluster: str | Path,
    registry: Registry,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    between: tuple[int, int] | None = None,
) -> ClusterView:
    """Build the cluster of a preset or configuration file, and compute its loads.

    Args:
        cluster: a preset such as ``dgx-h100x4``, or a YAML file with a ``cluster``.
        registry: the plugins.
        sets: ``key.path=value`` texts.
        flags: ``pp``, ``tp`` and so on; a pipeline over all nodes, or all GPUs of one, unless given.
        between: two GPUs.

    Raises:
        ConfigError: an invalid configuration, unknown GPUs, or GPUs without a route.
        PluginError: a preset or network that no plugin offers.
    """
    settings = {key: value for key, value in (flags or {}).items() if value is not None}
    file = cluster if not isinstance(cluster, str) else None
    sized = file is not None or "pp" in settings
    if file is None:
        settings = {"schedule": "none", "microbatches": 1, "pp": 1, **settings, "cluster": cluster}
    resolved = load(file, sets, settings)
    if resolved.experiment.cluster is None:
        raise ConfigError("missing: the file describes no cluster", key="cluster", file=file or "")
    resolved = _with_ranks(resolved.with_values("cluster", {"spare": True}))
    inputs = Inputs(resolved=resolved, registry=registry)
    job = job_network(inputs)
    if not sized:
        job = _over_all(job)
    section = inputs.experiment.cluster
    parts = tuple(part.name or "" if (part := getattr(section, key)) else "" for key in ("node", "fabric"))
    hops, rates = _pipeline(job)
    view = ClusterView(
        job=job, name=str(cluster), parts=(parts[0], parts[1] if job.network.nodes > 1 else ""),
        groups=_groups(job), load=tuple(_load(job, hops, rates).tolist()),
    )  # fmt: skip
    return replace(view, between=_between(job, hops, *between)) if between is not None else view


def _with_ranks(resolved: Resolved) -> Resolved:
    """Fill in the pipeline ranks of a table file, where the configuration has none."""
    experiment = resolved.experiment
    if experiment.parallel.pp is not None:
        return resolved
    ranks = load_table(Path(experiment.schedule.name)).schedule.ranks
    return resolved.with_values("parallel", {"pp": ranks})


def _over_all(job: Hops) -> Hops:
    """Place a tensor-parallel stage on each node, or a stage on each GPU of a single node."""
    nodes, gpus = job.network.nodes, job.network.gpus
    return replace(job, layout=Layout(pp=nodes, tp=gpus) if nodes > 1 else Layout(pp=gpus))


def _pipeline(job: Hops) -> tuple[Paths, Int64s]:
    """Return every hop between neighbours in both directions, and its rate while all are busy."""
    low = np.arange(job.layout.pp - 1, dtype=np.int32)
    hops = job.paths(np.concatenate([low, low + 1]), np.concatenate([low + 1, low]))
    return hops, steady_rates(hops, job.network.links)


def _load(job: Hops, hops: Paths, rates: Int64s) -> NDArray[np.float64]:
    links = job.network.links
    first = np.arange(0, len(hops), hops.ways)
    on_first = np.zeros(len(hops), dtype=bool)
    on_first[first] = True
    row = np.repeat(np.arange(len(hops)), np.diff(hops.link_ptr))
    kept = on_first[row]
    used = np.bincount(
        hops.link[kept],
        weights=rates[row[kept] // hops.ways] * hops.weight[kept].astype(float),
        minlength=len(links),
    )
    return used / np.maximum(links.rate_kbps, 1)


def _groups(job: Hops) -> tuple[LinkGroup, ...]:
    links = job.network.links
    links_of: dict[str, list[int]] = {}
    for link, name in enumerate(links.name):
        links_of.setdefault(_NUMBER.sub("*", name), []).append(link)
    return tuple(
        LinkGroup(
            pattern=pattern,
            links=tuple(same),
            rate_kbps=tuple(np.unique(links.rate_kbps[same]).tolist()),
            latency_ns=tuple(np.unique(links.latency_ns[same]).tolist()),
        )
        for pattern, same in links_of.items()
    )


def _between(job: Hops, hops: Paths, source: int, target: int) -> GpuRoute:
    gpus = job.network.endpoints
    for gpu in (source, target):
        if not 0 <= gpu < gpus:
            raise ConfigError(f"GPU {gpu} is not there: the cluster has {gpus}, counted from 0", file="--between")
    route = job.network.paths(np.array([source], dtype=np.int32), np.array([target], dtype=np.int32))
    if int(route.rate_kbps[0]) == NO_ROUTE:
        message = f"no route from GPU {source} to GPU {target}: give the cluster a fabric"
        raise ConfigError(message, file="--between")
    both = Paths(
        overhead_ns=np.append(hops.overhead_ns[:: hops.ways], route.overhead_ns[0]),
        latency_ns=np.append(hops.latency_ns[:: hops.ways], route.latency_ns[0]),
        rate_kbps=np.append(hops.rate_kbps[:: hops.ways], route.rate_kbps[0]),
        **_first_paths([hops, route]),
    )
    return GpuRoute(
        source=source, target=target, links=tuple(route.link[: route.link_ptr[1]].tolist()), ways=route.ways,
        overhead_ns=int(route.overhead_ns[0]), latency_ns=int(route.latency_ns[0]),
        alone_kbps=int(route.rate_kbps[0]), shared_kbps=int(steady_rates(both, job.network.links)[-1]),
    )  # fmt: skip


def _first_paths(parts: Sequence[Paths]) -> dict[str, Any]:
    """Return the concatenated links of the first path of each pair."""
    rows = [(part, row) for part in parts for row in range(0, len(part), part.ways)]
    spans = [(part, slice(int(part.link_ptr[row]), int(part.link_ptr[row + 1]))) for part, row in rows]
    return {
        "link_ptr": np.cumsum([0, *(span.stop - span.start for _, span in spans)]),
        "link": np.concatenate([part.link[span] for part, span in spans]),
        "weight": np.concatenate([part.weight[span] for part, span in spans]),
    }
