"""A counter is a quantity of a rank, or of the cluster, that steps over time: memory, the use of a link."""

from __future__ import annotations

import numpy as np

from pptrace.model.columns import Int64s, column
from pptrace.record import dataclass

__all__ = ["Counter"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter:
    """A step function: from ``at_ns[i]`` on, the value is ``value[i]``."""

    rank: int
    """The rank that it belongs to; -1 for none: it is the cluster's, such as the use of a shared link."""
    name: str
    """Such as ``memory``, or the link's, such as ``leaf0>spine2``."""
    unit: str
    """Such as ``bytes``."""
    at_ns: Int64s
    """Strictly increasing times."""
    value: Int64s
    """The value from each time on."""

    def __post_init__(self) -> None:
        for name in ("at_ns", "value"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counter):
            return NotImplemented
        return (
            (self.rank, self.name, self.unit) == (other.rank, other.name, other.unit)
            and np.array_equal(self.at_ns, other.at_ns)
            and np.array_equal(self.value, other.value)
        )

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable
