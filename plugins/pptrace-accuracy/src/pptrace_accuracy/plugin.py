"""The command of this distribution; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command

__all__ = ["pptrace_commands"]


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield ``pptrace accuracy``."""
    yield CommandOffer(
        name="accuracy",
        summary="Simulate measured steps from a table, and print the errors.",
        load=_accuracy,
    )


def _accuracy() -> Command:
    from pptrace_accuracy.command import command

    return command
