"""Checks of tables in Megatron-LM in several processes: ``python check_megatron.py tables`` or ``… trace FOLDER``.

Megatron-LM is the stand-in, or the checkout that ``PPTRACE_MEGATRON`` names; its functions then run on CPUs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import typing
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from pipelines import on_each_rank

import pptrace
from pptrace.plugin import PptraceError, Schedule, insert_messages
from pptrace_profilers.annotation import module_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS, WIDTH = 3, 8
CLOSE = 5e-6


def find_megatron() -> None:
    """Import Megatron-LM or its stand-in, for CPUs."""
    checkout = os.environ.get("PPTRACE_MEGATRON")
    if checkout is None:
        import megatron_stand_in

        megatron_stand_in.install()
        return
    sys.path[:0] = checkout.split(os.pathsep)
    zeros = torch.zeros

    def zeros_on_cpu(*sizes: Any, **options: Any) -> torch.Tensor:
        return zeros(*sizes, **options | {"device": "cpu"})

    vars(torch).update(zeros=zeros_on_cpu)
    vars(torch.cuda).update(current_device=lambda: torch.device("cpu"), synchronize=lambda *_: None)
    import_module("megatron.core.pipeline_parallel.schedules")


class Chunk(torch.nn.Module):
    """A stage's layers, with what Megatron-LM asks of a model."""

    def __init__(self, config: Any, stage: int, vp_stage: int | None) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        self.config, self.vp_stage, self.model_type = config, vp_stage, None

    def set_input_tensor(self, tensors: list[Any]) -> None:
        (self.inputs,) = tensors

    def forward(self, data: torch.Tensor) -> Any:
        return self.layers(data if self.inputs is None else self.inputs)


def batch(microbatches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs and targets of each microbatch."""
    torch.manual_seed(1000)
    return [(torch.randn(ROWS, 1, WIDTH), torch.randn(ROWS, 1, WIDTH)) for _ in range(microbatches)]


def loss_of(target: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    loss = ((output - target) ** 2).sum()
    return loss, torch.tensor(ROWS, dtype=torch.int), loss.item()


def forward_step(iterator: Any, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    inputs, target = next(iterator)
    return model(inputs), partial(loss_of, target)


def autograd(stages: int, microbatches: int) -> tuple[list[float], list[list[torch.Tensor]]]:
    """Return losses by microbatch and gradients by stage of plain autograd."""
    chunks = [Chunk(None, stage, None) for stage in range(stages)]
    losses = []
    for inputs, target in batch(microbatches):
        output = inputs
        for chunk in chunks:
            output = chunk.layers(output)
        loss, tokens, report = loss_of(target, output)
        (loss / tokens / microbatches).backward()
        losses.append(report)
    return losses, [gradients_of(chunk) for chunk in chunks]


def gradients_of(model: Any) -> list[torch.Tensor]:
    """Return the gradients of a model's parameters."""
    return [parameter.grad for parameter in model.parameters()]


def per_chunk(chunks: int, function_of: Callable[[int], Any]) -> Any:
    """Return a function per chunk, as ``train`` of Megatron-LM sets them: a single one is not in a list."""
    functions = [function_of(chunk) for chunk in range(chunks)]
    return functions if chunks > 1 else functions[0]


class Job:
    """A rank's model in Megatron-LM, and a log of its actions and synchronizations."""

    def __init__(self, rank: int, ranks: int, chunks: int, *, aligned: bool = False) -> None:
        from megatron.core import parallel_state
        from megatron.core.transformer.transformer_config import TransformerConfig

        virtual = chunks if chunks > 1 else None
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=virtual
        )
        self.log: list[str] = []
        config = TransformerConfig(
            num_layers=ranks * chunks, hidden_size=WIDTH, num_attention_heads=1,
            pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=virtual,
            pipeline_dtype=torch.float32, deallocate_pipeline_outputs=True, overlap_p2p_comm=chunks > 1,
            batch_p2p_comm=chunks == 1,
        )  # fmt: skip
        self.held = [False] * chunks
        self.computed: list[str] = []
        config.no_sync_func = per_chunk(chunks, lambda chunk: partial(self.no_sync, chunk))
        if aligned:
            config.grad_sync_func = per_chunk(chunks, lambda chunk: partial(self.note, f"reduce {chunk}"))
            config.param_sync_func = per_chunk(chunks, lambda chunk: partial(self.note, f"gather {chunk}"))
        config.finalize_model_grads_func = self.finalize
        self.config = config
        self.stages = [rank + chunk * ranks for chunk in range(chunks)]
        self.models = [
            Chunk(config, stage, chunk if chunks > 1 else None) for chunk, stage in enumerate(self.stages)
        ]
        for chunk, model in enumerate(self.models):
            next(model.parameters()).register_hook(partial(self.compute, chunk))

    @contextmanager
    def no_sync(self, chunk: int) -> Iterator[None]:
        self.held[chunk] = True
        yield
        self.held[chunk] = False

    def compute(self, chunk: int, _: torch.Tensor) -> None:
        self.computed.append(f"{self.stages[chunk]} {'held' if self.held[chunk] else 'reduced'}")

    def note(self, text: str, _: Any) -> None:
        self.log.append(text)

    def finalize(self, models: list[Any], tokens: Any, *, pg_collection: Any, force_all_reduce: bool) -> None:
        assert models == self.models
        assert tokens is None
        assert hasattr(pg_collection, "pp")
        assert not any(self.held)
        assert not force_all_reduce
        self.log.append("finalize")

    def step(self, microbatches: int, **options: Any) -> list[Any]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        iterators = [iter(batch(microbatches)) for _ in self.models]
        one = len(self.models) == 1
        result: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iterators[0] if one else iterators,
            model=self.models[0] if one else self.models, num_microbatches=microbatches, seq_length=ROWS,
            micro_batch_size=1, **options,
        )  # fmt: skip
        return result


