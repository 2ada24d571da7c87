"""Rates between GPUs of a cluster, alone and under a pipeline's traffic, and a drawing of the cluster as SVG."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.overrides import assignment, assignments
from pptrace.config.places import key_text
from pptrace.config.quantities import format_rate
from pptrace.config.resolution import load
from pptrace.errors import ConfigError
from pptrace.network.contract import NO_ROUTE, Paths
from pptrace.report.svg import document, element
from pptrace.run.hardware import job_network
from pptrace.run.inputs import Preparation
from pptrace.sim.engines import steady_rates
from pptrace.steps.text_forms import load_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup
    from numpy.typing import NDArray

    from pptrace.network.cluster import RankNetwork
    from pptrace.plugins.registry import Registry
    from pptrace.steps.columns import Int64s

_NUMBER = re.compile(r"[0-9]+")


class LinkGroup(Struct, frozen=True, kw_only=True):
    """Links whose names differ only in numbers."""

    pattern: str
    """Their names with ``*`` for each number."""
    links: tuple[int, ...]
    """The links."""
    rate_kbps: tuple[int, ...]
    """Their different capacities."""
    latency_ns: tuple[int, ...]
    """Their different latencies."""


class GpuRoute(Struct, frozen=True, kw_only=True):
    """The route between two GPUs."""

    source: int
    """The sending GPU."""
    target: int
    """The receiving GPU."""
    links: tuple[int, ...]
    """Links on the first path."""
    per_pair: int
    """Number of paths, which messages take in turn."""
    overhead_ns: int
    """Launch overhead of a message."""
    latency_ns: int
    """Wire latency."""
    alone_kbps: int
    """Rate of a message alone; 0 for no limit."""
    shared_kbps: int
    """Rate of a message while all hops of the pipeline are busy, in both directions and all replicas."""


class ClusterView(Struct, frozen=True, kw_only=True):
    """A cluster and its load by a pipeline."""

    job: RankNetwork
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
        flags: ``pp``, ``tp`` and so on. The pipeline of a preset has all GPUs by default. Without any size, it has
            a tensor-parallel stage on each of several nodes.
        between: two GPUs.

    Raises:
        ConfigError: an invalid configuration, unknown GPUs, or GPUs without a route.
        PluginError: a preset or network that no plugin offers.
    """
    settings = {key: value for key, value in (flags or {}).items() if value is not None}
    file = cluster if not isinstance(cluster, str) else None
    given = {key_text(each.path) for each in assignments(sets, settings)}
    has_ranks = file is not None or "parallel.pp" in given
    named = []
    if isinstance(cluster, str):
        settings = {"schedule": "none", "microbatches": 1, **({} if has_ranks else {"pp": 1}), **settings}
        named = [assignment("cluster", cluster, f"network {cluster}")]
    resolved = load(file, sets, settings, named)
    if resolved.experiment.cluster is None:
        raise ConfigError("missing: the file describes no cluster", key="cluster", file=file or "")
    resolved = resolved.with_values("cluster", {"spare": True})
    if resolved.experiment.parallel.pp is None:
        ranks = load_table(Path(resolved.experiment.schedule.name)).schedule.ranks
        resolved = resolved.with_values("parallel", {"pp": ranks})
    inputs = Preparation(resolved=resolved, registry=registry)
    job = job_network(inputs)
    if not has_ranks:
        layout = job.layout
        if layout.gpus == 1 and job.network.nodes > 1:
            layout = replace(layout, tp=job.network.gpus)
        job = job._replace(layout=replace(layout, pp=job.network.endpoints // layout.gpus))
    section = inputs.experiment.cluster
    parts = tuple(part.name or "" if (part := getattr(section, key)) else "" for key in ("node", "fabric"))
    hops, rates = _pipeline(job)
    view = ClusterView(
        job=job, name=str(cluster), parts=(parts[0], parts[1] if job.network.nodes > 1 else ""),
        groups=_groups(job), load=tuple(_load(job, hops, rates).tolist()),
    )  # fmt: skip
    return replace(view, between=_between(job, hops, *between)) if between is not None else view


def _pipeline(job: RankNetwork) -> tuple[Paths, Int64s]:
    """Return every hop between neighbours in both directions, and its rate while all are busy."""
    low = np.arange(job.layout.ranks - 1, dtype=np.int32)
    hops = job.paths(np.concatenate([low, low + 1]), np.concatenate([low + 1, low]))
    return hops, steady_rates(hops, job.network.links)


def _load(job: RankNetwork, hops: Paths, rates: Int64s) -> NDArray[np.float64]:
    links = job.network.links
    row = np.repeat(np.arange(len(hops)), np.diff(hops.link_ptr))
    kept = row % hops.per_pair == 0
    used = np.bincount(
        hops.link[kept],
        weights=rates[row[kept] // hops.per_pair] * hops.weight[kept].astype(float),
        minlength=len(links),
    )
    return used / np.maximum(links.rate_kbps, 1)


def _groups(job: RankNetwork) -> tuple[LinkGroup, ...]:
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


def _between(job: RankNetwork, hops: Paths, source: int, target: int) -> GpuRoute:
    gpus = job.network.endpoints
    for gpu in (source, target):
        if not 0 <= gpu < gpus:
            raise ConfigError(f"no GPU {gpu}: the cluster has GPUs 0 to {gpus - 1}", file="--between")
    route = job.network.paths(np.array([source], dtype=np.int32), np.array([target], dtype=np.int32))
    if int(route.rate_kbps[0]) == NO_ROUTE:
        message = f"no route from GPU {source} to GPU {target}: give the cluster a fabric"
        raise ConfigError(message, file="--between")
    both = Paths(
        overhead_ns=np.append(hops.overhead_ns[:: hops.per_pair], route.overhead_ns[0]),
        latency_ns=np.append(hops.latency_ns[:: hops.per_pair], route.latency_ns[0]),
        rate_kbps=np.append(hops.rate_kbps[:: hops.per_pair], route.rate_kbps[0]),
        **_first_paths([hops, route]),
    )
    return GpuRoute(
        source=source, target=target, links=tuple(route.link[: route.link_ptr[1]].tolist()),
        per_pair=route.per_pair,
        overhead_ns=int(route.overhead_ns[0]), latency_ns=int(route.latency_ns[0]),
        alone_kbps=int(route.rate_kbps[0]), shared_kbps=int(steady_rates(both, job.network.links)[-1]),
    )  # fmt: skip


def _first_paths(parts: Sequence[Paths]) -> dict[str, Any]:
    """Return the concatenated links of the first path of each pair."""
    rows = [(part, row) for part in parts for row in range(0, len(part), part.per_pair)]
    spans = [(part, slice(int(part.link_ptr[row]), int(part.link_ptr[row + 1]))) for part, row in rows]
    return {
        "link_ptr": np.cumsum([0, *(span.stop - span.start for _, span in spans)]),
        "link": np.concatenate([part.link[span] for part, span in spans]),
        "weight": np.concatenate([part.weight[span] for part, span in spans]),
    }


_GPU, _GAP, _MARGIN, _LINE = 26, 4, 20, 20
_ACROSS = 8
"""GPUs in a row of a node."""

_WIDTH = 1100
_INK, _MARK, _SPARE = "#1f2933", "#c92a2a", "#e5e7eb"
_HUES = 12
"""Colors of pipeline ranks before they come round again."""


def cluster_svg(view: ClusterView) -> str:
    """Return the picture as an SVG document."""
    cluster = view.job.network
    across = min(cluster.gpus, _ACROSS)
    node_width = across * (_GPU + _GAP) + 3 * _GAP + 4
    node_height = -(-cluster.gpus // across) * (_GPU + _GAP) + _LINE + 2 * _GAP
    per_row = max((_WIDTH - 2 * _MARGIN) // (node_width + 2 * _GAP), 1)
    body, below = _draw_links(view, 2 * _LINE + _MARGIN)
    for node in range(cluster.nodes):
        x = _MARGIN + node % per_row * (node_width + 2 * _GAP)
        y = below + node // per_row * (node_height + 2 * _GAP)
        body += _draw_node(view, node, x, y, node_width, node_height)
    below += -(-cluster.nodes // per_row) * (node_height + 2 * _GAP) + _LINE
    squares, *route = _legend(view)
    body.append(_text(_MARGIN, below, squares))
    for line in route:
        below += _LINE
        body.append(_text(_MARGIN, below, line, _MARK))
    inside, outside = view.parts
    title = f"{view.name}: {cluster.nodes} x {cluster.gpus} GPUs, {inside}{f', {outside}' if outside else ''}"
    return document(
        _WIDTH, below + _MARGIN, _INK,
        element("text", title, x=_MARGIN, y=_MARGIN + 6, font_size=15, font_weight="bold"),
        _text(_MARGIN, _MARGIN + _LINE + 6, "links, with the highest utilisation under the pipeline's traffic"),
        *body,
    )  # fmt: skip


def _draw_links(view: ClusterView, y: int) -> tuple[list[Markup], int]:
    """Return a line with a bar for each group of links, and where they end."""
    body = []
    for group in view.groups:
        load = max(view.load[link] for link in group.links)
        rates = " to ".join(format_rate(rate * 1000) for rate in sorted({group.rate_kbps[0], group.rate_kbps[-1]}))
        body += [
            _text(_MARGIN, y + 13, f"{len(group.links)} x {group.pattern}, {rates}"),
            element("rect", x=480, y=y + 2, width=400, height=12, fill="#f1f3f5"),
            element("rect", x=480, y=y + 2, width=round(400 * min(load, 1)), height=12, fill=_heat(load)),
            _text(890, y + 13, f"{load:.0%}"),
        ]
        y += _LINE
    return body, y + _LINE


def _draw_node(view: ClusterView, node: int, x: int, y: int, width: int, height: int) -> list[Markup]:
    cluster, layout = view.job.network, view.job.layout
    inner = len(cluster.node.links)
    load = max(view.load[node * inner : (node + 1) * inner], default=0.0)
    title = element("title", f"node {node}: links inside {load:.0%} full")
    frame = {"rx": "5", "fill": "#ffffff", "stroke": _heat(load) if load else "#adb5bd", "stroke_width": "2"}
    body = [
        element("rect", title, x=x, y=y, width=width, height=height, **frame),
        _text(x + 2 * _GAP, y + 15, f"node {node}"),
    ]
    ends = () if view.between is None else (view.between.source, view.between.target)
    across = min(cluster.gpus, _ACROSS)
    for slot in range(cluster.gpus):
        gpu = node * cluster.gpus + slot
        left, top = x + 2 * _GAP + slot % across * (_GPU + _GAP), y + _LINE + slot // across * (_GPU + _GAP)
        place = layout.place(gpu) if gpu < layout.gpus else None
        axes = ", ".join(f"{axis} {value}" for axis, value in place.items()) if place else "spare"
        marked = {"stroke": _MARK, "stroke_width": "3"} if gpu in ends else {}
        fill, label = _SPARE, ""
        if place:
            fill, label = f"hsl({place['pp'] * 360 // _HUES * 5 % 360}, 65%, 80%)", str(place["pp"])
        title = element("title", f"GPU {gpu}: {axes}")
        body.append(element("rect", title, x=left, y=top, width=_GPU, height=_GPU, rx=3, fill=fill, **marked))
        body.append(element("text", label, x=left + _GPU // 2, y=top + 17, text_anchor="middle"))
    return body


def _legend(view: ClusterView) -> list[str]:
    layout, between = view.job.layout, view.between
    lines = [
        f"a square is a GPU, its number and color the pipeline rank; axes in the order {'-'.join(layout.order)}"
    ]
    if between is not None:
        names = view.job.network.links.name
        route = " > ".join(names[link] for link in between.links) or "no link"
        alone = format_rate(between.alone_kbps * 1000) if between.alone_kbps else "no limit"
        shared = format_rate(between.shared_kbps * 1000) if between.shared_kbps else "no limit"
        lines.append(f"GPU {between.source} to GPU {between.target}: {alone} alone, {shared} under the traffic")
        lines.append(route)
    return lines


def _text(x: int, y: int, text: str, fill: str = _INK) -> Markup:
    return element("text", text, x=x, y=y, fill=fill)


def _heat(load: float) -> str:
    """Return green for idle links to red for full ones."""
    return f"hsl({round(120 * (1 - min(load, 1.0)))}, 60%, 50%)"
