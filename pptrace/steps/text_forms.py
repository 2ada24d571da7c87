"""Schedule tables as CSV and text.

A CSV row is a rank and a cell is an action; empty cells are idle steps, which tables do not store.
Text separates cells by blanks. Its empty lines and its lines that begin with ``#`` are ignored.

The conditions and the order of Megatron-LM's training loop are those of core 0.20 (main of 22 August 2026),
``megatron/core/pipeline_parallel/schedules.py`` and ``combined_1f1b.py``. Chunk c of rank r is stage c p + r. A
backward computes input and weight gradients (``backward_step``), and each chunk takes its microbatches from a data
iterator.

With g microbatches per group (``microbatch_group_size_per_vp_stage``), v chunks per rank and
w = min(v m, (v - 1) g + 2 (p - 1 - r)), rank r runs w forwards, then forward and backward in turns, then
backwards. One chunk per rank has w = min(m, p - 1 - r). With ``overlap_moe_expert_parallel_comm``, w is larger by
one, and each turn is an overlapped pair.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Receive
from pptrace.config.limits import is_named_pipe
from pptrace.errors import OutputError, ScheduleError, TableError
from pptrace.files import replace_file
from pptrace.steps.actions import FORMS, CellColumns, Form, cells_of, parse_row
from pptrace.steps.kinds import PASSES, PER_STAGE, WAITS, Kind
from pptrace.steps.placement import Placement, infer_placement
from pptrace.steps.pytorch_tables import Lowering, compute_only, insert_messages
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.steps.columns import Int64s

_LARGEST = 1 << 30
"""Limit of a table file in bytes, about 100 million actions."""

_ENDS = re.compile(r"\r\n|\n|\r")


def load_table(path: Path | str) -> TableFile:
    """Read a table file; the suffix (``.csv``, ``.txt``) or the presence of commas selects the form.

    Raises:
        TableError: the file cannot be read, or a cell is not an action (row, column, cell).
    """
    path = Path(path)
    return parse_table(_text(path), path, FORMS.get(path.suffix.lower()))


def parse_table(text: str, file: Path | str = "", form: Form | None = None) -> TableFile:
    r"""Parse the text of a table; the default form is CSV for text with a comma.

    >>> parse_table("0F0,,0B0\n1F0,1B0\n").schedule.rows()
    [['0F0', '0B0'], ['1F0', '1B0']]

    Raises:
        TableError: a cell is not an action, or a row is blank.
    """
    lines = _ENDS.split(text)
    form = form or (Form.CSV if "," in text else Form.TEXT)
    numbers = _rank_lines(lines, form, str(file))
    rows, waits = [], []
    for number in numbers:
        try:
            cells, row_waits = parse_row(lines[number - 1], form)
            rows.append(cells)
            waits.append(row_waits)
        except TableError as error:
            raise TableError(error.message, file=file, row=number, column=error.column, cell=error.cell) from None
    row_ptr = np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64)
    try:
        schedule, all_waits = _schedule(rows, row_ptr), np.concatenate(waits)
    except ScheduleError as error:
        number = numbers[error.rank]
        first = int(row_ptr[error.rank])
        raise _error_of_cell(error, first, str(file), form, number, lines[number - 1]) from None
    return TableFile(
        schedule=replace(schedule, waits=(all_waits,)) if all_waits.size else schedule, file=str(file), form=form,
        lines=tuple(lines[number - 1] for number in numbers), numbers=tuple(numbers),
    )  # fmt: skip


def _text(path: Path) -> str:
    try:
        if is_named_pipe(path):
            raise TableError("is a pipe: save its contents to a file first", file=path)
        if path.exists() and not (path.is_file() or path.is_fifo()):
            raise TableError("not a file: name a table (.csv or .txt)", file=path)
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise TableError("larger than 1 GiB: no schedule table is", file=path)
        raw = path.read_bytes()
    except OSError as error:
        raise TableError(f"cannot be read: {(error.strerror or str(error)).lower()}", file=path) from None
    except ValueError:
        raise TableError("cannot be read: no file has such a name", file=repr(str(path))) from None
    if b"\0" in raw:
        raise TableError("not a text file: expected one row of actions per rank", file=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"not UTF-8 (byte 0x{raw[error.start]:02x}): save it as UTF-8", file=path, row=row
        ) from None


def _rank_lines(lines: list[str], form: Form, file: str) -> list[int]:
    """Return the numbers of the lines that are ranks."""
    written = [number for number, line in enumerate(lines, 1) if line.strip()]
    if form is Form.TEXT:
        written = [number for number in written if not lines[number - 1].lstrip().startswith("#")]
    if not written:
        raise TableError("no actions: write one row of actions per rank, such as 0F0,0B0", file=file)
    if form is Form.CSV and written[-1] > len(written):
        blank = next(row for row, number in enumerate(written, 1) if row != number)
        message = 'the row is blank, and each row is a rank: remove it, or write "" for a rank without actions'
        raise TableError(message, file=file, row=blank)
    return written


def _schedule(rows: list[CellColumns], row_ptr: Int64s) -> Schedule:
    cells = CellColumns(
        *(np.fromiter(chain.from_iterable(column), np.int32) for column in zip(*rows, strict=True))
    )
    pairs = np.array([max(row.pair, default=-1) + 1 for row in rows])
    first_pair = np.repeat(np.cumsum(pairs) - pairs, np.diff(row_ptr))
    numbered = cells._replace(pair=np.where(cells.pair < 0, -1, cells.pair + first_pair))
    return Schedule.of_cells(infer_placement(row_ptr, cells), row_ptr, numbered)


_NAMES = [kind.name for kind in Kind]


class Dialect(Enum):
    """Contents of a table file."""

    COMPUTE = "compute"
    """Computation only: PyTorch's ``compute_only``."""
    COMMS = "comms"
    """Computation and messages: ``compute_comms`` of PyTorch 2.13."""
    WAITS = "waits"
    """Computation, messages and a wait per send and reduction: ``compute_comms`` of PyTorch 2.15."""


