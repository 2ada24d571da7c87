"""``pptrace sweep``: simulate a grid of steps in parallel; write a tidy table and pictures."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli.options import complete_words, executor_options, experiment_flags, json_option, outputs_option
from pptrace.cli.output import echo_documents, raw, report_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.cli.options import Source
    from pptrace.search.sweep import Sweep
    from pptrace.search.sweep_charts import Picture

_EXAMPLES = """\b
pptrace sweep llama.yaml --over 'microbatches=8..256*2' --over schedule=gpipe,1f1b -o results.csv -o fig.png
pptrace sweep llama.yaml --over 'network.bandwidth=50..400*2 GB/s' --over schedule=1f1b,hanayo:waves=2
pptrace sweep llama.yaml --over pp=4,8 --over microbatches=16,64 --over schedule=gpipe,1f1b -o w.svg --plot winners
"""
_REDRAW_S = 0.1


@click.command("sweep", epilog=_EXAMPLES)
@click.option(
    "--over", "over", multiple=True, required=True, metavar="KEY=VALUE,...",
    help="An axis: a flag's name or a key, with its values; 8..64*2 doubles, 8..64+8 adds. May be repeated.",
)  # fmt: skip
@click.option("--gpus", type=int, metavar="N", help="GPUs of every point, which determine its replicas (dp).")
@experiment_flags()
@outputs_option("Write a table (.csv, .parquet) or a picture (.png, .svg, .pdf); may be repeated.")
@click.option(
    "--plot", default="lines", metavar="KIND", shell_complete=complete_words("lines", "winners", "difference"),
    help="Kind of picture: lines, winners or difference (to the first schedule).",
)  # fmt: skip
@click.option("--x", metavar="KEY", help="The axis along x of pictures; the first with numbers by default.")
@click.option(
    "--y", default="step_ns", show_default=True, metavar="FIGURE,...", help="The columns that pictures show."
)
@executor_options("processes", "Executor of the points.")
@click.option("--fresh", is_flag=True, help="Simulate all points again, and replace the outputs.")
@json_option("Print the rows as JSON.")
def command(
    source: Source,
    over: tuple[str, ...],
    gpus: int | None,
    outputs: tuple[str, ...],
    plot: str,
    x: str | None,
    y: str,
    executor: str,
    workers: int | None,
    *,
    fresh: bool,
    as_json: bool,
) -> int:
    """Simulate every combination of the axes' values on CONFIG, in parallel.

    Prints the main columns, unless -o writes a table.
    Finished rows are stored next to the first output: after an interruption, the same command continues. Rows in
    existing outputs are reused. Exits with 1 if points failed.
    """
    file = source.file
    from pptrace.plugins.registry import Registry
    from pptrace.search.grid import grid_of, parse_axes
    from pptrace.search.sweep import TABLES, check_outputs, failures_document, rows_document, sweep
    from pptrace.search.sweep_charts import Picture, check_axes, check_choice

    paths = [Path(output) for output in outputs]
    picture = Picture(plot=plot, x=x, y=tuple(name.strip() for name in y.split(",") if name.strip()))
    check_choice(picture)
    check_outputs(paths)
    grid = grid_of(file, source.sets, source.flags, parse_axes(over), gpus)
    if any(path.suffix.lower() not in TABLES for path in paths):
        check_axes(picture, grid.keys, grid.cells())
    with report_journal(paths), _progress() as progress:
        swept = sweep(
            grid, Registry.load(), executor=executor, workers=workers or 0, outputs=paths, fresh=fresh,
            progress=progress,
        )  # fmt: skip
    if swept.failed:
        click.echo(failures_document(swept), err=True)
    written = _save(swept, paths, picture)
    if as_json:
        click.echo(json.dumps([*swept.rows], indent=2, ensure_ascii=False))
    elif not any(path.suffix.lower() in TABLES for path in paths):
        echo_documents(rows_document(swept), as_json=False)
    report_written(written)
    for path in paths:
        if path not in written:
            click.echo(f"nothing to draw in {path}", err=True)
    return 1 if swept.failed else 0


def _save(swept: Sweep, paths: Sequence[Path], picture: Picture) -> list[Path]:
    """Write the outputs, but pictures only if a row has figures; return the written files."""
    from pptrace.search.sweep import TABLES, end_journals

    all_failed = len(swept.failed) == len(swept.rows)
    drawable = [path for path in paths if path.suffix.lower() in TABLES or not all_failed]
    swept.write(drawable, picture)
    end_journals(paths)
    return drawable


@contextmanager
def report_journal(paths: Sequence[Path]) -> Iterator[None]:
    """Print the number of finished rows in the journal after Ctrl-C; ``main()`` ends the line."""
    from pptrace.search.runner import Journal, journal_path

    try:
        yield
    except KeyboardInterrupt:
        if not paths:
            text = "finished rows are stored only with an output: add -o FILE, and the same command continues"
        elif not (path := journal_path(paths[0])).exists():
            text = "no row was finished"
        else:
            with Journal(path) as journal:
                text = f"{len(journal.rows):,} finished rows are stored in {path}: the same command continues"
        sys.stderr.write(f"\n{text}")
        raise


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, and yield its update function; yield None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Workers are forked from this process, so no second thread may draw the bar.
    with Progress(*columns, console=Console(file=raw(sys.stderr)), auto_refresh=False, transient=True) as progress:
        task, drawn_s = progress.add_task(""), 0.0

        def show(done: int, total: int) -> None:
            nonlocal drawn_s
            is_due = time.monotonic() - drawn_s > _REDRAW_S or done == total
            progress.update(task, completed=done, total=total, refresh=is_due)
            drawn_s = time.monotonic() if is_due else drawn_s

        yield show
