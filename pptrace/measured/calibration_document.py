"""A calibration as a document, and as a configuration that ``pptrace simulate`` takes."""

from __future__ import annotations

import json
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from pptrace.config.quantities import format_duration, format_rate, format_size
from pptrace.measured.calibration import choose_network
from pptrace.report.document import Document, Section, Table
from pptrace.report.numbers import microbatches_text, ms
from pptrace.sanitize import printable_line, shell_word
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.measured.calibration import ActionFit, Calibration, CalibrationCheck, LinkFit, OperationFit
    from pptrace.run.trace_files import SimulatedSource
    from pptrace.steps.workload import Workload

_NO_COSTS = "no action of a pipeline was recorded: times of computations are unknown, only the network is fitted"
_MOST_UNCERTAIN = 10
"""The largest uncertainty that a configuration accepts."""


def calibrated_yaml(
    fit: Calibration, source: str, schedules: Sequence[str] = (), check: CalibrationCheck | None = None,
    known: SimulatedSource | None = None, table: str = "",
) -> str:  # fmt: skip
    """Return the configuration of a fit, with the first of the schedules that have the measured order.

    ``table`` is the path of a table with that order, for an order of no installed schedule. ``known`` has memory,
    the end of the step and the policy of a simulation, which do not follow from its times.
    Backwards have their full time; input gradients are included where they were measured. Costs are those of whole
    microbatches, also where slices of them were measured.
    """
    data = f"{f'{fit.steps} steps' if fit.steps > 1 else 'one step'} of {printable_line(source)}"
    lines = [
        f"# Means of {data}: pptrace calibrate. After # is the spread, from the lower to the upper quartile.",
        *(f"# {line}" for line in (_about_check(check) if check else ())),
        *_schedule(fit, source, schedules, table), "batch:", f"  microbatches: {fit.microbatches}",
        "costs:", "  name: table", f"  slices: {fit.stages}  # stages of the measured schedule; others share them",
    ]  # fmt: skip
    lines += _times(fit)
    lines += _overheads(fit)
    if check and check.interval:
        share = min(check.interval, _MOST_UNCERTAIN)
        lines.append(f"  uncertainty: {share:.3f}  # of steps of other schedules; nearer ones are a tie")
    if check and check.split_interval:
        share = min(check.split_interval, _MOST_UNCERTAIN)
        lines.append(f"  split_uncertainty: {share:.3f}  # of schedules with split backwards")
    if fit.boundary_bytes:
        lines.append(f"  boundary: {fit.slices * fit.boundary_bytes} B")
    lines += _simulation_lines(known.workload) if known is not None else []
    policy = ["p2p:", f"  policy: {check.policy}"] if check and check.policy != Policy().label else []
    policy += [f"  options: {json.dumps(dict(check.policy_options))}"] if check and check.policy_options else []
    if known is not None and known.p2p:
        policy = [f"p2p: {json.dumps(known.p2p)}"]
    return "\n".join([*lines, *_network(fit), *policy]) + "\n"


_KEYS = {
    Kind.F.name: "forward", Kind.B.name: "backward", Kind.I.name: "input_gradient",
    Kind.W.name: "weight_gradient",
}  # fmt: skip
"""Keys of ``costs.overhead`` by kind."""
_BYTES = {
    "activation": "activation_bytes", "weight_activation": "weight_activation_bytes",
    "checkpoint": "checkpoint_bytes", "weights": "weights_bytes", "gradients": "gradients_bytes",
    "optimizer": "optimizer_bytes", "transient": "transient_bytes",
}  # fmt: skip
_TIMES = {"reduction": "reduce_ns", "update": "optimizer_ns"}
"""Columns of a workload by key of ``costs``."""


