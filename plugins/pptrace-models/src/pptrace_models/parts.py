"""Parts of an action before they have their places there, and times of groups of operations in each pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pptrace.plugin import Stream

__all__ = ["Part", "Passes", "Unit", "tensor_parallel"]


class Part(NamedTuple):
    """A part of an action, before it has its place there."""

    name: str
    ns: int
    stream: Stream = Stream.COMPUTE
    for_weights: bool = False


class Passes(NamedTuple):
    """Times of a group of operations in the forward, for the input gradient and for the weight gradient."""

    f: int = 0
    i: int = 0
    w: int = 0

    def plus(self, other: Passes) -> Passes:
        """Return these times and others together."""
        return Passes(self.f + other.f, self.i + other.i, self.w + other.w)

    def minus(self, other: Passes) -> Passes:
        """Return these times without others."""
        return Passes(self.f - other.f, self.i - other.i, self.w - other.w)

    def share(self, part: int, whole: int) -> Passes:
        """Return a part of the forward and of the input gradient, rounded down."""
        return Passes(self.f * part // whole, self.i * part // whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The parts of the forward and of the backward of a layer, the embedding or the LM head."""

    forward: tuple[Part, ...] = ()
    """In the forward."""
    backward: tuple[Part, ...] = ()
    """In the whole backward."""


def tensor_parallel(gather_ns: int, reduce_ns: int, *, split: bool) -> tuple[Part, Part]:
    """Return gathering and summing over the tensor-parallel group, in ns, with the names that they then have."""
    return (
        Part("all-gather", gather_ns, Stream.TENSOR_PARALLEL),
        Part("reduce-scatter" if split else "all-reduce", reduce_ns, Stream.TENSOR_PARALLEL),
    )
