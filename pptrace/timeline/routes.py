"""Routes say which links each message of a timeline went over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.model.columns import Int32s, Int64s, column
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

__all__ = ["Routes"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """Links by name, and the links of each row in columns.

    Of a message that is a bundle of flows these are the links of the first flow, from source to target.
    """

    name: tuple[str, ...]
    """Name of each link."""
    rate_kbps: Int64s
    """Capacity of each link in kB/s."""
    ptr: Int32s
    """Shape (rows + 1,): row ``r`` of the timeline went over ``link[ptr[r]:ptr[r + 1]]``; none for no message."""
    link: Int32s
    """Links, in order along each route."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate_kbps", column(self.rate_kbps, np.int64))
        for name in ("ptr", "link"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))

    def of_rows(self, rows: NDArray[np.integer]) -> Self:
        """Return the routes of some rows, in their order; links keep their numbers."""
        length = np.diff(self.ptr)[rows]
        ptr = np.concatenate([[0], np.cumsum(length)])
        first = np.repeat(self.ptr[:-1][rows] - ptr[:-1], length)
        return replace(self, ptr=ptr, link=self.link[np.arange(int(ptr[-1])) + first])

    def of_links(self, names: AbstractSet[str]) -> Self:
        """Return the same routes among fewer links: those that one goes over, and ``names``; the order stays."""
        kept = np.fromiter((name in names for name in self.name), dtype=bool, count=len(self.name))
        kept[self.link] = True
        number = np.cumsum(kept) - 1
        return replace(
            self,
            name=tuple(self.name[link] for link in np.flatnonzero(kept).tolist()),
            rate_kbps=self.rate_kbps[kept],
            link=number[self.link],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Routes):
            return NotImplemented
        return self.name == other.name and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("rate_kbps", "ptr", "link")
        )

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable
