"""The columns of a workload by what they are of, and what a plugin's values have to be."""

from __future__ import annotations

from typing import Any

import numpy as np

from pptrace.model.columns import Int64s, column

__all__ = ["OPTIONAL", "PER_MICROBATCH", "PER_STAGE", "WHOLE", "checked", "none"]

PER_STAGE = (
    "f_ns", "b_ns", "i_ns", "w_ns", "f_collective_ns", "b_collective_ns", "i_collective_ns", "w_collective_ns",
    "activation_bytes", "weight_activation_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes",
    "reduce_ns", "optimizer_ns",
)  # fmt: skip
PER_MICROBATCH = (
    *PER_STAGE[:10], "boundary_bytes", "offload_ns", "reload_ns", "recompute_ns", "offload_bytes",
    "checkpoint_bytes", "boundary_gradient_bytes",
)  # fmt: skip
OPTIONAL = (
    "offload_ns", "reload_ns", "recompute_ns", "unshard_ns", "checkpoint_bytes", "gathered_bytes",
    "unreduced_bytes", "released_ns",
)  # fmt: skip
WHOLE = (
    "sync_ns", "reserved_bytes", "reserved_permille", "capacity_bytes", "tokens", "model_flops", "peak_flops",
    "unit_time_ns",
)  # fmt: skip


def none() -> Int64s:
    """Return a column of nothing."""
    return np.zeros(0, dtype=np.int64)


def checked(name: str, values: Any) -> Int64s:
    """Return what a plugin gave as a column.

    Raises:
        ValueError: it is no list of whole numbers.
    """
    try:
        array = column(values, np.int64)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from None
    if array.ndim != 1:
        msg = f"{name} has {array.ndim} dimensions: one value per stage, or per edge"
        raise ValueError(msg)
    return array
