"""Runs of tables in PyTorch, and what is left when they fail."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from runnable import merged_gradients

from pptrace.measured.sides import measured_side
from pptrace.plugin import Registry
from pptrace.run.trace_files import read_measurement
from pptrace.steps.text_forms import load_table
from pptrace_torch.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forked_python import ForkedPython, Program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

SIZES = ("--set", "parallel.pp=3", "--set", "batch.microbatches=6")
TWO_STAGES = ("--set", "parallel.vp=2")
SCHEDULES = {
    "1f1b": (), "zb-v": (), "dualpipe-v": (), "interleaved-zb": TWO_STAGES, "combined-1f1b": TWO_STAGES,
    "mine.csv": (),
}  # fmt: skip
"""Schedules with each kind of action and placement that PyTorch runs, with further settings.

``test_gradients_are_those_of_autograd`` runs all schedules.
"""
CHECKS = Path(__file__).with_name("check_programs.py")
MINE = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1I1,1F2,1W1,1B2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, torch_python: ForkedPython) -> Path:
    """Return the folder of one run of every schedule."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "mine.csv").write_text(MINE)
    for name, more in SCHEDULES.items():
        sizes = () if name.endswith(".csv") else SIZES
        ran = torch_python.run(folder, "torch", "run", name, *sizes, *more, "--steps", "1", "-o", run_of(name))
        assert ran.returncode == 0, ran.stderr
    return folder


def run_of(name: str) -> str:
    return f"run-{name.removesuffix('.csv')}"


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_has_the_order_of_its_table(name: str, folder: Path, torch_python: ForkedPython) -> None:
    converted = torch_python.run(folder, "convert", run_of(name), "order.csv")

    assert converted.returncode == 0, converted.stderr
    manifest = Manifest.read(folder / run_of(name))
    table = manifest.schedule
    assert manifest.p2p == {"policy": "torch", "options": {"table_runtime": True}}
    assert merged_gradients(load_table(folder / "order.csv").schedule.rows()) == merged_gradients(table.rows())


def test_a_fit_has_no_input_gradient_of_the_first_stage_where_only_other_stages_split(
    folder: Path, torch_python: ForkedPython
) -> None:
    fitted = torch_python.run(folder, "calibrate", "run-mine", "--json")

    assert json.loads(fitted.stdout)["empty_input_gradient"] is True


def test_the_times_of_a_run_are_those_of_another(folder: Path, torch_python: ForkedPython) -> None:
    ran = torch_python.run(
        folder, "torch", "run", "zb-h1", "--costs", "run-1f1b", "--steps", "1", "-o", "run-again"
    )

    assert ran.returncode == 0, ran.stderr
    again, first = Manifest.read(folder / "run-again"), Manifest.read(folder / "run-1f1b")
    assert again.stages == first.stages
    assert (again.microbatches, len(again.table), again.empty_input_gradient) == (6, 3, True)
    compared = torch_python.run(folder, "diff", "run-1f1b", "run-again")
    assert compared.returncode == 1, "the orders differ"
    assert "manifest" not in compared.stdout


LONG_RUN = ("torch", "run", "1f1b", *SIZES, "--steps", "100", "-o", "run")


@pytest.fixture
def running(tmp_path: Path, torch_python: ForkedPython) -> Iterator[Program]:
    """Yield a long run whose ranks have begun their steps."""
    command = torch_python.start(tmp_path, *LONG_RUN)
    try:
        while "warm-up" not in command.printed("stderr"):
            assert is_running(command.process), command.printed("stderr")
            time.sleep(0.02)
        yield command
    finally:
        if is_running(command.process):
            os.kill(command.process, signal.SIGKILL)
            command.wait(60)


