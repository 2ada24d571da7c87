"""``pptrace diff`` through the command line: what it writes, how it exits, and one line for what cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SMALLER = "0F0,0B0\n1F0,1B0\n"
SLOWER = """
parallel: {pp: 2}
batch: {microbatches: 2}
schedule: table.csv
costs: {name: table, forward: [1 ms, 1.5 ms], backward: 2 ms}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pptrace: Callable[..., Any]) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "smaller.csv").write_text(SMALLER)
    (tmp_path / "slower.yaml").write_text(SLOWER)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to.txt.bin").write_text("dear")
    assert pptrace("simulate", "--schedule", "table.csv", "-o", "step.pftrace").code == 0
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_step_does_not_differ_from_itself_however_it_is_named(pptrace: Callable[..., Any]) -> None:
    for pair in (("table.csv", "table.csv"), ("table.csv", "step.pftrace"), ("step.pftrace", "step.pftrace")):
        answer = pptrace("diff", *pair)

        assert (answer.code, answer.err) == (0, "")
        assert "equal within 2.0%" in answer.out
        assert answer.out.endswith("no difference: 8 actions in the same order, 4 messages, all times equal\n")


@pytest.mark.usefixtures("folder")
def test_steps_that_differ_exit_with_one(pptrace: Callable[..., Any]) -> None:
    answer = pptrace("diff", "table.csv", "slower.yaml")

    assert answer.code == 1
    assert "different" in answer.out
    assert pptrace("diff", "table.csv", "slower.yaml", "--tolerance", "60%").code == 0


@pytest.mark.usefixtures("folder")
def test_a_gate_fails_only_where_the_second_is_longer_by_more(pptrace: Callable[..., Any]) -> None:
    assert pptrace("diff", "table.csv", "slower.yaml", "--fail-over", "1%").code == 1
    assert pptrace("diff", "table.csv", "slower.yaml", "--fail-over", "0.5").code == 0
    assert pptrace("diff", "slower.yaml", "table.csv", "--fail-over", "1%").code == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--step", "2"), "--step has no effect"),
        (
            ("--step", "all", "--rules", "gone.yaml", "--layout", "pp=2"),
            "--step, --layout, --rules have no effect",
        ),
        (("--replica", "slowest"), "--replica has no effect"),
    ],
)
def test_what_is_asked_of_recordings_does_nothing_where_there_are_none(
    options: tuple[str, ...], message: str, pptrace: Callable[..., Any]
) -> None:
    note = f"{message}: neither side is a measurement"

    assert pptrace("diff", "table.csv", "slower.yaml", *options).out.endswith(f"note: {note}\n")
    assert json.loads(pptrace("diff", "table.csv", "slower.yaml", "--json", *options).out)["notes"] == [note]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("step", ["median", "all", "0", "0,0", ",", "0,all"])
def test_a_step_may_be_chosen_for_both_sides_or_for_each(step: str, pptrace: Callable[..., Any]) -> None:
    assert pptrace("diff", "step.pftrace", "step.pftrace", "--step", step).code == 0


NODES = """
schedule: four.csv
costs: {name: table, forward: 10 ms, backward: 20 ms, boundary: 8 MB}
network: {name: hockney, bandwidth: BETWEEN, latency: 10 us, node: {ranks: 2, bandwidth: 20 GB/s, latency: 10 us}}
"""


@pytest.mark.parametrize("gigabytes", [5, 2])
def test_a_path_made_slower_in_the_network_is_that_link_and_no_other(
    gigabytes: int, folder: Path, pptrace: Callable[..., Any]
) -> None:
    rows = [
        ",".join(f"{stage}{kind}{microbatch}" for kind in "FB" for microbatch in range(4)) for stage in range(4)
    ]
    (folder / "four.csv").write_text("\n".join(rows) + "\n")
    for name, rate in (("fast.yaml", 20), ("slow.yaml", gigabytes)):
        (folder / name).write_text(NODES.replace("BETWEEN", f"{rate} GB/s"))

    document = json.loads(pptrace("diff", "fast.yaml", "slow.yaml", "--json").out)

    assert {(cause["kind"], cause["what"]) for cause in document["causes"]} == {
        ("slow link", "rank 1 to rank 2"), ("slow link", "rank 2 to rank 1"),
    }  # fmt: skip
    longer_ns = 8_000_000 // gigabytes - 8_000_000 // 20
    assert [cause["total_ns"] for cause in document["causes"]] == [pytest.approx(4 * longer_ns, abs=8)] * 2
    assert document["divergence"]["message_ns"] == pytest.approx(longer_ns, abs=2)


