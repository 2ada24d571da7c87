"""Parts say which rows of a timeline are segments of actions, and which of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.model.columns import Int32s, column
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """One value per row; a row that is a whole action or a message has -1."""

    number: Int32s
    """Place of the segment in its action, from 0."""
    name: Int32s
    """Which of :attr:`names` it has."""
    names: tuple[str, ...]
    """Names of segments."""

    def __post_init__(self) -> None:
        for name in ("number", "name"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))

    def of_rows(self, rows: NDArray[np.integer]) -> Self:
        """Return the parts of some rows, in their order; names keep their numbers."""
        return replace(self, number=self.number[rows], name=self.name[rows])

    @classmethod
    def joined(cls, parts: Sequence[Parts | None]) -> Parts | None:
        """Return the parts of rows that follow one another and share their names; None where none are known."""
        known = [one for one in parts if one is not None]
        if not known:
            return None
        number, name = (np.concatenate([getattr(one, column) for one in known]) for column in ("number", "name"))
        return replace(known[0], number=number, name=name)

    def name_of(self, row: int) -> str:
        """Return the name of a row's segment, ``""`` for none."""
        name = int(self.name[row])
        return self.names[name] if name >= 0 else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parts):
            return NotImplemented
        own, others = (np.array([*one.names, ""], dtype=object)[one.name] for one in (self, other))
        return np.array_equal(self.number, other.number) and np.array_equal(own, others)

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable
