"""Costs from a table: times, bytes and segments per stage, as written or as calibrated."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace
from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer

from pptrace.config.quantities import Duration, Size, exact_size
from pptrace.config.validation import Parameters
from pptrace.errors import ConfigError
from pptrace.steps.kinds import BACKWARD, Kind, Stream
from pptrace.steps.segments import Segment, check_segments, problem_of, results_of
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pptrace.plugins.requests import CostRequest
    from pptrace.steps.columns import Int32s, Int64s

_Bytes = Annotated[Size, Field(ge=0)]
_STREAMS = {
    "compute": Stream.COMPUTE,
    "tensor-parallel": Stream.TENSOR_PARALLEL,
    "expert-parallel": Stream.EXPERT_PARALLEL,
    "context-parallel": Stream.CONTEXT_PARALLEL,
}


class _SparseModel(Parameters):
    @model_serializer(mode="wrap")
    def _serialize(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Return every key in Python mode, and only keys that were set in JSON mode."""
        values: dict[str, Any] = serialize(self)
        return {
            key: value for key, value in values.items() if info.mode == "python" or key in self.model_fields_set
        }


class SegmentOptions(_SparseModel):
    """One part of an action."""

    name: str = Field(min_length=1, examples=["attention"])
    """Name in traces."""
    time: Annotated[Duration, Field(ge=0)] = 0
    """Time without overlap."""
    stream: Literal["compute", "tensor-parallel", "expert-parallel", "context-parallel"] = "compute"
    """Where it runs: compute, or tensor-parallel, expert-parallel or context-parallel, whose communication may
    overlap the computation of another action."""
    needs: list[Annotated[int, Field(ge=0)]] | None = None
    """Indices, from 0, of earlier segments of the action that it depends on; by default the segment before it."""
    result: bool = False
    """Whether the action's message may leave at its end; by default it leaves after all segments that no other one
    needs."""
    paired: bool = False
    """Whether it takes time only in an overlapped pair, such as the wait for a host that issues both actions."""
    size: Annotated[Size, Field(ge=0)] = 0
    """Bytes that it moves, where known."""
    link: str | None = Field(default=None, min_length=1)
    """A shared link of the network that carries its bytes; size, not time, gives its duration."""
    takes: Annotated[Size, Field(ge=0)] | None = None
    """Bytes of activations that it holds from its start; by default a forward's first segment holds all of
    them."""
    frees: Annotated[Size, Field(ge=0)] | None = None
    """Bytes of activations that it frees at its end; by default a backward's last segment frees all of them."""


_StageSegments: TypeAlias = Annotated[list[SegmentOptions], Field(min_length=1)]
_Segments: TypeAlias = _StageSegments | Annotated[list[_StageSegments], Field(min_length=1)] | None


class KindSegments(_SparseModel):
    """The segments of each kind of action: one list for all stages alike, or a list of them per stage."""

    F: _Segments = None
    """Segments of a forward, in place of forward: a list for all stages, or one each."""
    B: _Segments = None
    """Segments of a full backward, in place of backward."""
    I: _Segments = None  # noqa: E741 - PyTorch's name
    """Segments of a backward for the input gradient, in place of input_gradient."""
    W: _Segments = None
    """Segments of a backward for the weight gradient, in place of weight_gradient."""
    RECOMPUTE: _Segments = None
    """Segments of a forward computed again, in place of recompute."""


def segments_of(
    values: Mapping[str, Any], stages: int, slices: int, noun: str
) -> dict[Kind, list[tuple[Segment, ...]]]:
    """Return the segments of each stage's actions, by kind.

    Args:
        values: dump of :class:`KindSegments`.
        stages: number of stages.
        slices: number of slices that the lists are for.
        noun: what error messages call slices.

    Raises:
        ConfigError: a list for another number of slices, or invalid segments.
    """
    segments = {}
    for name, value in values.items():
        if value is not None:
            kind, key = Kind[name], f"costs.segments.{name}"
            segments[kind] = _spread(_per_slice(value, slices, noun, key), stages, last_first=kind in BACKWARD)
    return segments


def lengthen(segments: Sequence[Segment], extra_ns: int) -> tuple[Segment, ...]:
    """Return segments whose first computation takes ``extra_ns`` longer."""
    index = next(index for index, segment in enumerate(segments) if segment.is_computation)
    longer = replace(segments[index], duration_ns=segments[index].duration_ns + extra_ns)
    return (*segments[:index], longer, *segments[index + 1 :])


