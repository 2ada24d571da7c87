"""A 2-D torus: each endpoint is joined to four neighbours; messages go along x, then along y, the shorter way.

Routing: dimension order (Dally and Towles, Principles and Practices of Interconnection Networks, 2004, chapter 8).
Bisection of W x H endpoints, W <= H and H even: the wires of all columns at two places, 2 W of a link's rate;
W where H is 2, for there both ways around are one wire.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from pptrace.plugin import NetworkOffer, hookimpl

if TYPE_CHECKING:
    import numpy as np
    from pydantic import BaseModel

    from pptrace.plugin import Links, NetworkRequest, Paths


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Endpoint ``e`` is at ``x = e % width``, ``y = e // width``; its links are 4 e to 4 e + 3."""

    width: int
    height: int
    links: "Links"

    def paths(self, src: "np.ndarray", dst: "np.ndarray") -> "Paths":
        """Walk all pairs at once, one link at a time."""
        import numpy as np

        from pptrace.plugin import Paths

        at, to = [src % self.width, src // self.width], [dst % self.width, dst // self.width]
        pairs, used = [np.arange(0)], [np.arange(0)]
        for axis, size in enumerate((self.width, self.height)):
            ahead = (to[axis] - at[axis]) % size
            back = 2 * ahead > size
            hops = np.where(back, size - ahead, ahead)
            for step in range(size // 2):
                going = np.flatnonzero(hops > step)
                pairs.append(going)
                used.append((4 * (at[1] * self.width + at[0]) + 2 * axis + back)[going])
                at[axis] = (at[axis] + np.where(hops > step, 1 - 2 * back, 0)) % size
        pair = np.concatenate(pairs)
        ends = np.searchsorted(np.sort(pair), np.arange(src.size + 1))
        return Paths.along(self.links, ends, np.concatenate(used)[np.argsort(pair, kind="stable")])


def build(request: "NetworkRequest") -> Torus:
    """Return the torus nearest to a square."""
    import numpy as np

    from pptrace.plugin import Links

    count = request.endpoints
    width = next(width for width in range(isqrt(count), 0, -1) if count % width == 0)
    each = np.ones(4 * count, dtype=np.int64)
    names = [f"{e % width},{e // width}{way}" for e in range(count) for way in ("+x", "-x", "+y", "-y")]
    links = Links(
        name=tuple(names),
        rate_kbps=each * (request.options["bandwidth"] // 1000),
        latency_ns=each * request.options["latency"],
    )
    return Torus(width=width, height=count // width, links=links)


def options() -> "type[BaseModel]":
    """Return the model of ``network.bandwidth`` and ``network.latency``."""
    from pydantic import BaseModel, ConfigDict, Field

    from pptrace.plugin import Duration, Rate

    class TorusOptions(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")

        bandwidth: Rate = Field(default=50_000_000_000, ge=1000, description="Rate of a link per direction.")
        latency: Duration = Field(default=500, ge=0, description="Wire latency of a link.")

    return TorusOptions


OFFER = NetworkOffer(
    name="torus", summary="A 2-D torus with dimension-order routing.", build=build, options=options
)


@hookimpl
def pptrace_networks() -> Iterable[NetworkOffer]:
    """Offer the network."""
    yield OFFER