def _simulation_lines(known: Workload) -> list[str]:
    """Return the lines of memory and of the end of a step of a simulation, without zeros."""
    lines = []
    for unit, keys in (("B", _BYTES), ("ns", _TIMES)):
        for key, column in keys.items():
            values = getattr(known, column).tolist()
            if any(values):
                lines.append(f"  {key}: [{', '.join(f'{value} {unit}' for value in values)}]")
    totals = {
        "sync": f"{known.sync_ns} ns",
        "reserved": f"{known.reserved_bytes} B",
        "capacity": f"{known.capacity_bytes} B",
    }
    lines += [f"  {key}: {text}" for key, text in totals.items() if not text.startswith("0 ")]
    return ["  # as the simulation had them", *lines] if lines else []


def _schedule(fit: Calibration, source: str, schedules: Sequence[str], table: str) -> list[str]:
    chunks = fit.stages // fit.ranks
    parallel = ["parallel:", f"  pp: {fit.ranks}"]
    options = f"options: {{slices: {fit.slices}}}"
    if table and not schedules:
        name = json.dumps(table)
        value = f"{{name: {name}, {options}}}" if fit.slices > 1 else name
        return [f"schedule: {value}  # the measured order, that of no installed schedule", *parallel]
    if not schedules:
        word = printable_line(shell_word(source))
        sliced = f" --set schedule.options.slices={fit.slices}" if fit.slices > 1 else ""
        return [
            "# The measured order is that of no installed schedule. Simulate another one, --schedule 1f1b, or",
            f"# that order: pptrace convert {word} order.csv, then --schedule order.csv{sliced}",
            *parallel,
        ]
    note = f"  # the same order: {', '.join(schedules[1:])}" if len(schedules) > 1 else ""
    value = f"{{name: {schedules[0]}, {options}}}" if fit.slices > 1 else schedules[0]
    return [f"schedule: {value}{note}", *parallel, *([f"  vp: {chunks}"] if chunks > 1 else [])]


def calibration_document(fit: Calibration, check: CalibrationCheck, schedules: Sequence[str]) -> Document:
    """Return the document of a calibration, its check and the schedules with the measured order."""
    rows = tuple(
        (
            Kind[action.kind].word.replace(" ", "_"), str(action.stage), str(action.count),
            format_duration(round(action.mean_ns.value)), format_duration(action.mean_ns.spread or 0),
        )
        for action in sorted(fit.fitted, key=lambda action: (Kind[action.kind], action.stage))
    )  # fmt: skip
    pairs = ", ".join(f"{action.stage}{action.kind}" for action in fit.fitted if action.in_overlapped_pairs)
    lines = [
        *(
            [f"measured only in overlapped pairs, whose time is divided between their actions: {pairs}"]
            if pairs
            else []
        ),
        f"host between actions: {format_duration(fit.overhead_ns)}, from the gaps before {fit.gaps} actions",
        *_about_hosts(fit),
        *_about_links(fit),
    ]
    known = [f"order of actions: {', '.join(schedules)}"] if schedules else []
    accuracy = [*known, *_about_check(check)]
    microbatches = microbatches_text(fit.microbatches, fit.slices)
    size = f"{fit.steps} step(s), {fit.ranks} ranks, {fit.stages} stages, {microbatches}"
    return Document(
        title="calibration", lead=(size,),
        sections=(
            Section(title="times", blocks=(Table(head=("", "stage", "count", "mean", "spread"), rows=rows),)),
            Section(title="overhead and network", blocks=tuple(lines)),
            Section(title="accuracy", blocks=tuple(accuracy)),
        ),
        values={
            **asdict(fit),
            "check": check, "schedules": schedules,
        },
    )  # fmt: skip


def _about_hosts(fit: Calibration) -> list[str]:
    """Return a line on the time of the host around each kind of action that ran."""
    ran = {action.kind for action in fit.fitted}
    parts = [
        f"{Kind[host.kind].word.replace(' ', '_')} {format_duration(host.gap_ns)} and "
        f"{format_duration(host.fixed_ns)}"
        for host in fit.hosts
        if host.kind in ran
    ]
    if not any(host.gap_ns or host.fixed_ns for host in fit.hosts):
        return []
    known = (
        f"from runs of {', '.join(map(str, fit.stage_counts))} stages" if fit.stage_counts
        else "before the first and after the last operator"
    )  # fmt: skip
    return [f"host before an action, and inside it independent of its layers ({known}): {', '.join(parts)}"]


