"""`pptrace optimize`, with its progress and its live page."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.plugin import (
    ConfigError,
    ConstraintError,
    OutputError,
    PptraceError,
    Registry,
    TraceError,
    check_picture,
    format_size,
    load,
    prepare,
    validate_options,
    write_table,
)
from pptrace_optpipe.cache import Cache, wrong_folder
from pptrace_optpipe.options import OptimizeOptions
from pptrace_optpipe.schedule import SHORTEST, require_solver
from pptrace_optpipe.setting import setting_of, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Prepared, Schedule
    from pptrace_optpipe.search import Optimised
    from pptrace_optpipe.setting import Setting
    from pptrace_optpipe.start_schedules import Rival

__all__ = ["Better", "Watch", "Work", "command", "follow_folder"]

_EXAMPLES = """\b
pptrace optimize step.yaml --memory 60GiB -o best.csv
pptrace simulate step.yaml --schedule best.csv
pptrace optimize step.yaml --memory 40GiB,60GiB,80GiB --pareto"""


@click.command("optimize", epilog=_EXAMPLES)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--memory", metavar="SIZE", default="", help="What each rank may use, weights included: 60GiB; "
              "the device's memory unless given. With --pareto several, with commas.")  # fmt: skip
@click.option("--time", "seconds", metavar="TIME", show_default="60s", help="How long to search.")
@click.option("--work", "units", type=click.FloatRange(min=0, min_open=True), metavar="UNITS",
              help="How much to search in place of --time, in units of about a second: with one worker the result "
              "is the same on every machine.")  # fmt: skip
@click.option("--seed", default="0", metavar="N", help="Seed of the search.")
@click.option("--workers", default="1", metavar="N", help="Threads of the solver; one is reproducible.")
@click.option("--from", "warm", type=click.Path(path_type=Path), metavar="TABLE",
              help="Start from this table too, and keep its placement.")  # fmt: skip
@click.option("--placement", type=click.Choice(["looped", "v"]), default="looped", show_default=True,
              help="Whether stages loop over the ranks, or go down and up them; of --from its own.")  # fmt: skip
@click.option("--copies", type=click.Choice(["cluster", "direction", "pair"]), default="cluster",
              show_default=True,
              help="What has a channel for copies to the host and one back: what the cluster says, each rank, "
              "or ranks 2i and 2i + 1.")  # fmt: skip
@click.option("--recompute", is_flag=True, help="Let forwards be computed again where memory is short.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the table, .csv or .txt."
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
@click.option("--pareto", is_flag=True, help="Search under several limits, and print step against memory.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="With --pareto, draw it too: .svg, .png or .pdf.")  # fmt: skip
@click.option("--watch", is_flag=True, help="CONFIG is a folder of measured steps: search whenever it changes, "
              "and write to -o what is better by more than the noise.")  # fmt: skip
@click.option("--every", metavar="TIME", default="10s", show_default=True, help="With --watch, how often to look.")
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="With --watch, end after N searches.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--no-cache", is_flag=True, help="Neither take what was found before nor keep what is found.")
@click.option("--cache", "listed", is_flag=True, help="List what was found before.")
@click.option("--clear-cache", is_flag=True, help="Forget it.")
def command(
    config: Path | None, memory: str, seconds: str | None, units: float | None, seed: str, workers: str,
    warm: Path | None, placement: str, copies: str, output: Path | None, sets: tuple[str, ...],
    plot: Path | None, every: str, rounds: int | None, *,
    recompute: bool, pareto: bool, watch: bool, as_json: bool, no_cache: bool,
    listed: bool, clear_cache: bool,
) -> None:  # fmt: skip
    """Find the fastest schedule of CONFIG, a YAML file, under a memory limit."""
    if listed or clear_cache:
        _tell_of_cache(clear=clear_cache)
        return
    if config is None:
        raise click.UsageError("name a configuration")
    options = _options(memory, seconds, seed, workers, work=units, recompute=recompute, copies=copies)
    _check_use(options, output, plot, pareto=pareto, watch=watch)
    require_solver()
    from pptrace_optpipe.setting import setting_of

    registry = Registry.load()
    wrong = "" if no_cache else wrong_folder()
    if wrong:
        sys.stderr.write(f"{wrong}\n")
    kept = None if no_cache or wrong else Cache()
    if watch and output is not None:
        pause = (_options("", every, "0", "1").time or 0) / 1e9
        for line in follow_folder(config, output, sets, registry, options, kept, pause=pause, rounds=rounds):
            click.echo(line)
        return
    setting, table = setting_of(config, sets, registry, warm, placement)
    limits = options.memory or [max(setting.capacities, default=setting.workload.capacity_bytes)]
    work = Work(setting, options, kept, config, sets, registry, table)
    if pareto:
        _sweep(work, limits, plot, as_json=as_json)
        return
    found, rivals = work.search(limits[0])
    if output is not None:
        write_table(found.table, output)
        sys.stderr.write(f"wrote {output}\n")
    from pptrace_optpipe.document import document, lines

    asked = (limits[0], rivals, setting.limits(limits[0]))
    if as_json:
        click.echo(json.dumps(document(found, *asked), indent=2))
    else:
        click.echo("\n".join(lines(found, *asked)))


def _options(memory: str, seconds: str | None, seed: str, workers: str, **more: Any) -> OptimizeOptions:
    """Return the options, checked.

    Raises:
        ConfigError: one that cannot be read.
        ConstraintError: too short a time.
    """
    named = {"time": seconds, "seed": _number(seed), "workers": _number(workers), **more}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if memory:
        given["memory"] = [text.strip() for text in memory.split(",")]
    try:
        options = validate_options(OptimizeOptions, given, "", {})
    except ConfigError as error:
        if not error.key:
            raise
        raise ConfigError(error.message, file=f"--{error.key.partition('[')[0]}") from None
    if options.time is not None and options.time < SHORTEST:
        raise ConstraintError(f"{seconds} is too short for any search", nearest="0.1s", key="--time")
    return options


def _check_use(
    options: OptimizeOptions, output: Path | None, plot: Path | None, *, pareto: bool, watch: bool
) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: those.
        OutputError: no picture's name, or no folder for what would be written.
    """
    if output is not None and output.suffix.lower() not in {".csv", ".txt"}:
        raise click.UsageError(f"{output}: a table ends in .csv or .txt")
    for file in (output, plot):
        if file is not None and not file.parent.is_dir():
            raise OutputError("cannot be written: the folder does not exist; create it first", file=file)
    if len(options.memory) > 1 and not pareto:
        raise click.UsageError("several limits are for --pareto")
    if watch and output is None:
        raise click.UsageError("--watch writes what it finds: name a table by -o")
    if plot is not None:
        if not pareto:
            raise click.UsageError("--plot draws what --pareto finds: give both")
        check_picture(plot)


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _sweep(work: Work, limits: Sequence[int], plot: Path | None, *, as_json: bool) -> None:
    """Search under several limits; those given, or eight from the least that anything fits in."""
    from pptrace_optpipe.document import document, dots, pareto_lines

    points: list[tuple[int, Optimised | None]] = []
    others: dict[tuple[str, int, int], Rival] = {}
    for memory in limits if len(limits) > 1 else _limits(work.setting, limits[0]):
        sys.stderr.write(f"limit {format_size(memory)}\n")
        try:
            found, rivals = work.search(memory)
        except PptraceError as error:
            sys.stderr.write(f"{error}\n")
            points.append((memory, None))
            continue
        points.append((memory, found))
        others |= {(one.name, one.simulated.step_ns, one.peak_bytes): one for one in rivals}
    made = list(others.values())
    if plot is not None:
        from pptrace_optpipe.document import draw_pareto

        draw_pareto([(memory, one) for memory, one in points if one is not None], made, plot)
        sys.stderr.write(f"wrote {plot}\n")
    if as_json:
        values = [
            {"memory_limit_bytes": memory}
            if one is None
            else document(one, memory, limits=work.setting.limits(memory))
            for memory, one in points
        ]
        click.echo(json.dumps({"points": values, "hand_made": dots(made)}, indent=2))
    else:
        click.echo("\n".join(pareto_lines(points)))


