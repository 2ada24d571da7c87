"""Drawings of tables in SVG and in the terminal."""

from __future__ import annotations

from itertools import chain, count, product
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.errors import DeadlockError, ScheduleError
from pptrace.network.contract import Flat
from pptrace.report.svg import darker, document, element, lines
from pptrace.sim.simulation import lower_step
from pptrace.steps.kinds import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    KINDS,
    STAGE_ENDS,
    TABLE,
    Kind,
    KindSet,
    Role,
    Stream,
)
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import graph_of
from pptrace.steps.segments import Segment
from pptrace.steps.validation import validate
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import folded
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from markupsafe import Markup
    from numpy.typing import NDArray
    from rich.text import Text

    from pptrace.steps.actions import Action
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.timeline import Timeline

_DRAWN = KindSet(COMPUTE - STAGE_ENDS)
"""Kinds with a duration in the idealised table."""

_ROWS = (Stream.COMPUTE, Stream.COPY_OUT, Stream.COPY_IN)
"""Streams in the row of a rank."""

_PER_SLOT = Flat(rate_kbps=1_000_000)
"""A network on which a message of one byte takes one slot."""


class Cell(Struct, frozen=True, kw_only=True):
    """An action of a drawing."""

    rank: int
    """The rank, which is the row."""
    start: int
    """The first slot."""
    length: int
    """The number of slots."""
    action: Action
    """The action."""
    route: int
    """The route of its microbatch."""
    marked: bool = False
    """Whether an error concerns the action."""
    chunk: int = 0
    """The number of earlier stages of its route on its rank."""
    pair: int = -1
    """The index of its overlapped pair on its rank, -1 for none."""

    @property
    def end(self) -> int:
        """The slot after its last slot."""
        return self.start + self.length

    @property
    def copies(self) -> bool:
        """Whether the action is a copy of activations, drawn as a thin bar of one slot at its start."""
        return self.action.kind in COPIES and not self.marked