@pytest.mark.usefixtures("folder")
def test_json_holds_what_the_text_says(pptrace: Callable[..., Any]) -> None:
    answer = pptrace("diff", "table.csv", "slower.yaml", "--json", "--top", "1")

    document = json.loads(answer.out)
    first, second = document["step_ns"]
    assert sum(rung["change_ns"] for rung in document["ladder"]) == second - first
    assert len(document["actions"]) == 1
    assert not document["same"]
    assert document["deprecated"]["culprits"] == "causes"
    assert document["deprecated"]["divergence.behind"] == "divergence.predecessors"
    assert document["divergence"]["behind"] == document["divergence"]["predecessors"]
    assert document["culprits"] == document["causes"]
    assert document["culprits"][0]["sort"] == document["causes"][0]["kind"]


def test_every_output_is_written_and_reported(folder: Path, pptrace: Callable[..., Any]) -> None:
    names = ["report.html", "report.md", "both.pftrace", "both.pftrace.gz", "both.tar"]

    answer = pptrace("diff", "table.csv", "slower.yaml", *(each for name in names for each in ("-o", name)))

    assert answer.err.splitlines() == [f"wrote {name}" for name in names]
    assert all((folder / name).stat().st_size > 500 for name in names)


@pytest.mark.usefixtures("folder")
def test_steps_of_other_sizes_differ_and_say_why_there_is_no_ladder(pptrace: Callable[..., Any]) -> None:
    answer = pptrace("diff", "smaller.csv", "slower.yaml")

    assert answer.code == 1
    message = "2 ranks, 2 stages, 1 microbatches and 2 ranks, 2 stages, 2 microbatches"
    assert f"not computed: the steps have {message}" in answer.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["table.csv"], "Missing argument 'SECOND'"),
        (["table.csv", "gone.csv"], "gone.csv: cannot be read: no such file or directory"),
        (["gone.yaml", "table.csv"], "gone.yaml: no such file"),
        (["gone", "table.csv"], "gone: no such file or folder"),
        (["table.csv", "nothing"], "nothing: is an empty folder"),
        (["table.csv", "letters"], "letters/to.txt.bin: no importer recognises the file; importers: perfetto"),
        (
            ["table.csv", "table.csv", "-o", "r.docx"],
            "r.docx: no such format; a diff is written as .html, .md, .pftrace",
        ),
        (["table.csv", "table.csv", "-o", "r.html", "-o", "./r.html"], "./r.html: two outputs are this file"),
        (["table.csv", "table.csv", "-o", "gone/r.html"], "gone/r.html: cannot be written: the folder does not"),
        (["table.csv", "table.csv", "--tolerance", "two"], "'two' is not a share, such as 2% or 0.02"),
        (["table.csv", "table.csv", "--tolerance", "-2%"], "'-2%' is not a share, such as 2% or 0.02"),
        (["table.csv", "table.csv", "--tolerance", "nan"], "'nan' is not a share, such as 2% or 0.02"),
        (["table.csv", "table.csv", "--fail-over", "inf"], "'inf' is not a share, such as 2% or 0.02"),
        (["table.csv", "step.pftrace", "--step", "9"], "--step 9: no such step; write 0 (simulated)"),
        (["table.csv", "step.pftrace", "--step", "last"], "--step last: no such step; write 0 (simulated)"),
        (["table.csv", "table.csv", "--top", "0"], "Invalid value for '--top'"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path, pptrace: Callable[..., Any], arguments: list[str], complaint: str
) -> None:
    before = sorted(path.name for path in folder.iterdir())

    answer = pptrace("diff", *arguments)

    assert complaint in answer.complaint
    assert sorted(path.name for path in folder.iterdir()) == before


def test_where_one_output_fails_no_other_is_changed(folder: Path, pptrace: Callable[..., Any]) -> None:
    (folder / "report.html").write_text("the old one")

    answer = pptrace("diff", "table.csv", "slower.yaml", "-o", "report.html", "-o", "gone/both.tar")

    assert "gone/both.tar: cannot be written" in answer.complaint
    assert (folder / "report.html").read_text() == "the old one"
    assert not list(folder.glob(".*"))


def test_a_trace_of_both_steps_is_not_taken_for_one(folder: Path, pptrace: Callable[..., Any]) -> None:
    assert pptrace("diff", "table.csv", "slower.yaml", "-o", "both.pftrace").code == 1

    assert (
        "both.pftrace: no importer recognises the file" in pptrace("diff", "both.pftrace", "table.csv").complaint
    )
    assert folder.is_dir()