def _per_slice(values: Sequence[Any], slices: int, noun: str, key: str) -> list[tuple[Segment, ...]]:
    if isinstance(values[0], dict):
        return [_read_segments(values, key)] * slices
    if len(values) != slices:
        raise ConfigError(
            f"{len(values)} lists for {slices} {noun}: write one each, or a single one for all", key=key
        )
    return [_read_segments(value, f"{key}[{index}]") for index, value in enumerate(values)]


def _read_segments(values: Sequence[Mapping[str, Any]], key: str) -> tuple[Segment, ...]:
    segments = tuple(_segment(value) for value in values)
    for index, segment in enumerate(segments):
        problem = problem_of(segment, index).replace("size_bytes", "size")
        if None not in {values[index]["takes"], values[index]["frees"]}:
            problem = "both takes and frees: it does one of them"
        if problem:
            raise ConfigError(f"segment {segment.name} {problem}", key=f"{key}[{index}]")
    try:
        check_segments(segments, key.rpartition(".")[2])
    except ValueError as error:
        raise ConfigError(str(error).partition(": ")[2], key=key) from None
    return segments


def _segment(value: Mapping[str, Any]) -> Segment:
    takes, frees = value["takes"], value["frees"]
    return Segment(
        name=value["name"], duration_ns=0 if value["link"] else value["time"],
        stream=_STREAMS[value["stream"]], needs=None if value["needs"] is None else tuple(value["needs"]),
        result=value["result"], paired=value["paired"], size_bytes=value["size"], link=value["link"] or "",
        activation_bytes=None if takes is frees is None else (takes or 0) - (frees or 0),
    )  # fmt: skip


