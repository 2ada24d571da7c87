"""A cluster as SVG: its nodes with the pipeline's ranks on their GPUs, and how full the links are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantities import format_rate
from pptrace.report.svg import document, element

if TYPE_CHECKING:
    from markupsafe import Markup

    from pptrace.run.cluster_traffic import ClusterView

_GPU, _GAP, _MARGIN, _LINE = 26, 4, 20, 20
_ACROSS = 8
"""GPUs in a row of a node."""

_WIDTH = 1100
_INK, _MARK, _SPARE = "#1f2933", "#c92a2a", "#e5e7eb"
_HUES = 12
"""Colours of pipeline ranks before they come round again."""


def cluster_svg(view: ClusterView) -> str:
    """Return the picture as an SVG document."""
    cluster = view.job.network
    across = min(cluster.gpus, _ACROSS)
    node_width = across * (_GPU + _GAP) + 3 * _GAP + 4
    node_height = -(-cluster.gpus // across) * (_GPU + _GAP) + _LINE + 2 * _GAP
    per_row = max((_WIDTH - 2 * _MARGIN) // (node_width + 2 * _GAP), 1)
    body, below = _links(view, 2 * _LINE + _MARGIN)
    for node in range(cluster.nodes):
        x = _MARGIN + node % per_row * (node_width + 2 * _GAP)
        y = below + node // per_row * (node_height + 2 * _GAP)
        body += _node(view, node, x, y, node_width, node_height)
    below += -(-cluster.nodes // per_row) * (node_height + 2 * _GAP) + _LINE
    body += [_text(_MARGIN, below, line) for line in _legend(view)[:1]]
    for line in _legend(view)[1:]:
        below += _LINE
        body.append(_text(_MARGIN, below, line, _MARK))
    inside, outside = view.parts
    title = f"{view.name}: {cluster.nodes} x {cluster.gpus} GPUs, {inside}{f', {outside}' if outside else ''}"
    return document(
        _WIDTH, below + _MARGIN, _INK,
        element("text", title, x=_MARGIN, y=_MARGIN + 6, font_size=15, font_weight="bold"),
        _text(_MARGIN, _MARGIN + _LINE + 6, "links, and how full the fullest is under the pipeline's own traffic"),
        *body,
    )  # fmt: skip


def _links(view: ClusterView, y: int) -> tuple[list[Markup], int]:
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


def _node(view: ClusterView, node: int, x: int, y: int, width: int, height: int) -> list[Markup]:
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
        fill, label = (_hue(place["pp"]), str(place["pp"])) if place else (_SPARE, "")
        title = element("title", f"GPU {gpu}: {axes}")
        body.append(element("rect", title, x=left, y=top, width=_GPU, height=_GPU, rx=3, fill=fill, **marked))
        body.append(element("text", label, x=left + _GPU // 2, y=top + 17, text_anchor="middle"))
    return body


def _legend(view: ClusterView) -> list[str]:
    layout, between = view.job.layout, view.between
    lines = [
        f"a square is a GPU, its number and colour the pipeline rank; axes in the order {'-'.join(layout.order)}"
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


def _hue(rank: int) -> str:
    return f"hsl({rank * 360 // _HUES * 5 % 360}, 65%, 80%)"


def _heat(load: float) -> str:
    """Return green for idle links to red for full ones."""
    return f"hsl({round(120 * (1 - min(load, 1.0)))}, 60%, 50%)"
