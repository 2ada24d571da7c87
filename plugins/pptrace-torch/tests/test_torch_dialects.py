"""Exported tables are what the loader of each release of PyTorch takes, in both formats."""

from __future__ import annotations

import csv
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from oracle_pytorch_tables import lowered, with_waits

from pptrace.plugin import Schedule, compute_only
from pptrace.steps.pytorch_tables import compute_comms
from pptrace.steps.text_forms import load_table
from pptrace_torch.command import command

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "gpipe": 1, "1f1b": 1, "looped-bfs": 2, "interleaved-1f1b": 2, "interleaved-zb": 2, "zb-v": 2, "dualpipe-v": 2,
}  # fmt: skip
"""Schedules of PyTorch's classes, with stages per rank."""
SIZES = [(2, 4), (3, 6), (4, 12)]
"""Ranks and microbatches."""
Rows = list[list[str]]

pytestmark = pytest.mark.parametrize(
    ("name", "ranks", "microbatches"), [(name, *size) for name in CLASSES for size in SIZES]
)


def exported(file: Path, name: str, ranks: int, microbatches: int, *options: str) -> Rows:
    """Return the cells of an exported table."""
    sizes = {"pp": ranks, "vp": CLASSES[name]}
    sets = [f"parallel.{key}={value}" for key, value in sizes.items()] + [f"batch.microbatches={microbatches}"]
    arguments = ["export", name, *(part for text in sets for part in ("--set", text)), "-o", str(file), *options]
    CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.reader(text))


@pytest.mark.parametrize("release", ["2.13", "2.15"])
def test_a_table_with_messages_has_all_that_pytorch_inserts(
    name: str, ranks: int, microbatches: int, release: str, tmp_path: Path
) -> None:
    computed = exported(tmp_path / "computed.csv", name, ranks, microbatches)
    rows = exported(tmp_path / "table.csv", name, ranks, microbatches, "--comms", "--torch", release)

    has_waits = release == "2.15"
    complete = lowered(computed, microbatches, waits=has_waits)
    assert rows == (with_waits(complete) if has_waits else complete)
    table = load_table(tmp_path / "table.csv").schedule
    assert compute_only(table).rows() == computed
    assert list(map(sorted, compute_comms(table, waits=has_waits).rows())) == list(map(sorted, rows))


def test_the_loader_of_2_15_takes_both_formats(name: str, ranks: int, microbatches: int, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"

    check_computed(exported(file, name, ranks, microbatches, "--torch", "2.15"))
    check_messages(exported(file, name, ranks, microbatches, "--torch", "2.15", "--comms"))


@pytest.mark.torch
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_the_installed_loader_takes_both_formats(
    name: str, ranks: int, microbatches: int, form: str, tmp_path: Path
) -> None:
    pytorch: Any = pytest.importorskip("torch.distributed.pipelining.schedules")
    release = "2.15" if hasattr(pytorch, "_add_wait_send") else "2.13"
    comms = ["--comms"] if form == "compute_comms" else []
    file = tmp_path / "table.csv"
    rows = exported(file, name, ranks, microbatches, "--torch", release, *comms)
    runtime = runtime_of(pytorch, ranks, microbatches, ranks * CLASSES[name])

    runtime._load_csv(str(file), format=form)  # noqa: SLF001 - PyTorch has no public name for it

    order = runtime.pipeline_order_with_comms if comms else runtime.pipeline_order
    assert [[str(action) for action in order[rank]] for rank in range(ranks)] == rows


def runtime_of(pytorch: Any, ranks: int, microbatches: int, stages: int) -> Any:
    """Return PyTorch's runtime with stand-ins for the stages of a rank, without a process group."""
    stage = SimpleNamespace(group_rank=0, group_size=ranks, submod=None, num_stages=stages, has_backward=True)
    runtime = pytorch._PipelineScheduleRuntime  # noqa: SLF001 - PyTorch has no public name for it
    return runtime([stage] * (stages // ranks), microbatches)


# The rules of PyTorch 2.15, written after torch/distributed/pipelining/schedules.py.

_CELL = re.compile(
    r"(\d+)(WAIT_REDUCE_GRAD|WAIT_SEND_F|WAIT_SEND_B|REDUCE_GRAD|UNSHARD|RESHARD|SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)"
    r"(\d*)"
)
"""``_action_regex``; here the whole cell has to match."""
Part = tuple[int, str, str]


def parts_of(cell: str) -> list[Part]:
    """Return the actions of a cell, as ``_Action.from_str`` reads them."""
    texts = [cell]
    if cell.startswith("("):
        inner, kind = cell[1:].split(")")
        assert kind == "OVERLAP_F_B"
        texts = inner.split(";")
    matches = [_CELL.fullmatch(text) for text in texts]
    assert all(matches), cell
    return [(int(match[1]), match[2], match[3]) for match in matches if match]


def check_computed(rows: Rows) -> None:
    """Check ``_prepare_schedule_with_comms`` and ``_validate_schedule`` for ``compute_only``."""
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(rows):
        forwards, inputs = set[tuple[int, str]](), set[tuple[int, str]]()
        for stage, kind, microbatch in (part for cell in row for part in parts_of(cell)):
            assert kind in {"F", "I", "B", "W"}
            assert rank_of.setdefault(stage, rank) == rank
            forwards |= {(stage, microbatch)} if kind == "F" else set()
            inputs |= {(stage, microbatch)} if kind == "I" else set()
            assert kind == "F" or (stage, microbatch) in (inputs if kind == "W" else forwards)


def check_messages(rows: Rows) -> None:
    """Check ``_prepare_schedule_with_comms``, ``_validate_send_waits`` and the runtime's assertions."""
    for row in rows:
        pending, registered, unsharded = set[Part](), set[Part](), set[int]()
        reduced: list[int] = []
        for stage, kind, microbatch in (part for cell in row for part in parts_of(cell)):
            key = (stage, kind.removeprefix("WAIT_"), microbatch)
            if kind.startswith("SEND"):
                assert key not in registered
                registered.add(key)
                pending.add(key)
            elif kind.startswith("WAIT_SEND"):
                pending.remove(key)
            elif kind == "REDUCE_GRAD":
                assert not reduced
                reduced.append(stage)
            elif kind == "WAIT_REDUCE_GRAD":
                assert reduced.pop() == stage
            elif kind == "UNSHARD":
                assert stage not in unsharded
                unsharded.add(stage)
            elif kind == "RESHARD":
                unsharded.remove(stage)
            elif kind in {"F", "I", "B", "W"}:
                assert stage in unsharded
        assert not pending
        assert not reduced
        assert not unsharded


def test_the_rules_of_2_15_refuse_other_tables(name: str, ranks: int, microbatches: int, tmp_path: Path) -> None:
    rows = exported(tmp_path / "table.csv", name, ranks, microbatches, "--comms", "--torch", "2.15")
    older = compute_comms(Schedule.from_rows(rows), waits=False).rows()

    with pytest.raises(AssertionError):
        check_computed(rows)
    with pytest.raises(AssertionError):
        check_messages(older)
