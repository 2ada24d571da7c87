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

    Raises:
        ConfigError: a file that cannot be read or is none, or one of a device with another peak.
    """
    try:
        matmul = json.loads(Path(file).read_text(encoding="utf-8"))["accelerator"]["op"]["matmul"]
        peak, entries = float(matmul["tflops"]), dict(matmul["accurate_efficient_factor"])
        products = {_sizes(text): float(share) for text, share in entries.items()}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", key=_KEY) from error
    except (ValueError, KeyError, TypeError) as error:
        message = f"{file} holds no accelerator.op.matmul with tflops and accurate_efficient_factor"
        raise ConfigError(message, key=_KEY) from error
    own = device.peak_bf16 / _TERA
    if abs(peak / own - 1) > _ALIKE:
        message = f"{file} is of another device: its peak is {peak:g} TFLOP/s, that of this one {own:g}"
        raise ConfigError(message, key=_KEY)
    if not all(0 < share <= 1 for share in products.values()):
        raise ConfigError(f"{file} has shares of the peak that are not between 0 and 1", key=_KEY)
    return KernelTable(products)


def _sizes(text: str) -> tuple[int, int, int, int]:
    match = _SIZES.match(text)
    if not match:
        raise ValueError(text)
    copies, m, k, n = (int(size) for size in match.groups())
    return copies, m, n, k
