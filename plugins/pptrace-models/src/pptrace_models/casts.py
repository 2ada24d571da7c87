"""Casts of the factors of products in narrow formats, by FP8 recipe.

A product of a layer multiplies weights, inputs and gradients. Weights are cast once per step. Inputs and gradients
are cast per microbatch, and a backward needs each of them along both dimensions: a copy and its transpose. Facts
are from Transformer Engine 2.12 (``pytorch/csrc/quantizer.cpp``, ``pytorch/csrc/extensions/normalization.cpp``,
``pytorch/distributed.py``):

- ``delayed`` has its scale before the cast, so a norm writes FP8.
- ``tensorwise`` (current scaling) reads a tensor for its largest value, and again for the cast. A norm also
  computes the largest value of its output, so that one read remains.
- ``blockwise`` and MXFP8 cast both copies from BF16 in one kernel.
- NVFP4 reads a tensor for its largest value after a Hadamard transform, and once per copy.
- ``split_quantize`` casts the rows of each expert by separate kernels, except in ``delayed`` and NVFP4
  (``multi_tensor_quantize_impl`` in ``pytorch/csrc/extensions/cast.cpp``; equal in 2.7, 2.9 and 2.12).

Devices with MXFP8 multiply FP8 factors with one scale per tensor in any layout. The first two recipes need no
transpose there (``is_non_tn_fp8_gemm_supported``). On other devices, the cast also writes the transpose. Another
kernel transposes what a norm casts, and a factor that devices gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from pptrace_models.transformer import NARROW, OPERAND_BYTES

if TYPE_CHECKING:
    from pptrace_models.layer import Cast
    from pptrace_models.transformer import Precision

ScalingRecipe = Literal["delayed", "tensorwise", "blockwise"]
"""Recipes of ``precision: fp8``; MXFP8 and NVFP4 are precisions of their own."""

_SOURCE_BYTES = 2
"""Inputs and gradients are cast from BF16."""


class _Recipe(Struct, frozen=True):
    reads: int
    """How often a cast reads its tensor."""
    normed_reads: int
    """How often it reads the output of a norm; 0 if the norm casts it."""
    kernels: int
    """Kernels of a cast, small ones for scales included."""
    normed_kernels: int
    """Kernels of a cast after a norm."""
    both: bool
    """Whether both copies are cast from BF16, and gathered separately."""
    grouped: bool = False
    """Whether the same kernels cast the tensors of all experts."""


_RECIPES = {
    "delayed": _Recipe(reads=1, normed_reads=0, kernels=1, normed_kernels=0, both=False, grouped=True),
    "tensorwise": _Recipe(reads=2, normed_reads=1, kernels=4, normed_kernels=2, both=False),
    "blockwise": _Recipe(reads=1, normed_reads=1, kernels=1, normed_kernels=1, both=True),
    "mxfp8": _Recipe(reads=1, normed_reads=1, kernels=1, normed_kernels=1, both=True),
    "nvfp4": _Recipe(reads=3, normed_reads=3, kernels=3, normed_kernels=3, both=True, grouped=True),
}


class Casting(NamedTuple):
    """How products of a precision cast their factors."""

    precision: Precision
    """Precision of the products."""
    recipe: ScalingRecipe = "delayed"
    """Recipe of ``precision: fp8``."""
    transposes: bool = True
    """Whether FP8 products with one scale per tensor need a transposed copy."""

    def work(self, cast: Cast | None) -> tuple[float, int]:
        """Return the bytes and the number of kernels of a cast; nothing in other precisions."""
        if cast is None or self.precision not in NARROW:
            return 0.0, 0
        recipe, element = self._recipe, OPERAND_BYTES[self.precision]
        reads = recipe.normed_reads if cast.normed else recipe.reads
        kernels = recipe.normed_kernels if cast.normed else recipe.kernels
        kernels *= 1 if recipe.grouped else cast.tensors
        copies = 2 if recipe.both else min(reads, 1)
        moved = cast.elements * (_SOURCE_BYTES * reads + element * copies)
        if recipe.both or not self.transposes:
            return moved, kernels
        if cast.gathered or not reads:
            return moved + 2 * element * max(cast.gathered, cast.elements), kernels + 1
        return moved + cast.elements * element, kernels

    def gathered_bytes(self, *, gradient: bool) -> float:
        """Return the bytes per element of a gathered input of a layer's half, or of a gathered output gradient.

        The backward gathers both copies of a gradient, if they are cast from BF16.
        """
        if self.precision not in NARROW:
            return OPERAND_BYTES[self.precision]
        return OPERAND_BYTES[self.precision] * (2 if gradient and self._recipe.both else 1)

    @property
    def kept_bytes(self) -> float:
        """Bytes per element of a cast weight with its transpose, where products need it; 0 in other precisions."""
        if self.precision not in NARROW:
            return 0.0
        return OPERAND_BYTES[self.precision] * (2 if self._recipe.both or self.transposes else 1)

    @property
    def _recipe(self) -> _Recipe:
        return _RECIPES[self.recipe if self.precision == "fp8" else self.precision]