def ranks_of(command: Program) -> list[int]:
    try:
        children = Path(f"/proc/{command.process}/task/{command.process}/children").read_text()
    except OSError:  # it has ended
        return []
    return [int(child) for child in children.split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_nothing_is_left(ranks: list[int], folder: Path) -> None:
    for _ in range(100):
        if not any(map(is_running, ranks)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, ranks))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_command_alone_ends_all_ranks(
    number: int, status: int, running: Program, tmp_path: Path
) -> None:
    ranks = ranks_of(running)
    assert len(ranks) == 3

    os.kill(running.process, number)

    assert running.wait(60) == status
    assert_nothing_is_left(ranks, tmp_path)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_ranks_start_ends_them(
    number: int, status: int, tmp_path: Path, torch_python: ForkedPython
) -> None:
    command = torch_python.start(tmp_path, *LONG_RUN)
    while is_running(command.process) and not (ranks := ranks_of(command)):
        time.sleep(0.001)

    os.killpg(command.process, number)

    assert command.wait(60) == status
    assert "Traceback" not in command.printed("stderr")
    assert_nothing_is_left(ranks, tmp_path)


def test_a_killed_rank_is_named_and_the_others_end(running: Program, tmp_path: Path) -> None:
    ranks = ranks_of(running)

    os.kill(ranks[2], signal.SIGKILL)

    assert running.wait(60) == 2
    assert running.printed("stderr").splitlines()[-1] == "pptrace: rank 2 was ended by signal 9"
    assert_nothing_is_left(ranks, tmp_path)


def test_no_rank_outlives_a_killed_command(running: Program) -> None:
    ranks = ranks_of(running)

    os.kill(running.process, signal.SIGKILL)
    assert running.wait(60) == -signal.SIGKILL

    for _ in range(100):
        if not any(map(is_running, ranks)):
            return
        time.sleep(0.1)
    pytest.fail("a rank is left")


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, torch_python: ForkedPython) -> None:
    ran = torch_python.run(
        tmp_path, "torch", "run", "1f1b", *SIZES, "--steps", "100", "--timeout", "300ms", "-o", "run"
    )

    assert ran.returncode == 2
    assert "in time: give a longer --timeout" in ran.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


