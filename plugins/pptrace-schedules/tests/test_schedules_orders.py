"""The tables are those that PyTorch 2.13 and 2.15 make, and read like the papers' diagrams."""

from __future__ import annotations

import csv
import json
import re
import runpy
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.schedule import Schedule
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}
TWO_CHUNKS = dict.fromkeys(
    ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min", "combined-1f1b"), 2
)
WIDE = json.loads((Path(__file__).parent / "fixtures" / "wide.json").read_text(encoding="utf-8"))
TABLES = sorted((Path(__file__).parent / "fixtures").glob("*.csv"))

SPLIT = {"zb-h1", "zb-v", "interleaved-zb"}
"""Schedules whose fixed orders are PyTorch's."""


def built(name: str, *, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    schedule = OFFERS[name].build(
        ScheduleRequest(
            ranks=ranks,
            microbatches=microbatches,
            chunks=chunks,
            options={"order": "fixed"} if name in SPLIT else {},
        )
    )
    assert isinstance(schedule, Schedule)
    return schedule


def sizes_of(path: Path) -> tuple[str, ...]:
    """Return the schedule, ranks, microbatches and chunks of a file."""
    match = re.fullmatch(r"(.+)-p(\d+)-m(\d+)-v(\d+)", path.stem)
    assert match is not None
    return match.groups()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_equals_pytorchs(path: Path) -> None:
    name, *sizes = sizes_of(path)
    ranks, microbatches, chunks = map(int, sizes)
    with path.open(newline="", encoding="utf-8") as file:
        expected = list(csv.reader(file))

    rows = built(name, ranks=ranks, microbatches=microbatches, chunks=chunks).rows()

    wrong_in_torch = 1 if name == "1f1b" else 0
    assert len(rows) == len(expected)
    assert rows[: ranks - wrong_in_torch] == expected[: ranks - wrong_in_torch]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_installed_pytorch_makes_these_tables(path: Path) -> None:
    pytest.importorskip("torch")
    generate = runpy.run_path(str(path.with_name("generate.py")))
    name, *sizes = sizes_of(path)

    made = generate["table"](name, *map(int, sizes))

    with path.open(newline="", encoding="utf-8") as file:
        assert made == list(csv.reader(file))


@pytest.mark.parametrize("name", WIDE)
def test_tables_of_many_sizes_equal_pytorchs(name: str) -> None:
    found = sha256()
    for ranks, microbatches, chunks in WIDE[name]["sizes"]:
        rows = built(name, ranks=ranks, microbatches=microbatches, chunks=chunks).rows()
        compared = [*rows[:-1], []] if name == "1f1b" else rows
        found.update("\n".join(",".join(row) for row in compared).encode())

    assert found.hexdigest() == WIDE[name]["sha256"]


def test_every_schedule_that_pytorch_has_too_has_tables_to_compare_with() -> None:
    assert {path.stem.rsplit("-", 3)[0] for path in TABLES} == set(OFFERS) - {
        "bitpipe",
        "chimera",
        "combined-1f1b",
        "dualpipe",
        "eager-1f1b",
        "hanayo",
        "helixpipe",
        "optimus",
        "paci",
        "pipedream-2bw",
        "roundpipe",
        "seq-1f1b",
        "vocab-1f1b",
        "zb-h2",
        "v-half",
        "v-min",
    }


@pytest.mark.parametrize(
    ("name", "chunks", "rank", "row"),
    [
        ("gpipe", 1, 1, "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3"),
        ("1f1b", 1, 0, "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"),
        ("1f1b", 1, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"),
        ("interleaved-1f1b", 2, 1, "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"),
        ("looped-bfs", 2, 0, "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 2B3 2B2 2B1 2B0 0B3 0B2 0B1 0B0"),
    ],
)
def test_a_row_reads_as_in_the_paper(name: str, chunks: int, rank: int, row: str) -> None:
    assert built(name, ranks=2, microbatches=4, chunks=chunks).rows()[rank] == row.split()


def test_bitpipe_reads_as_in_the_figure_of_its_authors() -> None:
    """Figure ``BitPipe-v.svg``: four ranks, microbatches 0 and 1 down and 2 and 3 up."""
    rows = built("bitpipe", ranks=4, microbatches=4, chunks=2).rows()

    assert " ".join(rows[0]) == "0F0 0F1 3F2 4F2 3F3 4F3 7F0 7B0 7F1 7B1 4B2 3B2 4B3 3B3 0B0 0B1"
    assert " ".join(rows[1]) == "1F0 2F2 1F1 2F3 5F2 6F0 5F3 6F1 6B0 5B2 6B1 5B3 2B2 1B0 2B3 1B1"
    assert " ".join(rows[2]) == "1F2 2F0 1F3 2F1 5F0 6F2 5F1 6F3 6B2 5B0 6B3 5B1 2B0 1B2 2B1 1B3"
    assert " ".join(rows[3]) == "0F2 0F3 3F0 4F0 3F1 4F1 7F2 7B2 7F3 7B3 4B0 3B0 4B1 3B1 0B2 0B3"


@pytest.mark.parametrize("name", OFFERS)
def test_a_table_is_columns_of_the_documented_types(name: str) -> None:
    schedule = built(name, ranks=4, microbatches=8, chunks=TWO_CHUNKS.get(name, 1))

    assert schedule.kind.dtype == np.int8
    assert {schedule.stage.dtype, schedule.microbatch.dtype, schedule.row_ptr.dtype} == {np.dtype(np.int32)}
    assert all(column.flags.c_contiguous for column in (schedule.kind, schedule.stage, schedule.microbatch))
