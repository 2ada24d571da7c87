"""Simulation of points and configurations into rows of figures, with a journal of finished rows."""

from __future__ import annotations

import hashlib
import json
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pptrace.config.resolution import document_of, load
from pptrace.errors import PptraceError
from pptrace.plugins.guards import one_line
from pptrace.plugins.registry import Registry
from pptrace.run.figures import at_levels, metrics_row
from pptrace.run.simulated_step import simulate
from pptrace.search.execution import ExecutorPool, Journal, choose, run_all
from pptrace.version import __version__
from pptrace_kernel import many_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pptrace.config.resolution import Resolved
    from pptrace.run.figures import Cell, Row
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Entry
    from pptrace.search.execution import ExecutorChoice, Item
    from pptrace.search.grid import Base


def run_point(entry: Entry, *, base: Base, registry: Registry | None = None, actions: int = 0) -> Row:
    """Simulate one point and return its inputs and figures, or the reason of its failure as ``error``.

    Args:
        entry: the settings of this point.
        base: the common configuration of the points.
        registry: the plugins; the installed ones of this process by default.
        actions: actions of this point and the following ones, which decide whether kernels are compiled.
    """
    plugins = registry or installed()

    def simulate_row() -> Row:
        with many_runs(actions):
            run = base.basis(plugins).run(entry)
            figures = metrics_row(at_levels(run))
        prepared = run.prepared
        return {
            **inputs_of(prepared.resolved),
            **figures,
            "error": None,
            "plugins": plugins_text(prepared.plugins),
        }

    row = row_or_error(simulate_row, str, "ranks or microbatches, or fewer --workers")
    return row | {"pptrace": __version__}


def row_or_error(call: Callable[[], Row], reason_of: Callable[[PptraceError], str], less: str) -> Row:
    """Return the row of a call, or the reason of its failure as ``error``."""
    try:
        return call()
    except PptraceError as error:
        reason = reason_of(error)
    except MemoryError:
        reason = f"out of memory: take fewer {less}"
    except Exception as error:  # noqa: BLE001 - a failed point does not end the other ones
        reason = f"{one_line(error)} (a bug: pptrace simulate shows where)"
    return {"error": " ".join(reason.split())}


def inputs_of(resolved: Resolved) -> Row:
    """Return the resolved keys with their values: lists as JSON, absolute paths as their last part."""
    return {key: _cell(value) for key, value, _ in resolved.explain()}


def plugins_text(plugins: Mapping[str, str]) -> str:
    """Write distributions with their versions.

    >>> plugins_text({"pptrace-schedules": "0.1.0"})
    'pptrace-schedules 0.1.0'
    """
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(plugins.items()))


def _cell(value: Any) -> Cell:
    if isinstance(value, str):
        return PurePath(value).name if value.startswith(("/", "~")) else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False)


@cache
def installed() -> Registry:
    """Return the installed plugins, loaded once per process."""
    return Registry.load(warn=lambda _: None)


_AHEAD = 4
"""Calls per worker that are submitted in advance."""
_ACTIONS = 10_000
"""Typical number of actions of a step, from which the kernels' work is estimated."""


class Runner:
    """Simulates keyed items on an executor and stores finished rows in a journal, as a context."""

    known: dict[str, Row]
    """Rows that earlier starts finished, by key."""

    def __init__(
        self, registry: Registry, chosen: ExecutorChoice, journal: Path | None = None, *, fresh: bool = False
    ) -> None:
        """Read the rows that an earlier start finished.

        Args:
            registry: the plugins.
            chosen: the choice of the executor, which starts with the first item.
            journal: the file of the journal; None without one.
            fresh: ignore finished rows.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        self.registry, self.chosen, self.pool = registry, chosen, ExecutorPool(chosen.start)
        self._journal = Journal(journal, fresh=fresh) if journal is not None else None
        self.known = {str(row["point"]): row for row in self._journal.rows} if self._journal else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down the executor, and close the journal, which stays because writing outputs can still fail."""
        self.pool.__exit__(kind, error, trace)
        if self._journal is not None:
            self._journal.__exit__(kind, error, trace)

    @property
    def workers(self) -> int:
        """Number of concurrent simulations."""
        return self.chosen.request.workers

    def run(
        self,
        items: Mapping[str, Item],
        call: Callable[..., Row],
        labels: Mapping[str, Row] | None = None,
        *,
        warms: bool = False,
    ) -> Iterator[tuple[str, Row]]:
        """Yield keys with their rows, in the order in which they finish.

        Args:
            items: the items by key, in the order of submission.
            call: returns the row of an item; takes the plugins as ``registry``, None for the installed ones.
            labels: further cells of each row, by key.
            warms: whether to run the last item in this process before workers start, which compiles kernels once.
        """
        waiting = list(items.items())
        if warms and waiting:
            key, item = waiting.pop()
            yield key, self._finish(key, call(item, registry=self.registry), labels)
            installed()  # forked workers share the plugins
        call = partial(_call, call=call, registry=self.registry if self.chosen.in_process else None)
        for (key, _), row in run_all(waiting, call, self.pool, ahead=_AHEAD * self.workers):
            yield key, self._finish(key, row, labels)

    def _finish(self, key: str, row: Row, labels: Mapping[str, Row] | None) -> Row:
        """Return a row with its key and labels; store it, unless it is an error."""
        row = {**(labels[key] if labels else {}), **row, "point": key}
        if self._journal is not None and not row.get("error"):
            self._journal.append(row)
        return row


def _call(item: tuple[str, Any], *, call: Callable[..., Row], registry: Registry | None) -> Row:
    return call(item[1], registry=registry)


def digest_of(parts: Any) -> str:
    """Return a short digest of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
    plugins = sorted((name, str(provided.provider)) for name, provided in registry.cost_models.items())
    keys = [digest_of([__version__, plugins, configuration]) for configuration in configurations]
    report = progress or (lambda _done, _total: None)
    with Runner(registry, choose(executor, registry, workers), journal, fresh=fresh) as runner:
        rows = {key: runner.known[key] for key in keys if key in runner.known}
        missing = {key: each for key, each in zip(keys, configurations, strict=True) if key not in rows}
        call = partial(_run_figures, figures=figures, actions=_ACTIONS * len(missing) // runner.workers)
        report(len(rows), len(rows) + len(missing))
        for key, row in runner.run(missing, call):
            rows[key] = row
            report(len(rows), len(keys))
    return [{name: value for name, value in rows[key].items() if name != "point"} for key in keys]


def _run_figures(
    configuration: Mapping[str, Any],
    *,
    figures: Callable[[SimulatedStep], Row],
    actions: int,
    registry: Registry | None,
) -> Row:
    def simulate_figures() -> Row:
        with many_runs(actions):
            resolved = load(document_of(dict(configuration)), (), {})
            return figures(simulate(resolved, registry or installed()))

    return row_or_error(simulate_figures, lambda error: str(error).removeprefix("config: "), "--workers")
