"""Equal computations of two steps, and known schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from pydantic import ValidationError

from pptrace.errors import PptraceError
from pptrace.measured.computations import extract_computations
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.measured.computations import Computations
    from pptrace.plugins.registry import Registry
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule

_MOST_RANKS = 4096


class MatchedActions(Struct, frozen=True, kw_only=True):
    """Pairs of equal computations, by start in the second step."""

    first: Int64s
    """Positions in the first step."""
    second: Int64s
    """Positions in the second step."""
    by_order: int
    """The number of pairs that match by order only, with different microbatch numbers."""
    only_first: int
    """The number of computations that only the first step has."""
    only_second: int
    """The number of computations that only the second step has."""

    def __len__(self) -> int:
        return int(self.first.size)


def fold_first_stages(a: Computations, b: Computations) -> tuple[Computations, Computations, tuple[int, ...]]:
    """Return both steps, with merged backwards of first stages that only one of them splits, and those stages.

    PyTorch skips the input gradient of the first stage, so a measured first stage has no split backwards.
    """
    firsts = set(range(a.placement.stages)) - set(a.placement.edges[:, 1].tolist())
    first_split, second_split = (set(step.stage[step.kind == Kind.I].tolist()) for step in (a, b))
    folded = tuple(sorted(firsts & (first_split ^ second_split)))
    if not folded:
        return a, b, ()
    return a.folded(folded), b.folded(folded), folded


def has_same_stages(a: Computations, b: Computations) -> bool:
    """Return whether stages are the same parts of the model; a step with missing ranks can have fewer."""
    less, more = sorted((a, b), key=lambda step: step.placement.stages)
    return less.placement.stages == more.placement.stages or less.lacks_ranks


def first_difference(a: Computations, first: Int64s, b: Computations, second: Int64s) -> int | None:
    """Return the number of equal actions with which two sequences of positions begin; None where all are equal."""
    length = min(first.size, second.size)
    same = np.ones(length, dtype=np.bool_)
    for name in ("rank", "kind", "stage", "microbatch", "span"):
        same &= getattr(a, name)[first[:length]] == getattr(b, name)[second[:length]]
    if same.all():
        return None if first.size == second.size else length
    return int(same.argmin())


def match(a: Computations, b: Computations) -> MatchedActions:
    """Pair the computations of two steps; without pairs where numbers of stages differ."""
    first, second = np.zeros((2, 0), dtype=np.int64)
    unmatched, by_order = [np.arange(len(a)), np.arange(len(b))], np.zeros((0, 2), dtype=np.int64)
    if has_same_stages(a, b):
        stages = max(a.placement.stages, b.placement.stages)
        microbatches = max(a.placement.microbatches, b.placement.microbatches)
        keys = [
            ((step.kind.astype(np.int64) * stages + step.stage) * microbatches + np.maximum(step.microbatch, 0))
            * _MOST_RANKS
            + step.rank
            for step in (a, b)
        ]
        _, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
        unmatched = [np.delete(unmatched[0], first), np.delete(unmatched[1], second)]
        by_order = np.array(_pair_by_order(a, b, unmatched), dtype=np.int64).reshape(-1, 2)
    pairs = np.concatenate([np.stack([first, second], axis=1), by_order])
    pairs = pairs[np.lexsort((b.rank[pairs[:, 1]], b.start_ns[pairs[:, 1]]))]
    return MatchedActions(
        first=pairs[:, 0], second=pairs[:, 1], by_order=len(by_order),
        only_first=len(a) - len(pairs), only_second=len(b) - len(pairs),
    )  # fmt: skip


def _pair_by_order(a: Computations, b: Computations, unmatched: list[Int64s]) -> list[tuple[int, int]]:
    """Pair unmatched computations of equal rank, stage and kind by their order."""
    groups: dict[tuple[int, int, int], list[list[int]]] = {}
    for side, (step, indices) in enumerate(zip((a, b), unmatched, strict=True)):
        for index in indices.tolist():
            key = (int(step.rank[index]), int(step.stage[index]), int(step.kind[index]))
            groups.setdefault(key, [[], []])[side].append(index)
    return [pair for first, second in groups.values() for pair in zip(first, second, strict=False)]


def matching_schedules(step: Computations, registry: Registry, slices: int = 1) -> tuple[str, ...]:
    """Return the names of all schedules with this order under default options, without searches.

    Of steps that run slices of sequences as microbatches, they are schedules with as many ``slices``.
    """
    placement = step.placement
    chunks, uneven = divmod(placement.stages, placement.ranks)
    names: list[str] = []
    if uneven or step.partial:
        return ()
    for name, provided in registry.schedules.items():
        parameters = provided.offer.options
        if provided.offer.searches:
            continue
        try:
            model = parameters() if parameters else None
            cut = {"slices": slices} if model and slices > 1 and "slices" in model.model_fields else {}
            request = ScheduleRequest(
                ranks=placement.ranks, microbatches=placement.microbatches // slices, chunks=chunks,
                options=model(**cut).model_dump() if model else {},
            )  # fmt: skip
            same = _same_order(step, build_schedule(provided, request))
        except (PptraceError, ValidationError):  # it does not support these sizes, or requires an option
            continue
        if same:
            names.append(name)
    return tuple(names)


def _same_order(step: Computations, table: Schedule) -> bool:
    if table.stages != step.placement.stages:
        return False
    costs = Workload.uniform(table.stages, edges=len(table.placement.edges), f_ns=1000, b_ns=2000)
    a, b, _ = fold_first_stages(step, extract_computations(simulate(table, costs)))
    return all(
        np.array_equal(getattr(a, column), getattr(b, column))
        for column in ("rank", "kind", "stage", "microbatch")
    )
