"""Times of kernels by their shapes.

A matrix product is split into tiles. Multiprocessors compute one tile each, wave after wave, and a partial last
wave takes as long as a full wave. The start and end of a tile cost a fixed additional depth. Smaller tiles attain
a smaller share of the peak, as they read more bytes per operation; the library selects the best tile. See NVIDIA,
Matrix Multiplication Background User's Guide (2023), sections 2.1 (tiles), 2.2 (waves) and 3 (alignment). The
constants below are fitted to 183 products measured on an A100 PCIe (SimuMax, Apache-2.0);
the mean error is 4.3 %.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from functools import lru_cache, partial
from math import ceil, erf, erfc, exp, pi, sqrt
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from pydantic import ConfigDict

from pptrace.memo import memoized
from pptrace.plugin import ConfigError
from pptrace_models.accelerator import Accelerator
from pptrace_models.casts import Casting, ScalingRecipe
from pptrace_models.transformer import OPERAND_BYTES, checked, kept_precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from pptrace.plugin import CostRequest
    from pptrace_models.layer import Core, Product, Work
    from pptrace_models.options import RooflineOptions
    from pptrace_models.transformer import Precision


_KEY = "costs.kernel_table"
_SIZES = re.compile(r"b=(\d+), m=(\d+), k=(\d+), n=(\d+)\b")
_VALUES = re.compile(r"(\w+)=(\w+)")
_TOLERANCE = 0.01
_TERA = 1e12


class KernelTable:
    """Measured shares of the BF16 peak, by copies, rows, columns and depth of products."""

    def __init__(self, products: Mapping[tuple[int, int, int, int], float]) -> None:
        self._products = dict(products)

    def share(self, copies: int, m: int, n: int, k: int) -> float | None:
        """Return the measured share of a product or its transpose; None without a measurement."""
        return self._products.get((copies, m, n, k)) or self._products.get((copies, n, m, k))


def read_table(file: str, device: Accelerator) -> KernelTable:
    """Read a file such as SimuMax's ``system`` configurations: ``accelerator.op.matmul`` with shares by size.

    ``accelerator.op.group_matmul`` has products of experts by pass. Files of ``measure-kernels`` also have the
    number of multiprocessors of their device.

    Raises:
        ConfigError: a file that is not readable or not a table, or a table of another device.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        matmul, grouped = (content["accelerator"]["op"].get(name) or {} for name in ("matmul", "group_matmul"))
        peak, entries = float(matmul["tflops"]), dict(matmul["accurate_efficient_factor"])
        products = {_sizes(text): float(share) for text, share in entries.items()}
        expert_entries = dict(grouped.get("accurate_efficient_factor") or {})
        expert_products = {_grouped_sizes(text): float(share) for text, share in expert_entries.items()}
        products |= {sizes: share for sizes, share in expert_products.items() if sizes is not None}
        multiprocessors = dict(content.get("device") or {}).get("multiprocessors", device.multiprocessors)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", key=_KEY) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{file} holds no accelerator.op.matmul with tflops and accurate_efficient_factor"
        raise ConfigError(message, key=_KEY) from error
    device_tflops = device.peak_bf16 / _TERA
    if abs(peak / device_tflops - 1) > _TOLERANCE:
        message = f"{file} is of another device: its peak is {peak:g} TFLOP/s, that of this one {device_tflops:g}"
        raise ConfigError(message, key=_KEY)
    if multiprocessors != device.multiprocessors:
        message = f"{file} is of another device: it has {multiprocessors} multiprocessors, this one "
        raise ConfigError(f"{message}{device.multiprocessors}", key=_KEY)
    if not all(0 < share <= 1 for share in products.values()):
        raise ConfigError(f"{file} has shares of the peak that are not between 0 and 1", key=_KEY)
    return KernelTable(products)


