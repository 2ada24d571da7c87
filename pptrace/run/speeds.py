"""The speed of each rank, and costs at that speed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.config.resolution import Resolved
    from pptrace.steps.columns import Int64s
    from pptrace.steps.placement import Placement
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload

_KEY = "data_parallel.speeds"
_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9}))?"
_PLACES = re.compile(rf"{_RANGE}(?:/{_RANGE})?")
_WHOLE, _SEED = 1000, 1
_LEAST, _MOST = 0.5, 2
"""Bounds of the times that are drawn."""


def speeds_of(resolved: Resolved) -> Int64s | None:
    """Return the speed of each replica's ranks in thousandths, shape (replicas, ranks); None where all have 1.

    A rank is as fast as the slowest of its tensor- and context-parallel GPUs, which all wait for it. With
    ``data_parallel.spread`` each GPU's time is drawn, normally and around 1; speeds by name are of that.

    Raises:
        ConfigError: a name that cannot be read, or a replica or rank that is not there or named twice.
    """
    experiment = resolved.experiment
    asked, spread = experiment.data_parallel.speeds, experiment.data_parallel.spread
    if not asked and not spread:
        return None
    parallel = experiment.parallel
    shape = (parallel.dp, parallel.pp or 1)
    named = _named(resolved, asked or {}, shape)
    if not spread:
        return times(named, _WHOLE)
    seed = experiment.data_parallel.seed
    drawn = np.random.default_rng(_SEED if seed is None else seed)
    slowness = drawn.normal(1, spread, (*shape, parallel.tp * parallel.cp)).max(axis=2)
    return times(named * _WHOLE, 1 / np.clip(slowness, _LEAST, _MOST))


def at_speeds_of_ranks(costs: Workload, speeds: Int64s, placement: Placement) -> Workload:
    """Return costs of a replica whose ranks have these speeds, by which its forwards and backwards take longer.

    Args:
        costs: at full speed.
        speeds: thousandths, shape (ranks,).
        placement: which rank computes a stage of a microbatch.
    """
    held = placement.stage_rank >= 0
    slowness = np.where(held, _WHOLE / speeds[np.where(held, placement.stage_rank, 0)], 1.0)
    routes, number = np.unique(slowness, axis=0, return_inverse=True)
    if len(routes) == 1:
        return _slower(costs, routes[0])
    alike = replace(costs, classes=(), microbatch_class=costs.microbatch_class[:0])
    sorts = (alike, *costs.classes)
    own = costs.microbatch_class if costs.microbatch_class.size else 0
    return replace(
        costs, classes=tuple(_slower(one, route) for route in routes for one in sorts),
        microbatch_class=(number.ravel()[placement.microbatch_route] * len(sorts) + own + 1).astype(np.int32),
    )  # fmt: skip


def _slower(costs: Workload, by_stage: NDArray[np.float64]) -> Workload:
    return replace(slowed(costs, by_stage, 1), optimizer_ns=costs.optimizer_ns)


def _named(resolved: Resolved, asked: Mapping[str, float], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the speeds that are written, shape (replicas, ranks)."""
    found, told = np.ones(shape), np.full(shape, -1)
    names = list(asked)
    for number, (text, speed) in enumerate(asked.items()):
        key, match = f"{_KEY}.{text}", _PLACES.fullmatch(text)
        if match is None:
            message = (
                f"{text!r} names no replicas: write one such as 3, a range such as 4-7, or 3/2 for its rank 2"
            )
            raise resolved.error(key, message)
        span = [match.group(1, 2), match.group(3, 4)]
        for axis, (what, (first, last)) in enumerate(zip(("replicas", "ranks"), span, strict=True)):
            if first and int(last or first) >= shape[axis]:
                raise resolved.error(key, f"{last or first}: the job has {what} 0 to {shape[axis] - 1}")
            if last and int(last) < int(first):
                raise resolved.error(key, f"{first}-{last} runs backwards: write {last}-{first}")
        places = tuple(slice(int(first), int(last or first) + 1) if first else slice(None) for first, last in span)
        twice = np.argwhere(told[places] >= 0)
        if twice.size:
            replica, rank = (int(at) + (one.start or 0) for at, one in zip(twice[0], places, strict=True))
            where = f"replica {replica}" + (f" rank {rank}" if match[3] else "")
            raise resolved.error(key, f"{where} stands under {names[told[replica, rank]]}, too: name each once")
        found[places], told[places] = speed, number
    return found


PASSES = ("f", "b", "i", "w")
"""Forwards and backwards, whole and split, as columns of costs begin."""
_MOVED = ("reduce_ns", "unshard_ns", "offload_ns", "reload_ns")
"""Communication outside of forwards and backwards."""


def slowed(workload: Workload, compute: ArrayLike, communication: float) -> Workload:
    """Return costs that take so many times as long; ``compute`` is one factor, or one per stage."""
    by_stage = np.broadcast_to(np.asarray(compute, dtype=float), (workload.stages,))
    columns: dict[str, Any] = {
        "optimizer_ns": times(workload.optimizer_ns, by_stage),
        "recompute_ns": times(workload.recompute_ns, by_stage),
        "sync_ns": round(workload.sync_ns * communication),
    }
    for name in _MOVED:
        columns[name] = times(getattr(workload, name), communication)
    for name in PASSES:
        whole, moved = getattr(workload, f"{name}_ns"), getattr(workload, f"{name}_collective_ns")
        own = times(moved, communication)
        columns |= {f"{name}_ns": times(whole - moved, by_stage) + own, f"{name}_collective_ns": own}
    classes = tuple(slowed(one, compute, communication) for one in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **columns)
    parts = {
        kind: [slowed_segments(own, factor, communication) for own, factor in zip(stages, by_stage, strict=True)]
        for kind, stages in workload.segments.items()
    }
    return replace(workload, segments={}, classes=classes, **columns).segmented(parts)


def slowed_segments(segments: Sequence[Segment], compute: float, communication: float) -> tuple[Segment, ...]:
    """Return segments that take so many times as long, rounded."""
    return tuple(
        replace(one, duration_ns=round(one.duration_ns * (compute if one.is_computation else communication)))
        for one in segments
    )


def times(values: NDArray[Any], factor: NDArray[np.float64] | float) -> Int64s:
    """Return times that are so many times as long, rounded."""
    found: Int64s = np.rint(values * factor).astype(np.int64)
    return found
