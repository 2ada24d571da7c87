"""Microbatches of unlike lengths: what each costs, and replicas that are not done at the same time."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.config.quantity import format_duration, format_size
from pptrace.model.kinds import WEIGHT_GRADIENTS, Kind
from pptrace.record import dataclass
from pptrace.sim.simulate import simulate
from pptrace.timeline.memory import measure_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.prepare import Prepared
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.workload import Workload

__all__ = [
    "Unlike",
    "changed",
    "lengths_of",
    "of_the_last_replica",
    "speeds_of",
    "unlike_replicas",
    "with_lengths",
]

_KEY = "batch.lengths"
_SPEEDS = "data_parallel.speeds"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NUMBER = re.compile(r"[^\s,;]+")


def lengths_of(resolved: Resolved) -> tuple[Resolved, Int64s | None]:
    """Return what a configuration says of lengths, shape (replicas, microbatches), with the longest as sequence.

    Raises:
        ConfigError: a file that cannot be read or holds something else, another number of lengths, or one that
            passes the sequence.
    """
    batch, dp = resolved.experiment.batch, resolved.experiment.parallel.dp
    if batch.lengths is None:
        return resolved, None
    given = batch.lengths if isinstance(batch.lengths, list) else _read(resolved, batch.lengths)
    count = batch.known_microbatches
    if len(given) not in {count, dp * count}:
        each = f"{count} or, replica after replica, {dp * count}" if dp > 1 else str(count)
        of = f"{count} microbatches" + (f" on {dp} replicas" if dp > 1 else "")
        raise resolved.error(_KEY, f"{len(given)} lengths for {of}: write {each}")
    lengths = np.broadcast_to(np.array(given, dtype=np.int64).reshape(-1, count), (dp, count))
    longest = int(lengths.max())
    if batch.sequence is None:
        batch = batch.model_copy(update={"sequence": longest})
        origins = {"batch.sequence": "the longest of batch.lengths"}
        return resolved.with_section("batch", batch, origins), lengths
    if longest > batch.sequence:
        place = given.index(longest)
        raise resolved.error(_KEY, f"{longest} in place {place} passes batch.sequence ({batch.sequence})")
    return resolved, lengths


def _read(resolved: Resolved, file: str) -> list[int]:
    found = []
    try:
        whole = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
        raise resolved.error(_KEY, f"{file} cannot be read: {said}") from None
    for line, text in enumerate(whole.splitlines(), start=1):
        for word in _NUMBER.findall(text):
            if not word.isdecimal() or not 0 < int(word) < 2**31:
                message = f"{file}, line {line}: {word[:20]!r} is no number of tokens: a whole number from 1"
                raise resolved.error(_KEY, message)
            found.append(int(word))
    return found


def speeds_of(resolved: Resolved) -> Int64s | None:
    """Return the speed of each replica's microbatches in thousandths, shape (replicas, microbatches); None for 1.

    Raises:
        ConfigError: a range that cannot be read, a replica not there or named twice, or lengths beside it.
    """
    asked, dp = resolved.experiment.data_parallel.speeds, resolved.experiment.parallel.dp
    if not asked:
        return None
    if resolved.experiment.batch.lengths is not None:
        raise resolved.error(_SPEEDS, "replicas differ by batch.lengths already: remove one of them")
    found = np.full(dp, 1000, dtype=np.int64)
    named: dict[int, str] = {}
    for text, speed in asked.items():
        key, match = f"{_SPEEDS}.{text}", _RANGE.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise resolved.error(key, f"{text!r} names no replicas: write one such as 3, or a range such as 4-7")
        if last >= dp:
            raise resolved.error(key, f"{last}: the job has replicas 0 to {dp - 1}")
        for replica in range(first, last + 1):
            if replica in named:
                raise resolved.error(key, f"replica {replica} stands under {named[replica]}, too: name each once")
            named[replica] = text
            found[replica] = round(speed * 1000)
    count = max(resolved.experiment.batch.known_microbatches, 1)
    return np.broadcast_to(found[:, None], (dp, count))


def with_lengths(
    base: Workload, lengths: Int64s, sequence: int, micro: int, build: Callable[[int], Workload] | None
) -> Workload:
    """Return costs of microbatches of unlike lengths; each microbatch has those of its first replica's.

    Args:
        base: costs of microbatches of ``sequence`` tokens.
        lengths: shape (replicas, microbatches).
        sequence: tokens in a sequence of the base.
        micro: sequences in a microbatch.
        build: returns the costs of a step of one microbatch whose sequences have so many tokens; None where costs
            read no model, whose microbatches cost as much as they are long.
    """
    distinct, number = np.unique(lengths, return_inverse=True)
    number = number.reshape(lengths.shape)
    classes = [build(length) if build else base.scaled(Fraction(length, sequence)) for length in distinct.tolist()]
    flops = [one.model_flops for one in classes] if build else [0] * len(classes)
    times = np.bincount(number.ravel(), minlength=distinct.size).tolist()
    return replace(
        base, classes=tuple(classes), microbatch_class=(number[0] + 1).astype(np.int32),
        tokens=micro * int(lengths.sum()),
        model_flops=sum(own * count for own, count in zip(flops, times, strict=True)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """The replicas of a step that differ, each simulated alone."""

    kind_of: Int64s
    """Which of the following each replica is, shape (replicas,)."""
    first: Int64s
    """The first replica of each kind, shape (kinds,)."""
    classes: Int32s
    """The class of each microbatch, shape (kinds, microbatches)."""
    ready_ns: Int64s
    """When each stage's gradients are whole, shape (kinds, stages)."""
    peak_bytes: Int64s
    """The most memory of each rank, shape (kinds, ranks)."""

    @property
    def slowest(self) -> int:
        """Return the kind that computes longest."""
        return int(np.argmax(self.ready_ns.max(axis=1)))

    def workload_of(self, workload: Workload, kind: int) -> Workload:
        """Return a step's costs in replicas of one kind, whose reductions wait for all others."""
        others = np.delete(self.ready_ns, kind, axis=0).max(axis=0)
        return replace(workload, microbatch_class=self.classes[kind], released_ns=others)


