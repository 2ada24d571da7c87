"""The core's own plugin: what has no content of its own, offered through the hooks that others use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.hooks.specs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.hooks.offers import NetworkOffer

__all__ = ["pptrace_networks"]


@hookimpl
def pptrace_networks() -> Iterable[NetworkOffer]:
    """Yield no network yet."""
    return ()
