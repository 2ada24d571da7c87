"""``pptrace optimize``: the fastest schedule of a configuration under a memory limit, with a bound."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.plugin import (
    ConfigError,
    ConstraintError,
    OutputError,
    PptraceError,
    Registry,
    check_picture,
    format_size,
    validate_options,
    write_table,
)
from pptrace_optpipe.caching import Cache, wrong_folder
from pptrace_optpipe.options import OptimizeOptions
from pptrace_optpipe.schedule import SHORTEST, require_solver
from pptrace_optpipe.working import Work
from pptrace_optpipe.working import watch as follow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_optpipe.optimising import Optimised
    from pptrace_optpipe.rivals import Rival
    from pptrace_optpipe.setting import Setting

__all__ = ["command"]

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
        for line in follow(config, output, sets, registry, options, kept, pause=pause, rounds=rounds):
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
    from pptrace_optpipe.report import document, lines

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