class Drawing(Struct, frozen=True, kw_only=True):
    """A schedule in slots."""

    ranks: int
    """Rows."""
    length: int
    """The end of the last action."""
    cells: tuple[Cell, ...]
    """Actions by rank, then by slot."""
    chunks: int
    """The largest number of stages on a rank; above 1, labels include the stage."""
    bubble: Fraction | None
    """The idle share without transfer times; None for an invalid schedule."""
    step_slots: int = 0
    """The length of a step without transfer times; ``length`` includes drawn messages, and all updates."""
    error: ScheduleError | None = None
    """The error of an invalid schedule."""
    first: int = 0
    """The number of the first slot of a cropped drawing."""
    orders: Mapping[tuple[Kind, ...], tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The repeating order of computations of an overlapped pair, by the kinds of its members."""

    @property
    def lacking(self) -> tuple[int, str]:
        """The rank that lacks an action, and the action; rank -1 where none does."""
        if self.error is None or self.error.position >= 0 or not self.error.missing:
            return -1, ""
        return self.error.rank, self.error.missing


def draw(schedule: Schedule, slots: Mapping[Kind, int] | None = None, *, messages: bool = False) -> Drawing:
    """Place the actions of a schedule in slots.

    A drawing of an invalid schedule marks the cells with errors.

    Args:
        schedule: the table.
        slots: slots by kind; other kinds have those of the table of kinds.
        messages: whether sends and receives take one slot each, as in PyTorch's step simulator.
    """
    slots = {kind: kind.traits.slots for kind in KINDS} | dict(slots or {})
    try:
        validate(schedule)
        return _draw_valid(schedule, slots, messages=messages)
    except ScheduleError as error:
        return _draw_invalid(schedule, slots, error, messages=messages)


def cropped(drawing: Drawing, first: int, last: int) -> Drawing:
    """Return the slots from ``first`` to before ``last``; a cut cell leaves its pair."""
    cells = []
    for cell in drawing.cells:
        low, high = max(cell.start, first), min(cell.end, last)
        if low < high:
            pair = cell.pair if high - low == cell.length else -1
            cells.append(replace(cell, start=low - first, length=high - low, pair=pair))
    length = min(last, drawing.length) - first
    return replace(drawing, cells=tuple(cells), length=length, first=drawing.first + first)


def _draw_valid(schedule: Schedule, slots: Mapping[Kind, int], *, messages: bool) -> Drawing:
    edges = int(schedule.placement.edges.shape[0])
    costs = {f"{kind.traits.cost}_ns": slots[kind] for kind in _DRAWN if kind.traits.cost}
    other_kinds = {
        kind: [(Segment(name=kind.name, duration_ns=slots[kind]),)] * schedule.stages
        for kind in _DRAWN if not kind.traits.cost
    }  # fmt: skip
    workload = Workload.uniform(schedule.stages, edges=edges, boundary_bytes=1, **costs)
    workload = workload.segmented(other_kinds) if other_kinds else workload
    lowered = lower_step(schedule, workload, Flat())
    metrics = measure(lowered.run().timeline, workload)
    if messages:
        lowered = lower_step(schedule, workload, _PER_SLOT, Policy(name=PolicyName.BLOCKING))
    timeline = lowered.run_table().timeline
    return Drawing(
        ranks=schedule.ranks, length=int(timeline.end_ns.max(initial=0)), chunks=_chunks(schedule),
        cells=tuple(_compute_cells(schedule, folded(timeline), messages=messages)), bubble=metrics.bubble,
        step_slots=metrics.end_ns, orders=schedule.interleave,
    )  # fmt: skip


def _compute_cells(schedule: Schedule, timeline: Timeline, *, messages: bool) -> Iterator[Cell]:
    chunk = schedule.placement.chunk_of_stage()
    for lane in np.flatnonzero(np.isin(timeline.lane_stream, _ROWS)).tolist():
        rank = int(timeline.lane_rank[lane])
        for row in range(*timeline.lane_ptr[lane : lane + 2].tolist()):
            action = timeline.action(row)
            is_hidden = action.kind is Kind.OPTIMIZER or action.kind.traits.role is Role.COLLECTIVE
            if not is_hidden and (messages or action.kind not in COMMUNICATION):
                start, end = int(timeline.start_ns[row]), int(timeline.end_ns[row])
                length = 1 if action.kind in COPIES else end - start
                yield _cell(schedule, chunk, rank, start, length, action, pair=int(timeline.pair[row]))


def _draw_invalid(
    schedule: Schedule, slots: Mapping[Kind, int], error: ScheduleError, *, messages: bool
) -> Drawing:
    named = set(error.cycle) if isinstance(error, DeadlockError) else set[str]()
    rows: list[tuple[int, Action, int, bool]] = []
    chunk = schedule.placement.chunk_of_stage()
    for rank in range(schedule.ranks):
        for row in range(int(schedule.row_ptr[rank]), int(schedule.row_ptr[rank + 1])):
            action = schedule.action(row)
            marked = row == error.position or f"rank {rank}: {action}" in named
            drawn = marked or action.kind in _DRAWN or (messages and action.kind in COMMUNICATION)
            rows.append((rank, action, slots[action.kind] * action.span if drawn else 0, marked))
    faulty_rows = {row for row, (_, _, _, marked) in enumerate(rows) if marked}
    starts = place_invalid(schedule, [length for _, _, length, _ in rows], faulty_rows)
    cells = [
        _cell(schedule, chunk, rank, start, length, action, pair=pair, marked=marked)
        for start, pair, (rank, action, length, marked) in zip(starts, schedule.pair.tolist(), rows, strict=True)
        if length
    ]
    return Drawing(
        ranks=schedule.ranks, length=max((cell.end for cell in cells), default=0), chunks=_chunks(schedule),
        cells=tuple(cells), bubble=None, orders=schedule.interleave, error=error,
    )  # fmt: skip


def _cell(
    schedule: Schedule,
    chunk: NDArray[np.int64],
    rank: int,
    start: int,
    length: int,
    action: Action,
    *,
    pair: int,
    marked: bool = False,
) -> Cell:
    placement = schedule.placement
    known = 0 <= action.microbatch < placement.microbatches
    route = int(placement.microbatch_route[action.microbatch]) if known else 0
    return Cell(
        rank=rank, start=start, length=length, action=action, route=route, marked=marked, pair=pair,
        chunk=int(chunk[route, action.stage]) if 0 <= action.stage < placement.stages else 0,
    )  # fmt: skip


def _chunks(schedule: Schedule) -> int:
    return max((len(schedule.placement.stages_of(rank)) for rank in range(schedule.ranks)), default=1)


_FORWARD = 0
_Result: TypeAlias = tuple[int, int, int]
"""0 for activations or 1 for gradients, the stage, and the microbatch."""


def place_invalid(schedule: Schedule, length: Sequence[int], faulty_rows: Collection[int] = ()) -> list[int]:
    """Return the start of every action of a possibly invalid table.

    An action waits for inputs that the table has. In a deadlock, the lowest rank continues without its inputs;
    a rank whose next action is in ``faulty_rows`` takes precedence.
    """
    inputs, outputs = _feeds(schedule)
    ends: dict[tuple[int, int, int], int] = {}
    head, stop = schedule.row_ptr[:-1].tolist(), schedule.row_ptr[1:].tolist()
    free = [0] * schedule.ranks
    start = [0] * len(schedule)
    forced = -1
    while any(low < high for low, high in zip(head, stop, strict=True)):
        has_moved = False
        for rank in range(schedule.ranks):
            while head[rank] < stop[rank]:
                row = head[rank]
                ready = [ends.get(need, -1) for need in inputs[row]]
                if -1 in ready and forced != rank:
                    break
                forced, has_moved = -1, True
                start[row] = max([free[rank], *ready])
                free[rank] = start[row] + length[row]
                for output in outputs[row]:
                    ends.setdefault(output, free[rank])
                head[rank] += 1
        if not has_moved:
            stuck = [rank for rank in range(schedule.ranks) if head[rank] < stop[rank]]
            forced = next((rank for rank in stuck if head[rank] in faulty_rows), stuck[0])
    return start


def _feeds(schedule: Schedule) -> tuple[list[list[_Result]], list[list[_Result]]]:
    """Return the inputs of each action that the table has, and its outputs."""
    graph, has_host_state = graph_of(schedule.placement), schedule.placement.has_host_state
    neighbours = (graph.pred_ptr, graph.pred), (graph.succ_ptr, graph.succ)
    inputs: list[list[_Result]] = []
    outputs: list[list[_Result]] = []
    for kind, stage, first, span in zip(*(values.tolist() for values in schedule.cells[:4]), strict=True):
        direction, microbatches = int(TABLE.feeds[kind]), range(first, first + span)
        sources = []
        if direction >= 0 and 0 <= stage < schedule.stages:
            ptr, stages = neighbours[direction]
            sources = [(direction, each) for each in stages[ptr[stage] : ptr[stage + 1]].tolist()]
            sources += [(_FORWARD, stage)] if has_host_state and direction != _FORWARD else []
        inputs.append([(*source, microbatch) for source in sources for microbatch in microbatches])
        outputs.append([(direction, stage, microbatch) for microbatch in microbatches if direction >= 0])
    known = {*chain.from_iterable(outputs)}
    return [[need for need in producers if need in known] for producers in inputs], outputs


class OverlappedPair(Struct, frozen=True, kw_only=True):
    """An overlapped pair of a drawing."""

    members: tuple[Cell, ...]
    """The cells, top to bottom."""
    turns: tuple[tuple[tuple[float, float], ...], ...]
    """Start and length of computations in slots, by member."""

    @property
    def start(self) -> int:
        """The first slot."""
        return min(cell.start for cell in self.members)

    @property
    def length(self) -> int:
        """The number of slots, gaps included."""
        return max(cell.end for cell in self.members) - self.start


def pairs_of(drawing: Drawing) -> list[OverlappedPair]:
    """Return the pairs with at least two drawn members and no error."""
    members: dict[tuple[int, int], list[Cell]] = {}
    for cell in drawing.cells:
        if cell.pair >= 0:
            members.setdefault((cell.rank, cell.pair), []).append(cell)
    return [
        OverlappedPair(members=tuple(cells), turns=_turns(cells, drawing.orders))
        for cells in members.values()
        if len(cells) > 1 and not any(cell.marked for cell in cells)
    ]


def note(drawing: Drawing, mark: str = "framed") -> str:
    """Return a note on overlapped pairs and their order; empty without pairs."""
    kinds = {tuple(cell.action.kind for cell in pair.members) for pair in pairs_of(drawing)}
    if not kinds:
        return ""
    orders = []
    for pair in sorted(kinds.intersection(drawing.orders)):
        turns = " ".join(pair[member].name for member in drawing.orders[pair])
        orders.append(f"{'&'.join(kind.name for kind in pair)} computes in order {turns}")
    return "; ".join([f"overlapped pairs are {mark}", *orders])


def _turns(
    cells: Iterable[Cell], orders: Mapping[tuple[Kind, ...], tuple[int, ...]]
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Return the computations of each member: alternating where an order is known and there are no gaps."""
    members = list(cells)
    order = orders.get(tuple(cell.action.kind for cell in members), ())
    start = min(cell.start for cell in members)
    busy_slots = sum(cell.length for cell in members)
    has_gaps = max(cell.end for cell in members) - start != busy_slots
    if has_gaps or set(order) != set(range(len(members))):
        return tuple(((float(cell.start), float(cell.length)),) for cell in members)
    parts = [members[member].length / order.count(member) for member in range(len(members))]
    turns: list[list[tuple[float, float]]] = [[] for _ in members]
    slot = float(start)
    for member in order:
        turns[member].append((slot, parts[member]))
        slot += parts[member]
    return tuple(map(tuple, turns))


INK = "#102030"
"""The color of labels."""

MARK = "#c81e1e"
"""The color of frames around errors."""

_LONGEST = 2
"""The longest name of a kind in labels."""

_SENT, _RECEIVED = "\N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW}"


def color(cell: Cell) -> str:
    """Return a cell's color, by kind and route; odd chunks are darker."""
    basic = cell.action.kind.traits.color[min(cell.route, 1)]
    return darker(basic) if cell.chunk % 2 else basic


def short_label(cell: Cell) -> str:
    """Return the microbatch's number, or the kind of an action without microbatch."""
    action = cell.action
    if action.microbatch < 0:
        return action.kind.name[:2]
    last = f"-{action.microbatch + action.span - 1}" if action.span > 1 else ""
    return f"{action.microbatch}{last}"


def picture_label(cell: Cell, chunks: int) -> str:
    """Return the microbatch, prefixed by the stage where a rank holds several; messages have an arrow."""
    stage = f"{cell.action.stage}:" if chunks > 1 else ""
    return f"{_arrow(cell.action.kind, _SENT, _RECEIVED)}{stage}{short_label(cell)}"


def legend(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the colors by meaning, in a fixed order; meanings of the same color are joined."""
    colors = {(cell.action.kind, min(cell.route, 1), cell.chunk % 2): color(cell) for cell in cells}
    meanings: dict[tuple[str, str], list[str]] = {}
    for odd, route, (kind, traits) in product(range(2), range(2), KINDS.items()):
        if traits.meaning and (kind, route, odd) in colors:
            direction = ", other direction" if traits.color[route] != traits.color[0] else ""
            variant = direction + (", odd chunk" if odd else "")
            meanings.setdefault((colors[kind, route, odd], variant), []).append(traits.meaning)
    return {" or ".join(dict.fromkeys(names)) + variant: fill for (fill, variant), names in meanings.items()}


def _arrow(kind: Kind, sent: str, received: str) -> str:
    return {Role.SEND: sent, Role.RECEIVE: received}.get(kind.traits.role, "")


def full_label(cell: Cell, chunks: int) -> str:
    """Return kind and microbatch, prefixed by the stage where a rank holds several.

    Messages have an arrow: ``>3`` is sent, ``<3`` received. Long names are reduced to their first letter: ``R3``.
    """
    action = cell.action
    name = action.kind.name if len(action.kind.name) <= _LONGEST else action.kind.name[0]
    kind = _arrow(action.kind, ">", "<") or (name if action.microbatch >= 0 else "")
    stage = f"{action.stage}" if chunks > 1 else ""
    return f"{stage}{kind}{short_label(cell)}"


_SLOT, _ROW, _LEFT, _TOP, _RIGHT = 26, 26, 64, 34, 16
_WIDEST = 6000
"""Width in pixels above which slots become narrower, down to their minimum."""

_NARROWEST = 480
"""Minimum width in pixels, for the title and the lines of the legend."""

_LETTER = 7
"""Width of a letter in pixels."""

_NOTE_LETTER = 6.5
"""Mean width of a letter of a sentence in pixels, spaces included."""

_LETTERS = 12
"""The font size of the document."""

_THIN = 4
"""Height of a copy's bar in pixels."""

_PALE = "#6b7480"

_SMALLEST = 6
"""The smallest font size; cells with smaller labels have only a tooltip."""

_MOST_BOXES = 10_000
"""The most cells with a box and a tooltip, some 200 bytes each; in larger drawings a cell is a part of a band."""


def svg_text(drawing: Drawing, title: str) -> str:
    """Return the drawing as an SVG document; cells have tooltips unless there are too many."""
    slot = min(max(_WIDEST // max(drawing.length, 1), 2), _SLOT)
    width = max(_LEFT + drawing.length * slot + _RIGHT, _NARROWEST)
    banded = len(drawing.cells) > _MOST_BOXES
    body = [*_rows(drawing, slot), *(_bands(drawing, slot) if banded else [])]
    below = _TOP + drawing.ranks * _ROW + 24
    body += _axis(drawing, slot, below - 12)
    # Marked cells are last, so that their frames are on top.
    pairs = [] if banded else pairs_of(drawing)
    paired = {cell for pair in pairs for cell in pair.members}
    boxes = sorted(drawing.cells, key=lambda cell: cell.marked)
    body += [_box(c, drawing, slot) for c in boxes if c.marked or not (banded or c.copies or c in paired)]
    body += [part for pair in pairs for part in _pair_parts(pair, drawing, slot)]
    body += [] if banded else [_bar(cell, slot) for cell in drawing.cells if cell.copies]
    keys, below = _legend(legend(drawing.cells), width, below)
    many = f"{len(drawing.cells):,} actions are too many to name here: draw some with --slots FIRST:LAST"
    caption = many if banded else note(drawing)
    notes = [(line, _PALE) for line in wrap(caption, int((width - _LEFT) / _NOTE_LETTER))]
    if drawing.error is not None:
        notes += [(line, MARK) for line in wrap(str(drawing.error), (width - _LEFT) // _LETTER)]
    body += keys
    body += [
        element("text", line, x=_LEFT, y=below + 12 + 16 * index, fill=fill)
        for index, (line, fill) in enumerate(notes)
    ]
    heading = element("text", title, x=_LEFT, y=20, font_size=14, font_weight="bold")
    return document(width, below + 6 + 16 * len(notes), INK, heading, *body)


def _rows(drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield each rank's name and the background of its row."""
    for rank in range(drawing.ranks):
        y = _TOP + rank * _ROW
        lacks = {"fill": MARK, "font_weight": "bold"} if rank == drawing.lacking[0] else {}
        yield element("text", f"rank {rank}", x=_LEFT - 8, y=y + 17, text_anchor="end", **lacks)
        yield element("rect", x=_LEFT, y=y + 1, width=drawing.length * slot, height=_ROW - 2, fill="#f2f3f5")


def _axis(drawing: Drawing, slot: int, y: int) -> Iterator[Markup]:
    """Yield the numbers of some slots, at their left edges."""
    step = next(step for base in count() for step in (10**base, 5 * 10**base) if step * slot >= 5 * _LETTER)
    for slot_index in range(-drawing.first % step, drawing.length + 1, step):
        yield element(
            "text", str(drawing.first + slot_index), x=_LEFT + slot_index * slot, y=y, font_size=10, fill=_PALE,
            text_anchor="middle",
        )  # fmt: skip


def _box(cell: Cell, drawing: Drawing, slot: int) -> Markup:
    x, y, width = _LEFT + cell.start * slot, _TOP + cell.rank * _ROW, cell.length * slot
    frame = {"stroke": MARK, "stroke_width": "3"} if cell.marked else {"stroke": "#ffffff"}
    box = element("rect", x=x, y=y + 1, width=width, height=_ROW - 2, fill=color(cell), **frame)
    text = picture_label(cell, drawing.chunks)
    parts = [element("title", str(cell.action)), box]
    letters = min(_LETTERS, width * _LETTERS // (len(text) * _LETTER))
    if letters >= _SMALLEST:
        size = {} if letters == _LETTERS else {"font_size": letters}
        parts.append(element("text", text, x=x + width / 2, y=y + 17, text_anchor="middle", **size))
    return element("g", *parts)


def _bar(cell: Cell, slot: int) -> Markup:
    """Return the bar of a copy of activations, on top of computations."""
    top = 1 if cell.action.kind is Kind.RELOAD else _ROW - 1 - _THIN
    x, y, width = _LEFT + cell.start * slot + 1, _TOP + cell.rank * _ROW + top, cell.length * slot - 2
    bar = element("rect", x=x, y=y, width=max(width, 1), height=_THIN, fill=color(cell))
    return element("g", element("title", str(cell.action)), bar)


def _pair_parts(pair: OverlappedPair, drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield a pair: a labelled band per member, pale while another member computes, and a frame."""
    top = _TOP + pair.members[0].rank * _ROW + 1
    left, width, height = _LEFT + pair.start * slot, pair.length * slot, (_ROW - 2) / len(pair.members)
    for place, (cell, turns) in enumerate(zip(pair.members, pair.turns, strict=True)):
        y, fill, text = top + place * height, color(cell), picture_label(cell, drawing.chunks)
        white = element("rect", x=left, y=y, width=width, height=height, fill="#ffffff")
        pale = element("rect", x=left, y=y, width=width, height=height, fill=fill, fill_opacity="0.4")
        parts = [element("title", str(cell.action)), white, pale]
        parts += [
            element("rect", x=_LEFT + start * slot, y=y, width=length * slot, height=height, fill=fill)
            for start, length in turns
        ]
        letters = min(height - 2, width * _LETTERS / (len(text) * _LETTER))
        if letters >= _SMALLEST:
            middle, base = left + width / 2, y + height / 2 + letters * 0.36
            size = round(letters, 1)
            parts.append(element("text", text, x=middle, y=base, text_anchor="middle", font_size=size))
        yield element("g", *parts)
    yield element("rect", x=left, y=top, width=width, height=_ROW - 2, fill="none", stroke=INK, stroke_width="1.4")


def _bands(drawing: Drawing, slot: int) -> Iterator[Markup]:
    """Yield a thick dashed line per rank and color; coordinates inside are slots."""
    bands: dict[tuple[int, str], list[Cell]] = {}
    for cell in drawing.cells:
        if not cell.copies:
            bands.setdefault((cell.rank, color(cell)), []).append(cell)
    paths = [
        element(
            "path", transform=f"translate({_LEFT} {_TOP + rank * _ROW + _ROW // 2})scale({slot} 1)", stroke=fill,
            d=_dashes(cells),
        )
        for (rank, fill), cells in sorted(bands.items())
    ]  # fmt: skip
    yield element("g", lines(paths), fill="none", stroke_width=_ROW - 2, shape_rendering="crispEdges")


def _dashes(cells: Iterable[Cell]) -> str:
    """Return cells as the dashes of a path; adjacent cells are joined."""
    parts, end, drawn = ["M0 0"], 0, 0
    for cell in sorted(cells, key=lambda cell: cell.start):
        if cell.start > end:
            parts.append(f"h{drawn}m{cell.start - end} 0" if drawn else f"m{cell.start - end} 0")
            end, drawn = cell.start, 0
        drawn += cell.end - end
        end = cell.end
    return "".join([*parts, f"h{drawn}"])


def _legend(entries: dict[str, str], width: int, y: int) -> tuple[list[Markup], int]:
    """Return the legend's lines from ``y`` on, and the ``y`` of their end."""
    keys: list[Markup] = []
    x = _LEFT
    for meaning, fill in entries.items():
        entry_width = 34 + _LETTER * len(meaning)
        if x > _LEFT and x + entry_width > width:
            x, y = _LEFT, y + 20
        keys.append(element("rect", x=x, y=y, width=14, height=14, fill=fill))
        keys.append(element("text", meaning, x=x + 19, y=y + 12))
        x += entry_width
    return keys, y + 20


_MARGIN = 8
"""Columns before the first slot: ``rank 12 ``."""

_COPIES = {Kind.OFFLOAD: "  out", Kind.RELOAD: "  in"}
"""Copies of activations with a separate line below the line of their rank, and the line's margin."""


class Window(Struct, frozen=True, kw_only=True):
    """The visible part of a table."""

    first: int
    """First slot."""
    last: int
    """The end of the last slot."""
    slot: int
    """Terminal columns of a slot."""
    hidden: int
    """The number of hidden slots."""


def window(drawing: Drawing, width: int, first: int = 0, last: int | None = None) -> Window:
    """Return the window of the slots from ``first`` to ``last`` that fit into ``width`` columns."""
    slot = 1 + max((-(-len(full_label(c, drawing.chunks)) // max(c.length, 1)) for c in drawing.cells), default=1)
    end = drawing.length if last is None else min(last, drawing.length)
    end = max(min(end, first + max((width - _MARGIN) // slot, 1)), first)
    return Window(first=first, last=end, slot=slot, hidden=drawing.length - (end - first))


def windows(drawing: Drawing, width: int, first: int, last: int, most_lines: int) -> list[Window]:
    """Return consecutive windows of the slots from ``first``, as many as fit into ``most_lines``.

    ``hidden`` of a window counts the slots that neither it nor earlier windows show.
    """
    shown: list[Window] = []
    hidden = drawing.length
    lines = drawing.ranks + 1 + len({(cell.rank, cell.action.kind) for cell in drawing.cells if cell.copies})
    while not shown or (shown[-1].last < last and (len(shown) + 1) * lines <= most_lines):
        part = window(drawing, width, shown[-1].last if shown else first, last)
        hidden -= part.last - part.first
        shown.append(replace(part, hidden=hidden))
    return shown


def plain_lines(drawing: Drawing, seen: Window) -> list[str]:
    """Return a line per rank; idle slots are dots, and further slots of a cell are filled with ``=``.

    A ``&`` is between the members of an overlapped pair.
    Cells with errors are in brackets; a rank that lacks an action has a ``!``.
    """
    return [_row_text(drawing, rank, row, seen) for rank, row in enumerate(_by_rank(drawing, seen))]


def rich_lines(drawing: Drawing, seen: Window, *, basic: bool = False) -> list[Text]:
    """Return a line per rank with colored cells; ``basic`` is for terminals with sixteen colors."""
    from rich.text import Text

    lines = []
    error_style = f"bold white on {'red' if basic else MARK}"
    for rank, row in enumerate(_by_rank(drawing, seen)):
        line = Text()
        line.append(_margin(drawing, rank), "bold red" if rank == drawing.lacking[0] else "")
        shown_until = 0
        for cell, low, high, joined in _with_columns(row, seen):
            line.append(" " * (low - shown_until))
            if joined:
                line.right_crop(1)
                line.append("&", "bold")
            terminal_color = cell.action.kind.traits.terminal_color[min(cell.route, 1)]
            style = f"black on {terminal_color}" if basic else f"{INK} on {color(cell)}"
            name = full_label(cell, drawing.chunks)
            width = high - low - 1
            line.append(f"{name:^{width}}"[:width], error_style if cell.marked else style)
            line.append(" ")
            shown_until = high
        lines.append(line)
    return lines


def copy_lines(drawing: Drawing, seen: Window) -> list[list[str]]:
    """Return each rank's lines of copies, to the host and from the host, with each copy at its start.

    Lines without copies are omitted; ``+`` marks further copies that start in the same slot.
    """
    lines: list[list[str]] = [[] for _ in range(drawing.ranks)]
    for kind, name in _COPIES.items():
        labels: dict[int, dict[int, list[str]]] = {}
        for cell in drawing.cells:
            if cell.copies and cell.action.kind is kind:
                label = picture_label(cell, drawing.chunks)
                labels.setdefault(cell.rank, {}).setdefault(cell.start, []).append(label)
        for rank, slots in labels.items():
            line = name.ljust(_MARGIN)
            for slot in range(seen.first, seen.last):
                texts = slots.get(slot, ["."])
                line += (texts[0] + "+" * (len(texts) > 1)).ljust(seen.slot)
            lines[rank].append(line.rstrip())
    return lines


def _row_text(drawing: Drawing, rank: int, row: list[Cell], seen: Window) -> str:
    margin = _margin(drawing, rank)
    line = list(margin + f"{'.':<{seen.slot}}" * (seen.last - seen.first))
    for cell, first, last, joined in _with_columns(row, seen):
        low, high = len(margin) + first, len(margin) + last
        name = full_label(cell, drawing.chunks)[: high - low - 1]
        line[low:high] = f"{name:=<{high - low - 1}} "
        if joined:
            line[low - 1] = "&"
        if cell.marked:
            line[low - 1], line[low + len(name)] = ("|" if line[low - 1] == "]" else "["), "]"
    return "".join(line).rstrip()


def _with_columns(row: list[Cell], seen: Window) -> Iterator[tuple[Cell, int, int, bool]]:
    """Yield each cell, its first column and its end in the window, and whether it continues the previous pair."""
    pair = -1
    for cell in row:
        low, high = (max(min(slot, seen.last), seen.first) - seen.first for slot in (cell.start, cell.end))
        yield cell, low * seen.slot, high * seen.slot, pair >= 0 and pair == cell.pair
        pair = cell.pair


def _by_rank(drawing: Drawing, seen: Window) -> list[list[Cell]]:
    rows: list[list[Cell]] = [[] for _ in range(drawing.ranks)]
    for cell in drawing.cells:
        if not cell.copies and cell.start < seen.last and cell.end > seen.first:
            rows[cell.rank].append(cell)
    return rows


def _margin(drawing: Drawing, rank: int) -> str:
    lacks = "!" if rank == drawing.lacking[0] else ""
    return f"rank {rank}{lacks}".ljust(_MARGIN)
