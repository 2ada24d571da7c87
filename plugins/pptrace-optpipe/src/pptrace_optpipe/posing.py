"""The problem that costs, a placement of stages, transfers and limits pose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, ConstraintError, format_size
from pptrace_optpipe.problem import NO_LIMIT, Problem

if TYPE_CHECKING:
    from pptrace.plugin import Placement, Workload

__all__ = ["again_of", "check_room", "problem_of"]


def problem_of(
    workload: Workload,
    placement: Placement,
    limit: tuple[int, ...],
    transfers: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    recompute: bool = False,
    shared: tuple[tuple[int, ...], ...] = (),
) -> Problem:
    """Return the problem that costs, a placement, room for activations and transfers make.

    Args:
        workload: what actions cost.
        placement: where stages are.
        limit: per rank the bytes of activations.
        transfers: from each stage to the next and back, in ns.
        recompute: whether forwards may be computed again.
        shared: groups of ranks whose copies share their streams.

    Raises:
        ConstraintError: a rank has no room for the activation of one microbatch.
    """
    columns = {name: tuple(int(value) for value in getattr(workload, f"{name}_ns"))
               for name in ("f", "i", "w", "b", "offload", "reload", "recompute")}  # fmt: skip
    if not (all(columns["offload"]) and all(columns["reload"])):
        columns["offload"] = columns["reload"] = ()
    columns["recompute"] = again_of(columns["recompute"]) if recompute else ()
    stage_rank = tuple(int(rank) for rank in placement.stage_rank[0])
    problem = Problem(
        microbatches=placement.microbatches,
        stage_rank=stage_rank,
        activation=tuple(int(value) for value in workload.activation_bytes),
        weight_activation=tuple(int(value) for value in workload.weight_activation_bytes),
        checkpoint=tuple(int(value) for value in workload.checkpoint_bytes) if columns["recompute"] else (),
        limit=limit,
        forward_transfer=transfers[0],
        backward_transfer=transfers[1],
        tail=_tails(workload, stage_rank),
        shared=shared,
        **columns,  # type: ignore[arg-type] # columns by name
    )
    check_room(problem)
    return problem


def again_of(recompute: tuple[int, ...]) -> tuple[int, ...]:
    """Return what forwards take that are computed again.

    Raises:
        ConfigError: the backward's own time has that in it already.
    """
    if not all(recompute):
        raise ConfigError("the model's own backward computes its forward again: leave it out here, or "
                          "model.recompute", key="recompute")  # fmt: skip
    return recompute


def check_room(problem: Problem, key: str = "--memory") -> None:
    """Refuse limits that not even one microbatch fits in; ``key`` is what sets them.

    Raises:
        ConstraintError: names the rank and what is missing.
    """
    for rank, limit in enumerate(problem.limit):
        stages = problem.stages_of[rank]
        held = [problem.activation[stage] for stage in stages]
        least = max(held) if problem.copies else sum(held)
        if problem.recomputes:
            before = [sum(problem.checkpoint[one] for one in stages[:place]) for place in range(len(stages))]
            least = min(least, max(own + kept for own, kept in zip(held, before, strict=True)))
        if limit not in (NO_LIMIT, max(limit, least)):
            what = "of a stage" if problem.copies or problem.recomputes else "of all its stages"
            room, more = format_size(limit), format_size(least - limit)
            if not limit:
                room, more = "nothing left beside its weights and state", f"at least {more}"
            raise ConstraintError(
                f"rank {rank} has {room} for activations, and one microbatch's {what} take {format_size(least)}: "
                f"allow {more} more", key=key,
            )  # fmt: skip


def _tails(workload: Workload, stage_rank: tuple[int, ...]) -> tuple[int, ...]:
    """Return what follows each rank's last computation at least: reduction, meeting, update."""
    tails = []
    for rank in range(max(stage_rank) + 1):
        own = [stage for stage, at in enumerate(stage_rank) if at == rank]
        update = sum(int(workload.optimizer_ns[stage]) for stage in own)
        tails.append(min(int(workload.reduce_ns[stage]) for stage in own) + int(workload.sync_ns) + update)
    return tuple(tails)
