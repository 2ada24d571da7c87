"""Costs of a cost model as a document, and as a configuration with an editable table of costs."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pptrace.config.quantities import format_duration, format_size
from pptrace.config.resolution import document_of, load
from pptrace.report.document import Document, Section, Table
from pptrace.run.preparation import build_costs, prepare
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pptrace.plugins.registry import Registry
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import KernelCost, Workload

Content = TypeVar("Content")

_TIMES = {
    "forward": "f_ns", "backward": "b_ns", "input_gradient": "i_ns", "weight_gradient": "w_ns",
    "recompute": "recompute_ns", "gather": "unshard_ns", "subgroup_gather": "unshard_subgroup_ns",
    "reduction": "reduce_ns", "update": "optimizer_ns", "offload": "offload_ns", "reload": "reload_ns",
}  # fmt: skip
"""Keys of times in ``costs: table``, and their columns of a workload."""
_WRITTEN = {"forward", "backward", "recompute"}
"""Keys that a table has even where the times are 0, since their defaults differ."""
_UNWRITTEN_TIMES = {
    "group_reduction": "reduce_groups_ns", "forward, communicating": "f_collective_ns",
    "backward, communicating": "b_collective_ns",
}  # fmt: skip
"""Columns of times without a key in ``costs: table``."""
_SIZES = {
    "activation": "activation_bytes", "weight_activation": "weight_activation_bytes",
    "checkpoint": "checkpoint_bytes", "weights": "weights_bytes", "gradients": "gradients_bytes",
    "optimizer": "optimizer_bytes", "gathered": "gathered_bytes", "unreduced": "unreduced_bytes",
    "transient": "transient_bytes", "boundary": "boundary_bytes",
}  # fmt: skip
"""Keys of sizes in ``costs: table``, and their columns."""
_COMPARED = {
    **_TIMES, **_SIZES, "group_reduction": "reduce_groups_ns", "sync": "sync_ns", "reserved": "reserved_bytes",
    "memory that the allocator reserves": "reserved_permille", "messages": "edge_bytes",
    "buffers of messages": "buffer_bytes", "copied activations": "copied_bytes",
    "waits for other replicas": "released_ns", "waits of collectives for other replicas": "meeting_ns",
}  # fmt: skip
"""Names of costs that decide time and memory of a step, and their columns or values of a workload."""
_KERNEL_HEAD = ("stage", "", "segment", "kernel", "times", "takes", "operations", "moves")
_SEGMENTED = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input_gradient", Kind.W: "weight_gradient"}
"""Kinds of actions whose segments replace a key."""


def costs_document(workload: Workload) -> Document:
    """Return times, bytes, segments and kernels of each stage's actions, of one microbatch."""
    columns = {**_TIMES, **_UNWRITTEN_TIMES, **_SIZES}
    known: dict[str, Any] = {key: getattr(workload, column).tolist() for key, column in columns.items()}
    shown = {key: values for key, values in known.items() if any(values)}
    times = {key: values for key, values in shown.items() if key not in _SIZES}
    sizes = {key: values for key, values in shown.items() if key in _SIZES}
    parts = [
        (
            kind.word, str(stage), segment.name, segment.stream.name.lower().replace("_", "-"),
            format_duration(segment.duration_ns),
        )
        for kind, stages in workload.segments.items()
        for stage, segments in enumerate(stages)
        for segment in segments
    ]  # fmt: skip
    sections = [
        Section(title="times", blocks=(_by_stage(times, format_duration, workload.stages),)),
        Section(title="bytes", blocks=(_by_stage(sizes, format_size, workload.stages),)),
    ]
    if parts:
        head = ("", "stage", "segment", "stream", "takes")
        sections.append(Section(title="segments", blocks=(Table(head=head, rows=tuple(parts)),)))
    if workload.kernels is not None:
        listed = _kernels(workload.kernels())
        known["kernels"] = [dict(zip(_KERNEL_HEAD, row, strict=True)) for row in listed]
        sections.append(Section(title="kernels", blocks=(Table(head=_KERNEL_HEAD, rows=listed),)))
    rest = [
        f"{format_size(workload.reserved_bytes)} of memory reserved on each rank",
        f"{workload.reserved_permille / 10:g} % of each rank's peak reserved by the allocator"
        if workload.reserved_permille
        else "",
        f"{format_duration(workload.sync_ns)} of synchronisation after the reductions" if workload.sync_ns else "",
        _capacity(workload),
        f"{workload.model_flops:.4g} floating-point operations in the step" if workload.model_flops else "",
    ]
    return Document(
        title="costs", lead=(f"{workload.stages} stages; times and activations per microbatch",),
        sections=(*sections, Section(title="assumptions", blocks=(*filter(None, rest), *workload.notes))),
        values=known,
    )  # fmt: skip


def _capacity(workload: Workload) -> str:
    if workload.rank_capacity_bytes.size:
        sizes = sorted({*workload.rank_capacity_bytes.tolist()})
        return f"{' or '.join(map(format_size, sizes))} of memory per device, by rank"
    return f"{format_size(workload.capacity_bytes)} of memory per device" if workload.capacity_bytes else ""


