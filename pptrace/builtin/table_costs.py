"""The ``table`` cost model: times and bytes per stage, as its user writes them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.builtin.segments import KindSegments, lengthened, segments_of
from pptrace.config.quantity import Duration, Size, exact_size
from pptrace.errors import ConfigError
from pptrace.model.kinds import Kind
from pptrace.model.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.request import CostRequest

__all__ = ["TableOptions", "table"]

_Time = Annotated[Duration, Field(ge=0)]
_Bytes = Annotated[Size, Field(ge=0)]
_Times = _Time | Annotated[list[_Time], Field(min_length=1)]
_Sizes = _Bytes | Annotated[list[_Bytes], Field(min_length=1)]


class TableOptions(BaseModel):
    """Times and bytes per stage: one value for all stages, or a list with one each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slices: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        default=None,
        description="Equal slices of the model that the figures are for; one per stage unless given. With 8, "
        "each of 32 stages takes a quarter of them (times rounded down), each of 4 two. Messages stay whole.",
    )
    microbatches: Annotated[int, Field(ge=1, le=2**28)] | None = Field(
        default=None,
        description="Microbatches of the batch that the figures are for; this step's unless given. With 8, each "
        "of 32 takes a quarter of the times, messages and activations (rounded down).",
    )
    lengths: list[Annotated[float, Field(gt=0, le=1_000_000)]] | None = Field(
        default=None,
        min_length=1,
        description="Relative lengths of the microbatches, one each, as of packed sequences; all 1 unless given. "
        "One of length 2.5 takes two and a half times the times, messages and activations (rounded down).",
    )
    forward: _Times | None = Field(
        default=None, description="Forward of one microbatch; the sum of its segments where those are given."
    )
    backward: _Times | None = Field(
        default=None, description="Full backward; the sum of both gradients' unless given."
    )
    input_gradient: _Times | None = Field(
        default=None, description="Backward for the input gradient alone; half the backward unless given."
    )
    weight_gradient: _Times | None = Field(
        default=None, description="Backward for the weight gradient alone; what is left of the backward."
    )
    overhead: _Time = Field(
        default=0, description="What every computation takes besides, however many slices it has."
    )
    uncertainty: Annotated[float, Field(ge=0, le=10)] | None = Field(
        default=None,
        description="By which part steps may be shorter or longer than simulated, as `pptrace calibrate` states: "
        "0.06 is 6 %. `pptrace compare` then says which schedules are a tie.",
    )
    boundary: _Bytes | list[_Bytes] = Field(
        default=0, description="Bytes of a message from each stage to the next."
    )
    activation: _Sizes = Field(default=0, description="Bytes that a forward leaves.")
    weight_activation: _Sizes = Field(
        default=0, description="The part of them that the weight gradient needs after the input gradient."
    )
    checkpoint: _Sizes = Field(
        default=0,
        description="The part of them that stays where a forward is computed again by an action of its own.",
    )
    weights: _Sizes = Field(default=0, description="Weights.")
    gradients: _Sizes = Field(default=0, description="Gradient buffers.")
    optimizer: _Sizes = Field(default=0, description="Optimizer state.")
    reduction: _Times = Field(default=0, description="Reduction of gradients over replicas.")
    update: _Times = Field(default=0, description="Optimizer update.")
    gather: _Times | None = Field(default=None, description="Gathering of sharded weights; none unless given.")
    gathered: _Sizes | None = Field(
        default=None,
        description="What gathered weights take until they are freed, beside weights; none unless given.",
    )
    unreduced: _Sizes | None = Field(
        default=None, description="Whole gradients until they are reduced, beside gradients; none unless given."
    )
    sync: _Time = Field(
        default=0, description="What all ranks do together when gradients are whole; idle, as a reduction."
    )
    offload: _Times = Field(default=0, description="Copy of activations to host memory.")
    reload: _Times = Field(default=0, description="Copy of activations back.")
    recompute: _Times | None = Field(
        default=None, description="Forward computed again by an action of its own; as the forward unless given."
    )
    segments: KindSegments | None = Field(
        default=None, description="What actions consist of, by kind; one segment of computation unless given."
    )
    alone: Literal["in-order", "overlapped"] = Field(
        default="in-order",
        description="What segments of an action outside pairs do. in-order: they follow one another; overlapped: "
        "it computes beside its own communication what does not need that (with Megatron-LM tensor-parallel's).",
    )
    reserved: _Bytes = Field(default=0, description="Memory per rank that no action accounts for.")
    capacity: _Sizes = Field(default=0, description="Memory of a device, or each's; 0 B: unknown.")


