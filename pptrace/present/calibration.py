"""A calibration as a document, and as a configuration that ``pptrace simulate`` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.calibration.network_fit import network_of
from pptrace.config.quantity import format_duration, format_rate, format_size
from pptrace.model.kinds import Kind
from pptrace.present.document import Document, Line, Section, Table
from pptrace.printable import printable_line, shell_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.calibration.fit import Calibration, Fitted, LinkFit, WayTime
    from pptrace.analysis.calibration.network_fit import SortFit

__all__ = ["calibrated_yaml", "calibration_document", "network_document", "network_yaml"]

_NO_COSTS = (
    "no action of a pipeline was recorded: what computations take is not known, the network alone is fitted"
)


def calibrated_yaml(fit: Calibration, source: str, schedule: str = "") -> str:
    """Return the YAML text, which names the schedule where one has the measured order.

    A backward that was measured whole on some stages and split on others is given whole, with the input gradient
    where it was measured on all stages; else the simulator takes half of it.
    """
    steps = f"{fit.steps} steps" if fit.steps > 1 else "one step"
    shown = printable_line(source)
    lines = [
        f"# Medians of {steps} of {shown}: pptrace calibrate. Behind # is the spread, lower to upper quartile.",
        *_schedule(fit, source, schedule), "batch:", f"  microbatches: {fit.microbatches}",
        "costs:", "  name: table", f"  slices: {fit.stages}  # stages of the measured schedule; others share them",
    ]  # fmt: skip
    lines += _times(fit)
    if fit.overhead_ns:
        lines.append(f"  overhead: {_exact(fit.overhead_ns)}  # median host gap before an action")
    if fit.boundary_bytes:
        lines.append(f"  boundary: {fit.boundary_bytes} B")
    return "\n".join([*lines, *_network(fit)]) + "\n"


def _schedule(fit: Calibration, source: str, schedule: str) -> list[str]:
    chunks = fit.stages // fit.ranks
    parallel = ["parallel:", f"  pp: {fit.ranks}"]
    if not schedule:
        word = printable_line(shell_word(source))
        return [
            "# The measured order is that of no installed schedule. Simulate another one, --schedule 1f1b, or",
            f"# that order: pptrace convert {word} order.csv --messages asap, then --schedule order.csv",
            *parallel,
        ]
    return [f"schedule: {schedule}", *parallel, *([f"  vp: {chunks}"] if chunks > 1 else [])]


def calibration_document(fit: Calibration) -> Document:
    """Return the fit of costs and network."""
    rows = tuple(
        (
            Kind[one.kind].word.replace(" ", "_"), str(one.stage), str(one.count),
            format_duration(round(one.median_ns.value)), format_duration(one.median_ns.spread or 0),
        )
        for one in sorted(fit.fitted, key=lambda one: (Kind[one.kind], one.stage))
    )  # fmt: skip
    pairs = ", ".join(f"{one.stage}{one.kind}" for one in fit.fitted if one.in_overlapped_pairs)
    lines = [
        *([f"measured in overlapped pairs alone, whose time is shared out: {pairs}"] if pairs else []),
        f"overhead of an action: {format_duration(fit.overhead_ns)}",
        *_about_links(fit),
    ]
    size = f"{fit.steps} step(s), {fit.ranks} ranks, {fit.stages} stages, {fit.microbatches} microbatches"
    return Document(
        title="calibration", lead=(Line(text=size),),
        sections=(
            Section(title="times", blocks=(Table(head=("", "stage", "count", "median", "spread"), rows=rows),)),
            Section(title="overhead and network", blocks=tuple(Line(text=line) for line in lines)),
        ),
        values=fit,
    )  # fmt: skip


def network_document(fits: Sequence[SortFit]) -> Document:
    """Return the fit of a network alone."""
    lines = [_NO_COSTS, *(line for one in fits for line in _about_sort(one))]
    return Document(title="network", lead=tuple(Line(text=line) for line in lines), values={"network": fits})


def network_yaml(fits: Sequence[SortFit], source: str) -> str:
    """Return a configuration's text that holds a network alone; empty where none can be told."""
    chosen = network_of(fits)
    if chosen is None:
        return ""
    lines = [f"# Fitted to {source}: pptrace calibrate.", f"# {_NO_COSTS}"]
    lines += [f"# {line}" for one in fits for line in _about_sort(one)]
    bandwidth, latency = _wires(chosen.link)
    lines += ["network:", "  name: hockney", f"{bandwidth}  # {chosen.what}"]
    unknown = "  # what a message takes beside its bytes is not known from collectives"
    return "\n".join([*lines, latency if chosen.messages else unknown]) + "\n"


