"""The same as the command line, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.overrides import FLAGS
from pptrace.config.resolve import load
from pptrace.errors import ConfigError, nearest
from pptrace.experiment.run import Run
from pptrace.experiment.run import simulate as simulate_resolved
from pptrace.hooks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["simulate"]


def simulate(
    config: str | Path | None = None,
    *,
    sets: Sequence[str] = (),
    registry: Registry | None = None,
    **values: Any,
) -> Run:
    """Simulate one training step.

    Args:
        config: a YAML file, or None for ``values`` alone.
        sets: ``key.path=value`` texts, as for ``--set``.
        registry: the plugins; all installed ones by default.
        values: as the flags of ``pptrace simulate``: ``schedule="1f1b", pp=8, microbatches=32``; whole
            sections may be mappings.

    Raises:
        PptraceError: whatever cannot be used, in one line.

    >>> run = simulate(schedule="table.csv")  # doctest: +SKIP
    """
    unknown = sorted(set(values) - set(FLAGS))
    if unknown:
        raise ConfigError(f"no such argument{nearest(unknown[0], FLAGS)}", key=unknown[0])
    resolved = load(Path(config) if config is not None else None, sets, values)
    return simulate_resolved(resolved, registry or Registry.load())
