"""Time of kernels by their shapes: tiles and waves of matrix products, attention by blocks, the rest by bytes.

A matrix product is cut into tiles, and the device's multiprocessors take one each, wave after wave: the last wave
is as long as a full one. A tile takes its share of what the device attains, and some depth more than its own to
start and to end. Smaller tiles attain less, for they read more per operation; the library takes the best.
NVIDIA, Matrix Multiplication Background User's Guide (2023), sections 2.1 (tiles), 2.2 (waves) and 3
(alignment) describe it; the figures below are fitted to 183 products measured on an A100 PCIe (SimuMax,
Apache-2.0), which they meet within 4.3 % on average.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, erfc, sqrt
from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict

from pptrace_models.accelerator import Accelerator
from pptrace_models.tables import KernelTable  # noqa: TC001 - pydantic reads it
from pptrace_models.transformer import NARROW, kept

if TYPE_CHECKING:
    from pptrace_models.transformer import Precision
    from pptrace_models.work import Core, Product, Work

__all__ = ["Shaped", "product_ns", "row_tiles", "shaped_ns"]

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.96), (128, 64, 0.75), (64, 128, 0.75))
"""Rows, columns, and the share of what the largest tile attains."""
_DEPTH = 128
"""Depth that starting and ending a tile costs beside its own."""
_ALIGNED = 8
"""Elements of two bytes that are read at once; other sizes take kernels that read them one by one."""
_UNALIGNED = 0.5
"""Share of the rate that sizes reach which are no multiple of that."""
_APART = 0.5
"""Share of its loads that a product of many experts' weights does not hide (120 measured, A100 PCIe and B200)."""
_BLOCK = 128
"""Queries that a block of flash attention holds."""
_NARROW = 32
"""Width by which narrow heads fall behind: a head of 128 is as good as any."""
_WIDE = 128
_NARROW_CORE = (1.36, 1.09)
"""How many times as fast MXFP8 attention is, forward and backward: cuDNN's published training benchmarks on GB200
and GB300, heads of 128 and of 192 and 128, sequences of 4096, on average."""
_SCATTERED = 0.66
"""What gathering and scattering rows attain of the rate of other memory-bound kernels (SimuMax, B200: 0.51 of
8 TB/s forward and backward)."""
_OPERAND_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16, "fp32": 4.0}
"""Bytes that a factor's element takes: MXFP8 has a byte of scale for 32 elements, NVFP4 for 16."""
_READ_BYTES = 2
_SECOND_NS = 1e9
_REACH = 4.0
"""Standard deviations, times the root of two, that tokens of an expert lie from their mean at most."""


class Shaped(Accelerator):
    """A device whose kernels take what their shapes say, or what they measured."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    table: KernelTable | None = None
    """Measured products; they go first."""
    slowness: float = 1.0
    """How many times as long as on the device that they were measured on."""

    def slowed(self, times: float) -> Self:
        """Return a device whose computation takes so many times as long."""
        return super().slowed(times).model_copy(update={"slowness": self.slowness * times})


def shaped_ns(work: Work, unit: str, precision: Precision, device: Shaped) -> int:
    """Return the time of one group of kernels in one pass, rounded up; no work takes none.

    Args:
        work: what the group does.
        unit: ``linear``, ``head``, ``attention`` or ``memory``.
        precision: the model's.
        device: what it runs on.
    """
    if not work.flops and not work.size_bytes and not work.beside_bytes:
        return 0
    if unit != "linear":
        precision = kept(precision)
    total = 0.0
    for product in work.products:
        total += product_ns(product, precision, device, padded=unit == "head")
    if work.core is not None:
        total += _core_ns(work.core, work.flops, device)
    elif not work.products and work.size_bytes:
        size = work.size_bytes / _SCATTERED if work.scattered else work.size_bytes
        total += _memory_ns(size, work.kernels, device)
    if work.beside_bytes:
        total += _memory_ns(work.beside_bytes, work.kernels, device)
    return -int(-total // 1)


@lru_cache(maxsize=4096)
def product_ns(product: Product, precision: Precision, device: Shaped, *, padded: bool) -> float:
    """Return one product's time.

    Args:
        product: its sizes.
        precision: what it multiplies in.
        device: what it runs on.
        padded: whether its sizes are aligned whatever they are, as a padded vocabulary is.
    """
    m, n, k = product.m, product.n, product.k
    measured = device.table.share(product.copies, m, n, k) if device.table and precision == "bf16" else None
    if measured:
        return 2 * product.copies * m * n * k * _SECOND_NS * device.slowness / (device.peak(precision) * measured)
    rate = device.peak(precision) * device.attainable(precision) / device.multiprocessors
    waves_flops = min(
        ceil(product.copies * row_tiles(product, rows) * -(-n // columns) / device.multiprocessors)
        * rows * columns / share
        for rows, columns, share in _TILES
    )  # fmt: skip
    compute = 2 * waves_flops * (k + _DEPTH) * _SECOND_NS / rate
    if precision != "fp32" and not padded and (k % _ALIGNED or n % _ALIGNED):
        compute /= _UNALIGNED
    factor = _OPERAND_BYTES[precision]
    moved = product.copies * (factor * (m * k + k * n) + product.result_bytes * m * n)
    cast = 0.0
    if precision in NARROW and product.cast:
        # Read as it is, written, and written once more transposed.
        cast = _memory_ns(round(product.copies * m * k * (_READ_BYTES + 2 * factor)), 1, device)
    loads = moved * _SECOND_NS / _memory_rate(device)
    kernel = max(compute + (_APART * loads if product.grouped else 0), loads)
    return device.launch_latency + kernel + cast


def row_tiles(product: Product, rows: int) -> float:
    """Return how many tiles the rows of a copy take: in expectation, where their number is a mean.

    Tokens choose experts independently, so an expert's are nearly normal with the variance of their mean:
    ``E[ceil(X / rows)]`` is the sum over tiles of the chance that X reaches into them.

    >>> row_tiles(Product(m=1024, n=8, k=8), 128), round(row_tiles(Product(m=1024, n=8, k=8, uneven=True), 128), 3)
    (8, 8.5)
    """
    if not product.uneven:
        return -(-product.m // rows)
    mean, deviation = product.m, sqrt(2 * product.m)
    surely = max(int((mean - _REACH * deviation) // rows), 0)
    beyond = ceil((mean + _REACH * deviation) / rows)
    return surely + sum(0.5 * erfc((tile * rows - mean) / deviation) for tile in range(surely, beyond))


def _core_ns(core: Core, flops: int, device: Shaped) -> float:
    blocks = core.heads * -(-core.queries // _BLOCK)
    waves = -(-blocks // device.multiprocessors)
    filled = blocks / (waves * device.multiprocessors)
    wide = min(core.width / (core.width + _NARROW) * (1 + _NARROW / _WIDE), 1.0)
    share = device.attention_attainable * filled * wide * (device.attention_backward if core.backward else 1.0)
    share *= _NARROW_CORE[core.backward] if core.narrow else 1.0
    # Half of the scores on the diagonal's blocks are computed and masked.
    diagonal = 1 + _BLOCK / core.keys
    return device.launch_latency + flops * diagonal * _SECOND_NS / (device.peak("bf16") * share)


def _memory_ns(size_bytes: float, kernels: int, device: Shaped) -> float:
    return kernels * device.launch_latency + size_bytes * _SECOND_NS / _memory_rate(device)


def _memory_rate(device: Shaped) -> float:
    return device.memory_bandwidth * device.memory_efficiency
