"""Nsight Systems: ranks of several processes in one database, and databases of other versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import TraceError
from pptrace_profilers.naming_rules import BUILT_IN
from pptrace_profilers.nsys import read_nsys

if TYPE_CHECKING:
    from pathlib import Path


def change(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def test_times_count_from_the_epoch_where_the_session_says_when_it_began(pipeline: Any, tmp_path: Path) -> None:
    whole = read_nsys(pipeline.nsys(tmp_path / "a.sqlite"), BUILT_IN)[0]
    without = read_nsys(pipeline.nsys(tmp_path / "b.sqlite", drop="TARGET_INFO_SESSION_START_TIME"), BUILT_IN)[0]

    assert whole.executions.start_ns[0] - without.executions.start_ns[0] == 1_790_000_000 * 10**9
    assert whole.origin_ns is None


def test_ranges_may_carry_their_text_themselves(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite"),
        "UPDATE NVTX_EVENTS SET text = (SELECT value FROM StringIds WHERE id = textId), textId = NULL",
    )

    assert [len(one.executions) for one in read_nsys(path, BUILT_IN)] == [8, 8]


def test_what_pytorch_writes_behind_a_ranges_name_is_none_of_it(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite"),
        "UPDATE StringIds SET value = value || ', op_id = 12, sizes = [[1]]' WHERE id > 100",
    )

    assert [len(one.executions) for one in read_nsys(path, BUILT_IN)] == [8, 8]


def test_older_versions_lack_columns_that_are_only_wanted(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite"),
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN text",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN eventType",
    )

    assert [len(one.executions) for one in read_nsys(path, BUILT_IN)] == [8, 8]


def test_a_schema_of_other_bytes_than_text_is_refused_in_sqlite_s_words(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.nsys(tmp_path / "a.sqlite")
    path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE TABLE NVTX \xd7\xd6\x8f\xb7TS")
    )

    with pytest.raises(TraceError, match=r"a\.sqlite: is not a complete SQLite database: malformed"):
        read_nsys(path, BUILT_IN)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS value FROM c"
MADE_UP = {
    "rows": (
        f"CREATE VIEW endless AS {ENDLESS}",
        "CREATE VIRTUAL TABLE StringIds USING fts5(id, value, content='endless', content_rowid='id')",
    ),
    "texts": (
        "CREATE TABLE StringIds (id INTEGER)",
        f"CREATE VIEW some AS {ENDLESS} LIMIT 200",
        "INSERT INTO StringIds SELECT id FROM some",
        f"ALTER TABLE StringIds ADD COLUMN value TEXT DEFAULT '{'x' * 500_000}'",
    ),
    "a text": (
        "CREATE TABLE StringIds (id INTEGER, value TEXT)",
        "INSERT INTO StringIds VALUES (1, hex(zeroblob(1 << 20)))",
    ),
}


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("rows", "has no table StringIds"),
        ("texts", "table StringIds has more text than its file"),
        ("a text", "is not a complete SQLite database: string or blob too big"),
    ],
)
def test_what_a_small_database_makes_up_without_end_is_refused(
    pipeline: Any, what: str, told: str, tmp_path: Path
) -> None:
    path = change(pipeline.nsys(tmp_path / "a.sqlite", drop="StringIds"), *MADE_UP[what])

    with pytest.raises(TraceError, match=told):
        read_nsys(path, BUILT_IN)


def test_ranks_come_from_mpi(pipeline: Any, tmp_path: Path) -> None:
    path = change(pipeline.nsys(tmp_path / "a.sqlite"), "UPDATE MPI_RANKS SET rank = 6 + rank")

    assert [one.rank for one in read_nsys(path, BUILT_IN)] == [6, 7]


def test_ranks_come_from_ranges_that_name_them(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite", mpi=False),
        "INSERT INTO NVTX_EVENTS SELECT 0, NULL, 34, 'rank 1', NULL, min(globalTid) FROM NVTX_EVENTS",
        "INSERT INTO NVTX_EVENTS SELECT 0, NULL, 34, 'Rank: 0', NULL, max(globalTid) FROM NVTX_EVENTS",
    )

    assert [one.rank for one in read_nsys(path, BUILT_IN)] == [1, 0]


def test_ranks_are_gpus_where_each_process_has_its_own_and_that_is_said(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite", mpi=False),
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = (globalPid >> 24) % 2",
    )

    found = read_nsys(path, BUILT_IN)

    assert [one.rank for one in found] == [0, 1]
    assert "ranks of its 2 processes are taken from their GPUs" in found[0].notes[0]


def test_processes_that_share_a_gpu_and_say_nothing_are_refused(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.nsys(tmp_path / "a.sqlite", mpi=False)

    with pytest.raises(TraceError, match="holds 2 processes and does not say their ranks: push an NVTX range"):
        read_nsys(path, BUILT_IN)


@pytest.mark.parametrize(("name", "rank"), [("run_rank3.sqlite", 3), ("run.sqlite", 5)])
def test_one_processs_rank_comes_from_the_files_name_or_the_environment(
    name: str, rank: int, pipeline: Any, tmp_path: Path
) -> None:
    path = change(
        pipeline.nsys(tmp_path / name, mpi=False),
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid > 900 * 16777216 + 72057594037927936",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('RANK', '5')",
    )

    assert [one.rank for one in read_nsys(path, BUILT_IN)] == [rank]


def test_copies_and_fills_are_operations_too(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite"),
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY AS "
        "SELECT *, 1 AS copyKind FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1",
    )

    operations = read_nsys(path, BUILT_IN)[0].operations

    assert operations is not None
    names = [operations.names[number] for number in operations.name.tolist()]
    assert sorted(set(names)) == [
        "Memcpy HtoD",
        "Memset",
        "gemm",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    ]


def test_without_launches_kernels_belong_to_nothing_and_that_is_said(pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.nsys(tmp_path / "a.sqlite", drop="CUPTI_ACTIVITY_KIND_RUNTIME")

    found = read_nsys(path, BUILT_IN)[0]

    assert "a.sqlite has no CUPTI_ACTIVITY_KIND_RUNTIME: its kernels belong to no action" in found.notes
    assert sum(one.count for one in found.unattributed) == 8


TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "MPI_RANKS")
WRONG = {
    "no strings": (
        ["DROP TABLE StringIds"],
        "has no table StringIds, so it is not an export of Nsight Systems; its tables: CUPTI",
    ),
    "neither kernels nor ranges": (
        ["DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "DROP TABLE NVTX_EVENTS"],
        "has neither CUPTI_ACTIVITY_KIND_KERNEL nor NVTX_EVENTS: record with nsys profile --trace=cuda,nvtx",
    ),
    "a needed column": (
        ["ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId"],
        "table CUPTI_ACTIVITY_KIND_KERNEL has no column streamId: exported",
    ),
    "no rows": ([f"DELETE FROM {table}" for table in TABLES], "holds no kernel and no NVTX range"),  # noqa: S608 - our own names
    "no tables": (
        [f"DROP TABLE {table}" for table in ("StringIds", "TARGET_INFO_SESSION_START_TIME", *TABLES)],
        "its tables: none",
    ),
}


@pytest.mark.parametrize(("statements", "message"), WRONG.values(), ids=WRONG.keys())
def test_databases_of_other_versions_are_one_line(
    statements: list[str], message: str, pipeline: Any, tmp_path: Path
) -> None:
    path = change(pipeline.nsys(tmp_path / "a.sqlite"), *statements)

    with pytest.raises(TraceError, match=message) as caught:
        read_nsys(path, BUILT_IN)

    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("length", [0, 16, 100, 5000])
def test_a_database_that_was_cut_is_one_line(length: int, pipeline: Any, tmp_path: Path) -> None:
    path = pipeline.nsys(tmp_path / "a.sqlite")
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(TraceError):
        read_nsys(path, BUILT_IN)


def test_rows_without_a_time_or_with_a_negative_length_are_counted(pipeline: Any, tmp_path: Path) -> None:
    path = change(
        pipeline.nsys(tmp_path / "a.sqlite"),
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE correlationId = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = (1 << 63) - 1, end = (1 << 63) - 1 WHERE correlationId = 3",
    )

    found = read_nsys(path, BUILT_IN)[0]

    assert "a.sqlite: 3 events have no time, or a negative or infinite one: skipped" in found.notes


def test_reading_leaves_no_file_beside_the_database(pipeline: Any, tmp_path: Path) -> None:
    read_nsys(pipeline.nsys(tmp_path / "a b?.sqlite"), BUILT_IN)

    assert [path.name for path in tmp_path.iterdir()] == ["a b?.sqlite"]


def test_more_rows_than_a_trace_may_have_events_are_refused(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_MOST_EVENTS", "30")

    with pytest.raises(TraceError, match="holds more than 30 events: set PPTRACE_MOST_EVENTS to allow more"):
        read_nsys(pipeline.nsys(tmp_path / "a.sqlite"), BUILT_IN)
