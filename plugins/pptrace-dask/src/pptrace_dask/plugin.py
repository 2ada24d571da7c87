"""The executor of this distribution; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    from pydantic import BaseModel

    from pptrace.plugin import ExecutorOffer, ExecutorRequest


@hookimpl
def pptrace_executors() -> Iterable[ExecutorOffer]:
    """Offer the executor."""
    from pptrace.plugin import ExecutorOffer

    yield ExecutorOffer(
        name="dask", summary="Workers of a dask.distributed scheduler, or processes of this machine.",
        build=_build, options=_options,
    )  # fmt: skip


def _build(request: ExecutorRequest) -> Executor:
    from pptrace_dask.cluster import connect

    return connect(request)


def _options() -> type[BaseModel]:
    from pptrace_dask.cluster import DaskOptions

    return DaskOptions
