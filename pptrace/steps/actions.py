"""Actions, their columns, and their text form.

The text grammar is PyTorch's (``torch.distributed.pipelining.schedules._Action``) as a superset::

    action := stage kind [microbatch ["+" span]]      0F3   2B7   1SEND_F0   2F6+2   1UNSHARD
            | "(" action {";" action} ")OVERLAP_F_B"           (0F3;7B1)OVERLAP_F_B
            | action "@" action                                0F3@0OFFLOAD1

``a@b``: action ``a`` also waits for the end of action ``b``. ``SEND_F``, ``SEND_B`` and the waits for them name
the sender's stage, ``RECV_F`` and ``RECV_B`` the receiver's.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from pptrace.errors import TableError
from pptrace.steps.columns import Columns, Int8s, Int32s, empty_columns, is_uniform, ranges, uniform
from pptrace.steps.kinds import PER_STAGE, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_KIND_NAMES = sorted((kind.name for kind in Kind), key=len, reverse=True)
_ACTION = re.compile(rf"([0-9]+)({'|'.join(_KIND_NAMES)})(?:([0-9]+)(?:\+([0-9]+))?)?")
_PAIR = r"\(([^()]*)\)(\w*)"
_LARGEST = 2**31 - 1


class Action(Struct, frozen=True, kw_only=True):
    """One cell of a schedule table.

    >>> str(Action(kind=Kind.F, stage=2, microbatch=6, span=2))
    '2F6+2'
    """

    kind: Kind
    """Its kind; for an overlapped pair, the kind of the first sub-action."""
    stage: int
    """Global stage index, from 0."""
    microbatch: int = -1
    """First microbatch, from 0; -1 for an action of a whole stage."""
    span: int = 1
    """Number of microbatches."""
    sub_actions: tuple[Action, ...] = ()
    """Members of an overlapped pair; empty for a single action."""
    after: tuple[Action, ...] = ()
    """Actions whose ends it waits for in addition to its data dependencies."""

    def __str__(self) -> str:
        if self.sub_actions:
            return f"({';'.join(map(str, self.sub_actions))})OVERLAP_F_B"
        microbatch = "" if self.microbatch < 0 else str(self.microbatch)
        span = f"+{self.span}" if self.span > 1 else ""
        waits = "".join(f"@{action}" for action in self.after)
        return f"{self.stage}{self.kind.name}{microbatch}{span}{waits}"

    @staticmethod
    def parse(text: str) -> Action:
        """Parse the text of one action.

        >>> Action.parse("1SEND_F0")
        Action(kind=<Kind.SEND_F: 4>, stage=1, microbatch=0, span=1, sub_actions=(), after=())
        >>> [str(a) for a in Action.parse("(0F3;7B1)OVERLAP_F_B").sub_actions]
        ['0F3', '7B1']

        Raises:
            TableError: the text is not an action; the message shows valid forms.
        """
        text = text.strip()
        if text.startswith("("):
            return _parse_pair(text)
        if "@" in text:
            return _parse_waiting(text)
        match = _ACTION.fullmatch(text)
        if match is None:
            names = ", ".join(kind.name for kind in Kind)
            raise TableError(
                "not an action; expected stage, kind and microbatch such as 0F3, 2B7, 1SEND_F0, 2F6+2, 1UNSHARD, "
                f"0F3@0OFFLOAD1 or (0F3;7B1)OVERLAP_F_B, with a kind of {names}",
                cell=text,
            )
        kind = Kind[match[2]]
        if kind in PER_STAGE:
            if match[3] is not None:
                raise TableError(f"{kind.name} belongs to a stage and takes no microbatch", cell=text)
            return Action(kind=kind, stage=_number(match[1], text))
        if match[3] is None:
            raise TableError(f"{kind.name} needs a microbatch, such as {match[1]}{kind.name}0", cell=text)
        span = _number(match[4] or "1", text)
        if span < 1:
            raise TableError("a span is at least 1", cell=text)
        return Action(kind=kind, stage=_number(match[1], text), microbatch=_number(match[3], text), span=span)


def _parse_pair(text: str) -> Action:
    match = re.fullmatch(_PAIR, text)
    if match is None or match[2] != "OVERLAP_F_B":
        raise TableError("an overlapped pair is written (0F3;7B1)OVERLAP_F_B, and pairs do not nest", cell=text)
    members = tuple(Action.parse(part) for part in match[1].split(";") if part.strip())
    if not members:
        raise TableError("an overlapped pair needs at least one action", cell=text)
    return overlapped(members)


def _parse_waiting(text: str) -> Action:
    action, *after = (Action.parse(part) for part in text.split("@"))
    if action.microbatch < 0 or any(
        awaited.sub_actions or awaited.microbatch < 0 or awaited.span > 1 for awaited in after
    ):
        raise TableError(
            "an action and the one it waits for need microbatches, the latter just one: 0F3@0OFFLOAD1",
            cell=text,
        )
    return replace(action, after=tuple(after))


def overlapped(members: tuple[Action, ...]) -> Action:
    """Return an overlapped pair of these members.

    >>> str(overlapped((Action.parse("0F3"), Action.parse("7B1"))))
    '(0F3;7B1)OVERLAP_F_B'
    """
    first = members[0]
    return Action(
        kind=first.kind, stage=first.stage, microbatch=first.microbatch, span=first.span, sub_actions=members
    )


_MOST_CHARACTERS = 20


def _number(digits: str, text: str) -> int:
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        short = digits if len(digits) <= _MOST_CHARACTERS else f"{digits[:_MOST_CHARACTERS]}..."
        raise TableError(f"{short} is too large; the largest number is {_LARGEST}", cell=text)
    return int(digits)


class CellColumns(NamedTuple):
    """The columns of :class:`Cells` as arrays for kernels, or as lists that readers fill."""

    kind: Any
    stage: Any
    microbatch: Any
    span: Any
    pair: Any

    def taken(self, rows: NDArray[np.integer]) -> CellColumns:
        """Return the given rows, in the given order."""
        return CellColumns(*(values[rows] for values in self))

    def empty(self, rows: int) -> CellColumns:
        """Return unfilled columns of ``rows`` actions; spans of 1, and no pairs, stay columns of one value."""
        usual = {name: uniform(value, rows) for name, value in USUAL.items() if is_uniform(getattr(self, name))}
        names = [name for name in self._fields if name not in usual]
        columns = empty_columns(rows, *(np.int8 if name == "kind" else np.int32 for name in names))
        return CellColumns(**usual, **dict(zip(names, columns, strict=True)))


USUAL = {"span": 1, "pair": -1}
"""Values of the columns that are uniform in most tables."""

CELL = CellColumns._fields
"""Names of the columns that define an action."""


class Cells(Columns, frozen=True, kw_only=True):
    """Base of all tables of actions: columns of one value per action. Subclasses add columns."""

    kind: Int8s
    """:class:`~pptrace.steps.kinds.Kind` of each action."""
    stage: Int32s
    """Global stage: the sender's for ``SEND_*``, the receiver's for ``RECV_*``."""
    microbatch: Int32s
    """First microbatch, -1 for an action of a whole stage."""
    span: Int32s
    """Number of microbatches."""
    pair: Int32s
    """Number of the overlapped pair, shared by adjacent actions of a rank; -1 for a single action."""

    def __post_init__(self) -> None:
        Columns.__post_init__(self)
        for name, value in USUAL.items():
            values = getattr(self, name)
            if not is_uniform(values) and (values == value).all():
                force_setattr(self, name, uniform(value, values.size))

    def __len__(self) -> int:
        return int(self.kind.size)

    @property
    def cells(self) -> CellColumns:
        """The columns that define each action."""
        return CellColumns(self.kind, self.stage, self.microbatch, self.span, self.pair)

    def action(self, index: int) -> Action:
        """Return one action; a member of an overlapped pair is returned as a single action."""
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


def group_ends(pair: Int32s, row_ptr: Int32s) -> NDArray[np.int64]:
    """Return, per action, the position after it, or after its overlapped pair; see :func:`group_starts`."""
    starts = group_starts(pair, row_ptr)
    ends = np.append(starts[1:], pair.size)
    return np.repeat(ends, ends - starts)


def cell_columns(actions: Iterable[Action]) -> CellColumns:
    """Return the columns of actions as lists; members of an overlapped pair are adjacent.

    >>> cell_columns([Action(kind=Kind.F, stage=2, microbatch=6)])
    CellColumns(kind=[0], stage=[2], microbatch=[6], span=[1], pair=[-1])
    """
    columns = CellColumns([], [], [], [], [])
    pairs = 0
    for action in actions:
        pair = pairs if action.sub_actions else -1
        for member in action.sub_actions or (action,):
            cell = (int(member.kind), member.stage, member.microbatch, member.span, pair)
            for values, value in zip(columns, cell, strict=True):
                values.append(value)
        pairs += bool(action.sub_actions)
    return columns


def waits_of(actions: Iterable[Action]) -> Int32s:
    """Return the explicit waits (``@``) of actions, shape (waits, 6).

    Columns: kind, stage and first microbatch of the awaited action, then those of the waiting action.

    >>> waits_of([Action.parse("0F3@0OFFLOAD1")]).tolist()
    [[11, 0, 1, 0, 0, 3]]
    """
    waits = [
        (int(awaited.kind), awaited.stage, awaited.microbatch, int(member.kind), member.stage, member.microbatch)
        for action in actions
        for member in action.sub_actions or (action,)
        for awaited in member.after
    ]
    return np.array(waits, dtype=np.int32).reshape(-1, 6)


class Form(Enum):
    """Separator of the cells of a row."""

    CSV = "csv"
    """Commas; an empty cell is idle."""
    TEXT = "text"
    """Blanks; ``-`` is idle."""


FORMS = {".csv": Form.CSV, ".txt": Form.TEXT}
"""Forms of table files by suffix."""


_MICROBATCH_KINDS = "|".join(sorted((k.name for k in Kind if k not in PER_STAGE), key=len, reverse=True))
_STAGE_KINDS = "|".join(sorted((k.name for k in PER_STAGE), key=len, reverse=True))
_KIND_CODES = {kind.name: int(kind) for kind in Kind}
_PLAIN = rf"[0-9]{{1,9}}(?:(?:{_MICROBATCH_KINDS})[0-9]{{1,9}}(?:\+[1-9][0-9]{{0,8}})?|(?:{_STAGE_KINDS}))"
_CELL = rf"(?:{_PLAIN}|\({_PLAIN}(?:;{_PLAIN})*\)OVERLAP_F_B)"
_SEPARATORS = {Form.CSV: (",", r"[ \t]*,[ \t,]*"), Form.TEXT: (" ", r"[ \t]+")}
"""The shortest separator of cells, and the pattern of all."""
_TOKEN = rf"(\()?([0-9]+)({'|'.join(_KIND_NAMES)})([0-9]*)(?:\+([0-9]+))?(\))?"
_NO_WAITS = waits_of([])
_TEXT_CELL = r"\([^()]*\)\S*|\S+"


def parse_row(line: str, form: Form) -> tuple[CellColumns, Int32s]:
    """Parse one row; return its cells, with pairs numbered from 0, and its waits as :func:`waits_of` does.

    >>> parse_row("0F0,,(0F1;1B0)OVERLAP_F_B", Form.CSV)[0].pair
    [-1, 0, 0]

    Raises:
        TableError: a cell is not an action; the error has its column.
    """
    separator, pattern = _SEPARATORS[form]
    if not all(re.fullmatch(pattern, text) for text in set(re.split(_CELL, f"{separator}{line}{separator}"))):
        actions = [_parse_at(cell, column) for column, cell in cells_of(line, form)]
        return cell_columns(actions), waits_of(actions)
    tokens = re.findall(_TOKEN, line)
    if not tokens:
        return cell_columns([]), _NO_WAITS
    opens, stages, kinds, microbatches, spans, closes = zip(*tokens, strict=True)
    cells = CellColumns(
        kind=[_KIND_CODES[kind] for kind in kinds],
        stage=[int(stage) for stage in stages],
        microbatch=[int(microbatch) if microbatch else -1 for microbatch in microbatches],
        span=[int(span) if span else 1 for span in spans],
        pair=_pairs(opens, closes) if "(" in line else [-1] * len(kinds),
    )
    return cells, _NO_WAITS


def cells_of(line: str, form: Form) -> list[tuple[int, str]]:
    """Return the non-idle cells of a row with their columns, counted from 1.

    >>> cells_of('0F0, ,"0F1"', Form.CSV)
    [(1, '0F0'), (3, '0F1')]
    """
    if form is Form.TEXT:
        cells = re.findall(_TEXT_CELL, line)
        return [(column, cell) for column, cell in enumerate(cells, 1) if cell != "-"]
    # Actions contain no commas or quotes, so unquoting is enough.
    cells = [_unquote(cell.strip()) for cell in line.split(",")]
    return [(column, cell) for column, cell in enumerate(cells, 1) if cell]


def _unquote(cell: str) -> str:
    return cell[1:-1].strip() if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _pairs(opens: Iterable[str], closes: Iterable[str]) -> list[int]:
    pair: list[int] = []
    number, inside = -1, False
    for opening, closing in zip(opens, closes, strict=True):
        if opening:
            number, inside = number + 1, True
        pair.append(number if inside else -1)
        inside = inside and not closing
    return pair


def _parse_at(cell: str, column: int) -> Action:
    try:
        return Action.parse(cell)
    except TableError as error:
        short = cell if len(cell) <= _MOST_CELL_CHARACTERS else f"{cell[:_MOST_CELL_CHARACTERS]}..."
        hint = "; separate cells by commas" if ";" in cell and "(" not in cell else ""
        raise TableError(error.message + hint, column=column, cell=short) from None


_MOST_CELL_CHARACTERS = 60


def microbatches_of(
    cells: Cells | CellColumns, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Return an index into ``rows``, the stage and the microbatch for each microbatch of each row."""
    span = cells.span[rows]
    if span.max(initial=1) == 1:
        return np.arange(rows.size), cells.stage[rows], cells.microbatch[rows].astype(np.int64)
    number = np.repeat(np.arange(rows.size), span)
    return number, cells.stage[rows][number], ranges(cells.microbatch[rows], span)