def table_text(schedule: Schedule, form: Form = Form.CSV) -> str:
    r"""Return a schedule as text, a line per rank; a rank without actions is one idle cell.

    Raises:
        ScheduleError: its stages form no chain, which is the only graph of a table in a file, or each backward is
            on the rank of its forward while weights are in host memory.

    >>> from pptrace.steps.schedule import Schedule
    >>> table_text(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]))
    '0F0,0B0\n1F0,1B0\n'
    """
    if not schedule.placement.is_chain:
        message = "a table in a file has stages that feed the next one only, and these stages form another graph"
        raise ScheduleError(f"{message}: use the name of the schedule in place of a file")
    if schedule.placement.has_host_state and not schedule.placement.is_moved.any():
        message = (
            "a table in a file has weights in host memory only if a backward is on another rank than its forward"
        )
        raise ScheduleError(f"{message}: use the name of the schedule in place of a file")
    separator, idle = (",", '""') if form is Form.CSV else (" ", "-")
    cells, pair = _cells(schedule), schedule.pair.tolist()
    rows = [cells[low:high] for low, high in pairwise(schedule.row_ptr.tolist())]
    if schedule.has_pairs:
        bounds = pairwise(schedule.row_ptr.tolist())
        rows = [_join_pairs(row, pair[low:high]) for row, (low, high) in zip(rows, bounds, strict=True)]
    return "".join(f"{separator.join(row) or idle}\n" for row in rows)


def write_table(schedule: Schedule, path: Path | str) -> None:
    """Write a schedule as CSV or text; the suffix selects the form.

    Raises:
        OutputError: the suffix is another, or the file cannot be written.
    """
    path = Path(path)
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise OutputError(f"a table ends in {' or '.join(FORMS)}", file=path)
    with replace_file(path) as temporary:
        temporary.write_text(table_text(schedule, form), encoding="utf-8", newline="\n")


def in_dialect(schedule: Schedule, dialect: Dialect, receive: Receive = Receive.ASAP) -> Schedule:
    """Return a schedule with messages and waits removed or inserted for a dialect.

    The compute dialect also omits the other kinds that PyTorch inserts (``UNSHARD``, ``RESHARD``,
    ``REDUCE_GRAD``). Messages and waits of the table keep their places.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    if dialect is Dialect.COMPUTE:
        return compute_only(schedule)
    if dialect is Dialect.WAITS:
        return insert_messages(schedule, Lowering(receive=receive.value, waits=True))
    waits = WAITS.mask(schedule.kind)
    without_waits = schedule.selected(np.flatnonzero(~waits)) if waits.any() else schedule
    return insert_messages(without_waits, Lowering(receive=receive.value))


def _cells(schedule: Schedule) -> list[str]:
    """Return the text of every action, members of pairs separately."""
    kinds, stages, microbatches = schedule.kind.tolist(), schedule.stage.tolist(), schedule.microbatch.tolist()
    cells = [f"{s}{_NAMES[k]}{u}" for k, s, u in zip(kinds, stages, microbatches, strict=True)]
    for row in np.flatnonzero((schedule.span > 1) | PER_STAGE.mask(schedule.kind)).tolist():
        cells[row] = str(schedule.action(row))
    awaited = schedule.awaited()
    for row, key in enumerate(zip(kinds, stages, microbatches, strict=True)) if awaited else ():
        cells[row] += "".join(f"@{action}" for action in awaited.get(key, ()))
    return cells


def _join_pairs(cells: list[str], pair: list[int]) -> list[str]:
    """Return the cells of a row, with members of a pair joined into one cell."""
    row: list[str] = []
    members: list[str] = []
    for position, cell in enumerate(cells):
        number = pair[position]
        if number < 0:
            row.append(cell)
            continue
        members.append(cell)
        if position + 1 == len(cells) or pair[position + 1] != number:
            row.append(f"({';'.join(members)})OVERLAP_F_B")
            members = []
    return row


class TableFile(Struct, frozen=True, kw_only=True):
    """A schedule and the text of its rows, one per rank."""

    schedule: Schedule
    """The parsed table."""
    file: str
    """Name of the file as given by the user."""
    form: Form
    """Separator of cells."""
    lines: tuple[str, ...]
    """Text of each rank's row."""
    numbers: tuple[int, ...]
    """Line number of each row, counted from 1."""

    def locate(self, error: ScheduleError) -> TableError:
        """Return an error of the schedule as an error of a cell of the file."""
        if not 0 <= error.rank < len(self.lines):
            return TableError(error.message, file=self.file)
        first = int(self.schedule.row_ptr[error.rank])
        row, line = self.numbers[error.rank], self.lines[error.rank]
        return _error_of_cell(error, first, self.file, self.form, row, line)