def _grouped_sizes(text: str) -> tuple[int, int, int, int] | None:
    """Return copies, rows, columns and depth of a product of experts; None without gradient accumulation.

    The forward is ``M x N x K``. The backward is ``M x K x N`` for the input and ``K x N x M`` for the weights,
    whose gradients are accumulated.
    """
    values = dict(_VALUES.findall(text))
    copies, m, n, k = (int(values[name]) for name in ("ng", "M", "N", "K"))
    if values["stage"] == "fwd":
        return copies, m, n, k
    if values["stage"] == "bwd_grad_act":
        return copies, m, k, n
    return (copies, k, n, m) if values["accumulate"] == "True" else None


def _sizes(text: str) -> tuple[int, int, int, int]:
    match = _SIZES.match(text)
    if not match:
        raise ValueError(text)
    copies, m, k, n = (int(size) for size in match.groups())
    return copies, m, n, k


_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.96), (128, 64, 0.75), (64, 128, 0.75))
"""Rows, columns, and the attained rate relative to the largest tile."""
_DEPTH = 128
"""Additional depth for the start and end of a tile."""
_ALIGNED = 8
"""Two-byte elements per aligned read; kernels of unaligned sizes read elements one by one."""
_UNALIGNED = 0.5
"""Rate of unaligned sizes relative to aligned sizes."""
_WITHOUT_TENSOR_CORES = 0.56
"""Share of the FP32 peak that unaligned products of several heads attain.

It is fitted to three pairs of steps of BLOOM's authors on A100 (chronicles-prequel.md). With heads of width 108,
steps are 38.7, 40.3 and 43.6 s longer than with heads of width 144, and simulated 37.6, 40.4 and 43.4 s longer.
"""
_EXPOSED_LOADS = 0.5
"""Share of loads that products of several experts do not hide (120 measured products, A100 PCIe and B200)."""
_BLOCK = 128
"""Queries per block of flash attention."""
_START_KEYS = 576
"""Keys whose time a block of queries takes in addition: its start and end, and masked scores of its last keys.

This and ``_NARROW`` are fitted to 166 timings of cuDNN's training benchmarks in BF16 (cudnn-frontend v1.19 and
v1.23, ``benchmark/sdpa_benchmark_training/results``) on H200, GB200 and GB300: heads of 64, 128, and 192 and 128,
sequences of 2048 to 32768, windows of 128 and 1024. The mean error is 8 %."""
_NARROW = 96
"""Constant of the slowdown of narrow heads, whose exponentials take more time per operation."""
_WIDE = 128
"""Width of a head without slowdown."""
_NARROW_CORE = (1.36, 1.09)
"""Speed-up of MXFP8 attention, forward and backward: mean of cuDNN's published training benchmarks on GB200 and
GB300, heads of 128 and of 192 and 128, sequences of 4096."""
_RANDOM_NS = 0.16
"""Time in which a multiprocessor draws a random number in flash attention with dropout, in ns. The kernel's other
work does not hide it (Ma et al., Reducing the Cost of Dropout in Flash-Attention by Hiding RNG with GEMM, 2024).
The mean of forward (0.21) and backward (0.12), measured on an H100 with GPT-3's attention."""
_BY_ROW = 0.66
"""Rate of gathering and scattering rows, and of norms of heads, relative to other memory-bound kernels. On B200,
SimuMax measured 0.51 of 8 TB/s. Norms of 131072 rows of 128 attain 0.50 on GB200 and GB300 and 0.64 on H200
(cudnn-frontend 1.19, ``benchmark/norms/results``)."""
_SECOND_NS = 1e9
_REACH = 4.0
"""The largest distance of an expert's tokens from their mean, in standard deviations times the root of two."""


