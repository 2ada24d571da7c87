"""The executor of this distribution; light to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ExecutorOffer


@hookimpl
def pptrace_executors() -> Iterable[ExecutorOffer]:
    """Offer the executor."""
    from pptrace.plugin import ExecutorOffer

    yield ExecutorOffer(
        name="dask", summary="Workers of a dask.distributed scheduler, or processes of this machine.",
        build=deferred("pptrace_dask.cluster:connect"),
        options=lambda: import_module("pptrace_dask.cluster").DaskOptions,
    )  # fmt: skip
