"""What one kernel of an action costs: the finest that a cost model says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.model.kinds import Kind

__all__ = ["KernelCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """A kernel, or a group of them that a cost model does not take apart, of one microbatch's action.

    An action's kernels take what it takes: what it waits for, such as its collectives, is one of them.
    """

    stage: int
    """Whose action."""
    kind: Kind
    """Of which kind: a forward, or either half of a backward."""
    part: str
    """Which segment it belongs to: ``attention``, ``experts``, ``head``."""
    name: str
    """What it computes: ``attention core``."""
    times: int = 1
    """How many of them the action has, such as one a layer."""
    duration_ns: int
    """What they take in all."""
    flops: int = 0
    """Floating-point operations in all."""
    size_bytes: int = 0
    """Bytes to and from memory in all."""
    causal: bool = False
    """Whether it grows with the tokens before its own: the core of causal attention that reaches all of them."""
    product: tuple[int, int, int, int] | None = None
    """Copies, rows, columns and depth of one, where it is a matrix product."""
