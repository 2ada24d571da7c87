"""What groups of kernels do: operations, bytes, and the shapes of matrix products and attention among them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Core", "Operation", "Product", "Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product of m x k and k x n."""

    m: int
    """Rows of the result."""
    n: int
    """Its columns."""
    k: int
    """Depth: elements that each of the result's sums over."""
    copies: int = 1
    """Products alike that run as one kernel: experts, or heads."""
    grouped: bool = False
    """Whether these copies have a weight each, of experts: loading and computing follow one another."""
    result_bytes: int = 2
    """Bytes moved for an element of the result: written, or read and written where it is added to."""
    cast: bool = False
    """Whether the left factor is cast for this product where it is in fp8."""
    uneven: bool = False
    """Whether rows are a mean over the copies: each has as many as chance gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A flash attention kernel."""

    heads: int
    """Heads times sequences."""
    queries: int
    """Tokens that ask, of each."""
    keys: int
    """Tokens that are asked."""
    width: float
    """Width of a head."""
    backward: bool = False
    """Whether it is the backward."""
    narrow: bool = False
    """Whether it multiplies in FP8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a group of kernels does; no FLOPs and no bytes is no kernel."""

    flops: int = 0
    """Floating-point operations."""
    size_bytes: int = 0
    """Bytes to and from memory."""
    products: tuple[Product, ...] = ()
    """The matrix products among them, where there are any."""
    core: Core | None = None
    """The flash attention kernel, where it is one."""
    beside_bytes: int = 0
    """Of kernels beside the products: the part of ``size_bytes`` that is theirs; alone, of kernels that only
    ``kernels: shapes`` counts."""
    scattered: bool = False
    """Whether rows are gathered or scattered one by one."""
    kernels: int = 1
    """Kernels that have no product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A group of kernels in each of the three passes."""

    name: str
    """What it computes."""
    unit: str
    """What bounds its FLOPs: ``linear``, ``head``, ``attention`` or ``memory``."""
    forward: Work
    """The forward's work."""
    input_gradient: Work
    """The work of the backward for the input gradient."""
    weight_gradient: Work
    """The work of the backward for the weight gradient."""