def _spread(slices: Sequence[tuple[Segment, ...]], stages: int, *, last_first: bool) -> list[tuple[Segment, ...]]:
    """Return the segments of each stage: consecutive slices, or an equal share of one slice."""
    count = len(slices)
    if count <= stages:
        share = Fraction(count, stages)
        return [
            tuple(segment.scaled(share) for segment in slices[stage * count // stages]) for stage in range(stages)
        ]
    slices_per_stage = count // stages
    groups = [slices[first : first + slices_per_stage] for first in range(0, count, slices_per_stage)]
    return [_join(reversed(group) if last_first else group) for group in groups]


def _join(slices: Iterable[tuple[Segment, ...]]) -> tuple[Segment, ...]:
    """Return the segments of one action of several slices; each slice depends on the previous results."""
    joined: list[Segment] = []
    for segments in slices:
        offset = len(joined)
        results = tuple(results_of(joined)) if joined else ()
        joined = [replace(segment, result=False) for segment in joined]
        joined += [
            replace(
                segment,
                needs=tuple(offset + need for need in segment.needs_of(index)) if index else results or None,
            )
            for index, segment in enumerate(segments)
        ]
    return tuple(joined)


_Time = Annotated[Duration, Field(ge=0)]
_Times = _Time | Annotated[list[_Time], Field(min_length=1)]
_Sizes = _Bytes | Annotated[list[_Bytes], Field(min_length=1)]


class Overheads(Parameters):
    """Additional times of computations by kind."""

    forward: _Time = 0
    """Additional time of every forward, and of every recomputed one; `costs.overhead: 1 ms` sets all four
    kinds."""
    backward: _Time = 0
    """Additional time of every whole backward."""
    input_gradient: _Time = 0
    """Additional time of every backward for the input gradient alone."""
    weight_gradient: _Time = 0
    """Additional time of every backward for the weight gradient alone."""


class TableOptions(Parameters):
    """Times and bytes per stage: one value for all stages, or a list with one each."""

    slices: Annotated[int, Field(ge=1, le=2**16)] | None = None
    """Equal slices of the model that the figures are for; one per stage by default. With 8, each of 32 stages
    takes a quarter of them (times rounded down), each of 4 two. Messages stay whole."""
    microbatches: Annotated[int, Field(ge=1, le=2**28)] | None = None
    """Microbatches of the batch that the figures are for; this step's by default. With 8, each of 32 takes a
    quarter of the times, messages and activations (rounded down)."""
    lengths: list[Annotated[float, Field(gt=0, le=1_000_000)]] | None = Field(default=None, min_length=1)
    """Relative lengths of the microbatches, one each, as of packed sequences; all 1 by default. One of length 2.5
    takes two and a half times the times, messages and activations (rounded down)."""
    forward: _Times | None = None
    """Forward of one microbatch; the sum of its segments where those are given."""
    backward: _Times | None = None
    """Full backward; the sum of both gradients' by default."""
    input_gradient: _Times | None = None
    """Backward for the input gradient alone; half the backward by default."""
    weight_gradient: _Times | None = None
    """Backward for the weight gradient alone; by default the remaining backward."""
    forward_attention: _Times | None = None
    """Part of the forward that is attention inside one document of batch.sequence tokens; none by default. Shorter
    documents (batch.documents) take the share of their squared lengths."""
    backward_attention: _Times | None = None
    """The same part of the backward, and in proportion of both its gradients."""
    empty_input_gradient: bool = False
    """Whether the first stage has no input gradient, as in PyTorch: its weight gradient then takes the whole
    backward, and the whole activation until then."""
    overhead: _Time | Overheads = 0
    """Additional time of every computation, for any number of slices: one time for all kinds, or one for each. An
    empty input gradient has none."""
    uncertainty: Annotated[float, Field(ge=0, le=10)] | None = None
    """Relative uncertainty of simulated steps, as `pptrace calibrate` states it: 0.06 is 6 %. `pptrace compare`
    then names schedules that are a tie."""
    split_uncertainty: Annotated[float, Field(ge=0, le=10)] | None = None
    """The same for schedules with split backwards, if the two gradients were not measured apart."""
    boundary: _Bytes | list[_Bytes] = 0
    """Bytes of a message from each stage to the next."""
    activation: _Sizes = 0
    """Bytes that a forward leaves."""
    weight_activation: _Sizes = 0
    """Bytes that the weight gradient needs after the input gradient. They exceed the activation if the backward
    recomputes the forward."""
    checkpoint: _Sizes = 0
    """The part of them that is kept where a separate action recomputes the forward."""
    weights: _Sizes = 0
    """Weights."""
    gradients: _Sizes = 0
    """Gradient buffers."""
    optimizer: _Sizes = 0
    """Optimizer state."""
    reduction: _Times = 0
    """Reduction of gradients over replicas."""
    update: _Times = 0
    """Optimizer update."""
    gather: _Times | None = None
    """Gathering of sharded weights; none by default."""
    subgroup_gather: _Times | None = None
    """Gathering of weights that data_parallel.reshard left sharded over a part of a shard group; none by
    default."""
    gathered: _Sizes | None = None
    """Gathered weights until they are freed, in addition to weights; none by default."""
    unreduced: _Sizes | None = None
    """Unreduced gradients until they are reduced, in addition to gradients; none by default."""
    transient: _Sizes | None = None
    """Bytes that an action needs in addition, once for all microbatches; none by default."""
    sync: _Time = 0
    """Synchronisation of all ranks after gradients are complete; counts as idle, like a reduction."""
    offload: _Times = 0
    """Copy of activations to host memory."""
    reload: _Times = 0
    """Copy of activations back."""
    recompute: _Times | None = None
    """Forward that a separate action recomputes; as the forward by default."""
    segments: KindSegments | None = None
    """Segments of actions, by kind; one segment of computation by default."""
    alone: Literal["in-order", "overlapped"] = "in-order"
    """How segments of an action outside pairs run. `in-order`: one after another. `overlapped`: computation
    overlaps the action's communication that it does not depend on (in Megatron-LM, that of tensor parallelism)."""
    reserved: _Bytes = 0
    """Memory per rank that no action accounts for."""
    capacity: _Sizes = 0
    """Memory of a device, or each's; 0 B: unknown."""


def table(request: CostRequest) -> Workload:
    """Build costs from values per stage.

    Raises:
        ConfigError: a list does not have one value per stage or slice (per boundary for ``boundary``, per
            microbatch for ``lengths``), slices and stages do not divide one another, a time is missing, a part
            exceeds its total, or segments are invalid.
    """
    options, stages = request.options, request.stages
    slices = options["slices"] or stages
    if slices % stages and stages % slices:
        raise ConfigError(
            f"{slices} slices and {stages} stages do not divide one another: choose sizes that do",
            key="costs.slices",
        )
    noun = "slices" if options["slices"] else "stages"

    def spread(key: str) -> Any:
        values = _values(options, key, slices, noun)
        if slices > stages:
            return values.reshape(stages, -1).sum(axis=1)
        return np.repeat(values, stages // slices) // (stages // slices)

    if options["alone"] == "overlapped" and options["segments"] is None:
        raise ConfigError("overlapped needs segments: write costs.segments, too", key="costs.alone")
    if options["empty_input_gradient"] and options["segments"] is not None:
        message = "costs.segments say what gradients consist of: remove one of the keys"
        raise ConfigError(message, key="costs.empty_input_gradient")
    segments = segments_of(options["segments"] or {}, stages, slices, noun)
    times = _in_documents(request, _times(options, spread, segments), spread)
    workload = _microbatch_costs(request, times, spread).segmented(
        segments, overlapped=options["alone"] == "overlapped"
    )
    share = Fraction(options["microbatches"] or request.microbatches, request.microbatches)
    lengths, microbatch_class = _lengths(options["lengths"], request.microbatches)
    try:
        default, *classes = (_add_overheads(workload.scaled(share * length), options) for length in lengths)
    except OverflowError:
        message = "a microbatch would pass 2**63 ns (292 years) or bytes: choose shorter ones"
        raise ConfigError(
            message, key="costs.lengths" if microbatch_class.size else "costs.microbatches"
        ) from None
    return replace(default, classes=tuple(classes), microbatch_class=microbatch_class)


def _microbatch_costs(request: CostRequest, times: dict[str, Any], spread: Callable[[str], Any]) -> Workload:
    """Return the costs of a microbatch of length 1, without segments."""
    options, zero = request.options, np.zeros(request.stages, dtype=np.int64)
    capacities = _values(options, "capacity", request.ranks, "ranks")
    edges = len(request.edges) or max(request.stages - 1, 0)
    if options["empty_input_gradient"]:
        times = {
            **times,
            "i_ns": _with_first(times["i_ns"], 0),
            "w_ns": _with_first(times["w_ns"], times["b_ns"][0]),
        }
    keys = {
        "activation_bytes": "activation", "weight_activation_bytes": "weight_activation",
        "checkpoint_bytes": "checkpoint",
        "weights_bytes": "weights", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer",
        "reduce_ns": "reduction", "optimizer_ns": "update", "offload_ns": "offload", "reload_ns": "reload",
        "unshard_ns": "gather", "unshard_subgroup_ns": "subgroup_gather",
        "gathered_bytes": "gathered", "unreduced_bytes": "unreduced", "transient_bytes": "transient",
    }  # fmt: skip
    columns = {column: spread(key) for column, key in keys.items()}
    if request.subgroup:
        columns["subgroup_bytes"] = -(-columns["gathered_bytes"] // request.subgroup)
    _check_checkpoint(columns["checkpoint_bytes"], columns["activation_bytes"])
    if options["empty_input_gradient"]:
        columns["weight_activation_bytes"] = _with_first(
            columns["weight_activation_bytes"], columns["activation_bytes"][0]
        )
    return Workload(
        **times, f_collective_ns=zero, b_collective_ns=zero, i_collective_ns=zero, w_collective_ns=zero,
        boundary_bytes=_values(options, "boundary", edges, "boundaries"),
        **columns,
        sync_ns=options["sync"], reserved_bytes=options["reserved"], capacity_bytes=int(capacities.min()),
        tokens=request.global_batch * request.sequence,
        rank_capacity_bytes=capacities if np.ptp(capacities) else capacities[:0],
    )  # fmt: skip


def _with_first(values: Int64s, first: int) -> Int64s:
    return np.concatenate([np.array([first], dtype=np.int64), values[1:]])


def _check_checkpoint(parts: Int64s, totals: Int64s) -> None:
    stage = int(np.argmax(parts - totals))
    part_bytes, total_bytes = int(parts[stage]), int(totals[stage])
    if part_bytes > total_bytes:
        of = f"more than costs.activation, {exact_size(total_bytes)}" if total_bytes else "and no costs.activation"
        message = f"{exact_size(part_bytes)} on stage {stage}, {of}, of which it is a part"
        raise ConfigError(message, key="costs.checkpoint")


def _values(options: Any, key: str, count: int, noun: str) -> Any:
    value = 0 if options[key] is None else options[key]
    if isinstance(value, list) and len(value) != count:
        raise ConfigError(
            f"{len(value)} values for {count} {noun}: write one each, or a single value for all",
            key=f"costs.{key}",
        )
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (count,))


def _lengths(lengths: Sequence[float] | None, microbatches: int) -> tuple[list[Fraction], Int32s]:
    """Return the distinct lengths of microbatches, 1 first, and the index of each microbatch's length.

    Raises:
        ConfigError: a list for another number of microbatches.
    """
    if lengths is None:
        return [Fraction(1)], np.zeros(0, dtype=np.int32)
    if len(lengths) != microbatches:
        raise ConfigError(
            f"{len(lengths)} values for {microbatches} microbatches: write one each", key="costs.lengths"
        )
    exact = [Fraction(str(length)) for length in lengths]
    distinct = list(dict.fromkeys([Fraction(1), *exact]))
    class_index = {length: index for index, length in enumerate(distinct)}
    return distinct, np.array([class_index[length] for length in exact], dtype=np.int32)


_OVERHEADS = {
    Kind.F: ("f_ns", "forward"), Kind.B: ("b_ns", "backward"), Kind.I: ("i_ns", "input_gradient"),
    Kind.W: ("w_ns", "weight_gradient"), Kind.RECOMPUTE: ("recompute_ns", "forward"),
}  # fmt: skip
"""Column of a workload and key of ``costs.overhead``, by kind."""


def _add_overheads(workload: Workload, options: Mapping[str, Any]) -> Workload:
    """Return costs with the additional times of computations, without one for an empty input gradient."""
    overhead = options["overhead"]
    extra_ns = {
        kind: overhead[key] if isinstance(overhead, dict) else overhead for kind, (_, key) in _OVERHEADS.items()
    }
    times = {column: getattr(workload, column) + extra_ns[kind] for kind, (column, _) in _OVERHEADS.items()}
    if options["empty_input_gradient"]:
        times["i_ns"] = _with_first(times["i_ns"], 0)
        times["w_ns"] = _with_first(times["w_ns"], times["b_ns"][0])
    parts = {
        kind: [lengthen(stage, extra_ns[kind]) for stage in stages] for kind, stages in workload.segments.items()
    }
    return replace(workload, segments={}, **times).segmented(parts)


def _times(options: Any, spread: Callable[[str], Any], segments: dict[Kind, Any]) -> dict[str, Any]:
    """Return the time of each computation; with segments it is the sum of their times.

    Raises:
        ConfigError: a time is missing, given twice, or longer than the total of which it is a part.
    """
    keys = {
        "forward": Kind.F, "backward": Kind.B, "input_gradient": Kind.I, "weight_gradient": Kind.W,
        "recompute": Kind.RECOMPUTE,
    }  # fmt: skip
    times: dict[str, Any] = {}
    for key, kind in keys.items():
        if kind in segments and options[key] is not None:
            raise ConfigError(f"costs.segments.{kind.name} defines its time: remove the key", key=f"costs.{key}")
        if kind in segments:
            times[key] = np.array(
                [sum(part.duration_ns for part in stage) for stage in segments[kind]], dtype=np.int64
            )
        elif options[key] is not None:
            times[key] = spread(key)
    if "forward" not in times:
        raise ConfigError("missing: write the forward's time, or its segments", key="costs.forward")
    recompute_ns = times.get("recompute", times["forward"])
    return {"f_ns": times["forward"], "recompute_ns": recompute_ns, **_backward_times(times)}


def _in_documents(request: CostRequest, times: dict[str, Any], spread: Callable[[str], Any]) -> dict[str, Any]:
    """Return times whose attention is inside documents of ``request.document`` tokens.

    Raises:
        ConfigError: attention that takes longer than its pass, or beside segments.
    """
    changed = dict(times)
    for key, total, columns in (
        ("forward", "f_ns", ("f_ns", "recompute_ns")),
        ("backward", "b_ns", ("b_ns", "i_ns", "w_ns")),
    ):
        name = f"{key}_attention"
        if request.options[name] is None:
            continue
        if request.options["segments"] is not None:
            raise ConfigError("segments have no part for it: remove one of the keys", key=f"costs.{name}")
        attention_ns, whole_ns = spread(name), times[total]
        if (attention_ns > whole_ns).any():
            raise ConfigError(f"takes longer than the {key}, of which it is a part", key=f"costs.{name}")
        if request.document:
            saved_ns = attention_ns * (request.sequence - request.document) // request.sequence
            for column in columns:
                changed[column] = times[column] - times[column] * saved_ns // np.maximum(whole_ns, 1)
    return changed


def _backward_times(times: dict[str, Any]) -> dict[str, Any]:
    total_ns = times.get("backward")
    input_ns, weight_ns = times.get("input_gradient"), times.get("weight_gradient")
    if total_ns is not None:
        if input_ns is None:
            input_ns = total_ns // 2 if weight_ns is None else _subtract(total_ns, weight_ns, "weight_gradient")
        if weight_ns is None:
            weight_ns = _subtract(total_ns, input_ns, "input_gradient")
        return {"b_ns": total_ns, "i_ns": input_ns, "w_ns": weight_ns}
    if input_ns is None or weight_ns is None:
        raise ConfigError(
            "missing: write the backward's time, or input_gradient and weight_gradient", key="costs.backward"
        )
    return {"b_ns": input_ns + weight_ns, "i_ns": input_ns, "w_ns": weight_ns}


def _subtract(total: Int64s, part: Int64s, key: str) -> Int64s:
    """Return the time of a backward minus one of its halves."""
    difference: Int64s = total - part
    if difference.min() < 0:
        raise ConfigError("takes longer than the whole backward", key=f"costs.{key}")
    return difference
