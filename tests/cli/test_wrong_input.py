"""What a user gets wrong is one line on the standard error that says what, where and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

MINE = '''
from pptrace.errors import ConstraintError


def make(ranks, microbatches):
    """Every forward, then every backward."""
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]


def picky(ranks, microbatches):
    """Take no more microbatches than ranks."""
    raise ConstraintError(f"{microbatches} pass the ranks ({ranks})", nearest=str(ranks), key="batch.microbatches")
'''
STEP = """\
schedule: ./mine.py:make
parallel: {pp: 4}
batch: {microbatches: 8}
network: {name: hockney, bandwidth: 50 GB/s}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "step.yaml").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(folder: Path, old: str, new: str) -> str:
    """Write the configuration with one part changed, and return its name."""
    assert STEP.count(old) == 1
    (folder / "changed.yaml").write_text(STEP.replace(old, new))
    return "changed.yaml"


def test_no_command_shows_the_commands(pptrace: Pptrace) -> None:
    answer = pptrace()

    assert answer.code == 2
    assert answer.err.startswith("Usage: pptrace [OPTIONS] COMMAND")
    assert "\n  simulate    Simulate one training step" in answer.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--frob"], r"No such option:? '?--frob\b.* \(see pptrace --help\)"),  # as releases of click word it
        (["validate"], r"Missing argument 'FILE'\. \(see pptrace validate --help\)"),
    ],
)
def test_an_unknown_option_or_a_missing_argument_names_the_help(
    pptrace: Pptrace, arguments: list[str], line: str
) -> None:
    assert re.fullmatch(line, pptrace(*arguments).complaint)