def run_table(rank: int, table: Schedule, *, aligned: bool) -> tuple[list[str], list[str], list[Any], list[Any]]:
    """Return the log of one step, held and reduced gradients, losses, and gradients by stage."""
    from pptrace_torch import megatron, megatron_schedule

    job = Job(rank, table.ranks, table.stages // table.ranks, aligned=aligned)

    def logged(name: str) -> Any:
        job.log.append(name.removeprefix("PP:"))
        return nullcontext()

    vars(megatron).update(record_function=logged)
    with megatron_schedule(table):
        losses = job.step(table.microbatches)
    gradients = [
        (stage, [gradient.tolist() for gradient in gradients_of(model)])
        for stage, model in zip(job.stages, job.models, strict=True)
    ]
    return job.log, job.computed, losses, gradients


def random_table(seed: int, ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Return a table of actions in a random order in which each has its input."""
    draw, stages = random.Random(seed), ranks * chunks  # noqa: S311 - not for secrets
    rows: list[list[str]] = [[] for _ in range(ranks)]
    forwards, backwards = [0] * stages, [set[int]() for _ in range(stages)]
    while True:
        ready = [(stage, "F", forwards[stage]) for stage in range(stages) if forwards[stage] < microbatches
                 and (stage == 0 or forwards[stage - 1] > forwards[stage])]  # fmt: skip
        ready += [(stage, "B", microbatch) for stage in range(stages) for microbatch in range(forwards[stage])
                  if microbatch not in backwards[stage]
                  and (stage == stages - 1 or microbatch in backwards[stage + 1])]  # fmt: skip
        if not ready:
            return Schedule.from_rows(rows)
        stage, kind, microbatch = draw.choice(ready)
        rows[stage % ranks].append(f"{stage}{kind}{microbatch}")
        if kind == "F":
            forwards[stage] += 1
        else:
            backwards[stage].add(microbatch)


def check_table(name: str, table: Schedule, *, aligned: bool = False) -> None:
    """Check order, losses, gradients and synchronization of a step."""
    losses, expected = autograd(table.stages, table.microbatches)
    rows = insert_messages(table).rows()
    results = on_each_rank(table.ranks, lambda rank: run_table(rank, table, aligned=aligned))
    for rank, found in enumerate(results):
        assert not isinstance(found, str), f"{name}, rank {rank}: {found}"
        log, computed, reported, gradients = found
        actions = [entry for entry in log if entry[0].isdigit()]
        assert actions == rows[rank], f"{name}, rank {rank}: {actions}"
        assert reported == (losses if rank == table.ranks - 1 else []), f"{name}, rank {rank}: {reported}"
        check_synchronization(log, computed, table, rank, aligned=aligned)
        for stage, values in gradients:
            for value, right in zip(values, expected[stage], strict=True):
                difference = float((torch.tensor(value) - right).abs().max() / right.abs().max())
                assert difference < CLOSE, f"{name}, stage {stage}: {difference}"


def check_synchronization(
    log: list[str], computed: list[str], table: Schedule, rank: int, *, aligned: bool
) -> None:
    """Check that the last backward of each chunk, and no other, lets its gradients be reduced."""
    stages = table.placement.stages_of(rank)
    for chunk, stage in enumerate(stages):
        of_stage = [entry for entry in computed if entry.startswith(f"{stage} ")]
        last = f"{stage} held" if aligned else f"{stage} reduced"
        assert of_stage == [f"{stage} held"] * (table.microbatches - 1) + [last], of_stage
        if aligned:
            backwards = [position for position, entry in enumerate(log) if entry.startswith(f"{stage}B")]
            assert log[max(backwards) + 1] == f"reduce {chunk}", log
            gathered = log.index(f"gather {chunk}") if len(stages) > 1 else -1
            assert gathered < log.index(f"{stage}F0")
    assert log[-1] == "finalize"


def tables() -> None:
    """Run tables of schedules, and random ones."""
    find_megatron()
    for name, ranks, vp in (("1f1b", 4, 1), ("gpipe", 3, 1), ("interleaved-1f1b", 2, 2), ("looped-bfs", 3, 2)):
        table = pptrace.simulate(schedule=name, pp=ranks, vp=vp, microbatches=6).prepared.schedule
        check_table(name, table, aligned=ranks == 2)
    for seed, (ranks, chunks, microbatches) in enumerate(((2, 1, 5), (2, 3, 4), (3, 2, 4), (4, 1, 6))):
        check_table(f"random {seed}", random_table(seed, ranks, chunks, microbatches), aligned=seed % 2 == 1)
    for function in (evaluated, refused):
        results = on_each_rank(2, function)
        assert results == [function.__name__] * 2, results


ORDER = [["0F0", "0F1", "0F2", "0B1", "0B0", "0B2"], ["1F0", "1F1", "1B1", "1B0", "1F2", "1B2"]]


def evaluated(rank: int) -> str:
    """Return ``evaluated`` if evaluation runs without the table, and the block leaves nothing behind."""
    from megatron.core.pipeline_parallel import get_forward_backward_func, schedules

    from pptrace_torch import megatron_schedule

    job = Job(rank, 2, 1)
    with megatron_schedule(Schedule.from_rows(ORDER)):
        losses = job.step(5, forward_only=True)
    assert losses == (autograd(2, 5)[0] if rank else []), losses
    assert not job.log
    assert schedules.get_forward_backward_func is get_forward_backward_func
    return "evaluated"


def refused(rank: int) -> str:
    """Return ``refused`` if a model or a setting that does not fit is an error of one line."""
    from pptrace_torch import megatron_schedule

    job, chunks = Job(rank, 2, 1), Job(rank, 2, 2) if "PPTRACE_MEGATRON" not in os.environ else None
    with megatron_schedule(Schedule.from_rows(ORDER)):
        expect("the table has 3 microbatches and Megatron-LM 4: use as many", lambda: job.step(4))
        if chunks:
            expect("the table has 2 stages and Megatron-LM 4: use as many", lambda: chunks.step(3))
        job.config.variable_seq_lengths = True
        expect("Megatron-LM cannot run a table with variable_seq_lengths: switch it off", lambda: job.step(3))
        job.config.variable_seq_lengths = False
        expect("adjust_tensor_shapes_fn", lambda: job.step(3, adjust_tensor_shapes_fn=print))
        job.step(3)
    annotate()
    expect("pptrace_annotate.annotate() is in use", megatron_schedule(Schedule.from_rows(ORDER)).__enter__)
    return "refused"


def expect(text: str, function: Callable[[], Any]) -> None:
    """Check that a function raises an error with a text."""
    with pytest.raises(PptraceError) as caught:
        function()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def annotate() -> None:
    """Annotate Megatron-LM with the printed module."""
    module: dict[str, Any] = {}
    exec(module_for("megatron"), module)  # noqa: S102 - the text is part of this program
    module["annotate"]()


def trace(folder: str, table_file: str = "") -> None:
    """Profile a table, or Megatron-LM's own 1F1B with annotations, of four ranks and eight microbatches."""
    find_megatron()
    Path(folder).mkdir(parents=True)
    results = on_each_rank(4, lambda rank: traced(rank, Path(folder), table_file))
    assert results == ["traced"] * 4, results


def traced(rank: int, folder: Path, table_file: str) -> str:
    """Profile two steps as Megatron-LM does with ``--use-pytorch-profiler``."""
    from pptrace_torch import megatron_schedule

    job = Job(rank, 4, 1)
    if not table_file:
        annotate()
    with (
        megatron_schedule(table_file) if table_file else nullcontext(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True,
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(folder / f"rank-{rank}.json.gz")),
        ) as profiler,
    ):  # fmt: skip
        for _ in range(3):
            dist.barrier()
            job.step(8)
            profiler.step()
    return "traced"


def arguments(*names: str) -> None:
    """Check that a checkout's parser has arguments."""
    vars(typing).setdefault("override", typing.no_type_check)  # the checkout takes it from Python 3.12
    find_megatron()
    parser = import_module("megatron.training.arguments").add_megatron_arguments(argparse.ArgumentParser())
    missing = [name for name in names if name not in parser._option_string_actions]  # noqa: SLF001 - no public name
    assert not missing, missing


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"tables": tables, "trace": trace, "arguments": arguments}[sys.argv[1]](*sys.argv[2:])
