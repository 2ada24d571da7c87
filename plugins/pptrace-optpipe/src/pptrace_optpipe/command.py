"""``pptrace optimize``: the fastest schedule of a configuration under a memory limit, with a bound."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.plugin import (
    ConstraintError,
    PptraceError,
    Registry,
    check_picture,
    format_size,
    validate_options,
    write_table,
)
from pptrace_optpipe.caching import Cache
from pptrace_optpipe.options import OptimizeOptions
from pptrace_optpipe.schedule import SHORTEST, require_solver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace.plugin import Schedule
    from pptrace_optpipe.optimising import Optimised
    from pptrace_optpipe.rivals import Rival
    from pptrace_optpipe.search import Found
    from pptrace_optpipe.setting import Setting, Simulated

__all__ = ["command"]

_SHARE = 0.25
"""The part of the time in which other plugins' schedules are made and played."""
_AT_LEAST = 3.0
"""Seconds that this may take, however short a search is asked for."""
_EXAMPLES = """\b
pptrace optimize step.yaml --memory 60GiB -o best.csv
pptrace simulate step.yaml --schedule best.csv
pptrace optimize step.yaml --memory 40GiB,60GiB,80GiB --pareto"""


@click.command("optimize", epilog=_EXAMPLES)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--memory", metavar="SIZE", default="", help="What each rank may use, weights included: 60GiB; "
              "the device's memory unless given. With --pareto several, with commas.")  # fmt: skip
@click.option("--time", "seconds", metavar="TIME", default="60s", show_default=True, help="How long to search.")
@click.option("--seed", default="0", metavar="N", help="Seed of the search.")
@click.option("--workers", default="1", metavar="N", help="Threads of the solver; one is reproducible.")
@click.option("--from", "warm", type=click.Path(path_type=Path), metavar="TABLE",
              help="Start from this table too, and keep its placement.")  # fmt: skip
@click.option("--placement", type=click.Choice(["looped", "v"]), default="looped", show_default=True,
              help="Whether stages loop over the ranks, or go down and up them; of --from its own.")  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the table, .csv or .txt."
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any key; may be repeated.")
@click.option("--pareto", is_flag=True, help="Search under several limits, and print step against memory.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
              help="With --pareto, draw it too: .svg, .png or .pdf.")  # fmt: skip
@click.option("--watch", is_flag=True, help="CONFIG is a folder of measured steps: search whenever it changes, and "
              "write to -o what is better by more than the noise.")  # fmt: skip
@click.option("--every", metavar="TIME", default="10s", show_default=True, help="With --watch, how often to look.")
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="With --watch, end after N searches.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--no-cache", is_flag=True, help="Neither take what was found before nor keep what is found.")
@click.option("--cache", "listed", is_flag=True, help="List what was found before.")
@click.option("--clear-cache", is_flag=True, help="Forget it.")
def command(
    config: Path | None, memory: str, seconds: str, seed: str, workers: str, warm: Path | None, placement: str,
    output: Path | None, sets: tuple[str, ...], plot: Path | None, every: str, rounds: int | None, *,
    pareto: bool, watch: bool, as_json: bool, no_cache: bool,
    listed: bool, clear_cache: bool,
) -> None:  # fmt: skip
    """Find the fastest schedule of CONFIG, a YAML file, under a memory limit."""
    if listed or clear_cache:
        _tell_of_cache(clear=clear_cache)
        return
    if config is None:
        raise click.UsageError("name a configuration")
    if output is not None and output.suffix.lower() not in {".csv", ".txt"}:
        raise click.UsageError(f"{output}: a table ends in .csv or .txt")
    options = _options(memory, seconds, seed, workers)
    if len(options.memory) > 1 and not pareto:
        raise click.UsageError("several limits are for --pareto")
    if plot is not None:
        if not pareto:
            raise click.UsageError("--plot draws what --pareto finds: give both")
        check_picture(plot)
    require_solver()
    from pptrace_optpipe.setting import setting_of

    registry = Registry.load()
    kept = None if no_cache else Cache()
    if watch:
        if output is None:
            raise click.UsageError("--watch writes what it finds: name a table by -o")
        pause = validate_options(OptimizeOptions, {"time": every}, "", {}).time / 1e9
        _watch(config, output, sets, registry, options, kept, pause, rounds)
        return
    setting, table = setting_of(config, sets, registry, warm, placement)
    limits = options.memory or (setting.workload.capacity_bytes,)
    work = _Work(setting, options, kept, config, sets, registry, table)
    if pareto:
        _sweep(work, limits, plot, as_json=as_json)
        return
    found, rivals = work.search(limits[0])
    if output is not None:
        write_table(found.table, output)
        sys.stderr.write(f"wrote {output}\n")
    from pptrace_optpipe.report import document, lines

    if as_json:
        click.echo(json.dumps(document(found, limits[0], rivals), indent=2))
    else:
        click.echo("\n".join(lines(found, limits[0], rivals)))