_RAISING = """
import os, sys
from pptrace_torch import worker
from pptrace_torch.command import command

def fail(*_, **__):
    raise ValueError("no such layer")

def _stage(job, index, count, device):
    stage = build(job, index, count, device)
    if index == 1:
        if where == "forward":
            stage.submod.forward = fail
        if where == "gradient":
            worker._SleepOnWeight.backward = staticmethod(fail)
        if where == "exit":
            stage.backward_one_chunk = lambda *_, **__: os._exit(7)
        if where == "building":
            fail()
    return stage

where = sys.argv[1]
build, worker._stage = worker._stage, _stage
try:
    command.main(sys.argv[2:], standalone_mode=False)
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("building", "rank 1 ValueError: no such layer"),
        ("forward", "rank 1 ValueError: no such layer"),
        ("gradient", "rank 1 ValueError: no such layer"),
        ("exit", "rank 1 ended with status 7"),
    ],
)
def test_the_error_of_a_stage_is_shown_and_not_those_of_its_peers(
    where: str, said: str, tmp_path: Path, torch_python: ForkedPython
) -> None:
    ran = torch_python.run(tmp_path, where, "run", "1f1b", *SIZES, "-o", "run", program=_RAISING)

    assert ran.stdout.startswith(said), ran.stdout + ran.stderr
    assert len(ran.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run", "1f1b", "--microbatches", "8", "-o", "run"),
            "parallel.pp: missing: write the pipeline ranks, such as --pp 8",
        ),
        (("run", "1f1b", "--pp", "0", "-o", "run"), "0 is not in the range x>=1"),
        (("run", "chimera", "--pp", "2", "--microbatches", "4", "-o", "run"), "stage 0 on several ranks"),
        (("run", "1f1b", *SIZES, "-o", "."), "no run of pptrace torch: name another folder"),
        (("run", "1f1b", *SIZES, "-o", "other"), "other: is a file: name a folder"),
        (("run", "1f1b", *SIZES, "-o", "other/run"), "its folder does not exist; create it first"),
        (("run", "1f1b", *SIZES, "-o", "missing/run"), "its folder does not exist; create it first"),
        (("run", "1f1b", *SIZES, "-o", "run", "--steps", "0"), "'--steps': 0 is not in the range 1<=x<=100"),
        (("run", "1f1b", *SIZES, "-o", "run", "--backend", "mpi"), "'mpi' is not one of 'gloo', 'nccl'"),
        (("run", "1f1b", *SIZES, "-o", "run", "--costs", "other"), "name a folder of pptrace torch run"),
        (("run", "1f1b", *SIZES, "-o", "run", "--costs", "nowhere"), "name a folder of pptrace torch run"),
        (("run", "1f1b", *SIZES, "-o", "run", "--timeout", "soon"), "is not a time such as 60s"),
        (("export", "1f1b", *SIZES, "-o", "table.txt"), "end in .csv"),
    ],
)
def test_a_wrong_input_is_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, torch_python: ForkedPython
) -> None:
    (tmp_path / "other").write_text("")

    ran = torch_python.run(tmp_path, "torch", *arguments)

    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert said in ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["other"]


def test_a_run_over_nccl_needs_a_gpu_for_each_rank(tmp_path: Path, torch_python: ForkedPython) -> None:
    sizes = ("--set", "parallel.pp=64", "--set", "batch.microbatches=64")

    ran = torch_python.run(tmp_path, "torch", "run", "1f1b", *sizes, "--backend", "nccl", "-o", "run")

    assert ran.returncode == 2
    assert "nccl needs a GPU per rank, and 64 ranks have" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("captured", (), "has no times of stages: fit them"),
        ("run-1f1b", ("--set", "parallel.pp=2"), "the run has 3 stages and the table 2"),
    ],
)
def test_costs_of_an_unfit_run_are_refused(
    name: str, more: tuple[str, ...], said: str, folder: Path, tmp_path: Path, torch_python: ForkedPython
) -> None:
    manifest = Manifest.read(folder / "run-1f1b")
    (tmp_path / "captured").mkdir()
    replace(manifest, stages=()).write(tmp_path / "captured")
    (tmp_path / "run-1f1b").mkdir()
    manifest.write(tmp_path / "run-1f1b")

    ran = torch_python.run(tmp_path, "torch", "run", "1f1b", "--costs", name, *more, "-o", "run")

    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_exported_table_reads_as_the_schedule(tmp_path: Path, torch_python: ForkedPython) -> None:
    ran = torch_python.run(tmp_path, "torch", "export", "zb-v", *SIZES, "-o", "table.csv", "--for", "torchtitan")

    assert ran.returncode == 0, ran.stderr
    assert "pipeline_parallel_schedule=ZBVZeroBubble" in ran.stdout.replace(" ZBV", "=ZBV")
    assert "pipeline_parallel_schedule_csv" in ran.stdout
    shown = torch_python.run(tmp_path, "validate", "table.csv")
    assert shown.returncode == 0, shown.stderr


def test_an_exported_table_has_the_arguments_of_megatron_if_it_runs_it(
    tmp_path: Path, torch_python: ForkedPython
) -> None:
    arguments = ("--set", "p2p.policy=megatron", "-o", "table.csv", "--for", "megatron")

    ran = torch_python.run(tmp_path, "torch", "export", "1f1b", *SIZES, *arguments)

    assert "--pipeline-model-parallel-size 3" in ran.stdout
    assert "--global-batch-size 6" in ran.stdout
    assert "without" not in ran.stdout
    ran = torch_python.run(tmp_path, "torch", "export", "zb-h1", *SIZES, "-o", "table.csv", "--for", "megatron")
    assert "# without schedule zb-h1: split backwards such as 0I0" in ran.stdout


def test_gradients_are_those_of_autograd(tmp_path: Path, torch_python: ForkedPython) -> None:
    ran = torch_python.run(tmp_path, "gradients", program=CHECKS)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_capture_records_every_class_and_removes_its_changes(tmp_path: Path, torch_python: ForkedPython) -> None:
    ran = torch_python.run(tmp_path, "captures", str(tmp_path), program=CHECKS)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    runs = sorted(manifest.parent for manifest in tmp_path.glob("*/run.manifest.json"))
    assert len(runs) == 8
    for run in runs:
        measurement, _ = read_measurement([run], Registry.load())
        assert len(measurement.steps) == 2
        order = measured_side(measurement, run.name).computations.order
        assert merged_gradients(order.rows()) == merged_gradients(Manifest.read(run).schedule.rows()), run.name
        assert re.search(
            rf"recorded 2 steps of .* \(before the recording .* in .*{run.name}$", ran.stderr, re.MULTILINE
        )
