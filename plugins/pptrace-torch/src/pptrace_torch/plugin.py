"""The command of this distribution; light to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["pptrace_commands"]


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield ``pptrace torch``."""
    yield CommandOffer(
        name="torch",
        summary="Run schedule tables in PyTorch, and export them for it.",
        load=lambda: import_module("pptrace_torch.command").command,
    )
