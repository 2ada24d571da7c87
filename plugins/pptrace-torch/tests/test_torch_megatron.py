"""The adapter runs tables in a stand-in of Megatron-LM, and in a checkout that ``PPTRACE_MEGATRON`` names."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from markdown import blocks, commands

import pptrace
from pptrace.errors import ConfigError, ScheduleError
from pptrace.steps.pytorch_tables import insert_messages
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import load_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forked_python import ForkedPython

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

PAGE = Path(__file__).parents[3] / "docs" / "megatron.md"
PROGRAM = Path(__file__).with_name("check_megatron.py")
ROWS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


@pytest.fixture
def run_program(tmp_path: Path, torch_python: ForkedPython) -> Callable[..., None]:
    """Return a function that runs the program of checks."""

    def run(*arguments: str) -> None:
        ran = torch_python.run(tmp_path, *arguments, program=PROGRAM)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    return run


@pytest.fixture
def pptrace_command(tmp_path: Path, torch_python: ForkedPython) -> Callable[[str], str]:
    """Return a function that returns the output of a command; a diff of different steps ends with status 1."""

    def output_of(line: str) -> str:
        _, *arguments = shlex.split(line)
        ran = torch_python.run(tmp_path, *arguments)
        assert ran.returncode in {0, int(arguments[0] == "diff")}, ran.stderr
        return ran.stdout

    return output_of


def test_tables_run_in_their_order_with_the_losses_and_gradients_of_autograd(
    run_program: Callable[..., None],
) -> None:
    run_program("tables")


def test_the_page_on_megatron_runs_from_top_to_bottom(
    tmp_path: Path, run_program: Callable[..., None], pptrace_command: Callable[[str], str]
) -> None:
    """The jobs of the page are those of the stand-in: 1F1B with annotations, then a table."""
    (step,) = (text for language, text in blocks(PAGE) if language == "yaml")
    (tmp_path / "step.yaml").write_text(step, encoding="utf-8")

    printed = {line: pptrace_command(line) for line in commands(PAGE)[:2]}
    assert "without" not in printed["pptrace torch export step.yaml -o step.csv --for megatron"]
    assert "pptrace_annotate.annotate()" in (tmp_path / "pptrace_annotate.py").read_text(encoding="utf-8")
    run_program("trace", str(tmp_path / "run" / "torch_profile"))
    printed |= {line: pptrace_command(line) for line in commands(PAGE)[2:7]}
    run_program("trace", str(tmp_path / "run2" / "torch_profile"), str(tmp_path / "best.csv"))
    printed |= {line: pptrace_command(line) for line in commands(PAGE)[7:]}

    assert list(printed) == commands(PAGE)
    assert "inferred" not in "".join(printed.values())
    assert re.search("the order of . ranks", printed["pptrace diff run/torch_profile run2/torch_profile"])
    for run, table in (("run", "step.csv"), ("run2", "best.csv")):
        pptrace_command(f"pptrace convert {run}/torch_profile {run}.csv")
        assert load_table(tmp_path / f"{run}.csv").schedule.rows() == load_table(tmp_path / table).schedule.rows()


ARGUMENTS = {
    "--num-virtual-stages-per-pipeline-rank", "--microbatch-group-size-per-virtual-pipeline-stage",
    "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute", "--pipeline-model-parallel-layout",
    "--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush", "--pipeline-model-parallel-size",
    "--profile", "--use-pytorch-profiler", "--pytorch-profiler-collect-shapes", "--profile-step-start",
    "--profile-step-end", "--profile-ranks", "--tensorboard-dir", "--record-shapes", "--no-align-grad-reduce",
}  # fmt: skip
"""Arguments of the page that Megatron-LM's parser had on 22 August 2026."""
OTHERS = {"--framework", "--for", "--set", "--layout", "--capture-range", "--capture-range-end"}
"""Arguments of pptrace and of Nsight Systems."""