def test_a_flag_that_a_command_lacks_is_reported_as_its_key(pptrace: Pptrace) -> None:
    message = "No such option '--tp': write parallel.tp in the configuration, or --set parallel.tp=VALUE (see "

    assert pptrace("show", "--tp", "4").complaint.startswith(message)
    assert "--schedules" in pptrace("compare", "--schedule", "a").complaint
    assert "parallel.tp" not in pptrace("explain", "--tp", "4", "step.json").complaint


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("./mine.py:make", "zorro", "changed.yaml:1:1: schedule: no installed plugin offers a schedule"),
        ("./mine.py:make", "./gone.py:make", "changed.yaml:1:1: schedule: cannot read ./gone.py"),
        (
            "./mine.py:make",
            "./mine.py:picky",
            "changed.yaml:3:9: batch.microbatches: 8 pass the ranks (4); nearest",
        ),
        ("hockney", "hockny", "changed.yaml:4:11: network: no installed plugin offers a network named 'hockny'"),
        ("50 GB/s", "1 B/s", "changed.yaml:4:26: network.bandwidth: the smallest bandwidth is 1 kB/s"),
    ],
)
def test_what_plugins_refuse_has_its_place_in_the_file(
    pptrace: Pptrace, folder: Path, old: str, new: str, line: str
) -> None:
    assert pptrace("simulate", changed(folder, old, new)).complaint.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--schedule", "zorro"], "--schedule: no installed plugin offers a schedule named 'zorro'"),
        (
            ["--schedule", "zorro:vp=2:a=3"],
            "--schedule: 'zorro:vp=2:a=3' has options: name the schedule zorro, and set parallel.vp=2 and sch",
        ),
        (["--network", "hockny"], "--network: no installed plugin offers a network named 'hockny'"),
        (["--costs", "unti"], "--costs: no installed plugin offers a cost model named 'unti'"),
        (["--set", "network.bandwidth=1 B/s"], "--set network.bandwidth=1 B/s: the smallest"),
        (["--device", "nope"], "--device: no installed plugin offers a device named 'nope'"),
        (
            ["--set", "device={ranks: {0: nope}}"],
            "--set device={ranks: {0: nope}}: device.ranks.0: no installed plugin offers a device named 'nope'",
        ),
        (["--set", "device.ranks={9: a}"], "--set device.ranks={9: a}: device.ranks.9: rank 9 is not there"),
        (["--set", "device.ranks={x: a}"], "--set device.ranks={x: a}: device.ranks.x: 'x' names no ranks"),
        (["--device", "gone.yaml"], "gone.yaml: no such file"),
        (
            ["--set", "device.memory=1 GiB"],
            "--set device.memory=1 GiB: unit costs read no parameters of a device: remove it",
        ),
        (
            ["--set", "device.ranks={0: {memory: 1 GiB}}"],
            "--set device.ranks={0: {memory: 1 GiB}}: device.ranks.0.memory: unit costs read no parameters",
        ),
        (
            ["--set", "costs.forward=-1"],
            "--set costs.forward=-1: must be at least 0, not -1 (of unit costs; for others write",
        ),
        (
            ["--set", "costs.sync=1 s"],
            "--set costs.sync=1 s: unit costs do not take it: remove it, or write costs.name: table",
        ),
        (["--costs", "unit", "--set", "costs.forward=-1"], "--set costs.forward=-1: must be at"),
        (["--set", "costs.nope=1"], "--set costs.nope=1: unknown key (known: activation, "),
        (
            ["--costs", "unit", "--set", "costs.boundary=4 EiB"],
            "--costs: boundary_bytes of boundary 0 is too large (4611686018427387904): check the units",
        ),
        (
            ["--schedule", "./mine.py:picky", "--microbatches", "9"],
            "--microbatches: batch.microbatches: 9 pass the",
        ),
    ],
)
def test_what_plugins_refuse_has_its_place_on_the_command_line(
    pptrace: Pptrace, arguments: list[str], line: str
) -> None:
    assert pptrace("simulate", "step.yaml", *arguments).complaint.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["simulate", "--set", "parallel.tp", "4"], "--set: write --set key.path=value, not 'parallel.tp'"),
        (
            ["simulate", "step.yaml", "--set", "network.options={latency: 5 us}"],
            "--set network.options={latency: 5 us}: write options beside network.name, without",
        ),
        (
            ["simulate", "step.yaml", "--set", "p2p.options={stream: pair}"],
            "--set p2p.options={stream: pair}: p2p.options.stream: it is not an option: write p2p.stream",
        ),
        (
            ["simulate", "step.yaml", "--set", "costs={table: {forward: 1 ms}}"],
            "--set costs={table: {forward: 1 ms}}: costs.table: it is not an option: write costs.name: table, and",
        ),
        (["simulate", "llama3_8b.toml"], "llama3_8b.toml is not a configuration: pptrace recipe converts jobs"),
        (["simulate", "1f1b"], "1f1b: no such file; if it is a schedule, write --schedule 1f1b"),
        (["show", "zorro"], "no installed plugin offers a schedule named 'zorro'"),
        (["show", "./mine.py:make", "--pp", "2", "--microbatches", "2", "--option", "x"], "--option x: write KEY"),
        (["convert", "table.csv", "table.foo"], "table.foo: a table becomes a table, .csv or .txt"),
        (
            ["simulate", "--schedule", "table.csv", "--vp", "2"],
            "--vp: parallel.vp: table.csv has 1 stages per row",
        ),
        (["validate", "huge.csv"], "huge.csv: row 1, column 1, cell '99999999999999999999"),
        (
            ["simulate", "step.yaml", "-o", "a.json", "--only", "microbatches=2:"],
            "only.microbatches: '2:' is neither",
        ),
    ],
)
def test_a_slip_is_one_line_that_says_what_to_write(
    pptrace: Pptrace, folder: Path, arguments: list[str], line: str
) -> None:
    (folder / "table.csv").write_text("0F0,0B0\n1F0,1B0\n")
    (folder / "huge.csv").write_text("9" * 400 + "F0\n")

    complaint = pptrace(*arguments).complaint

    assert complaint.startswith(line)
    assert len(complaint) < 250


@pytest.mark.parametrize("outputs", [["a.json", "./a.json"], ["rank{rank}.json", "rank2.json"]])
def test_one_file_for_two_outputs_is_refused_and_nothing_written(
    pptrace: Pptrace, folder: Path, outputs: list[str]
) -> None:
    before = sorted(folder.glob("*.json"))

    complaint = pptrace("simulate", "step.yaml", "-o", outputs[0], "-o", outputs[1]).complaint

    assert complaint.endswith("two outputs are this file; name each file once")
    assert sorted(folder.glob("*.json")) == before == []


