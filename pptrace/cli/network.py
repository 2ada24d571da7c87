"""``pptrace network``: links and routes of a cluster, and their load by a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.cli.options import experiment_flags, json_option, output_option
from pptrace.cli.output import echo_documents, report_written
from pptrace.config.quantities import format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.cli.options import Source
    from pptrace.network.cluster import Layout
    from pptrace.report.document import Document, Section
    from pptrace.run.cluster_traffic import ClusterView, GpuRoute

_PICTURES = (".svg", ".png", ".pdf")
_EXAMPLES = """\b
pptrace network dgx-h100x4
pptrace network dgx-h100x4 --between 0,9
pptrace network llama.yaml -o cluster.svg"""


def _pair(text: str) -> tuple[int, int]:
    first, comma, second = text.partition(",")
    if not comma or not first.strip().isdecimal() or not second.strip().isdecimal():
        raise click.BadParameter(f"{text!r} is not a pair of GPUs: write two numbers, such as 0,9")
    return int(first), int(second)


@click.command("network", epilog=_EXAMPLES)
@click.argument("cluster", metavar="CLUSTER")
@click.option("--between", type=_pair, metavar="GPU,GPU", help="Show the route and the capacity between two GPUs.")
@experiment_flags("pp", "tp", "dp", "cp", config=False)
@output_option(
    "Draw the cluster: an .svg, .png or .pdf file.", *_PICTURES,
    subject=f"a picture of a cluster ends in {', '.join(_PICTURES)}",
)  # fmt: skip
@json_option()
def command(
    cluster: str, between: tuple[int, int] | None, source: Source, output: str | None, *, as_json: bool
) -> None:
    """Print the links and routes of CLUSTER, a preset such as dgx-h100x4 or a YAML file with a cluster."""
    from pptrace.plugins.registry import Registry
    from pptrace.run.cluster_traffic import view_cluster

    cluster_source = Path(cluster) if cluster.lower().endswith((".yaml", ".yml")) else cluster
    view = view_cluster(cluster_source, Registry.load(), source.sets, source.flags, between)
    echo_documents(_document(view), as_json=as_json)
    if output is not None:
        from pptrace.files import replace_file
        from pptrace.report.svg import write_drawing
        from pptrace.run.cluster_traffic import cluster_svg

        with replace_file(Path(output)) as temporary:
            write_drawing(temporary, Path(output).suffix.lower(), cluster_svg(view))
        report_written([output])


def _document(view: ClusterView) -> Document:
    from pptrace.report.document import Document, Table

    cluster, layout = view.job.network, view.job.layout
    inside, outside = view.parts
    between = f", {outside} between" if outside else ""
    sizes = _sizes_text(layout)
    if layout.encoders:
        sizes = "; ".join(f"{module.name} {_sizes_text(module)}" for module in (*layout.encoders, layout))
    rows = []
    for group in view.groups:
        fullest = max(group.links, key=lambda link: view.load[link])
        load = view.load[fullest]
        name = f"  {cluster.links.name[fullest]}" if load else ""
        latency = _format_several(group.latency_ns, format_duration)
        rows.append((
            group.pattern, str(len(group.links)), _format_several(group.rate_kbps, _rate), latency,
            f"{load:.0%}{name}",
        ))  # fmt: skip
    head = ("links", "count", "capacity", "latency", "highest use by the pipeline")
    return Document(title=view.name, values=_values(view), lead=[
        f"{view.name}: {cluster.nodes} x {cluster.gpus} GPUs, {cluster.nics} NICs each; {inside} inside{between}",
        f"pipeline: {sizes}, {'-'.join(layout.order)}",
        "",
        Table(head=head, rows=tuple(rows), left=(4,)),
    ], sections=() if view.between is None else (_route(view, view.between),))  # fmt: skip


def _sizes_text(layout: Layout) -> str:
    sizes = ((axis, getattr(layout, axis)) for axis in ("pp", "tp", "cp", "dp"))
    return ", ".join(f"{axis} {size}" for axis, size in sizes if size > 1) or "one GPU"


def _route(view: ClusterView, between: GpuRoute) -> Section:
    from pptrace.report.document import Section, Table

    links = view.job.network.links
    source, target = (
        dict(view.job.layout.place(gpu)) if gpu < view.job.layout.gpus else {}
        for gpu in (between.source, between.target)
    )
    hops = tuple((links.name[link], _rate(int(links.rate_kbps[link]))) for link in between.links)
    alternatives = (
        [f"the first of {between.per_pair} paths, between which messages alternate"]
        if between.per_pair > 1
        else []
    )
    latency = f"{format_duration(between.latency_ns)} latency"
    overhead = f", {format_duration(between.overhead_ns)} overhead" if between.overhead_ns else ""
    rates = (
        ("alone", f"{_rate(between.alone_kbps)}, {latency}{overhead}"),
        ("under the pipeline's traffic", _rate(between.shared_kbps)),
    )
    return Section(
        title=f"GPU {between.source}{_place(source)} to GPU {between.target}{_place(target)}",
        blocks=(Table(rows=hops), *alternatives, Table(rows=rates, words=2)),
    )


def _place(place: dict[str, int]) -> str:
    if not place:
        return " (spare)"
    return f" ({', '.join(f'{axis} {index}' for axis, index in place.items())})"


def _rate(rate_kbps: int) -> str:
    return format_rate(rate_kbps * 1000) if rate_kbps else "no limit"


def _format_several(values: tuple[int, ...], format_value: Callable[[int], str]) -> str:
    return format_value(values[0]) if len(values) == 1 else f"{format_value(values[0])} …"


def _values(view: ClusterView) -> dict[str, Any]:
    cluster, layout, between = view.job.network, view.job.layout, view.between
    links = cluster.links
    document: dict[str, Any] = {
        "cluster": view.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus,
        "nics_per_node": cluster.nics,
        "pipeline": {axis: getattr(layout, axis) for axis in ("pp", "dp", "cp", "tp")},
        "links": [
            {
                "name": name,
                "bytes_per_s": int(links.rate_kbps[link]) * 1000,
                "latency_ns": int(links.latency_ns[link]),
                "load": view.load[link],
            }
            for link, name in enumerate(links.name)
        ],
    }
    if between is not None:
        document["between"] = {
            "gpus": [between.source, between.target],
            "route": [links.name[link] for link in between.links],
            "ways": between.per_pair,
            "overhead_ns": between.overhead_ns,
            "latency_ns": between.latency_ns,
            "alone_bytes_per_s": between.alone_kbps * 1000,
            "shared_bytes_per_s": between.shared_kbps * 1000,
        }
    return document
