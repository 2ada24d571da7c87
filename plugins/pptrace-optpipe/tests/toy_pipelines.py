"""Pipelines whose ops all take 1, an activation 1, its weight gradient's part 1/2, and a copy 1/2: in halves."""

from __future__ import annotations

from typing import Any

from pptrace_optpipe.problem import Problem


def toy(stages: int, microbatches: int, limit: float, *, copies: bool, **values: Any) -> Problem:
    """Return one whose copies share a stream and start at any moment, and whose longest span counts."""
    twos, ones = (2,) * stages, (1,) * stages
    given = {"one_stream": True, "span": True, **values}
    return Problem(
        microbatches=microbatches, stage_rank=tuple(range(stages)), f=twos, i=twos, w=twos, activation=twos,
        weight_activation=ones, limit=(int(2 * limit),) * stages, offload=ones if copies else (),
        reload=ones if copies else (), **given,
    )  # fmt: skip


def again(
    stages: int, microbatches: int, limit: float, checkpoint: int, *, copies: bool, **values: Any
) -> Problem:
    """Return one whose forwards may be computed again, in as long; some halves stay until then."""
    given = {"recompute": (2,) * stages, "checkpoint": (checkpoint,) * stages, **values}
    return toy(stages, microbatches, limit, copies=copies, **given)


def table(stages: int, microbatches: int, limit: float, *, copies: bool) -> Problem:
    """Return one as tables have it: a copy stream each way; the step counts."""
    return toy(stages, microbatches, limit, copies=copies, one_stream=False, span=False)


def v_shaped(ranks: int, microbatches: int, limit: int) -> Problem:
    """Return two stages per rank, down and up; everything takes 1, and a limit counts stages' activations."""
    ones, down = (1,) * (2 * ranks), tuple(range(ranks))
    return Problem(
        microbatches=microbatches, stage_rank=(*down, *down[::-1]), f=ones, i=ones, w=ones,
        activation=(2,) * (2 * ranks), weight_activation=ones, limit=(2 * limit,) * ranks,
    )  # fmt: skip
