"""The core's own cost models: abstract units, and a table of times per stage."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantity import Duration, Size
from pptrace.errors import ConfigError
from pptrace.model.workload import Workload

if TYPE_CHECKING:
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
    forward: _Time | list[_Time] = Field(description="Forward of one microbatch.")
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
    boundary: _Bytes | list[_Bytes] = Field(
        default=0, description="Bytes of a message from each stage to the next."
    )
    activation: _Bytes | list[_Bytes] = Field(default=0, description="Bytes that a forward leaves.")
    weight_activation: _Bytes | list[_Bytes] = Field(
        default=0, description="The part of them that the weight gradient needs after the input gradient."
    )
    weights: _Bytes | list[_Bytes] = Field(default=0, description="Weights.")
    gradients: _Bytes | list[_Bytes] = Field(default=0, description="Gradient buffers.")
    optimizer: _Bytes | list[_Bytes] = Field(default=0, description="Optimizer state.")
    reduction: _Time | list[_Time] = Field(default=0, description="Reduction of gradients over replicas.")
    update: _Time | list[_Time] = Field(default=0, description="Optimizer update.")
    sync: _Time = Field(
        default=0, description="What all ranks do together when gradients are whole; idle, as a reduction."
    )
    offload: _Time | list[_Time] = Field(default=0, description="Copy of activations to host memory.")
    reload: _Time | list[_Time] = Field(default=0, description="Copy of activations back.")
    recompute: _Time | list[_Time] | None = Field(
        default=None, description="Forward computed again by an action of its own; as the forward unless given."
    )
    reserved: _Bytes = Field(default=0, description="Memory per rank that no action accounts for.")
    capacity: _Bytes = Field(default=0, description="Memory of a rank's device; 0 B where unknown.")


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
        boundary_bytes=options["boundary"],
        activation_bytes=int(options["activation"] * share),
        unit_time_ns=length,
        tokens=request.global_batch * request.sequence,
    )


def table(request: CostRequest) -> Workload:
    """Build costs from values per stage.

    Raises:
        ConfigError: a list has not one value per stage or slice (per boundary for ``boundary``), slices and
            stages do not divide one another, or there is no backward.
    """
    options, stages, edges = request.options, request.stages, _edges(request)
    slices = options["slices"] or stages
    if slices % stages and stages % slices:
        raise ConfigError(
            f"{slices} slices and {stages} stages do not divide one another: choose sizes that do",
            key="costs.slices",
        )

    def given(key: str, count: int, what: str) -> Any:
        value = options[key]
        if isinstance(value, list) and len(value) != count:
            raise ConfigError(
                f"{len(value)} values for {count} {what}: write one each, or a single value for all",
                key=f"costs.{key}",
            )
        return np.broadcast_to(np.asarray(value, dtype=np.int64), (count,))

    def spread(key: str) -> Any:
        values = given(key, slices, "slices" if options["slices"] else "stages")
        if slices > stages:
            return values.reshape(stages, -1).sum(axis=1)
        return np.repeat(values, stages // slices) // (stages // slices)

    forward = spread("forward")
    backward = _backward(options, spread)
    recompute = forward if options["recompute"] is None else spread("recompute")
    columns = {
        "activation_bytes": "activation", "weight_activation_bytes": "weight_activation",
        "weights_bytes": "weights", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer",
        "reduce_ns": "reduction", "optimizer_ns": "update", "offload_ns": "offload", "reload_ns": "reload",
    }  # fmt: skip
    zero = np.zeros(stages, dtype=np.int64)
    workload = Workload(
        f_ns=forward, **backward, recompute_ns=recompute,
        f_collective_ns=zero, b_collective_ns=zero, i_collective_ns=zero, w_collective_ns=zero,
        boundary_bytes=given("boundary", edges, "boundaries"),
        **{column: spread(key) for column, key in columns.items()},
        sync_ns=options["sync"], reserved_bytes=options["reserved"], capacity_bytes=options["capacity"],
        tokens=request.global_batch * request.sequence,
    )  # fmt: skip
    workload = workload.scaled(Fraction(options["microbatches"] or request.units, request.units))
    more = options["overhead"]
    return replace(
        workload, f_ns=workload.f_ns + more, b_ns=workload.b_ns + more, i_ns=workload.i_ns + more,
        w_ns=workload.w_ns + more, recompute_ns=workload.recompute_ns + more,
    )  # fmt: skip


def _backward(options: Any, spread: Any) -> dict[str, Any]:
    given = {key: options[key] is not None for key in ("backward", "input_gradient", "weight_gradient")}
    if given["backward"]:
        whole = spread("backward")
        by_input = spread("input_gradient") if given["input_gradient"] else None
        by_weight = spread("weight_gradient") if given["weight_gradient"] else None
        if by_input is None:
            by_input = whole - by_weight if by_weight is not None else whole // 2
        if by_weight is None:
            by_weight = whole - by_input
        if min(by_input.min(), by_weight.min()) < 0:
            raise ConfigError("takes longer than the whole backward", key="costs.input_gradient")
        return {"b_ns": whole, "i_ns": by_input, "w_ns": by_weight}
    if not (given["input_gradient"] and given["weight_gradient"]):
        raise ConfigError(
            "missing: write the backward's time, or input_gradient and weight_gradient", key="costs.backward"
        )
    by_input, by_weight = spread("input_gradient"), spread("weight_gradient")
    return {"b_ns": by_input + by_weight, "i_ns": by_input, "w_ns": by_weight}


def _edges(request: CostRequest) -> int:
    return len(request.edges) if request.edges else max(request.stages - 1, 0)
