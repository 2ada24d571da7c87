"""The speed of each rank, and costs of ranks and replicas at their speeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.config.resolution import Resolved
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.message_calls import Policy
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload

_KEY = "data_parallel.speeds"
_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9}))?"
_PLACES = rf"{_RANGE}(?:/{_RANGE})?"
_PERMILLE, _SEED = 1000, 1
_LEAST, _MOST = 0.5, 2
"""Bounds of random times."""


def speeds_of(resolved: Resolved) -> Int64s | None:
    """Return the speed of each replica's ranks in thousandths, shape (replicas, ranks); None for equal speeds.

    A rank has the speed of the slowest of its tensor- and context-parallel GPUs. With ``data_parallel.spread``,
    the time of each GPU is normally distributed with mean 1; named speeds multiply it.

    Raises:
        ConfigError: an invalid name, or a replica or rank that does not exist or is named twice.
    """
    experiment = resolved.experiment
    configured, spread = experiment.data_parallel.speeds, experiment.data_parallel.spread
    if not configured and not spread:
        return None
    parallel = experiment.parallel
    shape = (parallel.dp, parallel.pp or 1)
    named = _named(resolved, configured or {}, shape)
    if not spread:
        return times(named, _PERMILLE)
    seed = experiment.data_parallel.seed
    drawn = np.random.default_rng(_SEED if seed is None else seed)
    slowness = drawn.normal(1, spread, (*shape, parallel.tp * parallel.cp)).max(axis=2)
    return times(named * _PERMILLE, 1 / np.clip(slowness, _LEAST, _MOST))


def at_speeds_of_ranks(costs: Workload, speeds: Int64s, placement: Placement) -> Workload:
    """Return costs of a replica with these speeds of ranks for forwards and backwards.

    ``speeds`` are thousandths, shape (ranks,).
    """
    held = placement.stage_rank >= 0
    slowness = np.where(held, _PERMILLE / speeds[np.where(held, placement.stage_rank, 0)], 1.0)
    routes, number = np.unique(slowness, axis=0, return_inverse=True)
    if len(routes) == 1:
        return _slower(costs, routes[0])
    base = replace(costs, classes=(), microbatch_class=costs.microbatch_class[:0])
    classes = (base, *costs.classes)
    class_of = costs.microbatch_class if costs.microbatch_class.size else 0
    return replace(
        costs, classes=tuple(_slower(each, route) for route in routes for each in classes),
        microbatch_class=(
            number.ravel()[placement.microbatch_route] * len(classes) + class_of + 1
        ).astype(np.int32),
    )  # fmt: skip


def _slower(costs: Workload, by_stage: NDArray[np.float64]) -> Workload:
    return replace(slowed(costs, by_stage, 1), optimizer_ns=costs.optimizer_ns)


def _named(resolved: Resolved, configured: Mapping[str, float], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the named speeds, shape (replicas, ranks)."""
    speeds, entry_of = np.ones(shape), np.full(shape, -1)
    names = list(configured)
    for number, (text, speed) in enumerate(configured.items()):
        key, match = f"{_KEY}.{text}", re.fullmatch(_PLACES, text)
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
        twice = np.argwhere(entry_of[places] >= 0)
        if twice.size:
            replica, rank = (int(place) + (part.start or 0) for place, part in zip(twice[0], places, strict=True))
            where = f"replica {replica}" + (f" rank {rank}" if match[3] else "")
            other = names[entry_of[replica, rank]]
            raise resolved.error(key, f"{where} is also listed under {other}: list it once")
        speeds[places], entry_of[places] = speed, number
    return speeds


PASS_COLUMNS = ("f", "b", "i", "w")
"""Prefixes of the columns of forwards, and of whole and split backwards."""
_MOVED = ("reduce_ns", "reduce_groups_ns", "unshard_ns", "unshard_subgroup_ns", "offload_ns", "reload_ns")
"""Columns of communication outside forwards and backwards."""


