"""Layout of a job: the GPU of each process (pp, dp, cp, ep, tp), and the reverse."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The parallel axes, in the default order: neighbours along the first are neighbouring GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """GPU of each process of a job; global ranks are numbered as GPUs, node after node.

    Expert groups extend along the data-parallel axis, then along the context-parallel axis: ``ep`` splits
    ``dp x cp`` and adds no processes. In the order, ``ep`` is the inner part of ``dp``.

    >>> Layout(pp=2, tp=2, dp=2).gpu(pp=1, dp=0, cp=0, tp=1)
    5
    >>> Layout(pp=2, tp=2, dp=2, order=("pp", "tp", "cp", "ep", "dp")).gpu(pp=1, dp=0, cp=0, tp=1)
    3

    Raises:
        ConfigError: an axis that is missing, unknown or named twice; sizes that do not fit each other.
    """

    pp: int = 1
    """Pipeline ranks."""
    dp: int = 1
    """Data-parallel replicas of the pipeline."""
    cp: int = 1
    """Context-parallel size."""
    ep: int = 1
    """Expert-parallel size; divides ``dp x cp``."""
    tp: int = 1
    """Tensor-parallel size."""
    etp: int = 0
    """GPUs that an expert's matrices are split over; 0 for as many as ``tp``. With other values, expert groups are
    consecutive along ``tp``, ``cp`` and ``dp`` together, as in Megatron-LM's parallel folding."""
    order: tuple[str, ...] = AXES
    """The axes; neighbours along the first are neighbouring GPUs."""

    def __post_init__(self) -> None:
        _check_order(self.order)
        if self.folded:
            processes = self.tp * self.cp * self.dp
            if processes % self.etp:
                message = f"{self.etp} does not divide tp x cp x dp = {self.tp} x {self.cp} x {self.dp}"
                raise ConfigError(message, key="parallel.etp")
            if processes % (self.ep * self.etp):
                message = f"{self.ep} x etp ({self.etp}) does not divide tp x cp x dp = {processes}"
                raise ConfigError(message, key="parallel.ep")
        elif (self.dp * self.cp) % self.ep:
            message = f"{self.ep} does not divide dp x cp = {self.dp} x {self.cp}"
            raise ConfigError(message, key="parallel.ep")

    @property
    def folded(self) -> bool:
        """Whether experts have a tensor-parallel size other than ``tp``."""
        return self.etp not in {0, self.tp}

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.pp * self.dp * self.cp * self.tp

    def gpu(self, *, pp: int, dp: int, cp: int, tp: int) -> int:
        """Return the GPU (global rank) of a process; ``dp`` counts all replicas."""
        return int(self.grid()[pp, dp, cp, tp])

    def place(self, gpu: int) -> Mapping[str, int]:
        """Return the process on a GPU, as the arguments of :meth:`gpu`.

        >>> dict(Layout(pp=2, tp=2).place(3))
        {'pp': 1, 'dp': 0, 'cp': 0, 'tp': 1}
        """
        position = np.argwhere(self.grid() == gpu)[0]
        return dict(zip(("pp", "dp", "cp", "tp"), map(int, position), strict=True))

    def grid(self) -> NDArray[np.int32]:
        """Return the GPU of every process, shape (pp, dp, cp, tp)."""
        ep_within_dp = 1 if self.folded else gcd(self.ep, self.dp)
        sizes = {"tp": self.tp, "cp": self.cp, "ep": ep_within_dp, "dp": self.dp // ep_within_dp, "pp": self.pp}
        numbered = np.arange(self.gpus, dtype=np.int32).reshape([sizes[axis] for axis in reversed(self.order)])
        axes = [list(reversed(self.order)).index(axis) for axis in ("pp", "dp", "ep", "cp", "tp")]
        return numbered.transpose(axes).reshape(self.pp, self.dp, self.cp, self.tp)

    def members(self) -> Int32s:
        """Return the GPUs of each pipeline rank, shape (pp, dp x cp x tp), replica after replica."""
        return self.grid().reshape(self.pp, -1)

    def replicas(self) -> Int32s:
        """Return the GPUs of each rank of each replica, shape (dp x pp, cp x tp), replica after replica.

        >>> Layout(pp=2, tp=2, dp=2).replicas().tolist()
        [[0, 1], [4, 5], [2, 3], [6, 7]]
        """
        return self.grid().swapaxes(0, 1).reshape(self.dp * self.pp, -1)

    def groups(self, axis: str) -> Int32s:
        """Return the groups along an axis, one per row, in the order of members: also ``etp`` and ``edp``.

        A ``dp`` group reduces the same dense gradients: all replicas and context-parallel parts. An ``edp`` group
        is the part of it with the same experts: one GPU of each expert group.

        Raises:
            ValueError: the axis has no groups.
        """
        grid = self.grid()
        if axis == "tp":
            return grid.reshape(-1, self.tp)
        if axis == "cp":
            return grid.swapaxes(2, 3).reshape(-1, self.cp)
        by_tp = grid.transpose(0, 3, 1, 2)
        if axis == "dp":
            return by_tp.reshape(-1, self.dp * self.cp)
        if axis not in {"ep", "edp", "etp"}:
            raise ValueError(f"no groups along {axis!r}: tp, cp, ep, etp, dp or edp")
        if axis == "etp" and not self.folded:
            return grid.reshape(-1, self.tp)
        return self._folded_groups(axis) if self.folded else self._expert_groups(by_tp, axis)

    def _expert_groups(self, by_tp: Int32s, axis: str) -> Int32s:
        inner = gcd(self.ep, self.dp)
        outer = self.ep // inner
        parts = by_tp.reshape(self.pp, self.tp, self.dp // inner, inner, self.cp // outer, outer)
        if axis == "ep":
            return parts.transpose(0, 1, 2, 4, 3, 5).reshape(-1, self.ep)
        return parts.transpose(0, 1, 3, 5, 2, 4).reshape(-1, self.dp * self.cp // self.ep)

    def _folded_groups(self, axis: str) -> Int32s:
        members = np.sort(self.members(), axis=1).reshape(self.pp, -1, self.ep, self.etp)
        along = {"edp": 1, "ep": 2, "etp": 3}[axis]
        return np.moveaxis(members, along, 3).reshape(-1, members.shape[along])


def _check_order(order: tuple[str, ...]) -> None:
    written = "-".join(order)
    repeated = [axis for axis in AXES if order.count(axis) > 1]
    unknown = [axis for axis in order if axis not in AXES]
    missing = [axis for axis in AXES if axis not in order]
    for fault, axes in (("names unknown axes", unknown), ("names twice", repeated), ("misses", missing)):
        if axes:
            names = ", ".join(axis or "''" for axis in axes)
            message = f"{written!r} {fault}: {names}; write each of {', '.join(AXES)} once, inner first"
            raise ConfigError(message, key="parallel.order")
