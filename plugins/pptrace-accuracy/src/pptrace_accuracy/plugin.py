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
    """Yield ``pptrace accuracy``."""
    yield CommandOffer(
        name="accuracy",
        summary="Simulate measured steps from a table, and print the errors.",
        load=lambda: import_module("pptrace_accuracy.command").command,
    )
