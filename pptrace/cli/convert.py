"""``pptrace convert``: tables into tables, our own traces into traces, and a trace into its table."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pptrace.cli import complete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.timeline.timeline import Timeline

__all__ = ["command"]

_EXAMPLES = """\b
pptrace convert step.pftrace step.json.gz
pptrace convert rank0.json rank1.json step.pftrace
pptrace convert table.csv with-messages.csv --messages asap
pptrace convert step.pftrace order.csv"""

_HEAD = 4096
_TABLES = (".csv", ".txt")


@click.command("convert", epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("target", shell_complete=complete.files())
@click.option(
    "--messages", type=click.Choice(["asap", "deferred", "none"]),
    help="Tables: put messages in place, receives as soon as sent or right before their use; or take them out.",
)  # fmt: skip
@click.option("--only", metavar="PART", multiple=True, help="Traces: keep ranks=0,7 or microbatches=0:32.")
@click.option("--color", type=click.Choice(["kind", "microbatch"]), default="kind", help="Traces: colour by.")
def command(
    sources: tuple[Path, ...], target: str, messages: str | None, only: tuple[str, ...], color: str
) -> None:
    """Convert SOURCES to TARGET, each in the format that its name or content says.

    Tables are .csv and .txt; traces are what pptrace wrote: .pftrace and .json, with .gz too.
    """
    from_table = sources[0].name.lower().endswith(_TABLES)
    to_table = target.lower().endswith(_TABLES)
    if from_table and len(sources) > 1:
        raise click.UsageError(f"one table at a time, not {sources[0]} and {sources[1]}")
    if from_table and not to_table and not target.lower().removesuffix(".gz").endswith((".pftrace", ".json")):
        raise click.UsageError(f"{target}: a table becomes a table, .csv or .txt")
    if from_table and not to_table:
        raise click.UsageError(f"a table has no times: pptrace simulate --schedule {sources[0]} -o {target}")
    if messages and not to_table:
        raise click.UsageError("--messages is for tables: name a .csv or .txt as the target")
    if to_table and only:
        raise click.UsageError("--only is for traces: name a .pftrace or .json as the target")
    if to_table:
        paths = [_convert_table(sources, target, messages, from_table=from_table)]
    else:
        paths = _convert_trace(sources, target, only, color)
    for path in paths:
        sys.stderr.write(f"wrote {path}\n")


def _convert_table(sources: Sequence[Path], target: str, messages: str | None, *, from_table: bool) -> Path:
    from pptrace.errors import ScheduleError
    from pptrace.export.table_file import write_table
    from pptrace.schedule.issue_order import Receive
    from pptrace.schedule.text import load_table
    from pptrace.schedule.validate import validate
    from pptrace.schedule.write import Dialect, in_dialect
    from pptrace.timeline.order import computed_order

    if from_table:
        table = load_table(sources[0])
        schedule = table.schedule
        try:
            validate(schedule)
        except ScheduleError as error:
            raise table.locate(error) from error
    else:
        schedule = computed_order(_read(sources))
    if messages is not None:
        dialect = Dialect.COMPUTE if messages == "none" else Dialect.COMMS
        schedule = in_dialect(schedule, dialect, Receive.ASAP if messages == "none" else Receive(messages))
    write_table(schedule, target)
    return Path(target)


def _convert_trace(sources: Sequence[Path], target: str, only: Sequence[str], color: str) -> list[Path]:
    from pptrace.export.output import exporter_for, save
    from pptrace.hooks.registry import Registry
    from pptrace.timeline.trim import parse_only, trim

    exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
    exporter_for(target, exporters)
    timeline = _read(sources)
    if only:
        kept = parse_only([part for text in only for part in text.split()])
        timeline = trim(timeline, kept.ranks, kept.units)
    return save(timeline, [target], exporters, {"color": color})


def _read(sources: Sequence[Path]) -> Timeline:
    """Read traces that belong together, by the importer that recognises the first."""
    from pptrace.errors import TraceError
    from pptrace.hooks.registry import Registry

    head = _head(sources[0])
    importers = Registry.load().importers
    for provided in importers.values():
        if provided.offer.recognises(sources[0], head):
            return provided.offer.read(sources)
    known = ", ".join(f"{name} ({provided.offer.summary})" for name, provided in importers.items())
    raise TraceError(f"no importer recognises it; there are {known}", file=sources[0])


def _head(path: Path) -> bytes:
    from pptrace.errors import TraceError

    try:
        with path.open("rb") as file:
            start = file.read(2)
        if start != b"\x1f\x8b":
            with path.open("rb") as file:
                return file.read(_HEAD)
        with gzip.open(path) as packed:
            return packed.read(_HEAD)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "is no whole gzip file"
        raise TraceError(str(reason), file=path) from error