def slowed(workload: Workload, compute: ArrayLike, communication: float) -> Workload:
    """Return costs with scaled times; ``compute`` is one factor, or one per stage."""
    by_stage = np.broadcast_to(np.asarray(compute, dtype=float), (workload.stages,))
    columns: dict[str, Any] = {
        "optimizer_ns": times(workload.optimizer_ns, by_stage),
        "recompute_ns": times(workload.recompute_ns, by_stage),
        "sync_ns": round(workload.sync_ns * communication),
    }
    for name in _MOVED:
        columns[name] = times(getattr(workload, name), communication)
    for name in PASS_COLUMNS:
        whole_ns, old_collective_ns = getattr(workload, f"{name}_ns"), getattr(workload, f"{name}_collective_ns")
        collective_ns = times(old_collective_ns, communication)
        columns |= {
            f"{name}_ns": times(whole_ns - old_collective_ns, by_stage) + collective_ns,
            f"{name}_collective_ns": collective_ns,
        }
    classes = tuple(slowed(each, compute, communication) for each in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **columns)
    parts = {
        kind: [
            slowed_segments(segments, factor, communication)
            for segments, factor in zip(stages, by_stage, strict=True)
        ]
        for kind, stages in workload.segments.items()
    }
    return replace(workload, segments={}, classes=classes, **columns).segmented(parts)


def slowed_segments(segments: Sequence[Segment], compute: float, communication: float) -> tuple[Segment, ...]:
    """Return segments with scaled times, rounded."""
    slowed_parts = []
    for each in segments:
        collective_ns = each.collective_ns if each.is_computation else each.duration_ns
        slowed_ns = round(collective_ns * communication)
        duration_ns = round((each.duration_ns - collective_ns) * compute) + slowed_ns
        slowed_parts.append(
            replace(each, duration_ns=duration_ns, collective_ns=slowed_ns if each.is_computation else 0)
        )
    return tuple(slowed_parts)


def times(values: NDArray[Any], factor: NDArray[np.float64] | float) -> Int64s:
    """Return scaled times, rounded."""
    scaled: Int64s = np.rint(values * factor).astype(np.int64)
    return scaled


class ReplicaTable(Struct, frozen=True):
    """A table, and the policy that inserts its messages."""

    schedule: Schedule
    policy: Policy


class ReplicaCosts(Struct, frozen=True, kw_only=True, eq=False):
    """Costs of replicas that differ by their sequences or speeds."""

    costs: Workload
    """Costs at full speed, with a class for each pack of sequences."""
    classes: Int32s | None
    """Cost class of each microbatch, shape (replicas, microbatches); 0 for one that the replica does not have.
    None for equal sequences."""
    speeds: Int64s | None
    """Speeds of ranks in thousandths, shape (replicas, ranks); None where all have the device's speed."""
    tables: Mapping[int, ReplicaTable] = field(default_factory=dict)
    """Tables by their number of microbatches; empty where all replicas have as many."""

    @property
    def kinds(self) -> int:
        """Return the number of different replicas."""
        return len(kinds_of(self.classes, self.speeds)[0])

    def costs_of(self, replica: int, placement: Placement) -> Workload:
        """Return the costs of one replica under a placement of its stages."""
        costs = self.costs
        if self.classes is not None:
            classes = self.classes[replica]
            costs = replace(costs, microbatch_class=classes[classes > 0])
        if self.speeds is None:
            return costs
        return at_speeds_of_ranks(costs, self.speeds[replica], placement)


def kinds_of(classes: Int32s | None, speeds: Int64s | None) -> tuple[Int64s, Int64s]:
    """Return the first replica of each kind, and the kind of each replica.

    Args:
        classes: shape (replicas, microbatches); None for equal sequences.
        speeds: shape (replicas, ranks); None for equal speeds. One of both is given.
    """
    rows = np.hstack([columns for columns in (classes, speeds) if columns is not None])
    _, first, kind_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind_of.ravel()
