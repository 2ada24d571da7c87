"""Options of the core's own networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantities import Duration, Rate
from pptrace.errors import ConfigError
from pptrace.network.links import Flat, FlatNodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugins.requests import NetworkRequest

_BANDWIDTH = "Rate of one message per direction, such as 400 Gb/s or 50 GB/s; or unlimited."


class NodeOptions(BaseModel):
    """Latency and bandwidth of ranks that share a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: Annotated[int, Field(ge=2)] = Field(description="Consecutive pipeline ranks that share a node.")
    bandwidth: Rate | Literal["unlimited"] = Field(description=_BANDWIDTH)
    latency: Annotated[Duration, Field(ge=0)] = Field(default=0, description="Wire latency within a node.")
    overhead: Annotated[Duration, Field(ge=0)] = Field(
        default=0, description="Launch overhead of each message within a node."
    )


class HockneyOptions(BaseModel):
    """Latency and bandwidth of every pair of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth: Rate | Literal["unlimited"] = Field(description=_BANDWIDTH)
    latency: Annotated[Duration, Field(ge=0)] = Field(
        default=0, description="Wire latency; back-to-back messages pay it once."
    )
    overhead: Annotated[Duration, Field(ge=0)] = Field(
        default=0, description="Launch overhead of each message, on its stream."
    )
    node: NodeOptions | None = Field(
        default=None, description="Wires between ranks of one node, where they are others than those above."
    )


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
