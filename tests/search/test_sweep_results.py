"""Tables hold typed cells, read back as they were, and the same rows give the same bytes."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import OutputError, PptraceError
from pptrace.search.sweep import columns_of, read_table, write_table

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = ["csv", "parquet"]
OWN = {"error": None, "pptrace": "0.1.0", "plugins": "a 1", "over": "pp", "configuration": "1e5", "point": "12"}


@pytest.fixture(autouse=True)
def _parquet(request: pytest.FixtureRequest) -> None:
    if "parquet" in request.node.name:
        pytest.importorskip("pyarrow")


def back(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    write_table(path, path, columns_of(["pp"], rows), rows)
    return read_table(path)


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), min_size=1).filter(
    lambda text: text not in {"true", "false"} and not text.lstrip("-")[:1].isdigit()
)
COLUMNS = st.fixed_dictionaries({
    "pp": st.integers(-(2**63), 2**63 - 1),
    "a.flag": st.booleans(),
    "a.text": st.none() | TEXT,
    "step_ns": st.none() | st.integers(0, 2**62),
    "idle": st.none() | st.floats(allow_nan=False, allow_infinity=False),
})  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(rows=st.lists(COLUMNS, min_size=1, max_size=5))
def test_a_table_gives_its_rows_back(suffix: str, rows: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("table") / f"r.{suffix}"
    rows = [row | OWN for row in rows]

    assert back(path, rows) == rows


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_read_and_written_again_has_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    cells: list[Any] = [
        1,
        0.1,
        1e-07,
        1e22,
        math.pi,
        "1e5",
        "0x8",
        "08",
        "nan",
        "-",
        "a,b",
        '"q"',
        "two\nlines",
        True,
    ]
    rows = [{"pp": index, "a.x": str(cell), "idle": 0.5 * index} | OWN for index, cell in enumerate(cells)]
    path = tmp_path / f"r.{suffix}"
    read = back(path, rows)
    first = path.read_bytes()

    write_table(path, path, columns_of(["pp"], read), read)

    assert path.read_bytes() == first


def test_columns_are_axes_inputs_as_in_configurations_figures_and_what_tells_rows_apart() -> None:
    rows: list[Any] = [
        {
            "p2p.policy": "async",
            "network.name": "x",
            "network.b": 1,
            "parallel.pp": 2,
            "idle": 0.1,
            "pp": 2,
            **OWN,
        },
        {"network.a": 1, "network.name": "y", "model.preset": "m", "parallel.tp": 2, "idle": 0.1, "mfu": 0.2},
    ]

    assert columns_of(["pp"], rows) == [
        "pp", "model.preset", "parallel.pp", "parallel.tp", "network.name", "network.a", "network.b", "p2p.policy",
        "idle", "mfu", "error", "pptrace", "plugins", "over", "configuration", "point",
    ]  # fmt: skip
    assert columns_of(["pp"], rows[::-1]) == columns_of(["pp"], rows)


def test_parquet_has_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "r.parquet"
    rows: list[Any] = [
        {
            "pp": 2,
            "schedule": "a",
            "a.b": True,
            "step_ns": 5,
            "idle": 0.5,
            "a.mixed": 1,
            "mfu": None,
            "x_bytes": None,
        },
        {"pp": 4, "schedule": None, "a.b": None, "step_ns": None, "idle": None, "a.mixed": "b", "mfu": None},
    ]
    write_table(path, path, columns_of(["pp"], rows), [row | OWN for row in rows])

    schema = {field.name: str(field.type) for field in parquet.read_schema(path)}
    assert schema | {"error": "string", "point": "string"} == schema
    assert {key: schema[key] for key in rows[0]} == {
        "pp": "int64", "schedule": "string", "a.b": "bool", "step_ns": "int64", "idle": "double",
        "a.mixed": "string", "mfu": "double", "x_bytes": "int64",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", b"a,b\n1,2\n"),
        ("r.csv", b""),
        ("r.csv", b"\xff\xfe\0"),
        ("r.csv", b"error,pptrace,plugins,over,configuration,point\n,,,,,\n"),
        ("r.csv", b"error,pptrace,plugins,over,configuration,point\n,0.1\n"),
        ("r.csv", b"error,pptrace,plugins,over,configuration,point\n,0,,pp,c,p,more\n"),
        ("r.csv", b'error,pptrace,plugins,over,configuration,point\n,0,,pp,c,"p\n'),
        ("r.parquet", b"PAR1"),
        ("r.parquet", b"error,point\n"),
    ],
)
def test_another_table_is_distinguished(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path.write_bytes(content)

    with pytest.raises(OutputError, match=r"is not a table of pptrace sweep: .* --fresh"):
        read_table(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_that_is_there_twice_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"r.{suffix}"
    write_table(path, path, ["step_ns", "idle", *OWN, "step_ns"], [{"step_ns": 1, "idle": 0.5, **OWN}])

    with pytest.raises(OutputError, match=rf"r.{suffix}: has the column step_ns twice: .* --fresh"):
        read_table(path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(PptraceError, match=r"r.parquet: Parquet needs pyarrow: pip install pyarrow"):
        write_table(tmp_path / "r.parquet", tmp_path / "t", ["pp"], [{"pp": 1}])
