"""The ``unit`` cost model: abstract units of time, of a rank's part of the model."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantity import Duration, Size
from pptrace.errors import ConfigError
from pptrace.model.workload import Workload

if TYPE_CHECKING:
    from pptrace.model.request import CostRequest

__all__ = ["UnitOptions", "unit"]

_LONGEST_NS = 2**62

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
        edges=len(request.edges) or -1,
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