def _limits(setting: Setting, most: int) -> list[int]:
    """Return eight limits between one microbatch's memory and all that a step can use, or ``most``."""
    work, rank_of = setting.workload, setting.placement.stage_rank[0]
    held = [0] * setting.placement.ranks
    for stage, rank in enumerate(rank_of):
        held[int(rank)] += int(work.activation_bytes[stage])
    least = max(static + own for static, own in zip(setting.static_bytes, held, strict=True))
    whole = max(static + own * min(setting.placement.microbatches, 2 * len(held))
                for static, own in zip(setting.static_bytes, held, strict=True))  # fmt: skip
    top = min(most, whole) if most else whole
    return [least + (top - least) * step // 7 for step in range(8)]


def _tell_of_cache(*, clear: bool) -> None:
    cache = Cache()
    if clear:
        click.echo(f"{cache.clear()} entries removed from {cache.path}")
        return
    count = 0
    for name, about in cache.entries():
        click.echo(f"{name}  {about}")
        count += 1
    click.echo(f"{count} entries in {cache.path}")


_SHARE = 0.25
"""The part of the time in which other plugins' schedules are made and played."""
_AT_LEAST = 3.0
"""Seconds that this may take, however short a search is asked for."""


@dataclass(frozen=True, slots=True)
class Work:
    """The setting, the options and the cache of a search."""

    setting: Setting
    options: OptimizeOptions
    cache: Cache | None
    config: Path
    sets: tuple[str, ...]
    registry: Registry
    table: Schedule | None

    def search(self, memory: int) -> tuple[Optimised, list[Rival]]:
        """Search under one limit, and tell how it goes; Ctrl-C returns the best so far, SIGTERM caches it."""
        from pptrace_optpipe.model import limited
        from pptrace_optpipe.problem import shared_of
        from pptrace_optpipe.search import optimise
        from pptrace_optpipe.start_schedules import rivals

        began, options = time.monotonic(), self.options
        setting = replace(
            self.setting, recompute=options.recompute, shared=shared_of(self.setting.prepared, options.copies)
        )

        reported: list[tuple[int, int]] = []

        def tell(best: Optimised) -> None:
            step, bound = best.simulated.step_ns, best.bound_ns
            if reported[-1:] == [(step, bound)]:
                return
            reported.append((step, bound))
            verdict = f"bound {bound / 1e6:.3f} ms  gap {best.gap:.2%}" if bound else "bound not known"
            sys.stderr.write(f"{time.monotonic() - began:7.1f} s  step {step / 1e6:.3f} ms  {verdict}\n")

        with _stoppable() as stopped:
            effort = limited(
                options.time, options.work, workers=options.workers, seed=options.seed, stopped=stopped
            )
            first = effort.clock()
            others: list[Rival] = []
            for one in rivals(self.config, self.sets, self.registry, setting, memory):
                others.append(one)
                effort.count(int(one.table.row_ptr[-1]))
                if stopped() or effort.clock() - first > max(effort.seconds * _SHARE, _AT_LEAST):
                    break
            took = min(effort.clock() - first, effort.seconds * _SHARE)
            left = replace(effort, seconds=effort.seconds - took)
            found = optimise(
                setting, memory, left, self.cache, warm=self.table, rivals=others, tell=tell, warn=_warn
            )
        return found, others


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into an answer; the second one interrupts as ever.

    After a SIGTERM the command ends once the block has kept what it found.
    """
    asked = 0

    def stop(number: int, _: object) -> None:
        nonlocal asked
        asked = number
        restore()
        if number == signal.SIGINT:
            sys.stderr.write("stopping with the best so far; once more to leave it\n")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield lambda: bool(asked)
    finally:
        restore()
        if asked == signal.SIGTERM:
            signal.raise_signal(asked)


def follow_folder(
    run: Path, output: Path, sets: tuple[str, ...], registry: Registry, options: OptimizeOptions,
    cache: Cache | None, *, pause: float, rounds: int | None,
) -> Iterator[str]:  # fmt: skip
    """Search after each new measurement, until Ctrl-C or for some rounds, and yield a line on each."""
    watched = Watch(run, output, sets, registry)

    def search(setting: Setting, config: Path, last: Schedule | None) -> Optimised:
        limit = next(iter(options.memory), max(setting.capacities, default=setting.workload.capacity_bytes))
        return Work(setting, options, cache, config, sets, registry, last).search(limit)[0]

    while rounds is None or rounds > 0:
        if watched.is_new():
            try:
                yield watched.improve(search).line()
            except PptraceError as error:
                sys.stderr.write(f"{run}: {error}\n")
            rounds = None if rounds is None else rounds - 1
        if rounds != 0:
            time.sleep(pause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """What a measurement came to."""

    present: str
    """The schedule that was measured, or what was written before where that is shorter."""
    present_ns: int
    """Its step, simulated with the costs that were measured."""
    found: Optimised
    noise: float
    """By which part measured times of one action differ: the widest middle half of any action's times."""
    written: bool
    """Whether the table was shorter by more than that, and was written."""

    @property
    def gain(self) -> float:
        """The part of the present step that is saved."""
        return 1 - self.found.simulated.step_ns / self.present_ns

    def line(self) -> str:
        """Return what came of it, on a line."""
        step = f"{self.found.simulated.step_ns / 1e6:.3f} ms"
        change = f"{step} in place of {self.present_ns / 1e6:.3f} ms ({self.present})"
        if self.written:
            return f"{change}: {self.gain:.1%} shorter, more than the noise of {self.noise:.1%}"
        return f"{change}: {self.gain:.1%} is not more than the noise of {self.noise:.1%}: nothing is written"


class Watch:
    """A folder of measured steps, and the table that is written whenever a better one is found."""

    def __init__(self, run: Path, output: Path, sets: Sequence[str], registry: Registry) -> None:
        self.run, self.output, self.sets, self.registry = run, output, tuple(sets), registry
        self.seen: tuple[tuple[str, int, int], ...] = ()

    def is_new(self) -> bool:
        """Return whether the folder has changed since it was looked at last."""
        files = sorted(self.run.rglob("*")) if self.run.is_dir() else [self.run]
        found = []
        for file in files:
            with suppress(OSError):
                about = file.stat()
                found.append((str(file), about.st_size, about.st_mtime_ns))
        changed, self.seen = tuple(found) != self.seen, tuple(found)
        return changed

    def improve(self, search: Callable[[Setting, Path, Schedule | None], Optimised]) -> Better:
        """Fit costs to what was measured, search, and write the table if it is shorter by more than the noise.

        Raises:
            TraceError: the measurement cannot be used.
            PptraceError: nothing can be searched for.
        """
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "measured.yaml"
            noise = _calibrated(self.run, config)
            name, measured = self._measured(config)
            present = simulated(measured, measured.schedule)
            setting, last = self._setting(config)
            found = search(setting, config, last)
            if last is not None and (before := setting.simulate(last)).step_ns < present.step_ns:
                name, present = self.output.name, before
        better = found.simulated.step_ns < present.step_ns * (1 - noise)
        if better:
            write_table(found.table, self.output)
        return Better(present=name, present_ns=present.step_ns, found=found, noise=noise, written=better)

    def _measured(self, config: Path) -> tuple[str, Prepared]:
        """Return the schedule that was measured: an installed one, or the order of actions as it was."""
        try:
            measured = prepare(load(config, self.sets), self.registry)
        except ConfigError as error:
            if error.key != "schedule":
                raise
            order = config.with_name("order.csv")
            _pptrace("convert", str(self.run), str(order), "--messages", "asap")
            return "the measured order", prepare(load(config, self.sets, {"schedule": str(order)}), self.registry)
        return measured.resolved.experiment.schedule.name, measured

    def _setting(self, config: Path) -> tuple[Setting, Schedule | None]:
        """Return what to search in, and the table that was written last unless it is of another job."""
        if self.output.exists():
            with suppress(PptraceError):
                return setting_of(config, self.sets, self.registry, self.output)
        return setting_of(config, self.sets, self.registry)


def _calibrated(run: Path, config: Path) -> float:
    """Write the configuration that a measurement is fitted by, and return the noise of its times.

    Raises:
        TraceError: ``pptrace calibrate`` cannot use it.
    """
    document = _pptrace("calibrate", str(run), "-o", str(config), "--json")
    fitted: list[dict[str, Any]] = json.loads(document)["fitted"]
    spreads = [one["mean_ns_spread"] / one["mean_ns"] for one in fitted if one["mean_ns"]]
    return float(max(spreads, default=0.0))


def _pptrace(*words: str) -> str:
    """Run a pptrace command and return its output.

    Raises:
        TraceError: it fails; its last line says why.
    """
    script = shutil.which("pptrace", path=str(Path(sys.executable).parent)) or shutil.which("pptrace") or "pptrace"
    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)  # noqa: S603 - pptrace itself
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["it fails"]
        raise TraceError(f"pptrace {words[0]}: {reason[0].removeprefix('pptrace: ')}")
    return done.stdout
