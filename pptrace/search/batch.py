"""Simulation of many configurations, with a journal of the finished ones."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pptrace.config.resolution import document_of, load
from pptrace.errors import PptraceError
from pptrace.plugins.guards import one_line
from pptrace.plugins.registry import Registry
from pptrace.run.simulated_step import simulate
from pptrace.search.execution import Journal, choose, run_all
from pptrace.search.sweep import cores
from pptrace.version import __version__
from pptrace_kernel import many_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.run.figures import Row
    from pptrace.run.simulated_step import SimulatedStep

__all__ = ["simulate_many"]

_QUEUED = 4
"""Calls per worker that wait for it or run on it."""
_ACTIONS = 10_000
"""Typical actions of a step, from which the kernels' work is estimated."""


def simulate_many(
    configurations: Sequence[Mapping[str, Any]],
    figures: Callable[[SimulatedStep], Row],
    *,
    executor: str = "processes",
    workers: int = 0,
    journal: Path | None = None,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return a row of figures per configuration; one that cannot be simulated has a row with ``error``.

    Args:
        configurations: mappings, as YAML files hold them.
        figures: returns the row of a simulated step; picklable, unless the executor runs in this process.
        executor: name and options of an executor, as for a sweep.
        workers: configurations that run at once; 0 for as many as this machine has cores.
        journal: a file that keeps finished rows, so that an interrupted call can go on. The caller removes it.
        fresh: whether to ignore the rows that the journal holds.
        progress: called with the number of finished configurations and the number of all.

    Raises:
        OutputError: the journal cannot be written.
        PluginError: no plugin offers the executor.
    """
    registry = Registry.load(warn=lambda _: None)
    choice = choose(executor, registry, workers or cores())
    keys = [_key(configuration, registry) for configuration in configurations]
    rows: dict[int, Row] = {}

    def report() -> None:
        if progress is not None:
            progress(len(rows), len(keys))

    with Journal(journal, fresh=fresh) if journal else nullcontext() as finished:
        kept = {row.pop("point"): row for row in finished.rows} if finished else {}
        rows |= {index: kept[key] for index, key in enumerate(keys) if key in kept}
        missing = [index for index in range(len(keys)) if index not in rows]
        call = partial(
            _simulated, figures=figures, registry=registry if choice.in_process else None,
            kernel_rows=_ACTIONS * len(missing) // choice.request.workers,
        )  # fmt: skip
        report()
        calls = [(index, configurations[index]) for index in missing]
        for (index, _), row in run_all(calls, call, choice.start, ahead=_QUEUED * choice.request.workers):
            rows[index] = row
            if finished is not None and not row.get("error"):
                finished.append({**row, "point": keys[index]})
            report()
    return [rows[index] for index in range(len(keys))]


def _simulated(
    call: tuple[int, Mapping[str, Any]],
    *,
    figures: Callable[[SimulatedStep], Row],
    registry: Registry | None,
    kernel_rows: int,
) -> Row:
    try:
        with many_runs(kernel_rows):
            return figures(simulate(load(document_of(dict(call[1])), (), {}), registry or _installed()))
    except PptraceError as error:
        return {"error": " ".join(str(error).removeprefix("config: ").split())}
    except Exception as error:  # noqa: BLE001 - one configuration that fails does not end the others
        return {"error": f"{one_line(error)} (a bug)"}


def _key(configuration: Mapping[str, Any], registry: Registry) -> str:
    plugins = sorted((name, str(provided.provider)) for name, provided in registry.cost_models.items())
    text = json.dumps([__version__, plugins, configuration], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _installed() -> Registry:
    return Registry.load(warn=lambda _: None)
