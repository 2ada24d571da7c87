"""``pptrace optimize``, with its progress."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import (
    ConfigError,
    ConstraintError,
    Document,
    ExecutorRequest,
    OutputError,
    PptraceError,
    Registry,
    Table,
    TraceError,
    format_size,
    load,
    prepare,
    validate_options,
    write_table,
)
from pptrace.report.charts import check_picture
from pptrace_optpipe.cache import Cache, wrong_folder
from pptrace_optpipe.options import SHORTEST_NS, OptimizeOptions
from pptrace_optpipe.schedule import require_solver
from pptrace_optpipe.setting import channels_of, setting_of, simulated
from pptrace_optpipe.start_schedules import rivals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.plugin import Schedule
    from pptrace_optpipe.document import Improvement
    from pptrace_optpipe.search import Optimised
    from pptrace_optpipe.setting import Setting
    from pptrace_optpipe.start_schedules import Rival


_EXAMPLES = """\b
pptrace optimize step.yaml --memory 60GiB -o best.csv
pptrace simulate step.yaml --schedule best.csv
pptrace optimize step.yaml --memory 40GiB,60GiB,80GiB --pareto
pptrace optimize run/ -o better.csv"""


@click.command("optimize", epilog=_EXAMPLES)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--memory", metavar="SIZE", default="", help="Memory limit of each rank, including weights, such as "
              "60GiB; the device's memory by default. With --pareto, several with commas.")  # fmt: skip
@click.option("--time", "seconds", metavar="TIME", show_default="60s", help="Time of the search.")
@click.option("--work", "units", type=click.FloatRange(min=0, min_open=True), metavar="UNITS",
              help="Limit of the search in place of --time, in units of about a second: with one worker, the "
              "result is the same on every machine.")  # fmt: skip
@click.option("--seed", default="0", metavar="N", help="Seed of the search.")
@click.option(
    "--workers",
    default="1",
    metavar="N",
    help="Parallel searches, each in a process; with one, results are reproducible.",
)
@click.option("--from", "warm", type=click.Path(path_type=Path), metavar="TABLE",
              help="Also start from this table, and keep its placement.")  # fmt: skip
@click.option("--placement", type=click.Choice(["looped", "v"]), show_default="looped",
              help="Placement of stages: they loop over the ranks, or go down and up (v). A run and --from "
                  "define it themselves.")  # fmt: skip
@click.option("--vary-stages", is_flag=True,
              help="Allow schedules with other stages or another placement than the requested ones.")  # fmt: skip
@click.option("--copies", type=click.Choice(["cluster", "direction", "pair"]), default="cluster",
              show_default=True,
              help="Ranks that share a channel for copies to the host and a channel back. With direction, "
              "each rank is alone. With pair, ranks 2i and 2i + 1 share them.")  # fmt: skip
@click.option("--recompute", is_flag=True, help="Allow recomputed forwards if memory is short.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the table, .csv or .txt."
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
@click.option("--pareto", is_flag=True, help="Search with several limits, and print the step for each.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="With --pareto, also draw the steps: .svg, .png or .pdf.")  # fmt: skip
@click.option("--watch", is_flag=True, help="With a folder of measured steps, search after each change, and "
              "write a table to -o if it is shorter by more than the noise.")  # fmt: skip
@click.option(
    "--every", metavar="TIME", default="10s", show_default=True, help="With --watch, the interval of checks."
)
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="With --watch, end after N searches.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--no-cache", is_flag=True, help="Do not use cached results, and do not cache new ones.")
@click.option("--cache", "listed", is_flag=True, help="List cached results.")
@click.option("--clear-cache", is_flag=True, help="Remove cached results.")
def command(
    config: Path | None, memory: str, seconds: str | None, units: float | None, seed: str, workers: str,
    warm: Path | None, placement: str | None, copies: str, output: Path | None,
    sets: tuple[str, ...], plot: Path | None, every: str, rounds: int | None, *,
    vary_stages: bool, recompute: bool, pareto: bool, watch: bool, as_json: bool, no_cache: bool,
    listed: bool, clear_cache: bool,
) -> None:  # fmt: skip
    """Find the fastest schedule under a memory limit.

    CONFIG is a YAML file, or a folder of measured steps, whose stages and placement stay.
    """
    if listed or clear_cache:
        _print_cache(clear=clear_cache)
        return
    if config is None:
        raise click.UsageError("name a configuration")
    options = _options(memory, seconds, seed, workers, work=units, recompute=recompute, copies=copies)
    _check_use(options, output, plot, pareto=pareto, watch=watch)
    require_solver()

    registry = Registry.load()
    fault = "" if no_cache else wrong_folder()
    if fault:
        sys.stderr.write(f"{fault}\n")
    cache = None if no_cache or fault else Cache()
    search = _Search(options, cache, sets, registry, vary_stages=vary_stages)
    is_run = config.is_dir() or watch
    if is_run and (warm is not None or placement or pareto):
        raise click.UsageError("a run has its own table and placement: leave --from, --placement and --pareto out")
    if watch and output is not None:
        pause_s = (_options("", every, "0", "1").time or 0) / 1e9
        search.follow(config, output, pause_s, rounds)
        return
    from pptrace_optpipe.document import document, values_of

    run = search.improve(config) if is_run else None
    if run is not None:
        setting, limit, best = run.setting, run.memory, run.best
    else:
        setting, table = setting_of(config, sets, registry, warm, placement or "", vary_stages=vary_stages)
        limits = search.limits(setting)
        if pareto:
            _sweep(search, config, setting, table, limits, plot, as_json=as_json)
            return
        limit = limits[0]
        best = search.run(config, setting, [] if table is None else [table], limit)
    if output is not None:
        write_table(best.table, output)
        sys.stderr.write(f"wrote {output}\n")
    described = (best, setting, limit, run)
    click.echo(json.dumps(values_of(*described), indent=2) if as_json else document(*described))


def _options(memory: str, seconds: str | None, seed: str, workers: str, **more: Any) -> OptimizeOptions:
    """Return the validated options.

    Raises:
        ConfigError: an invalid option.
        ConstraintError: a time that is too short.
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
    if options.time is not None and options.time < SHORTEST_NS:
        raise ConstraintError(f"{seconds} is too short for any search", nearest="0.1s", key="--time")
    return options


