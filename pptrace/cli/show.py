"""``pptrace show``: draw a schedule's idealised table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli.options import complete_offers, experiment_flags, outputs_option
from pptrace.cli.output import raw, report_written
from pptrace.config.flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.cli.options import Source
    from pptrace.report.table_drawing import Drawing
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.schedule import Schedule

_EXAMPLES = """\b
pptrace show 1f1b --pp 4 --microbatches 8
pptrace show interleaved-1f1b --pp 4 --vp 2 --microbatches 8 -o table.svg
pptrace show zb-h1 --pp 4 --microbatches 8 -o table.csv -o table.svg
pptrace show table.csv
pptrace show ./mine.py:make --pp 4 --microbatches 8 --messages"""

_SCHEDULES = complete_offers(FLAGS["schedule"].offers, or_file=True)
_SLOTS = click.IntRange(1, 1000)
_TABLES = (".csv", ".txt")
_NARROWEST = 20
_MOST_RANKS = 64
_MOST_LINES = 120
"""Maximum lines of a table, wrapped at the terminal's width; its first part is always complete."""


@click.command("show", epilog=_EXAMPLES)
@click.argument("schedule", shell_complete=_SCHEDULES)
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the schedule.")
@experiment_flags("pp", "microbatches", "vp", config=False)
@click.option("--forward", type=_SLOTS, default=1, show_default=True, help="Slots of a forward.")
@click.option("--backward", type=_SLOTS, default=2, show_default=True, help="Slots of a full backward.")
@click.option(
    "--messages",
    is_flag=True,
    help="Draw each send (>) and receive (<) in a slot, as PyTorch's simulator does; the printed "
    "bubble excludes messages.",
)
@click.option(
    "--slots",
    metavar="FIRST:LAST",
    help="Show the slots from FIRST to LAST - 1, counted from 0.",
)
@click.option("--width", type=click.IntRange(_NARROWEST), help="Columns to use; the terminal's by default.")
@outputs_option("Write a picture (.svg, .png or .pdf) or the table (.csv or .txt); may be repeated.")
def command(
    schedule: str,
    source: Source,
    options: tuple[str, ...],
    forward: int,
    backward: int,
    slots: str | None,
    width: int | None,
    outputs: tuple[str, ...],
    *,
    messages: bool,
) -> None:
    """Draw the table of SCHEDULE: a plugin's name, FILE.py:FUNCTION, or a table (.csv, .txt).

    An invalid table is drawn with the offending cell marked; the exit code is 2 then.
    """
    from pptrace.config.resolution import load
    from pptrace.plugins.registry import Registry
    from pptrace.report.table_drawing import cropped, draw
    from pptrace.run.inputs import located
    from pptrace.run.preparation import prepare
    from pptrace.steps.kinds import Kind
    from pptrace.steps.text_forms import Dialect, in_dialect

    paths = [Path(output) for output in outputs]
    _check(options, slots, paths)
    sets = [*(f"schedule.options.{option}" for option in options), *source.sets]
    registry = Registry.load()
    if not schedule.lower().endswith(_TABLES):
        _ = registry.schedules[schedule]  # report an unknown name before missing sizes
    prepared = prepare(load(None, sets, {**source.flags, "schedule": schedule}), registry)
    split = max(backward // 2, 1)
    kinds = {Kind.F: forward, Kind.B: backward, Kind.I: split, Kind.W: max(backward - split, 1)}
    drawing = draw(prepared.schedule, kinds, messages=messages)
    title = _title(prepared, drawing)
    first, last = _range(slots, drawing.length)
    if not paths:
        _print(drawing, title, first, last, width)
    else:
        with_messages = messages and drawing.error is None
        table = in_dialect(prepared.schedule, Dialect.COMMS if with_messages else Dialect.COMPUTE)
        if (first, last) == (0, drawing.length):
            _write(drawing, title, table, paths)
        else:
            _write(cropped(drawing, first, last), f"{title}, slots {first} to {last - 1}", table, paths)
    if drawing.error is not None:
        raise located(drawing.error, prepared, registry)


def _check(options: Sequence[str], slots: str | None, outputs: Sequence[Path]) -> None:
    for output in outputs:
        suffix = output.suffix.lower()
        if suffix not in {".svg", ".png", ".pdf", *_TABLES}:
            raise click.UsageError(f"{output}: a picture ends in .svg, .png or .pdf, a table in .csv or .txt")
        if suffix in _TABLES and slots is not None:
            raise click.UsageError(f"{output}: a table has all slots: leave out --slots")
    for option in options:
        if not option.partition("=")[1]:
            raise click.UsageError(f"--option {option}: write KEY=VALUE")


def _title(prepared: StepInputs, drawing: Drawing) -> str:
    schedule = prepared.schedule
    name = prepared.resolved.experiment.schedule.name
    title = f"{name}: {schedule.ranks} ranks, {prepared.batch_text}"
    if drawing.bubble is None:
        return f"{title}, invalid (drawn up to the error)"
    title = f"{title}, {drawing.step_slots} slots, bubble {float(drawing.bubble):.2%}"
    if drawing.length == drawing.step_slots:
        return title
    content = "with messages" if schedule.updates == 1 else f"{schedule.updates} updates in"
    return f"{title}; {content} {drawing.length} slots"


def _write(drawing: Drawing, title: str, table: Schedule, outputs: Sequence[Path]) -> None:
    from pptrace.files import replace_file
    from pptrace.report.svg import write_drawing
    from pptrace.report.table_drawing import svg_text
    from pptrace.steps.text_forms import write_table

    suffixes = [output.suffix.lower() for output in outputs]
    svg = svg_text(drawing, title) if set(suffixes) - {*_TABLES} else ""
    for output, suffix in zip(outputs, suffixes, strict=True):
        if suffix in _TABLES:
            write_table(table, output)
        else:
            with replace_file(output) as temporary:
                write_drawing(temporary, suffix, svg)
        report_written([output])


def _print(drawing: Drawing, title: str, first: int, last: int, width: int | None) -> None:
    from rich.console import Console

    from pptrace.report.table_drawing import copy_lines, note, plain_lines, rich_lines, windows

    out = raw(sys.stdout)
    console = Console(file=out, width=width or max(Console(file=out).width, _NARROWEST), highlight=False)
    parts = windows(drawing, console.width, first, last, _MOST_LINES)
    click.echo(title)
    colorful = console.is_terminal and console.color_system is not None and not console.no_color
    for window in parts:
        if len(parts) > 1:
            click.echo(f"slots {window.first} to {window.last - 1}")
        basic = console.color_system == "standard"
        rows = rich_lines(drawing, window, basic=basic) if colorful else plain_lines(drawing, window)
        for row, copies in list(zip(rows, copy_lines(drawing, window), strict=True))[:_MOST_RANKS]:
            console.print(row, no_wrap=True, crop=False) if colorful else click.echo(row)
            for line in copies:
                click.echo(line)
    if drawing.ranks > _MOST_RANKS:
        click.echo(f"... {drawing.ranks - _MOST_RANKS} more ranks: write -o FILE.svg")
    if pairs := note(drawing, "joined by &"):
        click.echo(f"({pairs})")
    if any(cell.copies for cell in drawing.cells):
        click.echo("(out: activations copied to the host, in: copied back, each where it starts)")
    rank, action = drawing.lacking
    if rank >= 0:
        click.echo(f"(rank {rank}! lacks {action})")
    if parts[-1].hidden:
        shown = f"slots {parts[0].first} to {parts[-1].last - 1} of {drawing.length}"
        click.echo(f"({shown}; see others with --slots FIRST:LAST, or all with -o FILE.svg)")


def _range(slots: str | None, length: int) -> tuple[int, int]:
    if slots is None:
        return 0, length
    first, colon, last = slots.partition(":")
    try:
        bounds = int(first or 0), min(int(last or length), length) if colon else int(first) + 1
    except ValueError:
        raise click.UsageError(f"--slots {slots}: write FIRST:LAST, such as 0:40") from None
    if not 0 <= bounds[0] < bounds[1] or bounds[0] >= max(length, 1):
        raise click.UsageError(f"--slots {slots}: slots are 0 to {length - 1}, the first before the last")
    return bounds
