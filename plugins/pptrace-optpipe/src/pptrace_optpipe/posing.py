"""The problem that costs, a placement of stages, transfers and limits pose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, format_size
from pptrace_optpipe.problem import NO_LIMIT, Problem

if TYPE_CHECKING:
    from pptrace.plugin import Placement, Workload

__all__ = ["check_room", "problem_of"]


def problem_of(
    workload: Workload,
    placement: Placement,
    limit: tuple[int, ...],
    transfers: tuple[tuple[int, ...], tuple[int, ...]],
) -> Problem:
    """Return the problem that costs, a placement, room for activations and transfers make.

    Raises:
        ConstraintError: a rank has no room for the activation of one microbatch.
    """
    columns = {name: tuple(int(value) for value in getattr(workload, f"{name}_ns"))
               for name in ("f", "i", "w", "b", "offload", "reload")}  # fmt: skip
    if not (all(columns["offload"]) and all(columns["reload"])):
        columns["offload"] = columns["reload"] = ()
    stage_rank = tuple(int(rank) for rank in placement.stage_rank[0])
    problem = Problem(
        microbatches=placement.microbatches,
        stage_rank=stage_rank,
        activation=tuple(int(value) for value in workload.activation_bytes),
        weight_activation=tuple(int(value) for value in workload.weight_activation_bytes),
        limit=limit,
        forward_transfer=transfers[0],
        backward_transfer=transfers[1],
        tail=_tails(workload, stage_rank),
        **columns,  # type: ignore[arg-type] # columns by name
    )
    check_room(problem)
    return problem


def check_room(problem: Problem) -> None:
    """Refuse limits that not even one microbatch fits in.

    Raises:
        ConstraintError: names the rank and what is missing.
    """
    for rank, limit in enumerate(problem.limit):
        held = [problem.activation[stage] for stage in problem.stages_of[rank]]
        least = max(held) if problem.copies else sum(held)
        if limit not in (NO_LIMIT, max(limit, least)):
            what = "of a stage" if problem.copies else "of all its stages"
            raise ConstraintError(
                f"rank {rank} has {format_size(limit)} for activations, and one microbatch's {what} take "
                f"{format_size(least)}: allow {format_size(least - limit)} more", key="--memory",
            )  # fmt: skip


def _tails(workload: Workload, stage_rank: tuple[int, ...]) -> tuple[int, ...]:
    """Return what follows each rank's last computation at least: reduction, meeting, update."""
    tails = []
    for rank in range(max(stage_rank) + 1):
        own = [stage for stage, at in enumerate(stage_rank) if at == rank]
        update = sum(int(workload.optimizer_ns[stage]) for stage in own)
        tails.append(min(int(workload.reduce_ns[stage]) for stage in own) + int(workload.sync_ns) + update)
    return tuple(tails)
