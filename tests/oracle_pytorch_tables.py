"""A slow second implementation of how PyTorch's runtime lowers tables, on the text of their cells.

Written after ``_add_unshard_reshard``, ``_add_reduce_grad``, ``_add_send_recv``, ``_add_wait_send`` and
``_add_wait_send_budget`` of ``torch/distributed/pipelining/schedules.py``, PyTorch 2.13 and 2.15.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["limited", "lowered", "with_reductions", "with_waits", "without_weights"]

_ACTION = re.compile(r"(\d+)([A-Z_]+?)(\d*)")
_WEIGHTS = re.compile(r"\d+(UNSHARD|RESHARD|(WAIT_)?REDUCE_GRAD)")
_ACTIVE = 3

Rows = list[list[str]]


class _Part(NamedTuple):
    stage: int
    kind: str
    microbatch: str


@cache
def _parts(cell: str) -> tuple[_Part, ...]:
    """Return the actions of a cell, several of an overlapped pair."""
    inner = cell[1 : cell.index(")")] if cell.startswith("(") else cell
    matches = [_ACTION.fullmatch(text) for text in inner.split(";")]
    return tuple(_Part(int(match[1]), match[2], match[3]) for match in matches if match)


def _ranks(rows: Rows) -> dict[int, int]:
    return {part.stage: rank for rank, row in enumerate(rows) for cell in row for part in _parts(cell)}


def lowered(
    rows: Rows, microbatches: int, *, waits: bool = False, lookahead: Sequence[int] = (), deferred: bool = False
) -> Rows:
    """Return rows with actions on weights and messages; with ``waits``, in the rounds of 2.15."""
    rank_of = _ranks(rows)
    gathered = [_with_gathers(row, lookahead[rank] if lookahead else _ACTIVE) for rank, row in enumerate(rows)]
    left = [_with_reductions(row, microbatches, waits=waits, deferred=deferred) for row in gathered]
    placed: Rows = [[] for _ in rows]
    here: list[set[tuple[str, int, str]]] = [set() for _ in rows]
    while any(left):
        for rank in range(len(rows)):
            if not left[rank]:
                continue
            parts = _parts(left[rank][0])
            if any(need not in here[rank] for part in parts if (need := _needs(part, len(rank_of)))):
                continue
            placed[rank].append(left[rank].pop(0))
            for part in parts:
                way = {"F": "F", "B": "B", "I": "B"}.get(part.kind)
                if way is None:
                    continue
                here[rank].add((way, part.stage, part.microbatch))
                to = part.stage + (1 if way == "F" else -1)
                if to in rank_of and rank_of[to] != rank:
                    placed[rank].append(f"{part.stage}SEND_{way}{part.microbatch}")
                    placed[rank_of[to]].append(f"{to}RECV_{way}{part.microbatch}")
                    here[rank_of[to]].add((way, part.stage, part.microbatch))
    return placed


def without_weights(rows: Rows) -> Rows:
    """Return rows without actions on weights."""
    return [[cell for cell in row if not _WEIGHTS.fullmatch(cell)] for row in rows]


def _needs(part: _Part, stages: int) -> tuple[str, int, str] | None:
    if part.kind == "F" and part.stage > 0:
        return ("F", part.stage - 1, part.microbatch)
    if part.kind in {"B", "I"} and part.stage < stages - 1:
        return ("B", part.stage + 1, part.microbatch)
    return None


def _with_gathers(row: list[str], lookahead: int) -> list[str]:
    """Return a row with gathers and releases."""
    full: list[str] = []
    active: list[int] = []
    for position, cell in enumerate(row):
        kept, soon = (_next_stages(row[position:], count) for count in (_ACTIVE, lookahead))
        full += [f"{stage}RESHARD" for stage in active if stage not in kept]
        full += [f"{stage}UNSHARD" for stage in soon if stage not in active]
        active = [stage for stage in active if stage in kept] + [stage for stage in soon if stage not in active]
        full.append(cell)
    return full + [f"{stage}RESHARD" for stage in active]


def _next_stages(row: list[str], count: int) -> list[int]:
    """Return the stages of the first cells that have as many."""
    soon: list[int] = []
    for cell in row:
        soon += [stage for stage in dict.fromkeys(part.stage for part in _parts(cell)) if stage not in soon]
        if len(soon) >= count:
            break
    return soon


def _with_reductions(row: list[str], microbatches: int, *, waits: bool, deferred: bool) -> list[str]:
    """Return a row with reductions and, for 2.15, waits for them."""
    full: list[str] = []
    pending: list[str] = []
    done = dict.fromkeys(_ranks([row]), 0)
    for cell in row:
        full.append(cell)
        for part in _parts(cell):
            done[part.stage] += part.kind in {"B", "W"}
            if part.kind in {"B", "W"} and done[part.stage] == microbatches:
                full += [*pending, f"{part.stage}REDUCE_GRAD"]
                pending = [f"{part.stage}WAIT_REDUCE_GRAD"] * waits
                if not deferred:
                    full += pending
                    pending = []
    return full + pending


def with_reductions(rows: Rows) -> Rows:
    """Return rows with a reduction after the last backward of each stage."""
    full: Rows = []
    for row in rows:
        last = {
            part.stage: position
            for position, cell in enumerate(row)
            for part in _parts(cell)
            if part.kind in {"B", "W"}
        }
        full.append([])
        for position, cell in enumerate(row):
            full[-1].append(cell)
            full[-1] += [f"{stage}REDUCE_GRAD" for stage, place in last.items() if place == position]
    return full


def with_waits(rows: Rows) -> Rows:
    """Return rows with messages and a wait for each send."""
    full: Rows = []
    for row in rows:
        pending: list[str] = []
        full.append([])
        for cell in row:
            full[-1].append(cell)
            if "SEND" in cell:
                pending.append(cell)
            for part in _parts(cell):
                send = f"{part.stage}SEND_F{part.microbatch}"
                if part.kind in {"B", "I"} and send in pending:
                    pending.remove(send)
                    full[-1].append(_wait(send))
        full[-1] += map(_wait, pending)
    return full


def _wait(send: str) -> str:
    return send.replace("SEND", "WAIT_SEND")


@cache
def _receive(send: str) -> str:
    stage, kind, microbatch = _parts(send)[0]
    return f"{stage + (1 if kind == 'SEND_F' else -1)}RECV_{kind[-1]}{microbatch}"


def limited(rows: Rows, most: int) -> Rows | None:
    """Return rows with waits moved forward so that at most some sends are pending; None where it cannot be."""
    rows = [list(row) for row in rows]
    for row in rows:
        pending: list[str] = []
        position = 0
        while position < len(row):
            cell = row[position]
            if "WAIT_SEND" in cell:
                pending.remove(cell.replace("WAIT_", ""))
            elif "SEND" in cell:
                if len(pending) >= most:
                    chosen = _to_wait_for(rows, row, pending, cell)
                    if chosen is None:
                        return None
                    row.remove(_wait(chosen))
                    row.insert(position, _wait(chosen))
                    continue
                pending.append(cell)
            position += 1
    return rows


def _to_wait_for(rows: Rows, row: list[str], pending: list[str], cell: str) -> str | None:
    possible = []
    for send in pending:
        without = [[other for other in each if other != _wait(send)] if each is row else each for each in rows]
        needed, receive = _needed(without), _receive(send)
        if not _waits(needed, receive, cell):  # waiting before the cell does no harm
            if _waits(needed, cell, receive):  # the receive is issued before the cell anyway
                return send
            possible.append(send)
    return possible[0] if possible else None


def _needed(rows: Rows) -> dict[str, set[str]]:
    """Return by action those that it waits for itself."""
    needed: dict[str, set[str]] = {}
    for row in rows:
        awaited: set[str] = set()
        for cell in row:
            if "WAIT_SEND" in cell:
                awaited.add(_receive(cell.replace("WAIT_", "")))
                continue
            needed.setdefault(cell, set()).update(awaited)
            if "SEND" in cell:
                needed.setdefault(_receive(cell), set()).add(cell)
            awaited = {cell}
    return needed


def _waits(needed: dict[str, set[str]], cell: str, other: str) -> bool:
    """Return whether an action waits for another one, through any number of others."""
    reached, left = {cell}, [cell]
    while left:
        before = needed.get(left.pop(), set()) - reached
        reached |= before
        left += before
    return other in reached
