"""``show``, ``validate`` and ``convert``."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from framework_calls import Compute
from framework_programs_interleaved import megatron_interleaved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SWAPPED = "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n"
STUCK = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"
SWAPPED_ERROR = "bad.csv: row 2, column 1, cell '1B0': rank 1: 1B0 comes before 1F0: swap them"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"good.csv": GOOD, "bad.csv": SWAPPED, "stuck.csv": STUCK}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_is_drawn_as_plain_text_when_piped(pptrace: Pptrace) -> None:
    answer = pptrace("show", "good.csv")

    assert answer.code == 0
    assert answer.out.splitlines() == [
        "good.csv: 2 ranks, 2 microbatches, 9 slots, bubble 33.33%",
        "rank 0  F0 F1 .  .  B0=== .  B1===",
        "rank 1  .  F0 B0=== F1 B1=== .  .",
    ]


def test_a_missing_schedule_is_reported(pptrace: Pptrace) -> None:
    assert "Missing argument 'SCHEDULE'" in pptrace("show").complaint
    assert pptrace("show", "--schedule", "1f1b").complaint.startswith("No such option")


def test_an_invalid_table_is_drawn_with_its_cell_marked_and_named(pptrace: Pptrace) -> None:
    answer = pptrace("show", "bad.csv")

    assert answer.code == 2
    assert "[B0]" in answer.out
    assert answer.err.strip() == f"pptrace: {SWAPPED_ERROR}"


def test_a_function_in_a_file_is_drawn_and_its_flaw_too(pptrace: Pptrace, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "def make(ranks, microbatches):\n"
        "    return [[f'{r}{k}{u}' for k in 'BF' for u in range(microbatches)] for r in range(ranks)]\n"
    )

    answer = pptrace("show", "./mine.py:make", "--pp", 2, "--microbatches", 2)

    assert answer.code == 2
    assert "[B0]" in answer.out
    assert "comes before" in answer.err


def test_pictures_are_written_whole_or_not_at_all(pptrace: Pptrace, folder: Path) -> None:
    assert pptrace("show", "good.csv", "-o", "table.svg").code == 0
    assert (folder / "table.svg").read_text().startswith("<svg")
    assert ".svg, .png or .pdf" in pptrace("show", "good.csv", "-o", "table.gif").complaint
    assert "create it first" in pptrace("show", "good.csv", "-o", "nowhere/table.svg").complaint


def test_slots_beyond_the_width_go_below(pptrace: Pptrace) -> None:
    assert pptrace("show", "good.csv", "--width", 20).out.splitlines()[1:] == [
        "slots 0 to 3", "rank 0  F0 F1 .  .", "rank 1  .  F0 B0===",
        "slots 4 to 7", "rank 0  B0=== .  B1", "rank 1  F1 B1=== .",
        "slots 8 to 8", "rank 0  B1", "rank 1  .",
    ]  # fmt: skip
    assert pptrace("show", "good.csv", "--slots", "4:").out.splitlines()[1] == "rank 0  B0=== .  B1==="


def test_slots_beyond_what_a_screen_or_two_hold_are_counted(pptrace: Pptrace, folder: Path) -> None:
    (folder / "long.csv").write_text(
        ",".join(f"0F{microbatch},0B{microbatch}" for microbatch in range(500)) + "\n"
    )

    lines = pptrace("show", "long.csv", "--width", 80).out.splitlines()

    assert lines[-1] == "(slots 0 to 839 of 1500; see others with --slots FIRST:LAST, or all with -o FILE.svg)"
    assert len(lines) == 122


def test_a_rank_that_lacks_an_action_is_marked_and_the_action_named(pptrace: Pptrace, folder: Path) -> None:
    (folder / "short.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n")

    answer = pptrace("show", "short.csv")

    assert answer.code == 2
    assert answer.out.splitlines()[1:] == [
        "rank 0  F0 F1 .  .  B0=== B1===", "rank 1! .  F0 B0=== F1 .  .  .", "(rank 1! lacks 1B1)",
    ]  # fmt: skip
    assert answer.err.startswith("pptrace: short.csv: row 2: rank 1 lacks 1B1: ")
    assert pptrace("validate", "short.csv").err == answer.err


@pytest.mark.parametrize("slots", ["x:2", "5:2", "99:"])
def test_slots_that_are_no_range_are_refused(pptrace: Pptrace, slots: str) -> None:
    assert f"--slots {slots}" in pptrace("show", "good.csv", "--slots", slots).complaint


def test_a_valid_table_is_counted(pptrace: Pptrace) -> None:
    answer = pptrace("validate", "good.csv")

    assert answer.code == 0
    assert answer.out == "good.csv: valid: 2 ranks, 2 stages, 2 microbatches (4 F, 4 B)\n"


def test_an_invalid_table_names_row_column_and_cell(pptrace: Pptrace) -> None:
    assert pptrace("validate", "bad.csv").complaint == SWAPPED_ERROR


def test_a_deadlock_is_its_cycle(pptrace: Pptrace) -> None:
    complaint = pptrace("validate", "stuck.csv").complaint

    assert complaint.startswith("stuck.csv: the schedule deadlocks: rank 0: 0B0 -> rank 1: 1B0")


def test_a_policy_may_deadlock_where_the_table_does_not(pptrace: Pptrace, folder: Path) -> None:
    rows = [
        ",".join(f"{call.stage}{call.kind}{call.microbatch}" for call in program if isinstance(call, Compute))
        for program in megatron_interleaved(4, 8, 2)
    ]
    (folder / "looped.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    assert pptrace("validate", "looped.csv", "--p2p", "batched", "--receive", "asap").code == 0
    complaint = pptrace("validate", "looped.csv", "--p2p", "batched").complaint
    assert "deadlocks under p2p policy batched: rank " in complaint
    assert "did you mean 'batched'" in pptrace("validate", "looped.csv", "--p2p", "batchd").complaint


def test_tables_gain_and_lose_their_messages(pptrace: Pptrace, folder: Path) -> None:
    assert pptrace("convert", "good.csv", "with.csv", "--messages", "deferred").code == 0
    assert (folder / "with.csv").read_text().splitlines()[0] == (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"
    )
    assert pptrace("convert", "with.csv", "without.txt", "--messages", "none").code == 0
    assert pptrace("convert", "without.txt", "again.csv").code == 0
    assert (folder / "again.csv").read_text() == GOOD


def test_tables_gain_and_lose_their_waits(pptrace: Pptrace, folder: Path) -> None:
    first = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1"
    assert pptrace("convert", "good.csv", "with.csv", "--messages", "deferred", "--waits").code == 0
    assert (folder / "with.csv").read_text().splitlines()[0] == first
    assert pptrace("validate", "with.csv", "--p2p", "ordered").code == 0
    assert pptrace("convert", "with.csv", "messages.csv", "--messages", "asap").code == 0
    assert "WAIT" not in (folder / "messages.csv").read_text()
    assert pptrace("convert", "messages.csv", "again.csv", "--waits").code == 0
    assert (folder / "again.csv").read_text() == (folder / "with.csv").read_text()
    assert pptrace("convert", "with.csv", "without.csv", "--messages", "none").code == 0
    assert (folder / "without.csv").read_text() == GOOD


def test_our_traces_become_each_other_byte_for_byte(pptrace: Pptrace, folder: Path) -> None:
    assert pptrace("simulate", "--schedule", "good.csv", "-o", "a.pftrace").code == 0
    for source, target in (("a.pftrace", "b.json"), ("b.json", "c.json.gz"), ("c.json.gz", "d.pftrace")):
        answer = pptrace("convert", source, target)
        assert (answer.code, answer.err) == (0, f"wrote {target}\n")

    assert (folder / "d.pftrace").read_bytes() == (folder / "a.pftrace").read_bytes()


def test_one_rank_s_file_of_several_says_why_that_rank_waits(pptrace: Pptrace, folder: Path) -> None:
    pptrace("simulate", "--schedule", "good.csv", "-o", "r{rank}.json")
    whole = json.loads((folder / "r0.json").read_bytes())["traceEvents"]

    for source, target in (("r0.json", "a.pftrace"), ("r0.json", "again.json")):
        answer = pptrace("convert", source, target)
        assert (answer.code, answer.err) == (0, f"wrote {target}\n")

    found = json.loads((folder / "again.json").read_bytes())["traceEvents"]
    spans = [[(item["pid"], item["ts"]) for item in them if item.get("cat") == "wait"] for them in (whole, found)]
    assert spans[0] == spans[1] != []
    assert b"why rank 0 waits" in (folder / "a.pftrace").read_bytes()


def test_a_trace_gives_back_its_table(pptrace: Pptrace, folder: Path) -> None:
    pptrace("simulate", "--schedule", "good.csv", "-o", "a.pftrace")

    assert pptrace("convert", "a.pftrace", "order.csv").code == 0
    assert (folder / "order.csv").read_text() == GOOD


def test_simulate_and_show_write_the_table_beside_other_files(pptrace: Pptrace, folder: Path) -> None:
    answer = pptrace("simulate", "--schedule", "good.csv", "-o", "a.csv", "-o", "a.pftrace", "-o", "a.txt")
    assert answer.err.splitlines() == ["wrote a.csv", "wrote a.pftrace", "wrote a.txt"]
    assert pptrace("show", "good.csv", "-o", "b.txt", "-o", "b.svg", "-o", "b.CSV").code == 0

    assert (folder / "a.csv").read_text() == (folder / "b.CSV").read_text() == GOOD
    assert (folder / "a.txt").read_text() == (folder / "b.txt").read_text() == GOOD.replace(",", " ")
    assert (folder / "b.svg").read_text().startswith("<svg")
    assert pptrace("simulate", "--schedule", "good.csv", "-o", "a.csv.gz").code == 0
    assert gzip.decompress((folder / "a.csv.gz").read_bytes()).decode() == GOOD


def test_messages_are_in_a_shown_table_on_request_only(pptrace: Pptrace, folder: Path) -> None:
    assert pptrace("show", "good.csv", "--messages", "-o", "with.csv").code == 0
    assert pptrace("simulate", "--schedule", "with.csv", "--p2p", "ordered", "-o", "without.csv").code == 0

    assert "0SEND_F0" in (folder / "with.csv").read_text()
    assert pptrace("validate", "with.csv").code == 0
    assert (folder / "without.csv").read_text() == GOOD


def test_an_invalid_table_is_written_as_it_is(pptrace: Pptrace, folder: Path) -> None:
    answer = pptrace("show", "bad.csv", "--messages", "-o", "again.csv")

    assert (answer.code, answer.err.splitlines()[-1]) == (2, f"pptrace: {SWAPPED_ERROR}")
    assert (folder / "again.csv").read_text() == SWAPPED


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["simulate", "--schedule", "good.csv", "-o", "a.csv", "--only", "ranks=0"],
            "a.csv: a table is of the whole",
        ),
        (["simulate", "--schedule", "good.csv", "-o", "{rank}.txt.gz"], "{rank}.txt.gz: a table is of the whole"),
        (["show", "good.csv", "-o", "a.csv", "--slots", "1:3"], "a.csv: a table has all slots: leave out --slots"),
    ],
)
def test_a_part_of_a_table_is_refused(
    pptrace: Pptrace, folder: Path, arguments: list[str], complaint: str
) -> None:
    before = sorted(folder.iterdir())

    assert pptrace(*arguments).complaint.startswith(complaint)
    assert sorted(folder.iterdir()) == before


WRONG = [
    (["good.csv", "step.json"], "a table has no times"),
    (["gone.json", "step.pftrace"], "gone.json"),
    (["good.csv", "bad.csv", "out.csv"], "one table at a time"),
    (["bad.csv", "out.csv"], "cell '1B0'"),
    (["a.json", "out.txt.zip"], ".pftrace"),
    (["other.json", "out.pftrace"], "no importer recognises the file"),
    (["a.json", "out.json", "--messages", "asap"], "--messages is for tables"),
    (["a.json", "out.json", "--waits"], "--waits is for tables"),
    (
        ["good.csv", "out.csv", "--messages", "none", "--waits"],
        "--messages none removes the sends that --waits waits for",
    ),
    (["a.json", "out.csv", "--only", "ranks=0"], "--only is for traces"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: " ".join(value)[:40])
def test_what_cannot_be_converted_is_one_line(
    pptrace: Pptrace, folder: Path, arguments: list[str], named: str
) -> None:
    (folder / "other.json").write_text("[1, 2, 3]")
    pptrace("simulate", "--schedule", "good.csv", "-o", "a.json")
    before = sorted(p.name for p in folder.iterdir())

    assert named in pptrace("convert", *arguments).complaint
    assert sorted(p.name for p in folder.iterdir()) == before
