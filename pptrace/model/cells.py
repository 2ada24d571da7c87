"""Cells: the columns that say what each of many actions is, declared once for whatever holds actions."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pptrace.model.action import Action
from pptrace.model.columns import Int8s, Int32s, column
from pptrace.model.kinds import PER_STAGE, Kind
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["CELL", "CellColumns", "Cells", "cell_columns", "group_starts", "waits_of"]

_DTYPES: dict[Any, type[np.integer[Any]]] = {"Int8s": np.int8, "Int32s": np.int32, "Int64s": np.int64}


class CellColumns(NamedTuple):
    """The columns of :class:`Cells` alone, arrays or lists: what kernels take and readers fill."""

    kind: Any
    stage: Any
    microbatch: Any
    span: Any
    pair: Any

    def taken(self, rows: NDArray[np.integer]) -> CellColumns:
        """Return some rows, in their order."""
        return CellColumns(*(values[rows] for values in self))


CELL = CellColumns._fields
"""Names of the columns that say what an action is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """What each action is, in columns of one value per action.

    Whatever holds actions in columns is a subclass with further columns. The annotation of a column (``Int8s``,
    ``Int32s``, ``Int64s``) is its dtype.
    """

    kind: Int8s
    """:class:`~pptrace.model.kinds.Kind` of each action."""
    stage: Int32s
    """Global stage: the sender's for ``SEND_*``, the receiver's for ``RECV_*``."""
    microbatch: Int32s
    """First microbatch, -1 for an action that belongs to none."""
    span: Int32s
    """Number of microbatches."""
    pair: Int32s
    """Neighbours of a rank that share a number from 0 are an overlapped pair; -1 for an action alone."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type in _DTYPES:
                object.__setattr__(self, one.name, column(getattr(self, one.name), _DTYPES[one.type]))

    def __len__(self) -> int:
        return int(self.kind.size)

    @property
    def cells(self) -> CellColumns:
        """The columns that say what each action is."""
        return CellColumns(self.kind, self.stage, self.microbatch, self.span, self.pair)

    def action(self, index: int) -> Action:
        """Return one action; a member of an overlapped pair stands alone."""
        kind = Kind(int(self.kind[index]))
        return Action(
            kind=kind,
            stage=int(self.stage[index]),
            microbatch=-1 if kind in PER_STAGE else int(self.microbatch[index]),
            span=int(self.span[index]),
        )


def group_starts(pair: Int32s, row_ptr: Int32s) -> NDArray[np.int64]:
    """Return the positions at which overlapped pairs and actions outside pairs start.

    Args:
        pair: as in :class:`Cells`.
        row_ptr: shape (ranks + 1,), the first position of each rank.
    """
    starts = np.ones(pair.size, dtype=bool)
    starts[1:] = (pair[1:] < 0) | (pair[1:] != pair[:-1])
    starts[row_ptr[row_ptr < pair.size]] = True
    return np.flatnonzero(starts)


def cell_columns(actions: Iterable[Action]) -> CellColumns:
    """Return the columns of some actions, as lists; the members of an overlapped pair follow one another.

    >>> cell_columns([Action(kind=Kind.F, stage=2, microbatch=6)])
    CellColumns(kind=[0], stage=[2], microbatch=[6], span=[1], pair=[-1])
    """
    found = CellColumns([], [], [], [], [])
    pairs = 0
    for action in actions:
        for member in action.sub_actions or (action,):
            values = (
                int(member.kind),
                member.stage,
                member.microbatch,
                member.span,
                pairs if action.sub_actions else -1,
            )
            for values_so_far, value in zip(found, values, strict=True):
                values_so_far.append(value)
        pairs += bool(action.sub_actions)
    return found


def waits_of(actions: Iterable[Action]) -> Int32s:
    """Return what actions wait for by name: kind, stage and first microbatch of that, then those of what waits.

    >>> from pptrace.model.action import parse_action
    >>> waits_of([parse_action("0F3@0OFFLOAD1")]).tolist()
    [[11, 0, 1, 0, 0, 3]]
    """
    told = [
        (int(one.kind), one.stage, one.microbatch, int(member.kind), member.stage, member.microbatch)
        for action in actions
        for member in action.sub_actions or (action,)
        for one in member.after
    ]
    return np.array(told, dtype=np.int32).reshape(-1, 6)
