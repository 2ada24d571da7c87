"""Simulation of points and configurations into rows: executors, and a journal of finished rows."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import warnings
from collections import deque
from concurrent.futures import BrokenExecutor, Executor
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePath
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import Struct

from pptrace.config.overrides import parse_value
from pptrace.config.resolution import document_of, leaves_by_key, load, plain_section
from pptrace.errors import ConfigError, DeadlockError, OutputError, PptraceError
from pptrace.memo import Memo, memoized, memoizing
from pptrace.plugins.construction import checked_options
from pptrace.plugins.guards import block_signals, one_line, plugin_error
from pptrace.plugins.registry import Registry
from pptrace.plugins.requests import ExecutorRequest
from pptrace.run.figures import at_levels, metrics_row
from pptrace.run.run import simulate
from pptrace.search.basis import digest_of
from pptrace.version import __version__
from pptrace_kernel import many_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.offers import ExecutorOffer
    from pptrace.plugins.providers import Provided
    from pptrace.run.figures import Cell, Row
    from pptrace.run.run import Run
    from pptrace.search.basis import BaseConfiguration, Entry


Item = TypeVar("Item")

_SIGNAL_CHECK_S = 1
"""Longest wait: a signal that arrives just before a wait is handled after it."""
_DIED = "the process that ran it died; where it needs more memory than there is, take fewer --workers"


class ExecutorPool:
    """An executor that several runs share; a broken executor is replaced."""

    def __init__(self, start: Callable[[], Executor]) -> None:
        self._start = start
        self._executor: Executor | None = None

    def begin(self) -> Executor:
        """Return the executor, started if necessary."""
        if self._executor is None:
            self._executor = self._start()
        return self._executor

    def end(self, *, wait: bool) -> None:
        """Shut down the executor; the next run starts another one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=wait, cancel_futures=True)


def run_all(
    items: Iterable[Item], call: Callable[[Item], Row], pool: ExecutorPool, *, ahead: int, size: int = 1
) -> Iterator[list[tuple[Item, Row]]]:
    """Yield batches of items with their rows, in the order in which the batches finish.

    Items that are running when an executor breaks run again one by one, which identifies the item that breaks it.
    That item gets an error row.

    Args:
        items: the items, in the order of submission.
        call: returns the row of an item; picklable where the executor pickles.
        pool: the executor.
        ahead: number of batches that are submitted at once.
        size: items of a batch.
    """
    remaining = iter(items)
    waiting = deque(iter(lambda: list(islice(remaining, size)), []))
    while waiting:
        suspects = yield from _until_broken(waiting, call, pool, ahead)
        for suspect in suspects:
            if (yield from _until_broken(deque([[suspect]]), call, pool, 1)):
                yield [(suspect, {"error": _DIED})]


def _until_broken(
    waiting: deque[list[Item]], call: Callable[[Item], Row], pool: ExecutorPool, ahead: int
) -> Generator[list[tuple[Item, Row]], None, list[Item]]:
    """Yield the rows of ``waiting`` batches; return the items that were running when the executor broke."""
    executor = pool.begin()
    call_batch = partial(_call_batch, call)
    running: dict[Future[list[Row]], list[Item]] = {}
    done: SimpleQueue[Future[list[Row]]] = SimpleQueue()
    broken: list[Item] = []
    finished = False
    try:
        while (waiting or running) and not broken:
            if waiting and len(running) < ahead:
                batch = waiting.popleft()
                try:
                    future = executor.submit(call_batch, batch)
                except BrokenExecutor:
                    broken += batch
                    break
                running[future] = batch
                with block_signals():
                    future.add_done_callback(done.put)
            is_full = not waiting or len(running) >= ahead
            try:
                future = done.get(timeout=_SIGNAL_CHECK_S if is_full else 0)
            except Empty:
                continue
            batch = running.pop(future)
            try:
                rows = future.result()
            except BrokenExecutor:
                broken += batch
            except Exception as error:  # noqa: BLE001 - a failed call does not end the other ones
                if len(batch) > 1:
                    waiting.extend([item] for item in batch)
                else:
                    yield [(batch[0], {"error": one_line(error)})]
            else:
                yield list(zip(batch, rows, strict=True))
        finished = True
    finally:
        if broken or not finished:
            pool.end(wait=finished)
    return [*broken, *(item for batch in running.values() for item in batch)]


