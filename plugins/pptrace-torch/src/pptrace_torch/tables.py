"""Tables that PyTorch's pipeline runtime executes as pptrace reads them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pptrace.plugin import ConfigError, Registry, ScheduleError, load, prepare, unsupported_parts

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.plugin import Schedule

__all__ = ["check_table", "read_table", "require_torch"]

_LOWEST = (2, 13)
_INSTALL = "pip install 'torch>=2.13'"


def require_torch() -> None:
    """Check that PyTorch is installed and recent enough, without importing it.

    Raises:
        ConfigError: it is missing or too old.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise ConfigError(f"PyTorch is not installed: {_INSTALL}") from None
    if tuple(int(part) for part in installed.split(".")[:2]) < _LOWEST:
        lowest = ".".join(map(str, _LOWEST))
        raise ConfigError(f"PyTorch {installed} is too old, {lowest} or later runs tables: {_INSTALL}")


def read_table(file: Path) -> Schedule:
    """Return the table of a file.

    Raises:
        PptraceError: the file cannot be read, or holds no valid table.
    """
    return prepare(load(None, flags={"schedule": str(file)}), Registry.load()).schedule


def check_table(table: Schedule) -> None:
    """Refuse a table that PyTorch would refuse, misread, or run with wrong gradients.

    Raises:
        ScheduleError: the first reason, and what to do.
    """
    for part, reason in unsupported_parts(table):
        raise ScheduleError(f"PyTorch cannot run this table, which has {part}: {reason}")