def _about_check(check: CalibrationCheck) -> list[str]:
    return [
        (
            f"simulated with this fit and message policy {check.policy}: {ms(check.simulated_ns)}, "
            f"measured {ms(check.step_ns)} ({check.error:+.1%})"
        ),
        *(
            [f"predictions of other schedules: about ±{check.interval:.1%}; smaller differences are ties"]
            if check.interval is not None
            else []
        ),
        *(
            [
                f"predictions with split backwards: about ±{check.split_interval:.1%} (not measured separately)",
                check.split_advice,
            ]
            if check.split_interval is not None
            else []
        ),
        *(f"warning: {line}" for line in check.warnings),
    ]


def network_document(fits: Sequence[OperationFit]) -> Document:
    """Return the document of a network fit."""
    lines = [_NO_COSTS, *(line for fit in fits for line in _about_operations(fit))]
    return Document(title="network", lead=lines, values={"network": fits})


def network_yaml(fits: Sequence[OperationFit], source: str) -> str:
    """Return a configuration with only a network; empty where latency and rate are unknown."""
    chosen = choose_network(fits)
    if chosen is None:
        return ""
    lines = [f"# Fitted to {source}: pptrace calibrate.", f"# {_NO_COSTS}"]
    lines += [f"# {line}" for fit in fits for line in _about_operations(fit)]
    bandwidth, latency = _wires(chosen.link)
    lines += ["network:", "  name: hockney", f"{bandwidth}  # {chosen.what}"]
    unknown = "  # collectives do not determine the latency of a message"
    return "\n".join([*lines, latency if chosen.messages else unknown]) + "\n"


def _about_operations(fit: OperationFit) -> list[str]:
    link = fit.link
    sizes = " to ".join(dict.fromkeys(format_size(size) for size in (link.sizes[0], link.sizes[-1])))
    observed = f"{fit.what}: {link.count:,} of {sizes}, median {format_duration(round(link.median_ns.value))}"
    if link.bytes_per_s is None or link.latency_ns is None:
        return [observed, f"  latency and bandwidth cannot be distinguished from {_sizes_word(link)}"]
    rate = f"{format_rate(round(link.bytes_per_s))}{'' if fit.messages else ' on each link'}"
    residual = f"half are off by less than {format_duration(link.residual_ns)}"
    return [observed, f"  {format_duration(link.latency_ns)} and {rate}; {residual}"]


def _sizes_word(link: LinkFit) -> str:
    return "one size" if len(link.sizes) == 1 else "these sizes"


def _times(fit: Calibration) -> list[str]:
    def times_ns(of_slice: Callable[[int], int | None]) -> list[int | None]:
        of_slices = map(of_slice, range(fit.stages))
        return [time and fit.slices * time for time in of_slices]

    forward = [fit.of(Kind.F, stage) for stage in range(fit.stages)]
    gradients = [fit.of(Kind.I, stage) for stage in range(fit.stages)]
    forwards, backwards = times_ns(partial(fit.proportional_ns, Kind.F)), times_ns(fit.backward_ns)
    lines = [f"  forward: {_format_times(forwards)}{_spreads(forward)}"]
    lines.append(f"  backward: {_format_times(backwards)}")
    measured = [action for action in gradients if action is not None]
    shares = fit.measured_shares or fit.run_shares
    if len(measured) == fit.stages:
        lines.append(f"  input_gradient: {_format_times(times_ns(fit.input_gradient_ns))}{_spreads(measured)}")
    elif shares:
        ratio = [
            None if time is None else round(time * share) for time, share in zip(backwards, shares, strict=True)
        ]
        source = (
            f"measured in {printable_line(fit.split_run)}" if fit.split_run else "the median where not measured"
        )
        lines.append(f"  input_gradient: {_format_times(ratio)}  # shares of the backward, {source}")
    else:
        lines.append("  # input and weight gradients were not measured separately: half of the backward each")
    if fit.empty_input_gradient:
        lines.append("  empty_input_gradient: true  # stage 0's weight gradient takes its whole backward")
    return lines


