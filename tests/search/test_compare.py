"""Schedules side by side: what each level says, who ranks where, and who cannot run."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_schedules import small_registry

from pptrace.api import compare
from pptrace.errors import ConfigError, PluginError, PptraceError, TableError

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.search.compare import Comparison

OVERHEAD = {"name": "hockney", "bandwidth": "1 GB/s", "overhead": "2 ms"}
COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 GiB", "capacity": "3 GiB"}


def compared(schedules: str, **values: Any) -> Comparison:
    given: dict[str, Any] = {"pp": 2, "microbatches": 4} | values
    return compare(schedules=schedules, registry=small_registry(), **given)


@given(ranks=st.integers(1, 5), microbatches=st.integers(1, 8))
def test_the_levels_are_those_of_the_closed_forms(ranks: int, microbatches: int) -> None:
    eager, lumped = compared("eager,lumped", pp=ranks, microbatches=microbatches).rows

    assert eager.levels
    assert lumped.levels
    assert eager.levels.formula == eager.levels.table == Fraction(ranks - 1, microbatches + ranks - 1)
    assert lumped.levels.formula is None
    assert lumped.levels.table == lumped.levels.run.metrics.bubble == Fraction(ranks - 1, ranks)
    faster = ranks > 1 and microbatches > 1
    assert (eager.simulated_rank, lumped.simulated_rank) == ((1, 2) if faster else (1, 1))
    assert (eager.formula_rank, lumped.formula_rank) == (1, None)


def test_a_formula_for_other_sizes_is_none() -> None:
    rows = compared("quiet,eager").rows

    assert [row.formula_rank for row in rows] == [None, 1]
    assert [row.table_move for row in rows] == [0, 0]
    assert rows[0].levels
    assert rows[0].levels.run.to_dict()["formula"] is None


def test_rank_changes_are_shown_from_level_to_level() -> None:
    """Where a message costs more to launch than it is work, one large message beats many small ones."""
    rows = compared("eager,lumped,even", network=OVERHEAD, costs=COSTS, p2p="sender-blocking").rows

    assert [row.formula_rank for row in rows] == [2, None, 1]
    assert [row.table_rank for row in rows] == [1, 3, 1]
    assert [row.simulated_rank for row in rows] == [2, 1, 2]
    assert [row.table_move for row in rows] == [1, 0, 0]
    assert [row.simulated_move for row in rows] == [-1, 2, -1]


def test_the_text_is_a_table_with_its_marks_explained() -> None:
    comparison = compared(
        "eager,lumped,even,even:microbatches=3", network=OVERHEAD, costs=COSTS, p2p="sender-blocking"
    )

    assert str(comparison).splitlines() == [
        "table costs: 4 microbatches",
        "pp 2; network hockney, p2p sender-blocking",
        "",
        "                     formula       table           simulated",
        "schedule              bubble  #   bubble  #             idle   step  #        slower     peak",
        "eager                 20.00%  #2  20.00%  #1 (+1)     61.29%  31 ms  #2 (-1)    +11%  4 GiB !",
        "lumped                     -  #-  50.00%  #3          57.14%  28 ms  #1 (+2)       -  4 GiB !",
        "even                  ~0.00%  #1  20.00%  #1          61.29%  31 ms  #2 (-1)    +11%  4 GiB !",
        "even:microbatches=3  cannot run: batch.microbatches: 3 is odd; nearest that work: 2 or 4",
        "",
        "#: place by bubble, or by step time in the simulation; ties share a place",
        "(+1), (-1): places gained or lost from formula to table, or from table to simulation",
        "~: approximate formula",
        "lumped runs with parts 1",
        "!: more than the device has, 3 GiB",
        "fastest: lumped; eager is 10.71% slower; none fits its device's memory",
    ]


def test_the_fastest_that_fits_is_named_beside_one_that_does_not() -> None:
    costs = COSTS | {"activation": "1 GiB"}

    text = str(compared("eager,eager:microbatches=2:costs.forward=9 ms", costs=costs))

    assert text.splitlines()[-1].startswith("fastest: eager; ")
    assert "; of those that fit: eager:microbatches=2:costs.forward=9 ms" in text


def test_steps_of_different_work_are_pointed_out() -> None:
    text = str(compared("eager,chunky", costs=COSTS))

    assert "steps do not compute the same: chunky 2 times the work of eager; costs are per stage" in text
    assert "do not compute the same" not in str(compared("eager,chunky"))


def test_chunks_are_for_schedules_that_take_them() -> None:
    eager, chunky, own = compared("eager,chunky,chunky:vp=2", vp=2).rows

    assert eager.levels
    assert eager.levels.run.prepared.schedule.stages == 2
    assert chunky.levels
    assert chunky.levels.run.prepared.schedule.stages == 4
    assert own.reason == ""


def test_chunks_that_an_entry_asks_for_are_kept() -> None:
    rows = compared("eager,eager:vp=2").rows

    assert rows[1].levels is None
    assert rows[1].reason == "parallel.vp: 2 chunks are not one; nearest that work: 1"


def test_a_table_and_a_function_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def make(ranks, microbatches):\n"
        "    kinds = [[f'{kind}{m}' for kind in 'FB' for m in range(microbatches)] for _ in range(ranks)]\n"
        "    return [[f'{rank}{cell}' for cell in row] for rank, row in enumerate(kinds)]\n"
    )
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")

    rows = compared("./mine.py:make,table.csv,eager:microbatches=2", microbatches=2).rows

    assert [row.simulated_rank for row in rows] == [1, 1, 1]
    assert [row.formula_rank for row in rows] == [None, None, 1]


def test_a_table_of_other_sizes_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0B0\n1F0,1B0\n")

    assert compared("eager,table.csv").rows[1].reason == (
        "batch.microbatches: table.csv has 1 microbatches, not 4: remove the key"
    )


def test_csv_and_json_hold_a_row_per_schedule_with_the_same_columns(tmp_path: Path) -> None:
    comparison = compared("even:microbatches=3,eager,lumped")

    rows = list(csv.DictReader(io.StringIO(comparison.save(tmp_path / "rows.csv").read_text())))
    document = json.loads(json.dumps(comparison.to_dict()))

    assert [row["schedule"] for row in rows] == ["even:microbatches=3", "eager", "lumped"]
    assert rows[0]["refused"] == "batch.microbatches: 3 is odd; nearest that work: 2 or 4"
    assert rows[0]["step_ns"] == rows[0]["simulated_rank"] == ""
    assert {key: rows[1][key] for key in ("pp", "microbatches", "step_ns", "table_rank", "simulated_rank")} == {
        "pp": "2", "microbatches": "4", "step_ns": "15000000", "table_rank": "1", "simulated_rank": "1",
    }  # fmt: skip
    assert [set(row) - {"configuration"} for row in document["rows"]] == [set(rows[0])] * 3
    assert document["rows"][1]["formula_bubble"] == 0.2
    assert document["rows"][2]["formula_bubble"] is None
    assert document["rows"][2]["configuration"]["schedule"]["name"] == "lumped"
    assert document["rows"][0]["configuration"] is None


def test_options_of_a_schedule_stand_in_its_entry() -> None:
    one, two = compared("lumped,lumped:parts=2").rows

    assert one.levels
    assert two.levels
    assert one.levels.run.metrics.step_ns > two.levels.run.metrics.step_ns


def test_what_all_refuse_is_one_error() -> None:
    with pytest.raises(PptraceError, match=r"^parallel.pp: .*missing"):
        compare(schedules="eager,lumped", microbatches=4, registry=small_registry())
    with pytest.raises(PptraceError, match=r"no schedule can run: even: .*3 is odd.*; eager:vp=2: .*not one"):
        compared("even,eager:vp=2", microbatches=3)


@pytest.mark.parametrize(
    ("schedules", "error", "line"),
    [
        ("eagre,even", PluginError, "schedules eagre: .* named 'eagre' .did you mean 'eager'"),
        ("even,./none.py:make", PluginError, r"schedules ./none.py:make: .*cannot read ./none.py"),
        ("even,none.csv", TableError, "none.csv: "),
        ("lumped:part=2,eager", ConfigError, "schedules lumped:part=2: .*unknown key .did you mean 'parts'"),
        ("eager:waves=2,even", ConfigError, "schedules eager:waves=2: .*eager takes no options"),
        ("eager:vp=two", ConfigError, "schedules eager:vp=two: parallel.vp: must be a whole number"),
        ([], ConfigError, "no schedule to compare"),
    ],
)
def test_what_no_sizes_could_mend_is_said_before_anything_runs(
    schedules: str, error: type[PptraceError], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pptrace.search.basis.Basis.run", None)

    with pytest.raises(error, match=line):
        compared(schedules)


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(ConfigError, match=r"schedule: no such argument"):
        compared("eager", schedule="even")


@pytest.mark.parametrize(("share", "ties"), [(0.1, ()), (10, (("eager", "lumped"),))])
def test_steps_nearer_than_they_are_known_are_a_tie(share: float, ties: tuple[tuple[str, ...], ...]) -> None:
    known = compared("eager,lumped", costs={**COSTS, "uncertainty": share}, microbatches=32)

    assert known.ties == ties
    assert known.to_dict()["uncertainty"] == share
    assert ("ties within that: eager and lumped" in known.summary()) == bool(ties)
    first, second = sorted(row.levels.run.metrics.step_ns for row in known.rows if row.levels)
    apart = f"{second / first - 1:.2%}"
    tie = f"eager and lumped, a tie ({apart} difference, uncertainty about ±1000.0%)"
    said = tie if ties else f"eager; lumped is {apart} slower"
    assert f"\nfastest: {said}; none fits its device's memory" in known.summary()
    plain = compared("eager,lumped", costs=COSTS)
    assert plain.uncertainty == 0
    assert "ties" not in plain.to_dict()
    assert "uncertainty" not in plain.summary()