def table(request: CostRequest) -> Workload:
    """Build costs from values per stage.

    Raises:
        ConfigError: a list has not one value per stage or slice (per boundary for ``boundary``, per microbatch for
            ``lengths``), slices and stages do not divide one another, a time is missing, a part passes its whole,
            or segments cannot be.
    """
    options, stages = request.options, request.stages
    slices = options["slices"] or stages
    if slices % stages and stages % slices:
        raise ConfigError(
            f"{slices} slices and {stages} stages do not divide one another: choose sizes that do",
            key="costs.slices",
        )
    what = "slices" if options["slices"] else "stages"

    def spread(key: str) -> Any:
        values = _given(options, key, slices, what)
        if slices > stages:
            return values.reshape(stages, -1).sum(axis=1)
        return np.repeat(values, stages // slices) // (stages // slices)

    if options["alone"] == "overlapped" and options["segments"] is None:
        raise ConfigError("overlapped needs segments: write costs.segments, too", key="costs.alone")
    segments = segments_of(options["segments"] or {}, stages, slices, what)
    workload = _of_one(request, _times(options, spread, segments), spread).segmented(
        segments, overlapped=options["alone"] == "overlapped"
    )
    share = Fraction(options["microbatches"] or request.microbatches, request.microbatches)
    classes, used = _lengths(options["lengths"], request.microbatches)
    try:
        alike, *others = (_longer(workload.scaled(share * length), options["overhead"]) for length in classes)
    except OverflowError:
        message = "a microbatch would pass 2**63 ns (292 years) or bytes: choose shorter ones"
        raise ConfigError(message, key="costs.lengths" if used.size else "costs.microbatches") from None
    return replace(alike, classes=tuple(others), microbatch_class=used)


def _of_one(request: CostRequest, times: dict[str, Any], spread: Callable[[str], Any]) -> Workload:
    """Return the costs of one microbatch of the batch that the figures are for, its actions in one piece."""
    options, zero = request.options, np.zeros(request.stages, dtype=np.int64)
    room = _given(options, "capacity", request.ranks, "ranks")
    keys = {
        "activation_bytes": "activation", "weight_activation_bytes": "weight_activation",
        "checkpoint_bytes": "checkpoint",
        "weights_bytes": "weights", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer",
        "reduce_ns": "reduction", "optimizer_ns": "update", "offload_ns": "offload", "reload_ns": "reload",
        "unshard_ns": "gather", "gathered_bytes": "gathered", "unreduced_bytes": "unreduced",
    }  # fmt: skip
    columns = {column: spread(key) for column, key in keys.items()}
    for key in ("weight_activation", "checkpoint"):
        _check_part(key, columns[f"{key}_bytes"], columns["activation_bytes"])
    return Workload(
        **times, f_collective_ns=zero, b_collective_ns=zero, i_collective_ns=zero, w_collective_ns=zero,
        boundary_bytes=_given(options, "boundary", _edges(request), "boundaries"),
        **columns,
        sync_ns=options["sync"], reserved_bytes=options["reserved"], capacity_bytes=int(room.min()),
        tokens=request.global_batch * request.sequence, rank_capacity_bytes=room if np.ptp(room) else room[:0],
    )  # fmt: skip


def _check_part(key: str, part_bytes: Int64s, whole_bytes: Int64s) -> None:
    stage = int(np.argmax(part_bytes - whole_bytes))
    part, whole = int(part_bytes[stage]), int(whole_bytes[stage])
    if part > whole:
        of = f"more than costs.activation, {exact_size(whole)}" if whole else "and no costs.activation"
        raise ConfigError(f"{exact_size(part)} on stage {stage}, {of}, of which it is a part", key=f"costs.{key}")


def _given(options: Any, key: str, count: int, what: str) -> Any:
    value = 0 if options[key] is None else options[key]
    if isinstance(value, list) and len(value) != count:
        raise ConfigError(
            f"{len(value)} values for {count} {what}: write one each, or a single value for all",
            key=f"costs.{key}",
        )
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (count,))


