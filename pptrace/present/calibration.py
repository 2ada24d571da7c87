"""A calibration as a configuration that ``pptrace simulate`` takes, with what it rests on beside each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import format_duration, format_rate, format_size
from pptrace.model.action import Kind

if TYPE_CHECKING:
    from pptrace.analysis.calibration.fit import Calibration, Fitted, LinkFit

__all__ = ["calibrated_yaml", "calibration_lines"]

_NAMES = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input_gradient", Kind.W: "weight_gradient"}


def calibrated_yaml(fit: Calibration, source: str, schedule: str = "") -> str:
    """Return the YAML text, which names the schedule where one has the measured order.

    A backward that was measured whole on some stages and split on others is given whole, with the input gradient
    where it was measured on all stages; else the simulator takes half of it.
    """
    steps = f"{fit.steps} steps" if fit.steps > 1 else "one step"
    lines = [
        f"# Medians of {steps} of {source}: pptrace calibrate. Behind # is the spread, lower to upper quartile.",
        *_schedule(fit, source, schedule), "batch:", f"  microbatches: {fit.units}",
        "costs:", "  name: table", f"  slices: {fit.stages}  # stages of the measured schedule; others share them",
    ]  # fmt: skip
    lines += _times(fit)
    if fit.overhead_ns:
        lines.append(f"  overhead: {_exact(fit.overhead_ns)}  # median gap of the host before an action")
    if fit.boundary_bytes:
        lines.append(f"  boundary: {fit.boundary_bytes} B")
    return "\n".join([*lines, *_network(fit)]) + "\n"


def _schedule(fit: Calibration, source: str, schedule: str) -> list[str]:
    chunks = fit.stages // fit.ranks
    parallel = ["parallel:", f"  pp: {fit.ranks}"]
    if not schedule:
        return [
            "# The measured order is that of no installed schedule. Simulate another one, --schedule 1f1b, or",
            f"# that order: pptrace convert {source} order.csv --messages asap, then --schedule order.csv",
            *parallel,
        ]
    return [f"schedule: {schedule}", *parallel, *([f"  vp: {chunks}"] if chunks > 1 else [])]


def calibration_lines(fit: Calibration) -> list[str]:
    """Return what a terminal shows of a calibration."""
    lines = [f"{fit.steps} step(s), {fit.ranks} ranks, {fit.stages} stages, {fit.units} microbatches", ""]
    rows = [("", "stage", "count", "median", "spread")]
    rows += [
        (_NAMES[Kind[one.kind]], str(one.stage), str(one.count), format_duration(one.median_ns),
         f"{format_duration(one.spread_ns)}{' in braids' if one.in_braids else ''}")
        for one in sorted(fit.fitted, key=lambda one: (Kind[one.kind], one.stage))
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += ["", f"overhead of an action  {format_duration(fit.overhead_ns)}"]
    return [*lines, *_about_links(fit)]


def _times(fit: Calibration) -> list[str]:
    forward = [fit.of(Kind.F, stage) for stage in range(fit.stages)]
    whole, given = [], []
    for stage in range(fit.stages):
        b, i, w = (fit.of(kind, stage) for kind in (Kind.B, Kind.I, Kind.W))
        both = i.median_ns + w.median_ns if i is not None and w is not None else None
        whole.append(b.median_ns if b is not None else both)
        given.append(i)
    lines = [f"  forward: {_listed([one.median_ns if one else None for one in forward])}{_spreads(forward)}"]
    lines.append(f"  backward: {_listed(whole)}")
    measured = [one for one in given if one is not None]
    if len(measured) == fit.stages:
        lines.append(f"  input_gradient: {_listed([one.median_ns for one in measured])}{_spreads(measured)}")
    elif measured:
        shares = sorted(one.median_ns / time for one in measured if (time := whole[one.stage]))
        share = shares[len(shares) // 2] if shares else 0.5
        ratio = [round(time * share) if time else None for time in whole]
        lines.append(
            f"  input_gradient: {_listed(ratio)}  # {share:.1%} of the backward, as where it was measured"
        )
    else:
        lines.append("  # input and weight gradients were not measured apart: half of the backward each")
    return lines


def _listed(times: list[int | None]) -> str:
    return f"[{', '.join('0 ns' if time is None else _exact(time) for time in times)}]"


def _spreads(fitted: list[Fitted] | list[Fitted | None]) -> str:
    known = [format_duration(one.spread_ns) for one in fitted if one is not None]
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
        return ["  bandwidth: unlimited", f"  latency: {link.median_ns} ns"]
    return [f"  bandwidth: {round(link.bytes_per_s)} B/s", f"  latency: {link.latency_ns} ns"]


def _about_links(fit: Calibration) -> list[str]:
    apart = bool(fit.node_ranks)
    lines = _about(fit.link, " between nodes" if apart else "") + _about(fit.node_link, " within a node")
    if fit.uneven:
        fast, slow = fit.uneven
        lines.append(f"ways differ: {fast}, {slow}; if nodes are why, --node-ranks N fits each node's apart")
    return lines


def _about(link: LinkFit | None, where: str) -> list[str]:
    if link is None:
        return []
    sizes = ", ".join(format_size(size) for size in link.sizes)
    seen = f"{link.count} messages of {sizes}{where}: median {format_duration(link.median_ns)}"
    seen += f", spread {format_duration(link.spread_ns)}"
    if link.bytes_per_s is None or link.latency_ns is None:
        why = "one size" if len(link.sizes) == 1 else "these sizes"
        return [seen, f"latency and bandwidth cannot be told apart from {why}: all of it counts as latency"]
    fitted = f"latency {format_duration(link.latency_ns)}, {format_rate(round(link.bytes_per_s))}"
    return [seen, f"{fitted}; half of the messages are off by less than {format_duration(link.residual_ns)}"]