class Shaped(Accelerator):
    """A device with measured kernel times, or times from the shapes of kernels."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    table: KernelTable | None = None
    """Measured products; they go first."""
    slowness: float = 1.0
    """How many times as long as on the device that they were measured on."""
    fp8_recipe: ScalingRecipe = "delayed"
    """How products in FP8 scale their factors."""

    def slowed(self, times: float) -> Self:
        """Return a device with computation times multiplied by a factor."""
        return super().slowed(times).model_copy(update={"slowness": self.slowness * times})

    def casting(self, precision: Precision) -> Casting:
        """Return how products of a precision cast their factors."""
        return Casting(precision=precision, recipe=self.fp8_recipe, transposes=self.attainable_mxfp8 is None)


def shaped_ns(work: Work, unit: str, precision: Precision, device: Shaped) -> int:
    """Return the time of one group of kernels in one pass in ns, rounded up; 0 without work.

    Args:
        work: operations, bytes and products of the group.
        unit: ``linear``, ``head``, ``attention``, ``recurrence`` or ``memory``.
        precision: precision of the model.
        device: the device.
    """
    if not work.flops and not work.size_bytes and not work.beside_bytes:
        return 0
    if unit != "linear":
        precision = kept_precision(precision)
    total, rate = 0.0, _BY_ROW if work.by_row else 1.0
    for product in work.products:
        total += product_ns(product, precision, device, padded=unit == "head")
    if work.core is not None:
        total += _core_ns(work.core, work.flops, device)
    elif not work.products and work.size_bytes:
        total += _memory_ns(work.size_bytes / rate, work.kernels, device)
    if work.beside_bytes:
        total += _memory_ns(work.beside_bytes / rate, work.kernels, device)
    if unit == "recurrence":
        # Their occupancy is 12.5 % (TensorRT-LLM, pull request 11345), so memory and computation do not overlap.
        total += work.flops * _SECOND_NS * device.slowness / (device.multiprocessors * device.recurrence_flops)
    return -int(-total // 1)


@lru_cache(maxsize=4096)
def product_ns(product: Product, precision: Precision, device: Shaped, *, padded: bool) -> float:
    """Return the time of one product in ns.

    Args:
        product: sizes of the product.
        precision: precision of the multiplication, unless the product has one.
        device: the device.
        padded: whether sizes count as aligned, as for a padded vocabulary.
    """
    m, n, k, precision = product.m, product.n, product.k, product.precision or precision
    measured = device.table.share(product.copies, m, n, k) if device.table and precision == "bf16" else None
    if measured:
        return product.flops * _SECOND_NS * device.slowness / (device.peak(precision) * measured)
    rate = device.peak(precision) * device.attainable(precision) / device.multiprocessors
    waves_flops = min(
        ceil(product.copies * row_tiles(product, rows) * -(-n // columns) / device.multiprocessors)
        * rows * columns / share
        for rows, columns, share in _TILES
    )  # fmt: skip
    compute = 2 * waves_flops * (k + _DEPTH) * _SECOND_NS / rate
    is_aligned = (product.uneven_depth or k % _ALIGNED == 0) and n % _ALIGNED == 0
    if precision != "fp32" and not padded and not is_aligned:
        compute /= _UNALIGNED
        if product.copies > 1 and not product.grouped and device.peak_fp32:
            rate = device.peak_fp32 * _WITHOUT_TENSOR_CORES / device.slowness
            compute = max(compute, product.flops * _SECOND_NS / rate)
    factor = OPERAND_BYTES[precision]
    moved = product.moved_bytes(factor)
    cast_bytes, cast_kernels = device.casting(precision).work(product.cast)
    cast = _memory_ns(cast_bytes, cast_kernels, device)
    loads = moved * _SECOND_NS / _memory_rate(device)
    kernel = max(compute + (_EXPOSED_LOADS * loads if product.grouped else 0), loads)
    return device.launch_latency + kernel + cast


def row_tiles(product: Product, rows: int) -> float:
    """Return the number of tiles of a copy's rows; the expected number if the number of rows is a mean.

    Tokens choose experts independently, so an expert's number of tokens X is nearly normal, with a variance equal
    to its mean. ``E[ceil(X / rows)]`` is the sum over tiles of the probability that X reaches the tile.

    >>> row_tiles(Product(m=1024, n=8, k=8), 128), round(row_tiles(Product(m=1024, n=8, k=8, uneven=True), 128), 3)
    (8, 8.5)
    """
    if not product.uneven:
        return -(-product.m // rows)
    mean, deviation = product.m, sqrt(2 * product.m)
    full_tiles = max(int((mean - _REACH * deviation) // rows), 0)
    last_tile = ceil((mean + _REACH * deviation) / rows)
    return full_tiles + sum(0.5 * erfc((tile * rows - mean) / deviation) for tile in range(full_tiles, last_tile))


def _core_ns(core: Core, flops: int, device: Shaped) -> float:
    blocks = core.heads * -(-core.queries // _BLOCK)
    waves = -(-blocks // device.multiprocessors)
    occupancy = blocks / (waves * device.multiprocessors)
    width_factor = min(core.width / (core.width + _NARROW) * (1 + _NARROW / _WIDE), 1.0)
    share = device.attention_attainable * occupancy * width_factor
    share *= device.attention_backward if core.backward else 1.0
    share *= _NARROW_CORE[core.backward] if core.narrow else 1.0
    scores = core.heads * core.queries * core.keys
    random = core.dropout * scores * _RANDOM_NS * device.slowness / device.multiprocessors
    started = flops * (1 + _START_KEYS / core.keys)
    return device.launch_latency + random + started * _SECOND_NS / (device.peak("bf16") * share)


def _memory_ns(size_bytes: float, kernels: int, device: Shaped) -> float:
    return kernels * device.launch_latency + size_bytes * _SECOND_NS / _memory_rate(device)


def _memory_rate(device: Shaped) -> float:
    return device.memory_bandwidth * device.memory_efficiency


class Devices(Struct, frozen=True):
    """The devices of ranks and stages."""

    of_ranks: tuple[Accelerator, ...]
    """Shape (ranks,): each pipeline rank's device."""
    of_stages: tuple[Accelerator, ...]
    """Shape (stages,): the device of each stage's ranks."""

    @property
    def distinct(self) -> tuple[Accelerator, ...]:
        """The distinct devices of stages, in the order of stages."""
        by_id = {id(device): device for device in self.of_stages}
        return tuple(dict.fromkeys(by_id.values()))

    @property
    def memories(self) -> list[int]:
        """Shape (ranks,): memory of each rank's device in bytes."""
        return [device.memory for device in self.of_ranks]

    @property
    def scale_up_size(self) -> int:
        """The smallest number of devices in a node's scale-up domain."""
        return min(device.scale_up_size for device in self.of_ranks)

    def peaks(self, precision: Precision, sizes: Sequence[int]) -> int:
        """Return the sum of the dense peaks of all devices, in FLOP/s; ``sizes`` has the devices of each rank.

        Raises:
            ConfigError: a rank's device has no peak for the precision.
        """
        peaks: dict[int, int] = {}
        for rank, device in enumerate(self.of_ranks):
            if id(device) not in peaks:
                with _rank_errors(rank, is_same_device=self.are_alike):
                    peaks[id(device)] = device.peak(precision)
        return sum(size * peaks[id(device)] for size, device in zip(sizes, self.of_ranks, strict=True))

    def plausible(self, precision: Precision, sizes: Sequence[int]) -> int:
        """Return the sum of the highest plausible model FLOP/s of all devices, as :meth:`peaks`; 0 if unknown."""
        rates = {id(device): device.plausible(precision) for device in self.distinct}
        return sum(map(mul, (rates[id(device)] for device in self.of_ranks), sizes)) if all(rates.values()) else 0

    @property
    def are_alike(self) -> bool:
        """Whether all ranks have the same device."""
        return len({id(device): device for device in self.of_ranks}) == 1 or len({*self.of_ranks}) == 1


