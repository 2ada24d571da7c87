"""A schedule is a table: per rank an ordered list of actions, held in columns, without any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.model.action import PER_STAGE, Action, Kind, parse_action
from pptrace.model.columns import Int8s, Int32s, column, difference
from pptrace.schedule.infer import infer_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike

    from pptrace.model.placement import Placement

__all__ = ["Schedule"]

COLUMNS = ("row_ptr", "kind", "stage", "unit", "span", "braid")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Per rank an ordered list of actions; rows follow each other rank by rank.

    >>> table = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]])
    >>> [str(action) for action in table[1]]
    ['1F0', '1B0']
    """

    placement: Placement
    """Where each stage of each unit's route is."""
    row_ptr: Int32s
    """Shape (ranks + 1,): rank ``r`` holds the actions ``row_ptr[r]:row_ptr[r + 1]``."""
    kind: Int8s
    """:class:`~pptrace.model.action.Kind` of each action."""
    stage: Int32s
    """Global stage of each action."""
    unit: Int32s
    """First unit of each action, -1 for one that belongs to no unit."""
    span: Int32s
    """Number of units of each action."""
    braid: Int32s
    """Neighbours of a rank that share a number from 0 are one braid; -1 for an action alone."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            dtype = np.int8 if name == "kind" else np.int32
            object.__setattr__(self, name, column(getattr(self, name), dtype))

    @classmethod
    def from_columns(
        cls,
        placement: Placement,
        row_ptr: ArrayLike,
        kind: ArrayLike,
        stage: ArrayLike,
        unit: ArrayLike,
        *,
        span: ArrayLike | None = None,
        braid: ArrayLike | None = None,
    ) -> Self:
        """Build a schedule from columns; every span is 1 and nothing is braided unless given."""
        count = np.asarray(kind).size
        return cls(
            placement=placement,
            row_ptr=np.asarray(row_ptr),
            kind=np.asarray(kind),
            stage=np.asarray(stage),
            unit=np.asarray(unit),
            span=np.ones(count, dtype=np.int32) if span is None else np.asarray(span),
            braid=np.full(count, -1, dtype=np.int32) if braid is None else np.asarray(braid),
        )

    @classmethod
    def from_rows(cls, rows: Sequence[Iterable[str | Action | None]], placement: Placement | None = None) -> Self:
        """Build a schedule from one list of actions (or their text) per rank; ``None`` and ``""`` are idle cells.

        Without a placement, stages are where their actions are, and the stages form a chain.

        Raises:
            TableError: a text is no action (its row and column are named).
        """
        ptr, flat, braid = [0], list[Action](), list[int]()
        braids = 0
        for rank, row in enumerate(rows):
            for position, cell in enumerate(row):
                if cell is None or (isinstance(cell, str) and not cell.strip()):
                    continue
                action = cell if isinstance(cell, Action) else _parse_at(cell, rank, position)
                members = action.sub_actions or (action,)
                flat.extend(members)
                braid.extend([braids if action.sub_actions else -1] * len(members))
                braids += bool(action.sub_actions)
            ptr.append(len(flat))
        columns = [np.array([getattr(a, name) for a in flat], dtype=np.int32) for name in COLUMNS[1:5]]
        kind, stage, unit, span = columns
        return cls.from_columns(
            placement or infer_placement(np.asarray(ptr), kind, stage, unit, span),
            ptr, kind, stage, unit, span=span, braid=np.array(braid, dtype=np.int32),
        )  # fmt: skip

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.row_ptr.size - 1)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.placement.stages

    @property
    def units(self) -> int:
        """Number of units."""
        return self.placement.units

    @property
    def has_communication(self) -> bool:
        """Whether the table places its own sends and receives."""
        return bool(((self.kind >= Kind.SEND_F) & (self.kind <= Kind.RECV_B)).any())

    def __len__(self) -> int:
        return int(self.kind.size)

    def __getitem__(self, rank: int) -> list[Action]:
        """Return one rank's actions in order, each braid as one action."""
        if not 0 <= rank < self.ranks:
            msg = f"rank {rank} of {self.ranks}"
            raise IndexError(msg)
        row: list[Action] = []
        braid = -1
        for index in range(int(self.row_ptr[rank]), int(self.row_ptr[rank + 1])):
            action = self.action(index)
            same = int(self.braid[index])
            if same < 0:
                row.append(action)
            else:
                members = (*row.pop().sub_actions, action) if same == braid else (action,)
                row.append(_braided(members))
            braid = same
        return row

    def action(self, index: int) -> Action:
        """Return the action at a position of the columns; a braid's member stands alone."""
        kind = Kind(int(self.kind[index]))
        return Action(
            kind=kind,
            stage=int(self.stage[index]),
            unit=-1 if kind in PER_STAGE else int(self.unit[index]),
            span=int(self.span[index]),
        )

    def rank_at(self, index: int) -> int:
        """Return the rank whose row holds a position of the columns."""
        return int(np.searchsorted(self.row_ptr, index, side="right")) - 1

    def rows(self) -> list[list[str]]:
        """Return every rank's actions as text."""
        return [[str(action) for action in self[rank]] for rank in range(self.ranks)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.placement == other.placement and self.rows() == other.rows()

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable

    def difference(self, other: Schedule) -> str:
        """Say where two schedules first differ, or ``""``."""
        return difference(self, other, COLUMNS)

    def __repr__(self) -> str:
        return f"<Schedule {self.ranks} ranks, {self.stages} stages, {self.units} units, {len(self)} actions>"


def _braided(members: tuple[Action, ...]) -> Action:
    first = members[0]
    return Action(kind=first.kind, stage=first.stage, unit=first.unit, span=first.span, sub_actions=members)


def _parse_at(cell: str, rank: int, position: int) -> Action:
    from pptrace.errors import TableError

    try:
        return parse_action(cell)
    except TableError as error:
        raise TableError(error.message, rank=rank, position=position, cell=cell) from None
