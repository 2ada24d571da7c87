"""The table is the paper's, and played block by block by a program of its own it takes what the paper says."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.schedule import Schedule
from pptrace.testing import assert_schedule_family, grid
from pptrace_stp.plugin import pptrace_schedules

(OFFER,) = pptrace_schedules()

Member: TypeAlias = "tuple[str, int, int]"
Blocks: TypeAlias = "list[tuple[Member, ...]]"
SIZES = [(4, 12), (2, 9), (4, 64), (8, 32), (2, 64)]


class Writer:
    """One rank's blocks, written by hand: microbatches count up, weight gradients queue."""

    def __init__(self) -> None:
        self.blocks: Blocks = []
        self._next = {(kind, chunk): 0 for kind in "FB" for chunk in (0, 1)}
        self._due: list[tuple[int, int]] = []

    def add(self, times: int, *blocks: str) -> None:
        for _ in range(times):
            self.blocks += [tuple(self._member(name) for name in block.split("&")) for block in blocks]

    def _member(self, name: str) -> Member:
        if name == "W":
            return ("W", *self._due.pop(0))
        kind, chunk = name[0], int(name[1])
        number = self._next["F" if kind == "F" else "B", chunk]
        self._next["F" if kind == "F" else "B", chunk] += 1
        if kind == "I":
            self._due.append((chunk, number))
        return kind, chunk, number


def written(p: int, m: int, r: int) -> Blocks:
    """Return the blocks of a rank in the nine steps of the paper's generator."""
    row = Writer()
    row.add(2 * (p - r - 1), "F0")
    row.add(r + 1, "F0", "F1")
    row.add((r + 1) % 2, "F0")
    row.add((r + 1) // 2, "F0&F0")
    row.add(p - r - 1, "F1&I1", "F0&W")
    steady = 2 * (m - 3 * p + 1) + 1 + 2 * r
    for number in range(steady):
        kind = "I" if number >= 2 * (m - 3 * p + 1) + 1 + r else "B"
        row.add(1, f"F{1 - number % 2}&{kind}{1 - number % 2}")
    row.add(m - (r + 1) - (p - r - 1) - steady // 2 - 1, "B0", "F1&I1")
    row.add(r + 1, "B0", "B1")
    for number in range(1 + 2 * (p - r - 1)):
        row.add(1, *(["W", "W"] if number % 2 else ["B0"]))
    row.add(2 * r, "W")
    return row.blocks


def blocks_of(table: Schedule, rank: int) -> Blocks:
    def member(action: object) -> Member:
        return action.kind.name, int(action.stage != rank), action.microbatch

    return [tuple(map(member, action.sub_actions or (action,))) for action in table[rank]]


def made(p: int, m: int, **options: object) -> Schedule:
    table = OFFER.build(ScheduleRequest(ranks=p, microbatches=m, options=options))
    assert isinstance(table, Schedule)
    return table


def played(rows: list[Blocks], took: dict[str, int]) -> int | None:
    """Return when the last block ends, a block having all its needs at its start and its results at its end.

    None where the rows wait for each other.
    """
    ranks = len(rows)
    done: dict[tuple[str, int, int], int] = {}
    free, head = [0] * ranks, [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while head[rank] < len(row):
                stages = [rank if chunk == 0 else 2 * ranks - 1 - rank for _, chunk, _ in row[head[rank]]]
                members = list(zip(row[head[rank]], stages, strict=True))
                needs = [need for (kind, _, mb), stage in members for need in needs_of(kind, stage, mb, ranks)]
                if any(need not in done for need in needs):
                    break
                free[rank] = max([free[rank], *(done[need] for need in needs)])
                free[rank] += sum(took[kind] for (kind, _, _), _ in members)
                for (kind, _, mb), stage in members:
                    done["F" if kind == "F" else "B" if kind in "BI" else "W", stage, mb] = free[rank]
                head[rank] += 1
                moved = True
    return max(free) if head == [len(row) for row in rows] else None


def needs_of(kind: str, stage: int, mb: int, ranks: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", stage - 1, mb)] if stage else []
    if kind == "W":
        return [("B", stage, mb)]
    return [("F", stage, mb), *([("B", stage + 1, mb)] if stage < 2 * ranks - 1 else [])]


def held(row: Blocks) -> int:
    """Return the most chunks held as the paper counts: at ends of blocks, until the input's gradient is there."""
    most = now = 0
    for block in row:
        now += sum(kind == "F" for kind, _, _ in block) - sum(kind in "BI" for kind, _, _ in block)
        most = max(most, now)
    return most


UNIT = {"F": 1, "B": 2, "I": 1, "W": 1}


@pytest.mark.parametrize(("p", "m"), [*SIZES, (1, 2), (3, 8), (5, 14), (5, 40), (6, 17)])
def test_the_table_is_the_generator_s(p: int, m: int) -> None:
    table = made(p, m)

    assert [blocks_of(table, rank) for rank in range(p)] == [written(p, m, rank) for rank in range(p)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_in_unit_times_it_takes_6m_and_p_minus_1_and_holds_3p_chunks(p: int, m: int) -> None:
    rows = [blocks_of(made(p, m), rank) for rank in range(p)]

    assert played(rows, UNIT) == 6 * m + p - 1
    assert [held(row) for row in rows] == [3 * p] * p
    for rank, row in enumerate(rows):
        exposed = [block for block in row if {kind for kind, _, _ in block} == {"F"}]
        assert sum(map(len, exposed)) == 2 * p + 1 + rank


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_lean_warm_up_holds_2p_plus_1_chunks_and_idles_three_times_as_long(p: int, m: int) -> None:
    rows = [blocks_of(made(p, m, warm_up="lean"), rank) for rank in range(p)]

    assert played(rows, UNIT) == 6 * m + 3 * (p - 1)
    assert [held(row) for row in rows] == [2 * p + 1] * p
    for row in rows:
        assert sum(block[0][0] == "F" for block in row if len(block) == 1) == 2 * p + 1


def test_pairs_are_of_one_chunk_with_the_forward_ahead() -> None:
    for rank in range(4):
        for block in blocks_of(made(4, 20), rank):
            if {kind for kind, _, _ in block} & {"B", "I"} and len(block) > 1:
                (_, chunk, ahead), (_, other, behind) = block
                assert chunk == other
                assert ahead > behind


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_below_3p_minus_1_microbatches_the_steps_make_no_schedule(p: int) -> None:
    for m in range(2 * p, 3 * p + 2):
        try:
            finished = played([written(p, m, rank) for rank in range(p)], UNIT)
        except IndexError:  # a weight gradient before its backward
            finished = None
        assert (finished is None) == (m < 3 * p - 1 and p > 1), (p, m)


@pytest.mark.parametrize("warm_up", ["full", "lean"])
def test_every_size_makes_a_table_with_the_stated_figures(warm_up: str) -> None:
    few, copied = {"warm_up": warm_up}, {"warm_up": warm_up, "offload_warm_up": 0.3, "offload_steady": 1.0}

    assert_schedule_family(
        OFFER, sizes=grid(ranks=(1, 2, 3, 4, 5, 8), microbatches=(*range(2, 12), 15, 22, 23, 24), options=few)
    )
    assert_schedule_family(
        OFFER,
        sizes=grid(ranks=(1, 2, 3, 5), microbatches=(*range(2, 10), 13, 14, 15), chunks=(2,), options=copied),
        growth=False,
    )