def _about_sort(one: SortFit) -> list[str]:
    link = one.link
    sizes = " to ".join(dict.fromkeys(format_size(size) for size in (link.sizes[0], link.sizes[-1])))
    seen = f"{one.what}: {link.count:,} of {sizes}, median {format_duration(round(link.median_ns.value))}"
    if link.bytes_per_s is None or link.latency_ns is None:
        return [seen, f"  latency and bandwidth cannot be told apart from {_sizes_word(link)}"]
    rate = f"{format_rate(round(link.bytes_per_s))}{'' if one.messages else ' on each link'}"
    off = f"half are off by less than {format_duration(link.residual_ns)}"
    return [seen, f"  {format_duration(link.latency_ns)} and {rate}; {off}"]


def _sizes_word(link: LinkFit) -> str:
    return "one size" if len(link.sizes) == 1 else "these sizes"


def _times(fit: Calibration) -> list[str]:
    forward = [fit.of(Kind.F, stage) for stage in range(fit.stages)]
    whole, gradients = [], []
    for stage in range(fit.stages):
        b, i, w = (fit.of(kind, stage) for kind in (Kind.B, Kind.I, Kind.W))
        both = _median(i) + _median(w) if i is not None and w is not None else None
        whole.append(_median(b) if b is not None else both)
        gradients.append(i)
    lines = [f"  forward: {_listed([_median(one) if one else None for one in forward])}{_spreads(forward)}"]
    lines.append(f"  backward: {_listed(whole)}")
    measured = [one for one in gradients if one is not None]
    if len(measured) == fit.stages:
        lines.append(f"  input_gradient: {_listed([_median(one) for one in measured])}{_spreads(measured)}")
    elif measured:
        shares = sorted(_median(one) / time for one in measured if (time := whole[one.stage]))
        share = shares[len(shares) // 2] if shares else 0.5
        ratio = [round(time * share) if time else None for time in whole]
        lines.append(
            f"  input_gradient: {_listed(ratio)}  # {share:.1%} of the backward, as where it was measured"
        )
    else:
        lines.append("  # input and weight gradients were not measured apart: half of the backward each")
    return lines


def _median(fitted: Fitted) -> int:
    return round(fitted.median_ns.value)


def _listed(times: Sequence[int | None]) -> str:
    return f"[{', '.join('0 ns' if time is None else _exact(time) for time in times)}]"


def _spreads(fitted: Sequence[Fitted | None]) -> str:
    known = [format_duration(one.median_ns.spread or 0) for one in fitted if one is not None]
    return f"  # {', '.join(known)}" if known else ""


def _exact(time_ns: int) -> str:
    return f"{time_ns} ns"


def _network(fit: Calibration) -> list[str]:
    link = fit.link or fit.node_link
    if link is None:
        return ["# no message's arrival was seen: the network is left out"]
    lines = [*(f"# {line}" for line in _about_links(fit)), "network:", "  name: hockney", *_wires(link)]
    if fit.link is not None and fit.node_link is not None:
        lines += ["  node:", f"    ranks: {fit.node_ranks}", *(f"  {line}" for line in _wires(fit.node_link))]
    return lines


def _wires(link: LinkFit) -> list[str]:
    if link.bytes_per_s is None or link.latency_ns is None:
        return ["  bandwidth: unlimited", f"  latency: {link.median_ns.value} ns"]
    return [f"  bandwidth: {round(link.bytes_per_s)} B/s", f"  latency: {link.latency_ns} ns"]


def _about_links(fit: Calibration) -> list[str]:
    apart = bool(fit.node_ranks)
    lines = _about(fit.link, " between nodes" if apart else "") + _about(fit.node_link, " within a node")
    if fit.uneven:
        fast, slow = fit.uneven
        lines.append(
            f"ways differ: {_way(fast)}, {_way(slow)}; if nodes are why, --node-ranks N fits each node's apart"
        )
    return lines


def _way(way: WayTime) -> str:
    return f"rank {way.source} to rank {way.target} {format_duration(way.median_ns)}"


def _about(link: LinkFit | None, where: str) -> list[str]:
    if link is None:
        return []
    sizes = ", ".join(format_size(size) for size in link.sizes)
    seen = f"{link.count} messages of {sizes}{where}: median {format_duration(round(link.median_ns.value))}"
    seen += f", spread {format_duration(link.median_ns.spread or 0)}"
    if link.bytes_per_s is None or link.latency_ns is None:
        return [
            seen,
            f"latency and bandwidth cannot be told apart from {_sizes_word(link)}: all of it counts as latency",
        ]
    fitted = f"latency {format_duration(link.latency_ns)}, {format_rate(round(link.bytes_per_s))}"
    return [seen, f"{fitted}; half of the messages are off by less than {format_duration(link.residual_ns)}"]
