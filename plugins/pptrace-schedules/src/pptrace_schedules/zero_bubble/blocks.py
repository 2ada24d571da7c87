"""Building blocks: when a microbatch's actions run on each rank, one microbatch every six slots.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362, sections 3 and 4.

A block's lifetimes, from a forward to the input gradient of the same chunk, are what a rank holds: their sum over
six is the number of chunks' activations. V-Half moves forwards two slots per rank on the way down and one on the
way up, V-Min one on both; input gradients go the other way round. Where blocks would collide, the second half is
shifted by a few slots.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pptrace.plugin import Kind, fill_weights
from pptrace_schedules.zero_bubble.patterns import repeated

if TYPE_CHECKING:
    from pptrace.plugin import Schedule

__all__ = ["INTERVAL", "filled", "half_blocks", "min_blocks"]

INTERVAL = 6
"""Slots between two microbatches."""


def half_blocks(ranks: int) -> list[tuple[int, ...]]:
    """Return the slots of V-Half's forwards and input gradients on each rank."""
    shift = 3 if ranks % 2 == 0 else 0
    return [
        (2 * r, 3 * ranks - r - 2, 6 * ranks + shift - r - 2, 3 * ranks + shift + 2 * r - 1) for r in range(ranks)
    ]


def min_blocks(ranks: int) -> list[tuple[int, ...]]:
    """Return the slots of V-Min's forwards and input gradients on each rank."""
    shift = 2 if ranks % 3 == 0 else 0
    return [(r, 2 * ranks - r - 1, 4 * ranks + shift - r - 1, 2 * ranks + shift + r) for r in range(ranks)]


@lru_cache(maxsize=16)
def filled(blocks: tuple[tuple[int, ...], ...], microbatches: int, peak: int) -> Schedule:
    """Return the table of repeated blocks with weight gradients, for times of 1 each; the last ones are kept."""
    rows = repeated(blocks, INTERVAL, microbatches)
    return fill_weights(rows, {Kind.F: 1, Kind.I: 1, Kind.W: 1}, taken=1, kept=1, room=peak).schedule