def _options(memory: str, seconds: str, seed: str, workers: str) -> OptimizeOptions:
    """Return the options, checked.

    Raises:
        ConfigError: one that cannot be read.
        ConstraintError: too short a time.
    """
    given: dict[str, Any] = {"time": seconds, "seed": _number(seed), "workers": _number(workers)}
    if memory:
        given["memory"] = [text.strip() for text in memory.split(",")]
    options = validate_options(OptimizeOptions, given, "", {})
    if options.time < SHORTEST:
        raise ConstraintError(f"{seconds} is too short for any search", nearest="0.1s", key="--time")
    return options


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


@dataclass(frozen=True, slots=True)
class _Work:
    """What is searched for, with what, and for how long."""

    setting: Setting
    options: OptimizeOptions
    cache: Cache | None
    config: Path
    sets: tuple[str, ...]
    registry: Registry
    table: Schedule | None

    def search(self, memory: int) -> tuple[Optimised, list[Rival]]:
        """Search under one limit, and tell how it goes; Ctrl-C keeps the best so far."""
        from pptrace_optpipe.optimising import optimise
        from pptrace_optpipe.rivals import rivals
        from pptrace_optpipe.solving import Effort

        began, options = time.monotonic(), self.options

        told: list[tuple[int, int]] = []

        def tell(simulated: Simulated, found: Found) -> None:
            if told[-1:] == [(simulated.step_ns, found.bound)]:
                return
            told.append((simulated.step_ns, found.bound))
            gap = max(simulated.step_ns - found.bound, 0) / simulated.step_ns
            sys.stderr.write(
                f"{time.monotonic() - began:7.1f} s  step {simulated.step_ns / 1e6:.3f} ms  "
                f"bound {found.bound / 1e6:.3f} ms  gap {gap:.2%}\n"
            )

        with _stoppable() as stopped:
            others: list[Rival] = []
            for one in rivals(self.config, self.sets, self.registry, self.setting, memory):
                others.append(one)
                if stopped() or time.monotonic() - began > max(options.time / 1e9 * _SHARE, _AT_LEAST):
                    break
            took = min(time.monotonic() - began, options.time / 1e9 * _SHARE)
            effort = Effort(
                seconds=options.time / 1e9 - took, workers=options.workers, seed=options.seed, stopped=stopped
            )
            found = optimise(
                self.setting, memory, effort, self.cache, warm=self.table, rivals=others, tell=tell, warn=_warn
            )
        return found, others


def _warn(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into an answer; the second one interrupts as ever."""
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        sys.stderr.write("stopping with the best so far; once more to leave it\n")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(
    run: Path, output: Path, sets: tuple[str, ...], registry: Registry, options: OptimizeOptions, cache: Cache | None,
    pause: float, rounds: int | None,
) -> None:  # fmt: skip
    """Search after each new measurement, until Ctrl-C."""
    from pptrace_optpipe.watching import Watch

    watched = Watch(run, output, sets, registry)

    def search(setting: Setting, config: Path, last: Schedule | None) -> Optimised:
        limit = options.memory[0] if options.memory else setting.workload.capacity_bytes
        return _Work(setting, options, cache, config, sets, registry, last).search(limit)[0]

    while rounds is None or rounds > 0:
        if watched.is_new():
            try:
                click.echo(watched.improve(search).line())
            except PptraceError as error:
                sys.stderr.write(f"{run}: {error}\n")
            rounds = None if rounds is None else rounds - 1
        if rounds != 0:
            time.sleep(pause)


def _sweep(work: _Work, limits: tuple[int, ...], plot: Path | None, *, as_json: bool) -> None:
    """Search under several limits; those given, or eight from the least that anything fits in."""
    from pptrace_optpipe.report import document, dots, pareto_lines

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
        from pptrace_optpipe.drawing import draw_pareto

        draw_pareto([(memory, one) for memory, one in points if one is not None], made, plot)
        sys.stderr.write(f"wrote {plot}\n")
    if as_json:
        values = [
            {"memory_limit_bytes": memory} if one is None else document(one, memory) for memory, one in points
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