def _call_batch(call: Callable[[Item], Row], batch: Sequence[Item]) -> list[Row]:
    return [call(item) for item in batch]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_KEY = "executor"


class ExecutorChoice(Struct, frozen=True, kw_only=True):
    """An executor offer with its checked options."""

    provided: Provided[ExecutorOffer]
    """The offer and its plugin."""
    request: ExecutorRequest
    """The request that builds an executor."""

    @property
    def in_process(self) -> bool:
        """Whether calls run in this process."""
        return self.provided.offer.in_process

    def start(self) -> Executor:
        """Build an executor.

        Raises:
            PluginError: the plugin raised, or returned no executor.
        """
        provider, offer = self.provided.provider, self.provided.offer
        built: object = offer.build(self.request)
        if not isinstance(built, Executor):
            message = f"returned {built!r:.60}, expected a concurrent.futures.Executor"
            raise plugin_error(provider, f"executor {offer.name!r} {message}")
        return built


def choose(
    choice: str | Mapping[str, Any], registry: Registry, workers: int = 0, *, shared: bool = False
) -> ExecutorChoice:
    """Return the executor with this name, its options checked.

    Args:
        choice: ``NAME``, ``NAME:key=value:key=value``, or a mapping with ``name`` and options.
        registry: the plugins.
        workers: number of concurrent calls; 0 for the number of cores.
        shared: whether the registry is the caller's own, which other processes do not have.

    Raises:
        PluginError: no plugin offers it.
        ConfigError: an unknown or invalid option, or a caller's registry with an executor in other processes.
    """
    if isinstance(choice, str):
        name, given = _read(choice)
    elif isinstance(choice.get("name"), str):
        name, given = choice["name"], {key: value for key, value in choice.items() if key != "name"}
    else:
        raise ConfigError("missing: name the executor, such as processes", key=f"{_KEY}.name")
    provided = registry.executors[name]
    options = checked_options(provided, given, _KEY)
    if shared and not provided.offer.in_process:
        message = "runs in other processes, which load plugins anew: take serial, or no registry"
        raise ConfigError(f"{name} {message}", key=_KEY)
    return ExecutorChoice(provided=provided, request=ExecutorRequest(workers=workers or cores(), options=options))


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options; a part without an equals sign continues the value before it, as in an address."""
    name, *parts = text.split(":")
    settings: list[str] = []
    for part in parts:
        if "=" in part:
            settings.append(part)
        elif settings:
            settings[-1] += f":{part}"
        else:
            raise ConfigError(f"{part!r} is not an option: write {name}:key=value", key=_KEY)
    pairs = (setting.partition("=") for setting in settings)
    return name, {key.strip(): parse_value(value, f"--executor {text}") for key, _, value in pairs}


_ROWS = "CREATE TABLE finished (content BLOB, digest BLOB)"
_FRESH = "CREATE TABLE fresh (unused)"
"""Marks the journal of a fresh sweep."""
_OUTSIDE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
"""SQLite errors whose cause is not a damaged database."""


def journal_path(output: str | Path) -> Path:
    """Return where the journal of a sweep with this first output is.

    >>> str(journal_path("out/results.csv"))
    'out/results.csv.journal'
    """
    return Path(f"{output}.journal")


class Journal:
    """An open journal; no other process can open it at the same time.

    Rows with a wrong checksum and invalid rows are dropped. A damaged database is replaced, with a warning.
    """

    rows: list[Row]
    """The rows that earlier starts finished."""
    fresh: bool
    """Whether the sweep replaces existing tables and ignores their rows."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open a journal, or create it; ``fresh`` ignores its rows and those of existing tables.

        Raises:
            OutputError: another process has it open, or reading or writing fails.
        """
        self.path = path
        try:
            path.open("ab").close()  # the error of the system is more precise than that of SQLite
            try:
                self._open(fresh=fresh)
            except (sqlite3.Error, UnicodeDecodeError) as error:  # errors of SQLite can quote damaged names
                if isinstance(error, sqlite3.Error) and _code(error) in _OUTSIDE:
                    raise
                message = f"{path}: is damaged and replaced: its rows run again"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                path.unlink()
                self._open(fresh=fresh)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._is_empty = not self.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the journal and keep it, because writing tables can still fail; remove an empty one."""
        self._database.close()
        if self._is_empty:
            self.path.unlink(missing_ok=True)

    def append(self, *rows: Row) -> None:
        """Write rows as one transaction.

        Raises:
            OutputError: writing fails.
        """
        contents = [_content(row) for row in rows]
        execute = self._database.execute
        try:
            execute("BEGIN")
            for content in contents:
                execute("INSERT INTO finished VALUES (?, ?)", (content, _digest(content)))
            execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._is_empty = False

    def _open(self, *, fresh: bool) -> None:
        self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            self._read(fresh=fresh)
        except BaseException:
            self._database.close()
            raise

    def _read(self, *, fresh: bool) -> None:
        """Lock the database for this process, check its structure and read its rows."""
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        tables = {sql for (sql,) in execute("SELECT sql FROM sqlite_master")}
        if not tables <= {_ROWS, _FRESH} or execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError
        if _ROWS not in tables:
            execute(_ROWS)
        if fresh:
            execute("DELETE FROM finished")
        if fresh and _FRESH not in tables:
            execute(_FRESH)
        self.fresh = fresh or _FRESH in tables
        entries = execute("SELECT CAST(content AS BLOB), CAST(digest AS BLOB) FROM finished")
        rows = (_row(content) for content, digest in entries if _digest(content or b"") == digest)
        self.rows = [row for row in rows if row is not None]

    def _failed(self, error: sqlite3.Error | OSError) -> OutputError:
        if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY:
            return OutputError(
                "another sweep is writing here: wait for it, or name another file with -o", file=self.path
            )
        return OutputError(f"cannot be written: {getattr(error, 'strerror', '') or error}", file=self.path)


