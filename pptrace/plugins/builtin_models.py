"""Unit costs and flat networks of the core."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pptrace.config.quantities import Duration, Rate, Size
from pptrace.config.validation import Parameters
from pptrace.errors import ConfigError
from pptrace.network.contract import Flat, FlatNodes
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugins.requests import CostRequest, NetworkRequest

_LONGEST_NS = 2**62

_Bytes = Annotated[Size, Field(ge=0)]
_Units = Annotated[int, Field(ge=0, le=1_000_000)]


class UnitOptions(Parameters):
    """Costs in abstract units of time, of a rank's part of the model; its chunks share them equally."""

    forward: _Units = 1
    """Units of a forward through a rank's part of the model."""
    backward: _Units = 2
    """Units of a full backward."""
    input_gradient: _Units = 1
    """Units of a backward for the input gradient alone."""
    weight_gradient: _Units = 1
    """Units of a backward for the weight gradient alone."""
    unit: Annotated[Duration, Field(ge=1)] = 1_000_000
    """Duration of a unit in traces, and relative to messages."""
    boundary: _Bytes = 0
    """Bytes of a message between stages."""
    activation: _Bytes = 0
    """Bytes that a forward leaves on its rank's part of the model."""


def unit(request: CostRequest) -> Workload:
    """Build costs in abstract units, divided by the chunks of a rank.

    The unit is rounded up to a multiple of the number of chunks in nanoseconds.

    Raises:
        ConfigError: a unit is so long that a time in nanoseconds passes 2**62.
    """
    options = request.options
    share = Fraction(request.ranks, max(request.stages, request.ranks))
    unit_ns = -(-int(options["unit"]) // share.denominator) * share.denominator
    most_units = max(options[key] for key in ("forward", "backward", "input_gradient", "weight_gradient"))
    if unit_ns * most_units >= _LONGEST_NS:
        raise ConfigError(
            "a pass would take more than 2**62 ns (146 years): choose a shorter unit", key="costs.unit"
        )
    return Workload.uniform(
        request.stages,
        edges=len(request.edges) or -1,
        f_ns=int(unit_ns * options["forward"] * share),
        b_ns=int(unit_ns * options["backward"] * share),
        i_ns=int(unit_ns * options["input_gradient"] * share),
        w_ns=int(unit_ns * options["weight_gradient"] * share),
        recompute_ns=[int(unit_ns * options["forward"] * share)],
        boundary_bytes=options["boundary"],
        activation_bytes=int(options["activation"] * share),
        unit_time_ns=unit_ns,
        tokens=request.global_batch * request.sequence,
    )


_BANDWIDTH = "Rate of one message per direction, such as 400 Gb/s or 50 GB/s; or unlimited."


class NodeOptions(Parameters):
    """Latency and bandwidth of ranks that share a node."""

    ranks: Annotated[int, Field(ge=2)]
    """Consecutive pipeline ranks that share a node."""
    bandwidth: Rate | Literal["unlimited"] = Field(description=_BANDWIDTH)
    latency: Annotated[Duration, Field(ge=0)] = 0
    """Wire latency within a node."""
    overhead: Annotated[Duration, Field(ge=0)] = 0
    """Launch overhead of each message within a node."""


class HockneyOptions(Parameters):
    """Latency and bandwidth of every pair of ranks."""

    bandwidth: Rate | Literal["unlimited"] = Field(description=_BANDWIDTH)
    latency: Annotated[Duration, Field(ge=0)] = 0
    """Wire latency; back-to-back messages pay it once."""
    overhead: Annotated[Duration, Field(ge=0)] = 0
    """Launch overhead of each message, on its stream."""
    node: NodeOptions | None = None
    """Wires between ranks of one node, where they differ from those above."""


def hockney(request: NetworkRequest) -> Flat | FlatNodes:
    """Build the network of validated options.

    Raises:
        ConfigError: a bandwidth is below 1 kB/s.
    """
    options = request.options
    between = _flat(options, "")
    node = options["node"]
    if node is None:
        return between
    return FlatNodes(node=_flat(node, "node."), between=between, ranks=int(node["ranks"]))


def _flat(options: Mapping[str, Any], key_prefix: str) -> Flat:
    unlimited = options["bandwidth"] == "unlimited"
    rate = 0 if unlimited else int(options["bandwidth"]) // 1000
    if rate < 1 and not unlimited:
        raise ConfigError("the smallest bandwidth is 1 kB/s", key=f"{key_prefix}bandwidth")
    return Flat(rate_kbps=rate, latency_ns=int(options["latency"]), overhead_ns=int(options["overhead"]))
