"""Say where an error comes from: a place in the configuration, a cell of a table, a plugin's schedule."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pptrace.config.flags import HEADLINES
from pptrace.errors import ConfigError, ConstraintError, CostError, PluginError, PptraceError, ScheduleError
from pptrace.hooks.from_file import is_file_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.prepare import Prepared
    from pptrace.hooks.registry import Registry

__all__ = ["located", "placed"]


@contextmanager
def placed(resolved: Resolved, key: str, *, options: bool = False) -> Iterator[None]:
    """Run a block on behalf of what stands under ``key``, the place of errors that name no other key.

    Args:
        resolved: the configuration.
        key: whose block this is.
        options: whether errors name an option under ``key``, as those of networks do, and not a whole key.

    Raises:
        ConfigError: as the block raised it, with its place; costs that cannot be counted, with the place of their
            section, or of the batch that they follow from.
        ConstraintError: likewise.
        PluginError: likewise where a name or file is unknown; what a plugin did wrong has its own place.
    """
    try:
        yield
    except ConfigError as error:
        if error.file or error.line:
            raise
        own = f"{key}.{error.key}" if options and error.key else error.key
        raise _at(resolved, own or key, error.message) from error
    except CostError as error:
        raise _at_costs(resolved, error) from error
    except ConstraintError as error:
        if error.file or error.line:
            raise
        at = _at(resolved, error.key or key, error.reason)
        raise ConstraintError(
            at.message, nearest=error.nearest, key=at.key, file=at.file, line=at.line, column=at.column
        ) from error
    except PluginError as error:
        if error.plugin and not is_file_reference(error.plugin):
            raise
        message = str(_at(resolved, key, str(error)))
        raise PluginError(message, plugin=error.plugin, distribution=error.distribution) from error


def located(error: ScheduleError, prepared: Prepared, registry: Registry) -> PptraceError:
    """Return an error of a schedule with the cell of its file, or with who made the offending action."""
    if prepared.table is not None:
        return prepared.table.locate(error)
    if error.rank >= 0:
        name = prepared.resolved.experiment.schedule.name
        maker = registry.schedules[name].provider
        of = f" of {maker}" if maker.distribution else ""
        error.args = (f"schedule {name}{of}: {error}",)
    return error


def _at_costs(resolved: Resolved, error: CostError) -> ConfigError:
    batch = resolved.experiment.batch
    if resolved.experiment.model is None:
        return _at(resolved, "costs", f"{error}: check the units")
    key = "batch.micro" if batch.micro > (batch.sequence or 0) else "batch.sequence"
    size = f"micro {batch.micro:,} x sequence {batch.sequence:,}"
    return resolved.error(key, f"{size}: {error}; choose a smaller size")


def _at(resolved: Resolved, key: str, message: str) -> ConfigError:
    """Return an error about a key; a whole section's place is that of its name."""
    named = f"{key}.{HEADLINES[key]}" if key in HEADLINES else key
    at = resolved.error(named, message)
    return ConfigError(message, key=key, file=at.file, line=at.line, column=at.column)