def _overheads(fit: Calibration) -> list[str]:
    """Return the lines of the host's time around each kind of action; one line for a time of all kinds."""
    times_ns = {host.kind: fit.slices * (host.gap_ns + host.fixed_ns) for host in fit.hosts}
    of_slices = f", of {fit.slices} slices" if fit.slices > 1 else ""
    comment = f"  # host: between actions, and in each for any number of layers{of_slices}"
    if len(set(times_ns.values())) == 1:
        (time_ns,) = set(times_ns.values())
        return [f"  overhead: {time_ns} ns{comment}"] if time_ns else []
    return [f"  overhead:{comment}", *(f"    {_KEYS[kind]}: {time_ns} ns" for kind, time_ns in times_ns.items())]


def _format_times(times: Sequence[int | None]) -> str:
    """Return times by stage; unrecorded stages have the mean of the recorded stages."""
    known = [time for time in times if time is not None]
    default = round(mean(known)) if known else 0
    return f"[{', '.join(f'{default if time is None else time} ns' for time in times)}]"


def _spreads(fitted: Sequence[ActionFit | None]) -> str:
    known = [format_duration(action.mean_ns.spread or 0) for action in fitted if action is not None]
    return f"  # {', '.join(known)}" if known else ""


def _network(fit: Calibration) -> list[str]:
    link = fit.link or fit.node_link
    if link is None:
        return ["# no arrival of a message was observed: the network is left out"]
    lines = [*(f"# {line}" for line in _about_links(fit)), "network:", "  name: hockney", *_wires(link, fit)]
    if fit.link is not None and fit.node_link is not None:
        lines += ["  node:", f"    ranks: {fit.node_ranks}", *(f"  {line}" for line in _wires(fit.node_link, fit))]
    return lines


def _wires(link: LinkFit, fit: Calibration | None = None) -> list[str]:
    """Return the lines of a link; the latency is without the host's time of a fit, which passes meanwhile."""
    latency_ns = link.mean_ns if link.latency_ns is None else link.latency_ns
    if fit is not None:
        latency_ns = fit.exposed(latency_ns)
    rate = "unlimited" if link.bytes_per_s is None else f"{round(link.bytes_per_s)} B/s"
    return [f"  bandwidth: {rate}", f"  latency: {latency_ns} ns"]


def _about_links(fit: Calibration) -> list[str]:
    lines = _about(fit.link, " between nodes" if fit.node_ranks else "") + _about(fit.node_link, " within a node")
    if fit.uneven:
        links = ", ".join(
            f"rank {link.source} to rank {link.target} {format_duration(link.median_ns)}" for link in fit.uneven
        )
        lines.append(
            f"links differ: {links}; if some are within a node, set --node-ranks N to fit them separately"
        )
    return lines


def _about(link: LinkFit | None, where: str) -> list[str]:
    if link is None:
        return []
    sizes = ", ".join(format_size(size) for size in link.sizes)
    observed = f"{link.count} messages of {sizes}{where}: median {format_duration(round(link.median_ns.value))}"
    observed += f", spread {format_duration(link.median_ns.spread or 0)}"
    if link.bytes_per_s is None or link.latency_ns is None:
        return [
            observed,
            f"latency and bandwidth cannot be distinguished from {_sizes_word(link)}: all time counts as latency",
        ]
    fitted = f"latency {format_duration(link.latency_ns)}, {format_rate(round(link.bytes_per_s))}"
    return [observed, f"{fitted}; half of the messages are off by less than {format_duration(link.residual_ns)}"]
