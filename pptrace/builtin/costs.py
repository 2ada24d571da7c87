"""The core's own cost models: abstract units, and a table of times per stage."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.builtin.segments import KindSegments, lengthened, segments_of
from pptrace.config.quantity import Duration, Size
from pptrace.errors import ConfigError
from pptrace.model.kinds import Kind
from pptrace.model.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.model.columns import Int32s
    from pptrace.model.request import CostRequest

__all__ = ["TableOptions", "UnitOptions", "table", "unit"]

_LONGEST_NS = 2**62

_Time = Annotated[Duration, Field(ge=0)]
_Bytes = Annotated[Size, Field(ge=0)]
_Units = Annotated[int, Field(ge=0, le=1_000_000)]


class UnitOptions(BaseModel):
    """Costs in abstract units of time, of a rank's part of the model; its chunks share them equally."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward: _Units = Field(default=1, description="Units of a forward through a rank's part of the model.")
    backward: _Units = Field(default=2, description="Units of a full backward.")
    input_gradient: _Units = Field(default=1, description="Units of a backward for the input gradient alone.")
    weight_gradient: _Units = Field(default=1, description="Units of a backward for the weight gradient alone.")
    unit: Annotated[Duration, Field(ge=1)] = Field(
        default=1_000_000, description="How long a unit is in traces, and beside messages."
    )
    boundary: _Bytes = Field(default=0, description="Bytes of a message between stages.")
    activation: _Bytes = Field(
        default=0, description="Bytes that a forward leaves on its rank's part of the model."
    )


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
        description="Relative lengths of the microbatches, one each, as of packed sequences; all 1 unless given. "
        "One of length 2.5 takes two and a half times the times, messages and activations (rounded down).",
    )
    forward: _Time | list[_Time] | None = Field(
        default=None, description="Forward of one microbatch; the sum of its segments where those are given."
    )
    backward: _Time | list[_Time] | None = Field(
        default=None, description="Full backward; the sum of both gradients' unless given."
    )
    input_gradient: _Time | list[_Time] | None = Field(
        default=None, description="Backward for the input gradient alone; half the backward unless given."
    )
    weight_gradient: _Time | list[_Time] | None = Field(
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
    activation: _Bytes | list[_Bytes] = Field(default=0, description="Bytes that a forward leaves.")
    weight_activation: _Bytes | list[_Bytes] = Field(
        default=0, description="The part of them that the weight gradient needs after the input gradient."
    )
    checkpoint: _Bytes | list[_Bytes] = Field(
        default=0,
        description="The part of them that stays where a forward is computed again by an action of its own.",
    )
    weights: _Bytes | list[_Bytes] = Field(default=0, description="Weights.")
    gradients: _Bytes | list[_Bytes] = Field(default=0, description="Gradient buffers.")
    optimizer: _Bytes | list[_Bytes] = Field(default=0, description="Optimizer state.")
    reduction: _Time | list[_Time] = Field(default=0, description="Reduction of gradients over replicas.")
    update: _Time | list[_Time] = Field(default=0, description="Optimizer update.")
    gather: _Time | list[_Time] | None = Field(
        default=None, description="Gathering of sharded weights; none unless given."
    )
    gathered: _Bytes | list[_Bytes] | None = Field(
        default=None,
        description="What gathered weights take until they are freed, beside weights; none unless given.",
    )
    unreduced: _Bytes | list[_Bytes] | None = Field(
        default=None, description="Whole gradients until they are reduced, beside gradients; none unless given."
    )
    sync: _Time = Field(
        default=0, description="What all ranks do together when gradients are whole; idle, as a reduction."
    )
    offload: _Time | list[_Time] = Field(default=0, description="Copy of activations to host memory.")
    reload: _Time | list[_Time] = Field(default=0, description="Copy of activations back.")
    recompute: _Time | list[_Time] | None = Field(
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
    capacity: _Bytes | list[_Bytes] = Field(default=0, description="Memory of a device, or each's; 0 B: unknown.")


def unit(request: CostRequest) -> Workload:
    """Build costs in abstract units, divided by the chunks of a rank.

    A unit that the chunks do not divide is lengthened, by less than a nanosecond for each of them.

    Raises:
        ConfigError: a unit is so long that a time in nanoseconds cannot be counted.
    """
    options = request.options
    share = Fraction(request.ranks, max(request.stages, request.ranks))
    length = -(-int(options["unit"]) // share.denominator) * share.denominator
    most = max(options[key] for key in ("forward", "backward", "input_gradient", "weight_gradient"))
    if length * most >= _LONGEST_NS:
        raise ConfigError(
            "a pass would take more than 2**62 ns (146 years): choose a shorter unit", key="costs.unit"
        )
    return Workload.uniform(
        request.stages,
        edges=_edges(request),
        f_ns=int(length * options["forward"] * share),
        b_ns=int(length * options["backward"] * share),
        i_ns=int(length * options["input_gradient"] * share),
        w_ns=int(length * options["weight_gradient"] * share),
        recompute_ns=[int(length * options["forward"] * share)],
        boundary_bytes=options["boundary"],
        activation_bytes=int(options["activation"] * share),
        unit_time_ns=length,
        tokens=request.global_batch * request.sequence,
    )


def table(request: CostRequest) -> Workload:
    """Build costs from values per stage.

    Raises:
        ConfigError: a list has not one value per stage or slice (per boundary for ``boundary``, per microbatch for
            ``lengths``), slices and stages do not divide one another, a time is missing, or segments are none.
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
    columns = {
        "activation_bytes": "activation", "weight_activation_bytes": "weight_activation",
        "checkpoint_bytes": "checkpoint",
        "weights_bytes": "weights", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer",
        "reduce_ns": "reduction", "optimizer_ns": "update", "offload_ns": "offload", "reload_ns": "reload",
        "unshard_ns": "gather", "gathered_bytes": "gathered", "unreduced_bytes": "unreduced",
    }  # fmt: skip
    return Workload(
        **times, f_collective_ns=zero, b_collective_ns=zero, i_collective_ns=zero, w_collective_ns=zero,
        boundary_bytes=_given(options, "boundary", _edges(request), "boundaries"),
        **{column: spread(key) for column, key in columns.items()},
        sync_ns=options["sync"], reserved_bytes=options["reserved"], capacity_bytes=int(room.min()),
        tokens=request.global_batch * request.sequence, rank_capacity_bytes=room if np.ptp(room) else room[:0],
    )  # fmt: skip


def _given(options: Any, key: str, count: int, what: str) -> Any:
    value = options[key] or 0
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
            by_input = whole - by_weight if by_weight is not None else whole // 2
        if by_weight is None:
            by_weight = whole - by_input
        if min(by_input.min(), by_weight.min()) < 0:
            raise ConfigError("takes longer than the whole backward", key="costs.input_gradient")
        return {"b_ns": whole, "i_ns": by_input, "w_ns": by_weight}
    if by_input is None or by_weight is None:
        raise ConfigError(
            "missing: write the backward's time, or input_gradient and weight_gradient", key="costs.backward"
        )
    return {"b_ns": by_input + by_weight, "i_ns": by_input, "w_ns": by_weight}


def _edges(request: CostRequest) -> int:
    return len(request.edges) if request.edges else max(request.stages - 1, 0)
