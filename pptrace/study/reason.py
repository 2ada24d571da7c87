"""Why a schedule cannot run, as studies print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import ConfigError, ConstraintError

if TYPE_CHECKING:
    from pptrace.errors import PptraceError

__all__ = ["short_reason"]


def short_reason(error: PptraceError) -> str:
    """Return an error's line without the place in a configuration."""
    short: PptraceError = error
    if isinstance(error, ConstraintError):
        short = ConstraintError(error.reason, nearest=error.nearest, key=error.key)
    elif isinstance(error, ConfigError):
        short = ConfigError(error.message, key=error.key)
    return " ".join(str(short).split())
