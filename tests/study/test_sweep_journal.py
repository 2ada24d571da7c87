"""A journal holds every finished row, whatever byte it was cut off at."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import OutputError
from pptrace.study.journal import Journal, journal_path, read_journal

if TYPE_CHECKING:
    from pathlib import Path

ROWS: list[dict[str, Any]] = [
    {"point": f"p{index}", "configuration": "c", "pp": index, "idle": index / 3, "name": "ä,\"'\n", "mfu": None}
    for index in range(4)
]


def written(path: Path, rows: list[dict[str, Any]] = ROWS, *, fresh: bool = False) -> bytes:
    with Journal(path, fresh=fresh) as journal:
        for row in rows:
            journal.append(row)
    return path.read_bytes() if path.exists() else b""


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "r.csv")
    written(path)

    assert path.name == "r.csv.journal"
    assert read_journal(path).rows == ROWS


@given(cut=st.integers(0, 400))
def test_a_journal_cut_at_any_byte_keeps_the_rows_before_it_and_goes_on(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    whole = written(path)
    path.write_bytes(whole[:cut])
    left = read_journal(path).rows

    written(path, ROWS[len(left) :])

    assert left == ROWS[: len(left)]
    assert path.read_bytes() == whole
    assert len(left) == max(whole[:cut].count(b"\n") - 1, 0)


@pytest.mark.parametrize("torn", [b'{"point": "p', b"\0\0\0\0\n", b"[1]\n", b'{"no": "point"}\n'])
def test_what_is_no_row_ends_a_journal(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "j"
    whole = written(path, ROWS[:2])
    path.write_bytes(whole + torn + whole.splitlines(keepends=True)[1])

    assert read_journal(path).rows == ROWS[:2]
    assert written(path, ROWS[2:]) == written(tmp_path / "other")


def test_a_journal_without_a_row_goes(tmp_path: Path) -> None:
    written(tmp_path / "j", [])

    assert list(tmp_path.iterdir()) == []


def test_a_fresh_journal_forgets_and_is_remembered_as_fresh(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, ROWS[:3])
    written(path, ROWS[3:], fresh=True)
    written(path, ROWS[:1])

    assert read_journal(path).fresh
    assert read_journal(path).rows == [ROWS[3], ROWS[0]]


@pytest.mark.parametrize("content", [b"pp,idle\n4,0.1\n", b"{}\n", b"\x89PNG"])
def test_another_file_of_that_name_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)

    for attempt in (lambda: read_journal(path), lambda: Journal(path), lambda: Journal(path, fresh=True)):
        with pytest.raises(OutputError, match="is no journal of pptrace sweep"):
            attempt()
    assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"j: cannot be written: No such file"):
        Journal(tmp_path / "missing" / "j")


def test_two_sweeps_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    code = f"""
from pathlib import Path
from pptrace.study.journal import Journal
try:
    Journal(Path({str(path)!r}))
except Exception as error:
    print(error)
"""
    with Journal(path) as journal:
        journal.append(ROWS[0])
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "another sweep is writing here" in told
    assert read_journal(path).rows == ROWS[:1]
