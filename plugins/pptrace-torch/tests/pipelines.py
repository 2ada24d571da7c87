"""Small pipelines of real layers in processes of their own, and what each rank found."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

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
        results = [receiver.recv() if receiver.poll(60) else "no answer" for receiver, _ in pipes]
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


def autograd(stages: int, microbatches: int) -> list[list[torch.Tensor]]:
    """Return each stage's gradients by plain autograd, scaled as PyTorch's pipeline scales them."""
    layers = modules(stages)
    data = batch(microbatches)
    loss_of(torch.nn.Sequential(*layers)(data), data.flip(0)).backward()
    return [[parameter.grad / microbatches for parameter in layer.parameters()] for layer in layers]
