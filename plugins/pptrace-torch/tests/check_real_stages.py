"""Check that needs PyTorch in several processes: gradients of real stages are those of plain autograd."""

from __future__ import annotations

import sys
from typing import Any

import torch
from pipelines import on_each_rank
from torch.distributed.pipelining import PipelineStage

from pptrace.plugin import Registry, prepare
from pptrace.plugin import load as load_configuration
from pptrace_torch import load
from pptrace_torch.scaled_model import ScaledModel
from pptrace_torch.worker import real_stage, token_loss, tokens

RANKS, MICROBATCHES, CLOSE = 2, 4, 5e-6
BASE = {
    "parallel": {"pp": RANKS}, "batch": {"microbatches": MICROBATCHES, "sequence": 8, "micro": 2},
    "device": "h100-sxm",
}  # fmt: skip
GATED = {"layers": 4, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocabulary": 32}
PLAIN = {**GATED, "gated": False, "layout": "E|ttt|t|L", "causal": False}


def check(schedule: str, model: dict[str, Any]) -> None:
    """Compare the gradients of one step of a schedule with those of autograd over all stages."""
    prepared = prepare(load_configuration({**BASE, "schedule": schedule, "model": model}), Registry.load())
    table, sizes = prepared.schedule, ScaledModel.of(prepared, "this")
    assert sizes.divisor == 1
    inputs, targets = tokens(sizes, MICROBATCHES)
    stages = [real_stage(sizes, index) for index in range(table.stages)]
    token_loss(torch.nn.Sequential(*stages)(inputs), targets).backward()

    def gradients(rank: int) -> list[tuple[int, list[Any]]]:
        indices = table.placement.stages_of(rank)
        local = {index: real_stage(sizes, index) for index in indices}
        given = [
            PipelineStage(module, index, table.stages, torch.device("cpu")) for index, module in local.items()
        ]
        arguments = (inputs,) if 0 in indices else ()
        options = {"target": targets} if table.stages - 1 in indices else {}
        load(table, given, token_loss).step(*arguments, **options)
        return [(index, [weight.grad.tolist() for weight in local[index].parameters()]) for index in indices]

    seen = set()
    for found in on_each_rank(RANKS, gradients):
        assert not isinstance(found, str), found
        for index, values in found:
            seen.add(index)
            for value, weight in zip(values, stages[index].parameters(), strict=True):
                assert weight.grad is not None
                scale = max(float(weight.grad.abs().max()), 1e-3)
                difference = float((torch.tensor(value) - weight.grad).abs().max()) / scale
                assert difference < CLOSE, f"{schedule}, stage {index}: {difference}"
    assert seen == set(range(table.stages))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        check(name, GATED if name in {"1f1b", "zb-h1"} else PLAIN)