def _check_use(
    options: OptimizeOptions, output: Path | None, plot: Path | None, *, pareto: bool, watch: bool
) -> None:
    """Check that options can be combined.

    Raises:
        UsageError: options that exclude each other.
        OutputError: an unknown suffix of a picture, or a missing folder of an output file.
    """
    if output is not None and output.suffix.lower() not in {".csv", ".txt"}:
        raise click.UsageError(f"{output}: a table ends in .csv or .txt")
    for file in (output, plot):
        if file is not None and not file.parent.is_dir():
            raise OutputError("cannot be written: the folder does not exist; create it first", file=file)
    if len(options.memory) > 1 and not pareto:
        raise click.UsageError("several limits are for --pareto")
    if watch and output is None:
        raise click.UsageError("--watch writes its results: name a table by -o")
    if plot is not None:
        if not pareto:
            raise click.UsageError("--plot draws the results of --pareto: give both")
        check_picture(plot)


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _sweep(
    search: _Search, config: Path, setting: Setting, table: Schedule | None, limits: Sequence[int],
    plot: Path | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Search with several limits: the given ones, or eight that start at the smallest possible limit."""
    from pptrace_optpipe.document import dots, draw_pareto, pareto_document, values_of

    points: list[tuple[int, Optimised | None]] = []
    rivals_by_key: dict[tuple[str, int, int], Rival] = {}
    for memory in limits if len(limits) > 1 else _limits(setting, limits[0]):
        sys.stderr.write(f"limit {format_size(memory)}\n")
        try:
            best = search.run(config, setting, [] if table is None else [table], memory)
        except PptraceError as error:
            sys.stderr.write(f"{error}\n")
            points.append((memory, None))
            continue
        points.append((memory, best))
        rivals_by_key |= {(rival.name, rival.simulated.step_ns, rival.peak_bytes): rival for rival in best.rivals}
    drawn = list(rivals_by_key.values())
    if plot is not None:
        draw_pareto([(memory, best) for memory, best in points if best is not None], drawn, plot)
        sys.stderr.write(f"wrote {plot}\n")
    if as_json:
        values = [
            values_of(replace(best, rivals=()), setting, memory) if best else {"memory_limit_bytes": memory}
            for memory, best in points
        ]
        click.echo(json.dumps({"points": values, "hand_made": dots(drawn)}, indent=2))
    else:
        click.echo(pareto_document(points))


def _limits(setting: Setting, most: int) -> list[int]:
    """Return eight limits in bytes, from the memory of one microbatch to that of a whole step, or ``most``."""
    work, rank_of = setting.workload, setting.placement.stage_rank[0]
    activations = [0] * setting.placement.ranks
    for stage, rank in enumerate(rank_of):
        activations[int(rank)] += int(work.activation_bytes[stage])
    least = max(static + activation for static, activation in zip(setting.static_bytes, activations, strict=True))
    largest = max(static + activation * min(setting.placement.microbatches, 2 * len(activations))
                for static, activation in zip(setting.static_bytes, activations, strict=True))  # fmt: skip
    highest = min(most, largest) if most else largest
    return [least + (highest - least) * step // 7 for step in range(8)]


def _print_cache(*, clear: bool) -> None:
    cache = Cache()
    if clear:
        click.echo(f"{cache.clear()} entries removed from {cache.path}")
        return
    entries = tuple(cache.entries())
    count = f"{len(entries)} entries in {cache.path}"
    click.echo(Document(title="cache", lead=(Table(rows=entries, words=2), count)))


class _Search(Struct, frozen=True):
    """Options, cache and plugins of searches."""

    options: OptimizeOptions
    cache: Cache | None
    sets: tuple[str, ...]
    registry: Registry
    vary_stages: bool = False

    def limits(self, setting: Setting) -> Sequence[int]:
        """Return the limits of the options, or the memory of the largest device."""
        return self.options.memory or [max(setting.capacities, default=setting.workload.capacity_bytes)]

    def run(self, config: Path, setting: Setting, tables: Sequence[Schedule], memory: int) -> Optimised:
        """Search from tables under one limit with progress; Ctrl-C returns the best so far, SIGTERM caches it."""
        from pptrace_optpipe.model import limited
        from pptrace_optpipe.search import optimise

        start_s, options = time.monotonic(), self.options
        sets = [*self.sets, "parallel.vp=null"] if self.vary_stages else self.sets
        shared = channels_of(setting.prepared, options.copies)
        setting = replace(setting, recompute=options.recompute, shared=shared)
        reported: list[tuple[int, int]] = []

        def report(best: Optimised) -> None:
            step, bound = best.simulated.step_ns, best.bound_ns
            if reported[-1:] == [(step, bound)]:
                return
            reported.append((step, bound))
            verdict = f"bound {bound / 1e6:.3f} ms  gap {best.gap:.2%}" if bound else "bound not known"
            sys.stderr.write(f"{time.monotonic() - start_s:7.1f} s  step {step / 1e6:.3f} ms  {verdict}\n")

        with _stop_signals() as stopped:
            executors = self.registry.executors["processes"].offer
            request = ExecutorRequest(workers=options.workers, options={})
            effort = limited(
                options.time, options.work, workers=options.workers, seed=options.seed, stopped=stopped,
                start_executor=partial(executors.build, request) if options.workers > 1 else None,
            )  # fmt: skip
            return optimise(
                setting.search_input(memory), effort, self.cache, warm=tables,
                rivals=rivals(config, sets, self.registry, setting, memory), tell=report,
                warn=lambda line: click.echo(line, err=True),
            )  # fmt: skip

    def follow(self, run: Path, output: Path, pause_s: float, rounds: int | None) -> None:
        """Search after each new measurement, until Ctrl-C or for some rounds, and print a line on each.

        Raises:
            PptraceError: no search was possible in the last round.
        """
        seen: list[tuple[str, int, int]] = []
        while True:
            files = files_of(run)
            if files != seen:
                seen = files
                rounds = None if rounds is None else rounds - 1
                try:
                    result = self.improve(run, output)
                    if result.is_better:
                        write_table(result.best.table, output)
                    click.echo(result.line if result.is_better else f"{result.line}: nothing is written")
                except PptraceError as error:
                    if rounds == 0:
                        raise
                    sys.stderr.write(f"{error}\n")
            if rounds == 0:
                return
            time.sleep(pause_s)

    def improve(self, run: Path, earlier: Path | None = None) -> Improvement:
        """Fit costs to a run, and search from its order and an earlier result, in its placement.

        Args:
            run: the folder.
            earlier: a table, which is left out if it is missing, belongs to another job, or has another placement.

        Raises:
            TraceError: the measurement cannot be used.
            PptraceError: no search is possible.
        """
        from pptrace_optpipe.document import Improvement

        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "measured.yaml"
            noise, advice = _calibrate(run, config)
            try:
                setting, own_table = setting_of(
                    config, self.sets, self.registry, is_run=True, vary_stages=self.vary_stages
                )
            except ConfigError as error:
                if error.key != "schedule":
                    raise
                raise TraceError("ranks or actions are missing, so its order is not known", file=run) from None
            schedule = setting.present.resolved.experiment.schedule
            name = "the measured order" if schedule.kind == "table" else schedule.name
            tables = [] if own_table is None else [own_table]
            present_ns = simulated(setting.present).step_ns
            if earlier is not None and earlier.exists():
                with suppress(PptraceError):
                    table = prepare(load(config, self.sets, {"schedule": str(earlier)}), self.registry).schedule
                    if table.placement == setting.placement:
                        tables.append(table)
                        written_ns = setting.simulate(table).step_ns
                        if written_ns < present_ns:
                            name, present_ns = earlier.name, written_ns
            memory = self.limits(setting)[0]
            best = self.run(config, setting, tables, memory)
        return Improvement(
            setting=setting, memory=memory, best=best, present=name, present_ns=present_ns,
            noise=noise, advice=advice,
        )  # fmt: skip


def files_of(run: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of each file of a measurement."""
    files = []
    for file in sorted(run.rglob("*")) if run.is_dir() else [run]:
        with suppress(OSError):
            status = file.stat()
            files.append((str(file), status.st_size, status.st_mtime_ns))
    return files


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM occurred; the second signal has its normal effect.

    After a SIGTERM, the command ends after the block, which can save its results.
    """
    received = 0

    def stop(number: int, _: object) -> None:
        nonlocal received
        received = number
        restore()
        if number == signal.SIGINT:
            sys.stderr.write("stopping with the best so far; press Ctrl-C again to stop at once\n")

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield lambda: bool(received)
    finally:
        restore()
        if received == signal.SIGTERM:
            signal.raise_signal(received)


def _calibrate(run: Path, config: Path) -> tuple[float, str]:
    """Write a configuration fitted to a measurement.

    Returns:
        The relative noise of its times, and the measurement that would make predictions more accurate.

    Raises:
        TraceError: ``pptrace calibrate`` cannot use the measurement.
    """
    document = json.loads(_pptrace("calibrate", str(run), "-o", str(config), "--json"))
    fitted: list[dict[str, Any]] = document["fitted"]
    spreads = [parameter["mean_ns_spread"] / parameter["mean_ns"] for parameter in fitted if parameter["mean_ns"]]
    return float(max(spreads, default=0.0)), str(document["check"]["split_advice"])


def _pptrace(*words: str) -> str:
    """Run a pptrace command and return its output.

    Raises:
        TraceError: the command fails; the message has the last line of its errors.
    """
    script = shutil.which("pptrace", path=str(Path(sys.executable).parent)) or shutil.which("pptrace") or "pptrace"
    process = subprocess.run([script, *words], capture_output=True, text=True, check=False)  # noqa: S603 - pptrace itself
    if process.returncode:
        reason = process.stderr.strip().splitlines()[-1:] or ["it fails"]
        raise TraceError(reason[0].removeprefix("pptrace: "))
    return process.stdout
