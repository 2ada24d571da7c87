from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

MINE = '''
def make(ranks, microbatches):
    """Every forward, then every backward."""
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]
'''
CONFIG = """\
schedule: ./mine.py:make
parallel: {pp: 4}
batch: {microbatches: 8}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
p2p: {policy: ordered, stream: pair}
costs:
  name: table
  forward: 10 ms
  backward: [20 ms, 20 ms, 20 ms, 24 ms]
  boundary: 64 MiB
  activation: 1 GiB
  weights: 10 GiB
  reduction: 3 ms
  update: 2 ms
  capacity: 18 GiB
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "step.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_alone_give_unit_costs(pptrace: Pptrace) -> None:
    answer = pptrace("simulate", "--schedule", "./mine.py:make", "--pp", 4, "--microbatches", 8)

    assert answer.code == 0
    assert "step 33 units" in answer.out
    assert "bubble 27.27%" in answer.out


def test_the_summary_fits_25_lines_of_80_columns(pptrace: Pptrace) -> None:
    for ranks in (2, 16, 40):
        answer = pptrace("simulate", "step.yaml", "--pp", ranks, "--set", "costs.backward=20 ms")
        lines = answer.out.splitlines()
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("columns", "lines"), [("100", 1), ("40", 2)])
def test_lines_are_as_wide_as_the_terminal_and_never_cut(
    columns: str, lines: int, pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--set", "costs.activation=100 GiB"]
    monkeypatch.setenv("COLUMNS", columns)

    text = pptrace("simulate", "step.yaml", *options).out

    (figures,) = re.findall(r"^step .*?(?=\n+idle by)", text, re.DOTALL | re.MULTILINE)
    assert figures.split()[-2:] == ["18", "GiB"]
    assert len(figures.splitlines()) == lines


def test_json_holds_what_the_summary_tells(pptrace: Pptrace) -> None:
    document = json.loads(pptrace("simulate", "step.yaml", "--json").out)

    busy, idle = document["busy_ns"], document["idle_ns"]
    assert busy + idle == 4 * document["step_ns"]
    assert sum(document["idle_by_cause_ns"].values()) == idle
    assert document["over_memory"]["rank"] in range(4)
    assert document["provenance"]["configuration"]["parallel"]["pp"] == 4
    assert [row["rank"] for row in document["ranks"]] == [0, 1, 2, 3]


def test_a_rank_over_its_memory_is_one_warning_with_rank_time_and_amount(pptrace: Pptrace) -> None:
    answer = pptrace("simulate", "step.yaml")

    warnings = [line for line in answer.out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "rank" in warnings[0]
    assert "over its memory at" in warnings[0]


def test_explain_tells_each_value_and_where_it_came_from(pptrace: Pptrace) -> None:
    answer = pptrace("simulate", "step.yaml", "--explain", "--dp", 2, "--set", "network.latency=1 us")

    rows = {line.split()[0]: line for line in answer.out.splitlines() if "." in line.split("  ")[0]}
    assert "step.yaml:2" in rows["parallel.pp"]
    assert "--dp" in rows["parallel.dp"]
    assert "--set network.latency" in rows["network.latency"]
    assert "default" in rows["network.overhead"]
    assert "derived" in rows["batch.global"]


def test_traces_are_written_and_named_in_the_next_command(pptrace: Pptrace, folder: Path) -> None:
    answer = pptrace("simulate", "step.yaml", "-o", "step.pftrace", "-o", "step.json.gz")

    assert (folder / "step.pftrace").stat().st_size > 1000
    assert (folder / "step.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert "pptrace open step.pftrace" in answer.out.splitlines()[-1]
    assert sorted(p.name for p in folder.iterdir()) == ["mine.py", "step.json.gz", "step.pftrace", "step.yaml"]


def test_one_file_per_rank_and_trimmed_exports(pptrace: Pptrace, folder: Path) -> None:
    answer = pptrace("simulate", "step.yaml", "-o", "rank{rank}.json", "--only", "ranks=0,3", "microbatches=0:2")

    assert answer.code == 0
    assert sorted(p.name for p in folder.glob("*.json")) == ["rank0.json", "rank3.json"]
    assert "only" in answer.err


def test_an_interpreted_run_with_another_hash_seed_is_byte_equal(pptrace: Pptrace, folder: Path) -> None:
    arguments = ["simulate", "step.yaml", "-o", "r.pftrace", "-o", "r.json"]
    pptrace(*arguments)
    written = [(folder / name).read_bytes() for name in ("r.pftrace", "r.json")]

    command = [sys.executable, "-c", "from pptrace.cli.main import main; main()", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PPTRACE_INTERPRET": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)

    assert [(folder / name).read_bytes() for name in ("r.pftrace", "r.json")] == written


def test_halving_the_bandwidth_never_shortens_the_step_and_causes_still_sum(pptrace: Pptrace) -> None:
    steps = []
    for rate in (100, 50, 25, 12):
        answer = pptrace("simulate", "step.yaml", "--set", f"network.bandwidth={rate} GB/s", "--json")
        document = json.loads(answer.out)
        assert sum(document["idle_by_cause_ns"].values()) == document["idle_ns"]
        steps.append((document["step_ns"], document["idle_by_cause_ns"]["transfer"]))

    assert steps == sorted(steps)


WRONG = [
    (["simulate"], "schedule"),
    (["simulate", "missing.yaml"], "missing.yaml"),
    (["simulate", "step.yaml", "--schedule", "zorro"], "zorro"),
    (["simulate", "step.yaml", "--network", "hockny"], "did you mean 'hockney'?"),
    (["simulate", "step.yaml", "--set", "network.bandwidth=0 GB/s"], "network.bandwidth"),
    (["simulate", "step.yaml", "--set", "network.bandwidth=50"], "GB/s"),
    (["simulate", "step.yaml", "--set", "network.bandwith=50 GB/s"], "bandwidth"),
    (["simulate", "step.yaml", "--set", "costs.backward=[1 ms, 2 ms]"], "2 values for 4 stages"),
    (["simulate", "step.yaml", "--set", "schedule.options.depth=3"], "takes no options"),
    (["simulate", "step.yaml", "--model", "llama"], "model"),
    (["simulate", "step.yaml", "--pp", "0"], "parallel.pp"),
    (["simulate", "step.yaml", "--p2p", "telepathy"], "p2p"),
    (["simulate", "step.yaml", "--only", "ranks=0"], "-o"),
    (["simulate", "step.yaml", "-o", "step.xml"], ".pftrace"),
    (["simulate", "step.yaml", "-o", "nowhere/step.json"], "create it first"),
    (["simulate", "step.yaml", "-o", "step.json", "--only", "ranks=9"], "9"),
    (["simulate", "step.yaml", "-o", "step.json", "--only", "stages=9"], "ranks=0,7"),
    (["simulate", "step.yaml", "--schedule", "./gone.py:make"], "gone.py"),
    (["simulate", "step.yaml", "--schedule", "./mine.py:mke"], "make"),
    (["simulate", "step.yaml", "--schedule", "gone.csv"], "gone.csv"),
    (["simulate", "step.yaml", "other.yaml"], "one configuration"),
    (["simulate", "table.csv"], "--schedule table.csv"),
    (["simulate", "two\nlines.yaml"], "two\\nlines.yaml"),
    (["simulate", "--schedule", "./mine.py:make", "--pp", "5000", "--microbatches", "1"], "at most 4096"),
    (["simulte", "step.yaml"], "did you mean 'simulate'?"),
    (["simulate", "step.yaml", "--frob"], "--frob"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_what_cannot_be_used_is_one_line_that_names_it(
    pptrace: Pptrace, folder: Path, arguments: list[str], named: str
) -> None:
    before = sorted(folder.rglob("*"))

    assert named in pptrace(*arguments).complaint
    assert [p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts] == before


def test_a_schedule_that_raises_is_one_line_with_its_file_and_line(pptrace: Pptrace, folder: Path) -> None:
    (folder / "bad.py").write_text("def make(ranks, microbatches):\n    return 1 / 0\n")

    complaint = pptrace("simulate", "step.yaml", "--schedule", "./bad.py:make").complaint

    assert "ZeroDivisionError" in complaint
    assert "bad.py:2" in complaint


def test_a_deadlock_is_spelled_out_and_leaves_no_file(pptrace: Pptrace, folder: Path) -> None:
    rows = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"
    (folder / "table.csv").write_text(rows)

    complaint = pptrace("simulate", "--schedule", "table.csv", "-o", "step.pftrace").complaint

    assert "deadlocks" in complaint
    assert "rank 0: 0B0" in complaint
    assert not (folder / "step.pftrace").exists()


def test_two_swapped_cells_name_the_cell_or_the_cycle(pptrace: Pptrace, folder: Path) -> None:
    (folder / "table.csv").write_text("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n")

    complaint = pptrace("simulate", "--schedule", "table.csv", "-o", "step.json").complaint

    assert "1B0" in complaint
    assert "1F0" in complaint
    assert not (folder / "step.json").exists()


def test_a_table_brings_its_own_sizes(pptrace: Pptrace, folder: Path) -> None:
    (folder / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")

    assert "step 9 units" in pptrace("simulate", "--schedule", "table.csv").out
    assert "parallel.pp" in pptrace("simulate", "--schedule", "table.csv", "--pp", 3).complaint


def test_an_old_file_stays_when_a_new_one_cannot_be_written(
    pptrace: Pptrace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "step.json").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pptrace.traces.kineto.write", full)

    assert "no space left" in pptrace("simulate", "step.yaml", "-o", "step.json").complaint
    assert (folder / "step.json").read_text() == "old"
    assert sorted(p.name for p in folder.iterdir() if p.suffix != ".py") == ["step.json", "step.yaml"]


def test_ctrl_c_is_clean(pptrace: Pptrace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pptrace.traces.kineto.write", interrupted)

    answer = pptrace("simulate", "step.yaml", "-o", "step.json")

    assert answer.code == 130
    assert answer.err.strip() == "pptrace: interrupted"
    assert sorted(p.name for p in folder.iterdir() if p.suffix != ".py") == ["step.yaml"]


def test_out_of_memory_is_one_line(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pptrace.run.inputs.lower_step", exhausted)

    assert "fewer ranks or microbatches" in pptrace("simulate", "step.yaml").complaint


def test_messages_without_bytes_still_meet_under_ordered(pptrace: Pptrace, folder: Path) -> None:
    (folder / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    arguments = ("simulate", "--schedule", "table.csv", "--p2p", "ordered", "--set", "p2p.receive=deferred")
    arguments += ("--set", "p2p.stream=rank")

    assert "deadlocks under p2p policy ordered" in pptrace(*arguments).complaint


def test_closed_output_is_no_trouble(folder: Path) -> None:
    code = "from pptrace.cli.main import main; main()"
    words = f"{sys.executable} -c '{code}' simulate step.yaml -o step.json"

    finished = subprocess.run(["/bin/sh", "-c", f"{words} >&- 2>&-"], check=False)

    assert finished.returncode == 0
    assert (folder / "step.json").exists()
