"""The replicas that make up a number of GPUs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.overrides import Assignment
    from pptrace.config.places import KeyPath
    from pptrace.study.axes import Axis

__all__ = ["REPLICAS", "check_replicas", "replicas_of"]

REPLICAS: KeyPath = ("parallel", "dp")
"""The key that says them."""


def check_replicas(gpus: int, own: Sequence[Assignment], axes: Sequence[Axis]) -> None:
    """Refuse a number of GPUs that is none, and replicas that are said beside it.

    Raises:
        ConfigError: which, and where it is said.
    """
    if gpus < 1:
        raise ConfigError(f"{gpus} is no number of GPUs: write 1 or more", file="--gpus")
    for path, source in [(one.path, str(one.place.source)) for one in own] + [
        (path, f"--over {axis.key}") for axis in axes for path in axis.paths
    ]:
        if path == REPLICAS:
            raise ConfigError("it follows from --gpus: leave one of them out", file=source)


def replicas_of(tree: Mapping[str, Any], gpus: int) -> tuple[int, str]:
    """Return the replicas that make up a number of GPUs; why there are none, instead."""
    parallel = tree.get("parallel") or {}
    sizes = {name: parallel.get(name) or 1 for name in ("pp", "tp", "cp")}
    if not all(isinstance(size, int) for size in sizes.values()):
        return 1, ""
    dp, rest = divmod(gpus, prod(sizes.values()))
    if dp and not rest:
        return dp, ""
    told = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return 1, f"{told} is a replica of {prod(sizes.values())} GPUs, which do not make {gpus}"