def test_the_arguments_on_the_page_are_those_of_megatron(request: pytest.FixtureRequest) -> None:
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", PAGE.read_text(encoding="utf-8")))

    assert found - OTHERS == ARGUMENTS
    if "PPTRACE_MEGATRON" in os.environ:
        request.getfixturevalue("run_program")("arguments", *sorted(ARGUMENTS))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]], "the placement of stages"),
        ([["0F0", "0I0", "0W0"]], "split backwards such as 0I0: its backwards compute both gradients"),
        ([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]], "overlapped pairs in a table"),
    ],
)
def test_a_table_that_it_cannot_run_is_refused_in_one_line(rows: list[list[str]], reason: str) -> None:
    from pptrace_torch import megatron_schedule

    with pytest.raises(ScheduleError) as caught, megatron_schedule(Schedule.from_rows(rows)):
        pass

    assert str(caught.value).startswith(f"Megatron-LM cannot run {reason}")
    assert "\n" not in str(caught.value)


def whole_backward(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, model_type: Any) -> None:
    """Take the parameters of core 0.16 and earlier."""


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ({}, "this Megatron-LM is too old: core 0.17 or later"),
        ({"P2PCommunicator": object, "backward_step": whole_backward}, "this Megatron-LM is too old"),
        (
            {"P2PCommunicator": object, "forward_step": SimpleNamespace(marks=True)},
            "omit it, a table names its own actions",
        ),
    ],
)
def test_a_megatron_that_does_not_fit_is_refused_in_one_line(
    functions: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pptrace_torch import megatron_schedule

    schedules = SimpleNamespace(**{"forward_step": print, "backward_step": version, **functions})
    for name in ("megatron", "megatron.core", "megatron.core.pipeline_parallel"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "megatron.core.pipeline_parallel.schedules", schedules)

    with pytest.raises(ConfigError, match=reason), megatron_schedule(Schedule.from_rows(ROWS)):
        pass


@pytest.mark.skipif(importlib.util.find_spec("megatron") is not None, reason="Megatron-LM is installed")
def test_a_missing_megatron_is_named() -> None:
    from pptrace_torch import megatron_schedule

    with pytest.raises(ConfigError, match="no module megatron"), megatron_schedule(Schedule.from_rows(ROWS)):
        pass


@pytest.mark.parametrize(
    ("name", "ranks", "chunks"),
    [
        ("1f1b", 4, 1),
        ("gpipe", 3, 1),
        ("interleaved-1f1b", 4, 2),
        ("looped-bfs", 3, 3),
        ("interleaved-1f1b", 2, 4),
    ],
)
def test_both_ranks_of_a_pair_have_their_messages_in_one_order(name: str, ranks: int, chunks: int) -> None:
    """Unbatched operations of NCCL between two ranks run one after another, in the order of each rank."""
    table = pptrace.simulate(schedule=name, pp=ranks, vp=chunks, microbatches=8).prepared.schedule

    messages = [[message_of(cell, ranks) for cell in row if "_" in cell] for row in insert_messages(table).rows()]

    assert sum(map(len, messages)) == 2 * 2 * 8 * (ranks * chunks - 1)
    for rank in range(ranks):
        for peer in range(rank):
            ends = [[message for message, at in messages[one] if at == {rank, peer}] for one in (rank, peer)]
            assert ends[0] == ends[1]


def message_of(cell: str, ranks: int) -> tuple[tuple[str, int, int], frozenset[int]]:
    """Return the message of a cell by its pass, sending stage and microbatch, and its two ranks."""
    ((stage, way, kind, microbatch),) = re.findall(r"^(\d+)(SEND|RECV)_([FB])(\d+)$", cell)
    towards = 1 if kind == "F" else -1
    sender = int(stage) - (towards if way == "RECV" else 0)
    return (kind, sender, int(microbatch)), frozenset({sender % ranks, (sender + towards) % ranks})
