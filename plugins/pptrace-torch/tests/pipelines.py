"""Small pipelines of real layers in processes of their own, and what each rank found."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from pptrace_torch import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pptrace.plugin import Schedule

WIDTH, ROWS = 8, 4


def on_each_rank(ranks: int, function: Callable[[int], Any]) -> list[Any]:
    """Return what a function returns on every rank of a gloo group; an error becomes its text."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(target=_rank, args=(rank, ranks, function, Path(folder) / "store", pipes[rank][1]))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        results = [receiver.recv() if receiver.poll(300) else "no answer" for receiver, _ in pipes]
        for process in processes:
            process.kill()
            process.join()
    return results


def _rank(rank: int, ranks: int, function: Callable[[int], Any], store: Path, answers: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks)
        answers.send(function(rank))
        dist.barrier()
    except BaseException as error:  # noqa: BLE001 - the test shows it
        answers.send(f"{type(error).__name__}: {error}")
    os._exit(0)


def modules(stages: int) -> list[torch.nn.Module]:
    """Return a stage's layers for each stage, the same on all ranks."""
    torch.manual_seed(7)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(stages)]


def stages_of(layers: list[torch.nn.Module], indices: list[int]) -> list[PipelineStage]:
    """Return a rank's stages."""
    return [PipelineStage(layers[index], index, len(layers), torch.device("cpu")) for index in indices]


def batch(microbatches: int) -> torch.Tensor:
    """Return inputs that differ from microbatch to microbatch."""
    torch.manual_seed(11)
    return torch.randn(ROWS * microbatches, WIDTH)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss in which every microbatch has another gradient."""
    return ((output - target) ** 2).sum()


@cache
def autograd(stages: int, microbatches: int) -> list[list[torch.Tensor]]:
    """Return each stage's gradients by plain autograd, scaled as PyTorch's pipeline scales them."""
    layers = modules(stages)
    data = batch(microbatches)
    loss_of(torch.nn.Sequential(*layers)(data), data.flip(0)).backward()
    return [[parameter.grad / microbatches for parameter in layer.parameters()] for layer in layers]


def run_step(runtime: Any, indices: list[int], stages: int, microbatches: int) -> None:
    """Run one step of a rank with these stages."""
    data = batch(microbatches)
    inputs = (data,) if 0 in indices else ()
    targets = {"target": data.flip(0)} if stages - 1 in indices else {}
    runtime.step(*inputs, **targets)


def gradient_errors(ranks: int, tables: dict[str, Schedule]) -> dict[str, float]:
    """Return by table the largest difference of a gradient from autograd's, as a share of its largest element."""
    results = on_each_rank(ranks, lambda rank: {name: _gradient_error(rank, tables[name]) for name in tables})
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, str)]
    assert not failed, failed
    return {name: max(result[name] for result in results) for name in tables}


def _gradient_error(rank: int, table: Schedule) -> float:
    """Return the error of this rank's gradients after one step of a table."""
    layers, indices = modules(table.stages), table.placement.stages_of(rank)
    runtime = load(table, stages_of(layers, indices), loss_of)
    run_step(runtime, indices, table.stages, table.microbatches)
    expected = autograd(table.stages, table.microbatches)
    return max(
        float((parameter.grad - right).abs().max() / right.abs().max())
        for index in indices
        for parameter, right in zip(layers[index].parameters(), expected[index], strict=True)
    )
