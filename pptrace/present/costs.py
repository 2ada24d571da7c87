"""What a cost model found, as a document, and as a configuration whose costs are a table to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.quantity import format_duration, format_size
from pptrace.present.document import Document, Line, Section, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pptrace.model.workload import Workload

__all__ = ["costs_document", "costs_yaml"]

_TIMES = {
    "forward": "f_ns", "backward": "b_ns", "input_gradient": "i_ns", "weight_gradient": "w_ns",
    "recompute": "recompute_ns", "reduction": "reduce_ns", "update": "optimizer_ns",
    "offload": "offload_ns", "reload": "reload_ns",
}  # fmt: skip
_INSIDE = {"forward": "f_collective_ns", "backward": "b_collective_ns"}
_SIZES = {
    "activation": "activation_bytes", "weight_activation": "weight_activation_bytes",
    "checkpoint": "checkpoint_bytes", "weights": "weights_bytes", "gradients": "gradients_bytes",
    "optimizer": "optimizer_bytes", "boundary": "boundary_bytes",
}  # fmt: skip
"""Keys of ``costs: table`` and the columns that they are."""


def costs_document(workload: Workload) -> Document:
    """Return times, bytes and segments of each stage's actions, of one microbatch."""
    columns = {**_TIMES, **{f"{key}, communicating": column for key, column in _INSIDE.items()}, **_SIZES}
    known = {key: _column(workload, column) for key, column in columns.items()}
    shown = {key: values for key, values in known.items() if any(values)}
    times = {key: values for key, values in shown.items() if key not in _SIZES}
    sizes = {key: values for key, values in shown.items() if key in _SIZES}
    parts = [
        (
            kind.word, str(stage), one.name, one.stream.name.lower().replace("_", "-"),
            format_duration(one.duration_ns),
        )
        for kind, own in workload.segments.items() for stage, segments in enumerate(own) for one in segments
    ]  # fmt: skip
    sections = [
        Section(title="times", blocks=(_by_stage(times, format_duration, workload.stages),)),
        Section(title="bytes", blocks=(_by_stage(sizes, format_size, workload.stages),)),
    ]
    if parts:
        head = ("", "stage", "segment", "stream", "takes")
        sections.append(Section(title="segments", blocks=(Table(head=head, rows=tuple(parts)),)))
    rest = [
        f"{format_size(workload.reserved_bytes)} reserved on each rank",
        f"{format_size(workload.capacity_bytes)} on its device" if workload.capacity_bytes else "",
        f"{workload.model_flops:.4g} floating-point operations in the step" if workload.model_flops else "",
    ]
    notes = [Line(text=text) for text in (*filter(None, rest), *workload.notes)]
    return Document(
        title="costs", lead=(Line(text=f"{workload.stages} stages; times and activations are a microbatch's"),),
        sections=(*sections, Section(title="how they are counted", blocks=tuple(notes))), values=known,
    )  # fmt: skip


def costs_yaml(workload: Workload, configuration: Mapping[str, Any]) -> str:
    """Return a configuration's text in which ``costs: table`` stands for its model, device and costs."""
    import yaml

    table: dict[str, Any] = {"name": "table"}
    for keys, unit in ((_TIMES, "ns"), (_SIZES, "B")):
        for key, column in keys.items():
            values = _column(workload, column)
            if any(values) or key in {"forward", "backward"}:
                table[key] = [f"{value}{unit}" for value in values]
    table |= {"reserved": f"{workload.reserved_bytes}B", "capacity": f"{workload.capacity_bytes}B"}
    kept = {key: value for key, value in configuration.items() if key not in {"model", "device", "costs"}}
    policy = kept.get("p2p", {})
    if policy.get("options"):
        # A framework's program takes its own switches alone, and none that is not set.
        switches = {key: value for key, value in policy["options"].items() if value is not None}
        kept["p2p"] = {"policy": policy["policy"], "options": switches}
    head = "# Times and bytes of each stage, found by pptrace costs: edit them, and simulate this file.\n"
    if workload.segments:
        head += "# Actions are whole here: their segments are not kept.\n"
    return head + yaml.safe_dump({**kept, "costs": table}, sort_keys=False, width=115, default_flow_style=None)


def _column(workload: Workload, name: str) -> list[int]:
    return [int(value) for value in getattr(workload, name)]


def _by_stage(columns: Mapping[str, list[int]], written: Callable[[int], str], stages: int) -> Table:
    """Return one row for stages that are alike, one after the other."""
    rows: list[tuple[str, ...]] = []
    first = 0
    for stage in range(1, stages + 1):
        if stage == stages or _row(columns, stage) != _row(columns, first):
            name = str(first) if stage - first == 1 else f"{first} to {stage - 1}"
            cells = [written(value) if value is not None else "" for value in _row(columns, first)]
            rows.append((name, *cells))
            first = stage
    return Table(head=("stage", *columns), rows=tuple(rows))


def _row(columns: Mapping[str, list[int]], stage: int) -> list[int | None]:
    """Return a stage's values; a boundary behind the last stage is none."""
    return [values[stage] if stage < len(values) else None for values in columns.values()]