def changed(prepared: Prepared, **parts: Any) -> Prepared:
    """Return a step with other parts, such as ``network`` or ``workload``; replicas that differ have them all.

    Args:
        prepared: the step.
        parts: fields of it.

    Raises:
        ConfigError: as for :func:`of_the_last_replica`.
    """
    return of_the_last_replica(replace(prepared, **parts))


def of_the_last_replica(prepared: Prepared) -> Prepared:
    """Return the step of the replica that computes longest, or of ``batch.replica``; its reductions wait for all.

    Reductions and meetings are the same moments for all replicas, so its step ends when theirs do. A step that is
    of a replica already is simulated anew, as what it costs may have changed.

    Args:
        prepared: a step whose costs are by :func:`with_lengths`, or at speeds; others stay as they are.

    Raises:
        ConfigError: replicas that are not alike would meet within the step, their microbatches are cut, or there
            is no such replica.
    """
    lengths = prepared.lengths
    if lengths is None:
        return prepared
    asked = prepared.resolved.experiment.batch.replica
    if asked is not None and asked >= len(lengths):
        last = len(lengths) - 1
        raise prepared.resolved.error("batch.replica", f"{asked}: the job has replicas 0 to {last}")
    if len(np.unique(lengths, axis=0)) == 1:
        return prepared
    unlike = unlike_replicas(prepared, lengths)
    shown = unlike.slowest if asked is None else int(unlike.kind_of[asked])
    number = int(unlike.first[shown]) if asked is None else asked
    workload = unlike.workload_of(prepared.workload, shown)
    others = workload.notes[:-1] if prepared.workload.released_ns.size else workload.notes  # not its own of before
    return replace(prepared, workload=replace(workload, notes=(*others, _note(unlike, shown, number))))


def unlike_replicas(prepared: Prepared, lengths: Int64s) -> Unlike:
    """Simulate each replica that is like no other, alone.

    Args:
        prepared: a step whose costs are by :func:`with_lengths`.
        lengths: shape (replicas, microbatches).

    Raises:
        ConfigError: replicas that are not alike would meet within the step, or their microbatches are cut.
    """
    unlike, first, kind_of = np.unique(lengths, axis=0, return_index=True, return_inverse=True)
    _check_unlike(prepared)
    workload, zero = prepared.workload, np.zeros(prepared.workload.stages, dtype=np.int64)
    alone = replace(workload, reduce_ns=zero, optimizer_ns=zero, sync_ns=0, released_ns=zero[:0])
    used = (np.searchsorted(np.unique(lengths), unlike) + 1).astype(np.int32)
    ready = np.zeros((len(used), workload.stages), dtype=np.int64)
    peaks = np.zeros((len(used), prepared.schedule.ranks), dtype=np.int64)
    for own, peak, classes in zip(ready, peaks, used, strict=True):
        costs = replace(alone, microbatch_class=classes)
        timeline = simulate(
            prepared.schedule, costs, prepared.network, prepared.policy, contention=prepared.contention
        )
        rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(timeline.kind))
        np.maximum.at(own, timeline.stage[rows], timeline.end_ns[rows])
        peak[:] = measure_memory(timeline, costs).peak_bytes
    return Unlike(kind_of=kind_of.ravel(), first=first, classes=used, ready_ns=ready, peak_bytes=peaks)


def _note(unlike: Unlike, shown: int, number: int) -> str:
    ends, peaks = unlike.ready_ns.max(axis=1), unlike.peak_bytes
    longest, least = format_duration(int(ends.max())), format_duration(int(ends.min()))
    says = f"Of {len(unlike.kind_of)} replicas this is number {number}, which computes"
    if shown == unlike.slowest:
        note = f"{says} longest: {longest}, the fastest {least}."
    else:
        slowest = unlike.first[unlike.slowest]
        note = f"{says} {format_duration(int(ends[shown]))}; number {slowest} computes longest: {longest}."
    fullest, rank = (int(place) for place in np.unravel_index(peaks.argmax(), peaks.shape))
    if peaks[fullest].max() > peaks[shown].max():
        more = format_size(int(peaks[fullest, rank]))
        note += f" Number {unlike.first[fullest]} needs the most memory: {more} on rank {rank}."
    return note


def _check_unlike(prepared: Prepared) -> None:
    resolved, table = prepared.resolved, prepared.schedule
    asked = resolved.experiment.data_parallel
    if asked.reduce_each:
        raise resolved.error("data_parallel.reduce_each", "replicas of unlike lengths reduce once: remove the key")
    if (table.kind == Kind.RESHARD).any() and asked.reshard not in {None, Reshard.NEVER}:
        message = "replicas of unlike lengths gather weights once: remove the key, or give all the same lengths"
        raise resolved.error("data_parallel.reshard", message)
    if table.microbatches != resolved.experiment.batch.known_microbatches:
        name = resolved.experiment.schedule.name
        key, what = (_SPEEDS, "speed") if asked.speeds else (_KEY, "lengths")
        raise resolved.error(key, f"{name} cuts microbatches into parts: give all replicas the same {what}")