def _kernels(kernels: Sequence[KernelCost]) -> tuple[tuple[str, ...], ...]:
    """Return one row per kernel of consecutive equal stages."""
    by_stage: dict[int, list[tuple[str, ...]]] = {}
    for kernel in kernels:
        product = kernel.product
        name = kernel.name
        if product is not None:
            count = f"{product[0]} x " if product[0] > 1 else ""
            name += f" {count}{product[1]} x {product[2]} x {product[3]}"
        by_stage.setdefault(kernel.stage, []).append((
            kernel.kind.word, kernel.part, name, str(kernel.times), format_duration(kernel.duration_ns),
            f"{kernel.flops / 1e9:.6g} GFLOP" if kernel.flops else "",
            format_size(kernel.size_bytes) if kernel.size_bytes else "",
        ))  # fmt: skip
    return tuple((name, *row) for name, rows in _equal_stages(sorted(by_stage.items())) for row in rows)


def _equal_stages(stages: Iterable[tuple[int, Content]]) -> Iterator[tuple[str, Content]]:
    """Yield the stages and the content of each run of equal content."""
    for content, group in groupby(stages, key=itemgetter(1)):
        numbers = [stage for stage, _ in group]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}", content


def costs_yaml(prepared: StepInputs, registry: Registry) -> tuple[str, list[str]]:
    """Return a configuration with ``costs: table`` in place of its model, device and costs.

    Returns:
        Its text, and the names of costs of the step that it lacks.
    """
    from pptrace.config.yaml_document import yaml_text

    # The configuration keeps the keys that change these costs, such as speeds of ranks.
    workload = build_costs(prepared.resolved, registry).workload_of(prepared.stage_table)
    configuration = _with_table(workload, prepared.resolved.to_dict())
    written = prepare(load(document_of(configuration), (), {}), registry)
    missing = _differences(prepared, written)
    head = "# Times and bytes of each stage, computed by pptrace costs: edit them, and simulate this file.\n"
    if workload.segments:
        head += "# Times of actions are those of their segments.\n"
    if missing:
        head += f"# It lacks: {', '.join(missing)}.\n"
    return yaml_text(configuration, head=head, width=115), missing


def _differences(prepared: StepInputs, written: StepInputs) -> list[str]:
    """Return the names of costs that differ between two steps."""
    if prepared.schedule.stages != written.schedule.stages:
        return ["units of weights"]
    names = [
        name
        for name, column in _COMPARED.items()
        if not np.array_equal(getattr(prepared.workload, column), getattr(written.workload, column))
    ]
    classes, written_classes = prepared.workload.classes, written.workload.classes
    is_same = len(classes) == len(written_classes) and all(
        (costs.duration_ns(kind) == other.duration_ns(kind)).all()
        for costs, other in zip(classes, written_classes, strict=True)
        for kind in _SEGMENTED
    )
    return names if is_same else [*names, "differences between microbatches"]


def _with_table(workload: Workload, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with a table of costs in place of its model, device and costs."""
    table: dict[str, Any] = {"name": "table"}
    for keys, unit in ((_TIMES, "ns"), (_SIZES, "B")):
        for key, column in keys.items():
            values = getattr(workload, column).tolist()
            if any(values) or key in _WRITTEN:
                table[key] = [f"{value}{unit}" for value in values]
    if workload.sync_ns:
        table["sync"] = f"{workload.sync_ns}ns"
    each = [f"{size}B" for size in workload.rank_capacity_bytes.tolist()]
    table |= {"reserved": f"{workload.reserved_bytes}B", "capacity": each or f"{workload.capacity_bytes}B"}
    kept = {key: value for key, value in configuration.items() if key not in {"model", "device", "costs"}}
    policy = kept.get("p2p", {})
    if policy.get("options"):
        # A framework's policy takes only its own switches, and no empty values.
        switches = {key: value for key, value in policy["options"].items() if value is not None}
        kept["p2p"] = {"policy": policy["policy"], "options": switches}
    if workload.segments:
        table |= _segments(workload)
        for kind in workload.segments:
            table.pop(_SEGMENTED.get(kind, "recompute"), None)
    return {**kept, "costs": table}


def _segments(workload: Workload) -> dict[str, Any]:
    """Return the table's keys of segments, with one list for equal stages."""
    written: dict[str, Any] = {}
    for kind, stages in workload.segments.items():
        lists = [[_segment(segment) for segment in segments] for segments in stages]
        written[kind.name] = lists[0] if all(segments == lists[0] for segments in lists) else lists
    return {"segments": written, **({"alone": "overlapped"} if workload.overlapped else {})}


def _segment(segment: Segment) -> dict[str, Any]:
    values: dict[str, Any] = {"name": segment.name, "time": f"{segment.duration_ns}ns"}
    if not segment.is_computation:
        values["stream"] = segment.stream.name.lower().replace("_", "-")
    if segment.needs is not None:
        values["needs"] = list(segment.needs)
    if segment.result:
        values["result"] = True
    if segment.paired:
        values["paired"] = True
    if segment.size_bytes:
        values["size"] = f"{segment.size_bytes}B"
    if segment.link:
        values["link"] = segment.link
    if segment.activation_bytes is not None:
        key = "takes" if segment.activation_bytes >= 0 else "frees"
        values[key] = f"{abs(segment.activation_bytes)}B"
    return values


def _by_stage(columns: Mapping[str, list[int]], written: Callable[[int], str], stages: int) -> Table:
    """Return one row for consecutive equal stages; a cell is empty for the boundary after the last stage."""
    by_stage = (
        (stage, [values[stage] if stage < len(values) else None for values in columns.values()])
        for stage in range(stages)
    )
    rows = tuple(
        (name, *(written(value) if value is not None else "" for value in values))
        for name, values in _equal_stages(by_stage)
    )
    return Table(head=("stage", *columns), rows=rows)
