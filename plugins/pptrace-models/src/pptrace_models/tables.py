"""Measured matrix products that go before what their shapes say: SimuMax's files of efficiencies, as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace_models.accelerator import Accelerator

__all__ = ["KernelTable", "read_table"]

_KEY = "costs.kernel_table"
_SIZES = re.compile(r"b=(\d+), m=(\d+), k=(\d+), n=(\d+)\b")
_VALUES = re.compile(r"(\w+)=(\w+)")
_ALIKE = 0.01
_TERA = 1e12


class KernelTable:
    """Shares of the BF16 peak that products measured, by copies, rows, columns and depth."""

    def __init__(self, products: Mapping[tuple[int, int, int, int], float]) -> None:
        self._products = dict(products)

    def share(self, copies: int, m: int, n: int, k: int) -> float | None:
        """Return what a product or its transpose measured; None where neither did."""
        return self._products.get((copies, m, n, k)) or self._products.get((copies, n, m, k))


def read_table(file: str, device: Accelerator) -> KernelTable:
    """Read a file such as SimuMax's ``system`` configurations: ``accelerator.op.matmul`` with shares by size.

    ``group_matmul`` beside it has products of experts, by the pass that they are of. What ``measure-kernels``
    measures says its device, too.

    Raises:
        ConfigError: a file that cannot be read or is none, or one of another device.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        matmul, grouped = (content["accelerator"]["op"].get(name) or {} for name in ("matmul", "group_matmul"))
        peak, entries = float(matmul["tflops"]), dict(matmul["accurate_efficient_factor"])
        products = {_sizes(text): float(share) for text, share in entries.items()}
        experts = dict(grouped.get("accurate_efficient_factor") or {})
        found = {_grouped_sizes(text): float(share) for text, share in experts.items()}
        products |= {sizes: share for sizes, share in found.items() if sizes is not None}
        multiprocessors = dict(content.get("device") or {}).get("multiprocessors", device.multiprocessors)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", key=_KEY) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{file} holds no accelerator.op.matmul with tflops and accurate_efficient_factor"
        raise ConfigError(message, key=_KEY) from error
    own = device.peak_bf16 / _TERA
    if abs(peak / own - 1) > _ALIKE:
        message = f"{file} is of another device: its peak is {peak:g} TFLOP/s, that of this one {own:g}"
        raise ConfigError(message, key=_KEY)
    if multiprocessors != device.multiprocessors:
        message = f"{file} is of another device: it has {multiprocessors} multiprocessors, this one "
        raise ConfigError(f"{message}{device.multiprocessors}", key=_KEY)
    if not all(0 < share <= 1 for share in products.values()):
        raise ConfigError(f"{file} has shares of the peak that are not between 0 and 1", key=_KEY)
    return KernelTable(products)


def _grouped_sizes(text: str) -> tuple[int, int, int, int] | None:
    """Return copies, rows, columns and depth of a product of experts; None for one that adds nothing up.

    Forward it is ``M x N x K``; backward ``M x K x N`` for the input, and ``K x N x M`` for the weights, whose
    gradients are added to what is there.
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