def _lengths(lengths: Sequence[float] | None, units: int) -> tuple[list[Fraction], Int32s]:
    """Return the lengths that microbatches have, 1 first, and which of them each has.

    Raises:
        ConfigError: a list for another number of microbatches.
    """
    if lengths is None:
        return [Fraction(1)], np.zeros(0, dtype=np.int32)
    if len(lengths) != units:
        raise ConfigError(f"{len(lengths)} values for {units} microbatches: write one each", key="costs.lengths")
    exact = [Fraction(str(length)) for length in lengths]
    classes = list(dict.fromkeys([Fraction(1), *exact]))
    place = {length: number for number, length in enumerate(classes)}
    return classes, np.array([place[length] for length in exact], dtype=np.int32)


def _longer(workload: Workload, more: int) -> Workload:
    """Return costs in which every computation takes ``more`` nanoseconds besides."""
    times = {name: getattr(workload, name) + more for name in ("f_ns", "b_ns", "i_ns", "w_ns", "recompute_ns")}
    parts = {kind: [lengthened(one, more) for one in own] for kind, own in workload.segments.items()}
    return replace(workload, segments={}, **times).segmented(parts)


def _times(options: Any, spread: Callable[[str], Any], segments: dict[Kind, Any]) -> dict[str, Any]:
    """Return how long each computation is, those of segments as long as their parts.

    Raises:
        ConfigError: a time that is missing, given twice, or longer than the whole of which it is a part.
    """
    keys = {
        "forward": Kind.F, "backward": Kind.B, "input_gradient": Kind.I, "weight_gradient": Kind.W,
        "recompute": Kind.RECOMPUTE,
    }  # fmt: skip
    times: dict[str, Any] = {}
    for key, kind in keys.items():
        if kind in segments and options[key] is not None:
            raise ConfigError(f"costs.segments.{kind.name} say what it takes: remove the key", key=f"costs.{key}")
        if kind in segments:
            times[key] = np.array([sum(one.duration_ns for one in own) for own in segments[kind]], dtype=np.int64)
        elif options[key] is not None:
            times[key] = spread(key)
    if "forward" not in times:
        raise ConfigError("missing: write the forward's time, or its segments", key="costs.forward")
    again = times.get("recompute", times["forward"])
    return {"f_ns": times["forward"], "recompute_ns": again, **_backward(times)}


def _backward(times: dict[str, Any]) -> dict[str, Any]:
    whole = times.get("backward")
    by_input, by_weight = times.get("input_gradient"), times.get("weight_gradient")
    if whole is not None:
        if by_input is None:
            by_input = whole // 2 if by_weight is None else _left(whole, by_weight, "weight_gradient")
        if by_weight is None:
            by_weight = _left(whole, by_input, "input_gradient")
        return {"b_ns": whole, "i_ns": by_input, "w_ns": by_weight}
    if by_input is None or by_weight is None:
        raise ConfigError(
            "missing: write the backward's time, or input_gradient and weight_gradient", key="costs.backward"
        )
    return {"b_ns": by_input + by_weight, "i_ns": by_input, "w_ns": by_weight}


def _left(whole: Int64s, part: Int64s, key: str) -> Int64s:
    """Return what is left of the backward beside one of its parts."""
    left: Int64s = whole - part
    if left.min() < 0:
        raise ConfigError("takes longer than the whole backward", key=f"costs.{key}")
    return left


def _edges(request: CostRequest) -> int:
    return len(request.edges) if request.edges else max(request.stages - 1, 0)
