"""Checks that need PyTorch in several processes: ``python check_programs.py gradients`` or ``captures FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pipelines import autograd, batch, loss_of, modules, on_each_rank, stages_of
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

import pptrace
from pptrace.errors import ConfigError, ScheduleError
from pptrace_torch import capture, load
from pptrace_torch.manifest import Manifest

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule

RANKS, MICROBATCHES = 4, 8
CLOSE = 5e-6


def table_of(name: str) -> Schedule:
    """Return a schedule's table."""
    return pptrace.simulate(schedule=name, pp=RANKS, microbatches=MICROBATCHES).prepared.schedule


def run_table(rank: int, table: Schedule) -> list[Any]:
    """Return gradients of this rank's stages after one step, with the number of each stage."""
    layers = modules(table.stages)
    indices = table.placement.stages_of(rank)
    runtime = load(table, stages_of(layers, indices), loss_of)
    step(runtime, indices, table.stages)
    return [(index, [parameter.grad.tolist() for parameter in layers[index].parameters()]) for index in indices]


def step(runtime: Any, indices: list[int], stages: int) -> None:
    """Run one step."""
    data = batch(MICROBATCHES)
    inputs = (data,) if 0 in indices else ()
    targets = {"target": data.flip(0)} if stages - 1 in indices else {}
    runtime.step(*inputs, **targets)


def gradients() -> None:
    """Compare every schedule's gradients with autograd's, and try a table with losses out of order."""
    for name in ("gpipe", "1f1b", "zb-h1", "zb-v", "v-min", "dualpipe-v"):
        table = table_of(name)
        expected = autograd(table.stages, MICROBATCHES)
        for found in on_each_rank(RANKS, lambda rank, table=table: run_table(rank, table)):
            assert not isinstance(found, str), f"{name}: {found}"
            for index, values in found:
                for value, right in zip(values, expected[index], strict=True):
                    difference = float((torch.tensor(value) - right).abs().max() / right.abs().max())
                    assert difference < CLOSE, f"{name}, stage {index}: {difference}"
    other = on_each_rank(RANKS, refused)
    assert all("stages" in text for text in other), other


def refused(rank: int) -> str:
    """Return why stages of another rank are refused."""
    table = table_of("1f1b")
    try:
        load(table, stages_of(modules(RANKS), [(rank + 1) % RANKS]), loss_of)
    except ScheduleError as error:
        return str(error)
    return "accepted"


def captures(folder: str) -> None:
    """Record the classes that do not mark their actions, and a table."""
    for name in ("1f1b", "gpipe", "table"):
        results = on_each_rank(RANKS, lambda rank, name=name: captured(rank, name, str(Path(folder) / name)))
        assert results == ["clean"] * RANKS, f"{name}: {results}"
        assert len(list((Path(folder) / name).glob("rank*.json.gz"))) == RANKS
        schedule = Manifest.read(Path(folder) / name).schedule
        assert schedule.rows() == table_of("zb-h1" if name == "table" else name).rows()


def captured(rank: int, name: str, folder: str) -> str:
    """Return ``clean`` if a capture recorded its steps and removed its changes."""
    layers = modules(RANKS)
    stages = stages_of(layers, [rank])
    if name == "table":
        runtime: Any = load(table_of("zb-h1"), stages, loss_of)
    else:
        kind = Schedule1F1B if name == "1f1b" else ScheduleGPipe
        runtime = kind(stages[0], MICROBATCHES, loss_fn=loss_of)
    before = (dist.isend, dist.irecv, dict(stages[0].__dict__).keys(), runtime.step)
    with capture(runtime, folder, after=1, warmup=1, steps=2):
        for _ in range(5):
            dist.barrier()
            step(runtime, [rank], RANKS)
    after = (dist.isend, dist.irecv, dict(stages[0].__dict__).keys(), runtime.step)
    if (
        before[:2] != after[:2]
        or before[3] != after[3]
        or "pptrace_marks" in after[2]
        or "forward_one_chunk" in after[2]
    ):
        return "changes are left"
    try:
        with capture(runtime, f"{folder}-short", after=5):
            step(runtime, [rank], RANKS)
    except ConfigError:
        return "clean"
    return "a short capture is accepted"


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"gradients": gradients, "captures": captures}[sys.argv[1]](*sys.argv[2:])
