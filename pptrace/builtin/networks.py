"""Options of the core's own networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantity import Duration, Rate
from pptrace.errors import ConfigError
from pptrace.network.flat import Flat

if TYPE_CHECKING:
    from pptrace.model.request import NetworkRequest

__all__ = ["HockneyOptions", "hockney"]


class HockneyOptions(BaseModel):
    """Latency and bandwidth of every pair of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth: Rate | Literal["unlimited"] = Field(
        description="Rate of one message per direction, such as 400 Gb/s or 50 GB/s; or unlimited."
    )
    latency: Annotated[Duration, Field(ge=0)] = Field(
        default=0, description="Wire latency; back-to-back messages pay it once."
    )
    overhead: Annotated[Duration, Field(ge=0)] = Field(
        default=0, description="Launch overhead of each message, on its stream."
    )


def hockney(request: NetworkRequest) -> Flat:
    """Build the network of checked options.

    Raises:
        ConfigError: the bandwidth is below 1 kB/s.
    """
    options = request.options
    unlimited = options["bandwidth"] == "unlimited"
    rate = 0 if unlimited else int(options["bandwidth"]) // 1000
    if rate < 1 and not unlimited:
        raise ConfigError("the smallest bandwidth is 1 kB/s", key="bandwidth")
    return Flat(rate_kbps=rate, latency_ns=int(options["latency"]), overhead_ns=int(options["overhead"]))
