"""A journal holds every finished row, and no row that it was damaged in."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import OutputError
from pptrace.search.runner import Journal, journal_path

if TYPE_CHECKING:
    from pathlib import Path

ROWS: list[dict[str, Any]] = [
    {"point": f"p{index}", "configuration": "c", "pp": index, "idle": index / 3, "name": "ä,\"'\n", "mfu": None}
    for index in range(40)
]


def written(path: Path, rows: list[dict[str, Any]] = ROWS, *, fresh: bool = False) -> bytes:
    with Journal(path, fresh=fresh) as journal:
        for row in rows:
            journal.append(row)
    return path.read_bytes() if path.exists() else b""


def rows_in(path: Path) -> list[dict[str, Any]]:
    with Journal(path) as journal:
        return journal.rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a journal with all rows."""
    return written(tmp_path_factory.mktemp("whole") / "j")


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "r.csv")
    written(path, ROWS[:3])
    written(path, ROWS[3:])

    assert path.name == "r.csv.journal"
    assert rows_in(path) == ROWS
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE finished SET content = replace(content, '\"pp\":2', '\"pp\":7') WHERE rowid = 3",
        "UPDATE finished SET content = zeroblob(50) WHERE rowid = 3",
        "UPDATE finished SET content = NULL WHERE rowid = 3",
        "UPDATE finished SET content = CAST(x'ff' AS TEXT), digest = 7 WHERE rowid = 3",
        "UPDATE finished SET digest = NULL WHERE rowid = 3",
        "DELETE FROM finished WHERE rowid = 3",
    ],
)
def test_a_row_with_another_checksum_is_dropped_and_can_be_written_again(
    tmp_path: Path, whole: bytes, damage: str
) -> None:
    path = tmp_path / "j"
    path.write_bytes(whole)
    with sqlite3.connect(path) as database:
        database.execute(damage)
    database.close()

    assert rows_in(path) == [*ROWS[:2], *ROWS[3:]]
    written(path, [ROWS[2]])
    assert rows_in(path) == [*ROWS[:2], *ROWS[3:], ROWS[2]]


@pytest.mark.parametrize(
    "content",
    [
        b"[]", b"7", b"null", b"{}", b'{"point": 7}', b'{"point": "p", "step_ns": 1e999}',
        b'{"point": "p", "idle": NaN}', b"[" * 100_000, b'{"a":' * 100_000, b"\xff",
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_content_that_is_no_row_is_dropped_whatever_its_checksum(
    tmp_path: Path, whole: bytes, content: bytes
) -> None:
    path = tmp_path / "j"
    path.write_bytes(whole)
    with sqlite3.connect(path) as database:
        row = (content, sha256(content).digest())
        database.execute("UPDATE finished SET content = ?, digest = ? WHERE rowid = 3", row)
    database.close()

    assert rows_in(path) == [*ROWS[:2], *ROWS[3:]]


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """Return a sort of damage, where it is as a part of 2 ** 16, and bytes."""
    sort = draw(st.sampled_from(["cut", "overwritten", "header", "alone"]))
    return sort, draw(st.integers(0, 2**16 - 1)), draw(st.binary(min_size=1, max_size=300))


@pytest.mark.filterwarnings("ignore:.* is damaged and replaced:RuntimeWarning")
@given(damage=damages())
def test_a_damaged_journal_holds_only_rows_that_were_written_and_goes_on(
    whole: bytes, damage: tuple[str, int, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    sort, place, other = damage
    at = place * len(whole) >> 16
    at = at % 100 if sort == "header" else at
    left = {"cut": whole[:at], "alone": other}.get(sort, whole[:at] + other + whole[at + len(other) :])
    path = tmp_path_factory.mktemp("journal") / "j"
    path.write_bytes(left)

    rows = rows_in(path)
    missing = [row for row in ROWS if row not in rows]
    written(path, missing)

    assert all(row in ROWS for row in rows)
    assert rows_in(path) == rows + missing


@pytest.mark.parametrize(
    "content", [b'{"pptrace-sweep":1}\n{"point":"p0"}\n', b"\x89PNG", b"SQLite format 3\0" * 9]
)
def test_a_file_that_is_no_journal_is_replaced_with_one_warning(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)

    with pytest.warns(RuntimeWarning) as warned:
        written(path)

    assert [str(one.message) for one in warned] == [f"{path}: is damaged and replaced: its rows run again"]
    assert rows_in(path) == ROWS


def test_a_database_of_another_program_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIEW finished AS SELECT 1 AS content, 2 AS digest")
    database.close()

    with pytest.warns(RuntimeWarning, match="is damaged and replaced"):
        assert rows_in(path) == []


def test_a_schema_that_is_no_text_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.csv.journal"
    with Journal(path) as journal:
        journal.append({"point": "a"})
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE \x8fABLE"))

    with pytest.warns(RuntimeWarning, match="is damaged and replaced"), Journal(path) as journal:
        assert journal.rows == []


def test_a_journal_without_a_row_goes(tmp_path: Path) -> None:
    written(tmp_path / "j", [])

    assert list(tmp_path.iterdir()) == []


def test_a_fresh_journal_forgets_and_is_remembered_as_fresh(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, ROWS[:3])
    written(path, ROWS[3:4], fresh=True)
    written(path, ROWS[:1])

    with Journal(path) as journal:
        assert journal.fresh
        assert journal.rows == [ROWS[3], ROWS[0]]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"j: cannot be written: No such file"):
        Journal(tmp_path / "missing" / "j")


def in_another_process(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    head = f"from pathlib import Path\nfrom pptrace.search.runner import Journal\npath = Path({str(path)!r})\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)


def test_two_sweeps_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    code = """
for fresh in (False, True):
    try:
        Journal(path, fresh=fresh)
    except Exception as error:
        print(error)
"""
    with Journal(path) as journal:
        journal.append(ROWS[0])
        process = in_another_process(code, path)
        journal.append(ROWS[1])

    assert (
        process.stdout.splitlines()
        == [f"{path}: another sweep is writing here: wait for it, or name another file with -o"] * 2
    )
    assert rows_in(path) == ROWS[:2]


def test_a_process_that_is_killed_leaves_the_rows_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "j"
    code = f"""
import os
journal = Journal(path)
for row in {ROWS!r}:
    journal.append(row)
os.kill(os.getpid(), {signal.SIGKILL:d})
"""

    assert in_another_process(code, path).returncode == -signal.SIGKILL
    assert rows_in(path) == ROWS
    assert list(tmp_path.iterdir()) == [path]