def _row(content: bytes) -> Row | None:
    """Return the row of a content that :meth:`Journal.append` wrote; None where the content is invalid."""
    try:
        row = json.loads(content)
        _content(row)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("point"), str) else None


def _content(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code; errors of Python's module have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def run_point(entry: Entry, *, base: BaseConfiguration, registry: Registry | None = None, actions: int = 0) -> Row:
    """Simulate one point and return its inputs and figures, or the reason of its failure as ``error``.

    Args:
        entry: the settings of this point.
        base: the common configuration of the points.
        registry: the plugins; the installed ones of this process by default.
        actions: actions of this point and the following ones, which decide whether kernels are compiled.
    """
    plugins = registry or installed()

    def simulate_row() -> Row:
        run = simulate(base.resolve(entry), plugins, may_drop_chunks=not entry.sets("parallel.vp"))
        inputs = inputs_of(run.prepared.resolved)
        plugin_versions = plugins_text(run.prepared.plugins)
        return {**inputs, **metrics_row(at_levels(run)), "error": None, "plugins": plugin_versions}

    return row_or_error(simulate_row, str, actions) | {"pptrace": __version__}


def row_or_error(simulate_row: Callable[[], Row], reason_of: Callable[[PptraceError], str], actions: int) -> Row:
    """Return the row of a simulation, or the reason of its failure as ``error``.

    The simulation shares results with earlier ones of this process.

    Args:
        simulate_row: returns the row.
        reason_of: returns the reason of an error.
        actions: actions of this simulation and the following ones, which decide whether kernels are compiled.
    """
    try:
        with many_runs(actions):
            try:
                with memoizing(process_memo()):
                    return simulate_row()
            except DeadlockError:  # shared graphs have redundant edges, which its cycle could contain
                return simulate_row()
    except PptraceError as error:
        reason = reason_of(error)
    except MemoryError:
        reason = "out of memory: take fewer ranks or microbatches, or fewer --workers"
    except Exception as error:  # noqa: BLE001 - a failed point does not end the other ones
        reason = f"{one_line(error)} (a bug: pptrace simulate shows where)"
    return {"error": " ".join(reason.split())}


_SECTION_ROWS = 100
"""Rows of a memo that take as much memory as the cells of a section."""


def inputs_of(resolved: Resolved) -> Row:
    """Return the resolved keys with their values: lists as JSON, absolute paths as their last part."""
    cells: Row = {}
    for name, section in resolved.sections():
        cells |= memoized(partial(_cells, name, section), ("cells", name), section, rows=_SECTION_ROWS)
    return cells


def _cells(name: str, section: Any) -> Row:
    return {key: _cell(value) for key, value in leaves_by_key({name: plain_section(section)}).items()}


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
def process_memo() -> Memo:
    """Return what the points of this process share."""
    return Memo()


@cache
def installed() -> Registry:
    """Return the installed plugins, loaded once per process."""
    return Registry.load(warn=lambda _: None)


_AHEAD = 4
"""Batches per worker that are submitted in advance."""
_LARGEST_BATCH = 16
"""Items of a batch."""
_BATCHES = 64
"""Batches per worker, at least, for a balanced load."""
_ACTIONS = 10_000
"""Typical number of actions of a step, from which the kernels' work is estimated."""


class Runner:
    """Simulates keyed items on an executor and stores finished rows in a journal, as a context."""

    known: dict[str, Row]
    """Rows that earlier starts finished, by key."""
    is_warm: bool
    """Whether this process has compiled the kernels, so that forked workers have them."""

    def __init__(
        self, registry: Registry, chosen: ExecutorChoice, journal: Path | None = None, *, fresh: bool = False
    ) -> None:
        """Read the rows that an earlier start finished; ``fresh`` ignores them.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        self.registry, self.chosen, self.pool = registry, chosen, ExecutorPool(chosen.start)
        self._journal = Journal(journal, fresh=fresh) if journal is not None else None
        self.known = {str(row["point"]): row for row in self._journal.rows} if self._journal else {}
        self.is_warm = False
        process_memo.cache_clear()  # files that an earlier study read may have changed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down the executor, and close the journal, which stays because writing outputs can still fail."""
        self.pool.end(wait=error is None)
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
            row = call(item, registry=self.registry)
            self.is_warm = True
            yield from self._finish([(key, row)], labels)
            installed()  # forked workers share the plugins
        call = partial(_call, call=call, registry=self.registry if self.chosen.in_process else None)
        balanced = 1 if self.chosen.in_process else len(waiting) // (_BATCHES * self.workers)
        size = max(1, min(_LARGEST_BATCH, balanced))
        for batch in run_all(waiting, call, self.pool, ahead=_AHEAD * self.workers, size=size):
            yield from self._finish([(key, row) for (key, _), row in batch], labels)

    def rows_by_key(
        self,
        items: Mapping[str, Item],
        call: Callable[..., Row],
        *,
        warms: bool = False,
        watch: Callable[[int], None] | None = None,
    ) -> dict[str, Row]:
        """Return the rows of items by key as :meth:`run` does, and reuse the rows that earlier starts finished.

        ``watch`` receives the number of rows after each simulation.
        """
        rows = {key: self.known[key] for key in items if key in self.known}
        missing = {key: item for key, item in items.items() if key not in rows}
        for key, row in self.run(missing, call, warms=warms):
            rows[key] = row
            if watch is not None:
                watch(len(rows))
        return rows

    def _finish(
        self, finished: Iterable[tuple[str, Row]], labels: Mapping[str, Row] | None
    ) -> list[tuple[str, Row]]:
        """Return keys and rows, the rows with their keys and labels; store the rows that are no errors."""
        rows = {key: {**(labels[key] if labels else {}), **row, "point": key} for key, row in finished}
        stored = [row for row in rows.values() if not row.get("error")]
        if self._journal is not None and stored:
            self._journal.append(*stored)
        return list(rows.items())


def _call(item: tuple[str, Any], *, call: Callable[..., Row], registry: Registry | None) -> Row:
    return call(item[1], registry=registry)


def simulate_many(
    configurations: Sequence[Mapping[str, Any]],
    figures: Callable[[Run], Row],
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
    items = dict(zip(keys, configurations, strict=True))
    report = progress or (lambda _done, _total: None)
    with Runner(registry, choose(executor, registry, workers), journal, fresh=fresh) as runner:
        missing = len(items.keys() - runner.known.keys())
        call = partial(_run_figures, figures=figures, actions=_ACTIONS * missing // runner.workers)
        report(len(items) - missing, len(items))
        rows = runner.rows_by_key(items, call, watch=lambda count: report(count, len(items)))
    return [{name: value for name, value in rows[key].items() if name != "point"} for key in keys]


def _run_figures(
    configuration: Mapping[str, Any],
    *,
    figures: Callable[[Run], Row],
    actions: int,
    registry: Registry | None,
) -> Row:
    def simulate_figures() -> Row:
        resolved = load(document_of(dict(configuration)), (), {})
        return figures(simulate(resolved, registry or installed()))

    return row_or_error(simulate_figures, lambda error: str(error).removeprefix("config: "), actions)