def devices_of(request: CostRequest, options: RooflineOptions) -> Devices:
    """Return the devices of a request, with kernels by shape and measured products if the options ask for them.

    Raises:
        ConfigError: wrong parameters, a table of measured products of another device, or a stage on ranks with
            different devices.
    """
    descriptions = [tuple(values.items()) for values in request.rank_devices or (request.device,)]
    slowness = 1.0
    if options.spread:
        slowness += options.spread * expected_maximum(sum(request.rank_gpus))
    device_of: dict[tuple[tuple[str, Any], ...], Accelerator] = {}
    for rank, values in enumerate(descriptions):
        if values not in device_of:
            with _rank_errors(rank, is_same_device=len(descriptions) == 1):
                device_of[values] = memoized(
                    partial(_device, dict(values), options, slowness), ("device", values, slowness), options
                )
    devices = tuple(map(device_of.__getitem__, descriptions))
    ranks = devices if request.rank_devices else devices * request.ranks
    if not request.stage_ranks:
        of_stages = tuple(ranks[stage % request.ranks] for stage in range(request.stages))
        return Devices(of_ranks=ranks, of_stages=of_stages)
    for stage, (first_rank, *other_ranks) in enumerate(request.stage_ranks):
        different_rank = next((rank for rank in other_ranks if ranks[rank] != ranks[first_rank]), None)
        if different_rank is not None:
            message = (
                f"stage {stage} is on ranks {first_rank} and {different_rank}, whose devices differ, and a stage "
                "has one cost: give them the same device, or choose a schedule that has each stage on one rank"
            )
            raise ConfigError(message, key="device.ranks")
    return Devices(of_ranks=ranks, of_stages=tuple(ranks[stage_ranks[0]] for stage_ranks in request.stage_ranks))


