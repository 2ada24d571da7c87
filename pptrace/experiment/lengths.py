"""Microbatches of unlike lengths, and what each costs."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.config.resolve import Resolved
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload

__all__ = ["lengths_of", "with_lengths"]

_KEY = "batch.lengths"
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