def test_a_wrong_action_of_a_function_names_the_function(pptrace: Pptrace, folder: Path) -> None:
    (folder / "swapped.py").write_text(
        "def make(ranks, microbatches):\n    return [[f'{r}B0', f'{r}F0'] for r in range(2)]\n"
    )
    arguments = ("./swapped.py:make", "--pp", 2, "--microbatches", 1)
    line = "schedule ./swapped.py:make: rank 0: 0B0 comes before 0F0: swap them"

    assert pptrace("simulate", "--schedule", *arguments).complaint == line
    assert pptrace("show", *arguments).err.strip() == f"pptrace: {line}"


def test_a_structural_deadlock_says_what_to_do_under_every_policy(pptrace: Pptrace, folder: Path) -> None:
    (folder / "stuck.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")

    for policy in ("async", "sender-blocking", "blocking", "ordered", "batched"):
        complaint = pptrace("simulate", "--schedule", "stuck.csv", "--p2p", policy).complaint
        assert "change the order on one of these ranks" in complaint


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("c.yaml", "schedule: ./mine.py:make\nparallel: {pp: 4\n", "c.yaml:3:1: broken YAML: expected ',' or '}'"),
        ("c.yaml", "schedule: x\nparallel: {pp: 4, pp: 5}\n", "c.yaml:2:19: parallel.pp: the key is repeated"),
        ("c.yaml", "schedule: x\nparallel: {pp: four}\n", "c.yaml:2:12: parallel.pp: must be a whole number"),
        ("c.yaml", "schedule: x\nparallel: {pp: 1e400}\n", "c.yaml:2:12: parallel.pp: a number must be finite"),
        ("t.csv", "0F0,0X0\n1F0,1B0\n", "t.csv: row 1, column 2, cell '0X0': not an action; expected stage, kind"),
        (
            "t.csv",
            "0F0,0B0\n1F0,1B0,1F0\n",
            "t.csv: row 2, column 3, cell '1F0': rank 1, action 2 (1F0): repeats action",
        ),
        ("t.csv", "0F0,0B0\n1F0\n", "t.csv: row 2: rank 1 lacks 1B0: every stage runs each"),
        (
            "t.csv",
            "0F0,0B0,1B0\n1F0\n",
            "t.csv: row 2, column 1, cell '1F0': rank 1, action 0 (1F0): stage 1 is on",
        ),
    ],
)
def test_a_broken_file_is_named_with_the_place_in_it(
    pptrace: Pptrace, folder: Path, name: str, text: str, line: str
) -> None:
    (folder / name).write_text(text)
    config = [name] if name.endswith("yaml") else ["--schedule", name]

    assert pptrace("simulate", *config, "-o", "step.json").complaint.startswith(line)
    assert not (folder / "step.json").exists()


def test_an_interruption_leaves_the_old_file_and_nothing_else(pptrace: Pptrace, folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import os, signal\n\n\ndef make(ranks, microbatches):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    return []\n"
    )
    (folder / "step.json").write_text("old")
    before = sorted(path.name for path in folder.iterdir())

    answer = pptrace("simulate", "step.yaml", "--schedule", "./slow.py:make", "-o", "step.json")

    assert answer.code == 130
    assert answer.err.strip() == "pptrace: interrupted"
    assert (folder / "step.json").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_misspelt_schedule_is_an_unknown_key_and_not_a_missing_one(pptrace: Pptrace, folder: Path) -> None:
    complaint = pptrace("simulate", changed(folder, "schedule:", "schedules:")).complaint

    assert complaint.startswith("changed.yaml:1:1: schedules: unknown key (did you mean 'schedule'?")


@pytest.mark.parametrize(
    "arguments",
    [
        ("network", "step.yaml", "-o", "a.svg", "-o", "b.svg"),
        ("calibrate", "run", "-o", "a.svg", "-o", "b.svg"),
    ],
)
def test_a_second_output_is_refused_where_one_is_written(pptrace: Pptrace, arguments: tuple[str, ...]) -> None:
    assert pptrace(*arguments).complaint == "one output at a time, not a.svg and b.svg"