def _device(values: Mapping[str, Any], options: RooflineOptions, slowness: float) -> Accelerator:
    """Return a device at its power limit, slowed by a factor."""
    return _at_full_power(values, options).at_power_limit().slowed(slowness)


def _at_full_power(values: Mapping[str, Any], options: RooflineOptions) -> Accelerator:
    if options.kernels != "shapes":
        if options.kernel_table:
            raise ConfigError("measured products need kernels: shapes", key="costs.kernel_table")
        return checked(Accelerator, values, "device")
    device = checked(Shaped, values, "device").model_copy(update={"fp8_recipe": options.fp8_recipe})
    if options.attention == "flash-2" and device.attention_flash_2:
        device = device.model_copy(update={"attention_attainable": device.attention_flash_2})
    if not options.kernel_table:
        return device
    return device.model_copy(update={"table": read_table(options.kernel_table, device)})


@contextmanager
def _rank_errors(rank: int, *, is_same_device: bool) -> Iterator[None]:
    """Add the rank to errors about its device if devices differ."""
    try:
        yield
    except ConfigError as error:
        if is_same_device:
            raise
        raise ConfigError(f"rank {rank}: {error.message}", key=error.key) from error


_INTEGRATED_TO = 10.0
_INTERVALS = 2_000


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` independent standard normal numbers.

    ``count * integral of x phi(x) Phi(x)^(count - 1) dx`` (David and Nagaraja, Order Statistics, section 3.1).

    >>> round(expected_maximum(2), 4)  # 1 / sqrt(pi)
    0.5642
    >>> round(expected_maximum(1), 4)
    0.0
    """
    width = 2 * _INTEGRATED_TO / _INTERVALS
    total = 0.0
    for step in range(_INTERVALS + 1):
        x = step * width - _INTEGRATED_TO
        below = 0.5 * (1 + erf(x / sqrt(2)))
        weight = 1 if step in {0, _INTERVALS} else 4 if step % 2 else 2  # Simpson's rule
        total += weight * x * exp(-x * x / 2) * below ** (count - 1)
    return count * total * width / 3 / sqrt(2 * pi)
