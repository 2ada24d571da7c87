"""Devices that are slower than others of their job (stragglers): which ranks of which replicas, and how slow."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.experiment.slowed import slowed, times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.config.resolve import Resolved
    from pptrace.model.columns import Int64s
    from pptrace.model.placement import Placement
    from pptrace.model.workload import Workload

__all__ = ["at_speeds_of_ranks", "speeds_of"]

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