def _error_of_cell(error: ScheduleError, first: int, file: str, form: Form, row: int, line: str) -> TableError:
    """Return the error of an action of a line as an error of its cell; ``first`` is the line's first position."""
    left = error.position - first
    for column, cell in cells_of(line, form) if left >= 0 else ():
        left -= cell.count(";") + 1
        if left < 0:
            return TableError(error.message, file=file, row=row, column=column, cell=cell)
    return TableError(error.message, file=file, row=row)


def unsupported_by_megatron(schedule: Schedule) -> Iterator[str]:
    """Yield the parts of a table that ``forward_step`` and ``backward_step`` of Megatron-LM cannot run.

    Messages of the table, and gathers and reductions of weights, are not part of the check.
    """
    table = compute_only(schedule)
    chunks, rest = divmod(table.stages, table.ranks)
    if rest or table.placement != Placement.looped(table.ranks, table.microbatches, chunks):
        yield "the placement of stages: it has stage s on rank s mod pp"
        return
    if table.ranks == 1 < chunks:
        yield f"{chunks} chunks on one rank: it needs two ranks or more"
    split = np.flatnonzero((table.kind == Kind.I) | (table.kind == Kind.W))
    if split.size:
        yield f"split backwards such as {table.action(int(split[0]))}: its backwards compute both gradients"
    foreign = np.flatnonzero(~PASSES.mask(table.kind) | (table.span > 1))
    if foreign.size:
        yield f"actions such as {table.action(int(foreign[0]))}"
    if table.awaited():
        yield "actions that wait for others (@)"
    if split.size or foreign.size:
        return
    everything = np.arange(table.microbatches)
    for stage in range(table.stages):
        of_stage = table.stage == stage
        forwards = table.microbatch[of_stage & (table.kind == Kind.F)]
        if not np.array_equal(forwards, everything):
            yield f"the forwards of stage {stage}: it runs one of each microbatch, in order"
            return
        if not np.array_equal(np.sort(table.microbatch[of_stage & (table.kind == Kind.B)]), everything):
            yield f"the backwards of stage {stage}: it runs one of each microbatch"
            return


def group_in_megatron(schedule: Schedule) -> int | None:
    """Return the microbatches per group if a table has the order of Megatron-LM's loop, else None.

    One chunk per rank has a single group of all microbatches.

    Args:
        schedule: a table without parts of :func:`unsupported_by_megatron`.
    """
    table = compute_only(schedule)
    ranks, chunks, microbatches = table.ranks, table.stages // table.ranks, table.microbatches
    leading_stages = table.stage[: table.row_ptr[1]][table.kind[: table.row_ptr[1]] == Kind.F]
    group = int(np.argmax(leading_stages != leading_stages[0])) or microbatches
    later_ranks = np.arange(ranks)[::-1, None]
    warm_up = table.placement.stages_ahead()[:, None] if chunks == 1 else 2 * later_ranks + (chunks - 1) * group
    count = chunks * microbatches
    warm_up = np.minimum(warm_up + table.has_pairs, count)
    expected = _loop(ranks, chunks, microbatches, group, warm_up)
    position = np.arange(2 * count)
    in_turns = table.has_pairs & (position >= warm_up) & (position < 2 * count - warm_up)
    is_same = np.array_equal(np.stack((table.kind, table.stage, table.microbatch)), expected.reshape(3, -1))
    return group if is_same and np.array_equal(table.pair >= 0, in_turns.ravel()) else None


def _loop(ranks: int, chunks: int, microbatches: int, group: int, warm_up: Int64s) -> Int64s:
    """Return kinds, stages and microbatches of the loop, shape (3, ranks, actions of a rank)."""
    index = np.arange(chunks * microbatches)
    chunk, microbatch = np.divmod(index, microbatches)
    order = np.lexsort((microbatch, chunk, microbatch // group))
    chunk, microbatch = chunk[order], microbatch[order]
    expected = np.empty((3, ranks, 2 * index.size), dtype=np.int64)
    backwards_before, forwards_before = np.maximum(index - warm_up, 0), np.minimum(index + warm_up + 1, index.size)
    for kind, position, own_chunk in (
        (Kind.F, index + backwards_before, chunk),
        (Kind.B, index + forwards_before, chunks - 1 - chunk),
    ):
        stage = own_chunk * ranks + np.arange(ranks)[:, None]
        actions = (np.full_like(stage, kind), stage, np.broadcast_to(microbatch, stage.shape))
        for column, values in zip(expected, actions, strict=True):
            np.put_along_axis(column, position, values, axis=1)
    return expected
