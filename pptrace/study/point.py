"""One point of a sweep, run wherever an executor has it run: plain values in, a row out."""

from __future__ import annotations

import json
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pptrace.errors import PptraceError
from pptrace.hooks.call import one_line
from pptrace.hooks.registry import Registry
from pptrace.kernel import many_runs
from pptrace.study.basis import Basis
from pptrace.study.levels import at_levels
from pptrace.study.row import metrics_row
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.resolve import Resolved
    from pptrace.study.entry import Entry
    from pptrace.study.grid import Base
    from pptrace.study.row import Cell, Row

__all__ = ["inputs_of", "plugins_text", "run_point"]


def run_point(base: Base, entry: Entry, registry: Registry | None = None, *, rows: int = 0) -> Row:
    """Simulate one point and return its inputs and figures, or why there are none as its ``error``.

    Args:
        base: what the points have in common.
        entry: what this one lays over it.
        registry: the plugins; those that are installed where this runs by default.
        rows: how many this point and those that follow give each kernel to do.
    """
    plugins = registry or _installed()
    basis = Basis(file=base.document, sets=base.sets, flags=base.flags, registry=plugins)
    try:
        with many_runs(rows):
            run = basis.run(entry)
            figures = metrics_row(at_levels(run))
    except PptraceError as error:
        return _failed(str(error))
    except MemoryError:
        return _failed("out of memory: take fewer ranks or microbatches, or fewer --workers")
    except Exception as error:  # noqa: BLE001 - one point that fails costs no other
        return _failed(f"{one_line(error)} (a bug: pptrace simulate shows where)")
    prepared = run.prepared
    return {
        **inputs_of(prepared.resolved), **figures,
        "error": None, "pptrace": __version__, "plugins": plugins_text(prepared.plugins),
    }  # fmt: skip


def inputs_of(resolved: Resolved) -> Row:
    """Return every resolved key with its value, lists as JSON; absolute paths keep their last part."""
    return {key: _cell(value) for key, value, _ in resolved.explain()}


def plugins_text(plugins: Mapping[str, str]) -> str:
    """Write distributions with their versions.

    >>> plugins_text({"pptrace-schedules": "0.1.0"})
    'pptrace-schedules 0.1.0'
    """
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(plugins.items()))


def _failed(reason: str) -> Row:
    return {"error": " ".join(reason.split()), "pptrace": __version__}


def _cell(value: Any) -> Cell:
    if isinstance(value, str):
        return PurePath(value).name if value.startswith(("/", "~")) else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False)


@cache
def _installed() -> Registry:
    return Registry.load(warn=lambda _: None)
